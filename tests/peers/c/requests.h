/*
 * What the parts of the program share. The list of requests is read line by line; `list.rs` says what the lines are.
 */
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_NAME = 32, MAX_QUEUES = 16, MAX_THINGS = 16, MAX_BATCH = 64, MAX_PIECES = 32, CQ_DEPTH = 512 };
enum { PORT = 1, GID_INDEX = 0, QKEY = 0x11111111 };
/* What work requests call the region's first byte. */
#define IOVA 0x5eed00000000ull

#define CHECK(what) \
    do { if (!(what)) fail(#what, __FILE__, __LINE__); } while (0)

void __attribute__((noreturn, cold)) fail(const char *what, const char *file, int line);

enum op { SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM, READ, CAS, FAA, BIND, UNBIND, INVALIDATE };

struct address {
    char name[MAX_NAME];
    struct ibv_ah *ah;
};

struct window {
    char name[MAX_NAME];
    struct ibv_mw *mw;
};

/* A work request as the list has it. */
struct request {
    enum op op;
    unsigned flags;
    uint32_t imm;
    uint64_t remote, a, b;
    struct address *to;
    struct window *window;
    /* Of a bind: the range, and what peers may do there. */
    uint64_t offset, length;
    unsigned access;
    int is_inline, pieces;
    struct { uint64_t offset; uint32_t length; } piece[MAX_PIECES];
};

/* A queue pair that is connected with itself; of XRC, with a receiving end beside it. */
struct queue {
    char name[MAX_NAME];
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_qp *qp, *xrc_recv;
    struct ibv_qp_ex *qpx;
    struct ibv_srq *srq;
    uint32_t srqn;
    int batch_length;
    struct request batch[MAX_BATCH];
};

extern struct ibv_context *context;
extern struct ibv_pd *pd;
extern struct ibv_mr *mr;
extern char *buffer;
extern struct ibv_port_attr port;
extern union ibv_gid gid;

/* Tells the number that the kernel gave something. */
void tell(const char *name, const char *what, uint64_t number);

/* Makes a queue of that kind (RC, UC, UD or XRC), and tells its numbers. */
void make_queue(struct queue *queue, const char *kind, int signal_all, const struct ibv_qp_cap *cap, int extended);

/* Post the queue's batch, by ibv_post_send and by ibv_wr_start. */
void post_classic(struct queue *queue);
void post_extended(struct queue *queue);
/* Binds a window of type 1, which has a function of its own. */
void bind_type_1(struct queue *queue, struct request *request);
/* What a bind asks for. */
struct ibv_mw_bind_info bind_info(const struct request *request);
