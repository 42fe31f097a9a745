/*
 * What the parts of the program share: the marks, and the queue pairs.
 */
#include <infiniband/verbs.h>
#include <stdint.h>

enum { DEPTH = 64, LIST = 32, POLL = 16, SGES = 4, MANY_SGES = 30, INLINE = 64, BUFFER = 4096, LENGTH = 64, REMOTE = 2048, ROUNDS = 5 };
/* Room for a message, and for the header that comes before a datagram. */
enum { GRH = 40, ROOM = GRH + LENGTH };
enum { QKEY = 0x11111111 };

/* See counter.rs: the first breakpoint names the operation and starts the count, the second ends it. */
#define BEGIN(name) __asm__ volatile("int3" : : "D"(name) : "memory")
#define END() __asm__ volatile("int3" : : : "memory")

#define CHECK(what) \
    do { if (!(what)) fail(#what, __FILE__, __LINE__); } while (0)

void __attribute__((noreturn, cold)) fail(const char *what, const char *file, int line);
void __attribute__((noreturn, cold)) refused(const char *what, int error);

struct endpoint {
    struct ibv_qp *qp;
    struct ibv_qp_ex *qpx;
    /* Shared with other queue pairs, or none. */
    struct ibv_srq *srq;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_cq_ex *send_cqx;
};

/* What is being measured, for messages. */
extern const char *now;
extern struct ibv_context *context;
extern struct ibv_pd *pd;
extern struct ibv_mr *mr;
extern char *buffer;
/* The address handle that leads back to the own port. */
extern struct ibv_ah *ah;
/* Whether the device has ATOMIC_WRITE. */
extern int has_atomic_write;
/* Entries that a request has at most. */
extern int most_sges;
/* Two that are connected to each other, of which only a sends; and some that send to themselves. */
extern struct endpoint a, b, uc, ud, shared;

void set_up(const char *name, int extended);
/* Lets the device work, off the processor. */
void pause_ms(int ms);
/* Waits for so many completions. */
void drain(struct ibv_cq *cq, int expected);

struct operation {
    const char *name;
    enum ibv_wr_opcode opcode;
    int count, sges, inline_bytes;
    struct endpoint *from, *to;
};

/* Prepares the work requests of an operation, and MANY_SGES entries. */
void fill(const struct operation *op, struct ibv_send_wr *wrs, struct ibv_sge *sges);
void post_classic(const struct operation *op, struct ibv_send_wr *wrs);

/* One batch of count requests by the newer functions, where `request` makes each. */
#define WR_BATCH(count, request)               \
    do {                                       \
        BEGIN(name);                           \
        ibv_wr_start(q);                       \
        for (int i = 0; i < (count); i++) {    \
            q->wr_id = i;                      \
            q->wr_flags = flags;               \
            request;                           \
        }                                      \
        int error = ibv_wr_complete(q);        \
        if (error)                             \
            refused("ibv_wr_complete", error); \
        END();                                 \
    } while (0)

/* Puts n completions of writes into a's send completion queue. */
void prepare_completions(int n);

void measure_sends(int extended);
void measure_receives(void);
void measure_windows(int extended);
void measure_polls(int extended);
void clock_all(int extended);
