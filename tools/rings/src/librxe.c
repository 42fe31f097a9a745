/*
 * Runs each operation through libibverbs and its rxe provider, between two marks that the counter sees.
 *
 *   librxe DEVICE post|wr
 *
 * `post` uses ibv_post_send and ibv_poll_cq, `wr` the newer ibv_wr_* and ibv_start_poll. Everything that a program can
 * prepare ahead (struct ibv_send_wr, struct ibv_sge) is prepared before the mark. Two queue pairs of one process are
 * connected to each other; nothing but the operation itself lies between the marks.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH = 64, LIST = 32, POLL = 16, SGES = 4, INLINE = 64, BUFFER = 4096, LENGTH = 64, REMOTE = 2048, ROUNDS = 5 };

/* See counter.rs: the first breakpoint names the operation and starts the count, the second ends it. */
#define BEGIN(name) __asm__ volatile("int3" : : "D"(name) : "memory")
#define END() __asm__ volatile("int3" : : : "memory")

#define CHECK(what) \
    do { if (!(what)) fail(#what, __LINE__); } while (0)

static void __attribute__((noreturn, cold)) fail(const char *what, int line)
{
    fprintf(stderr, "librxe.c:%d: %s: %s\n", line, what, strerror(errno));
    exit(1);
}

static void __attribute__((noreturn, cold, noinline)) refused(const char *what, int error)
{
    fprintf(stderr, "librxe.c: %s: %d\n", what, error);
    exit(1);
}

struct endpoint {
    struct ibv_qp *qp;
    struct ibv_qp_ex *qpx;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_cq_ex *send_cqx;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char *buffer;
static union ibv_gid gid;
static int gid_index;
static struct endpoint a, b;

static void create(struct endpoint *e, int extended)
{
    struct ibv_cq_init_attr_ex cq = { .cqe = 4 * DEPTH, .wc_flags = IBV_CREATE_CQ_SUP_WC_FLAGS & IBV_WC_STANDARD_FLAGS };
    CHECK(e->recv_cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0));
    if (extended) {
        CHECK(e->send_cqx = ibv_create_cq_ex(context, &cq));
        e->send_cq = ibv_cq_ex_to_cq(e->send_cqx);
    } else {
        CHECK(e->send_cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0));
    }
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = e->send_cq,
        .recv_cq = e->recv_cq,
        .cap = { .max_send_wr = DEPTH, .max_recv_wr = 2 * DEPTH, .max_send_sge = SGES, .max_recv_sge = 1, .max_inline_data = INLINE },
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | (extended ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ |
                          IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    };
    CHECK(e->qp = ibv_create_qp_ex(context, &attr));
    e->qpx = extended ? ibv_qp_to_qp_ex(e->qp) : NULL;
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
    };
    CHECK(!ibv_modify_qp(e->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static void connect_to(struct endpoint *e, struct endpoint *peer)
{
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qp->qp_num,
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } },
    };
    CHECK(!ibv_modify_qp(e->qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 6, .max_rd_atomic = 16 };
    CHECK(!ibv_modify_qp(e->qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                          IBV_QP_MAX_QP_RD_ATOMIC));
}

static void set_up(const char *name, int extended)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list);
    while (*list && strcmp(ibv_get_device_name(*list), name))
        list++;
    if (!*list) {
        fprintf(stderr, "libibverbs shows no device %s: is its rxe provider there (Debian package ibverbs-providers)?\n", name);
        exit(1);
    }
    CHECK(context = ibv_open_device(*list));
    CHECK(pd = ibv_alloc_pd(context));
    CHECK(!posix_memalign((void **)&buffer, 4096, BUFFER));
    memset(buffer, 0, BUFFER);
    CHECK(mr = ibv_reg_mr(pd, buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                                                  IBV_ACCESS_REMOTE_ATOMIC));
    struct ibv_gid_entry entry = { 0 };
    while (ibv_query_gid_ex(context, 1, gid_index, &entry, 0) || entry.gid_type != IBV_GID_TYPE_ROCE_V2 ||
           (entry.gid.raw[0] == 0xfe && entry.gid.raw[1] == 0x80))
        CHECK(++gid_index < 16);
    gid = entry.gid;
    create(&a, extended);
    create(&b, extended);
    connect_to(&a, &b);
    connect_to(&b, &a);
}

/* Lets the kernel work, off the processor. */
static void pause_ms(int ms)
{
    struct timespec time = { 0, ms * 1000000 };
    nanosleep(&time, NULL);
}

static void drain(struct ibv_cq *cq, int expected)
{
    struct ibv_wc wc;
    for (int tries = 0; expected; tries++) {
        CHECK(tries < 10000);
        int n = ibv_poll_cq(cq, 1, &wc);
        CHECK(n >= 0);
        if (n && wc.status != IBV_WC_SUCCESS)
            refused(ibv_wc_status_str(wc.status), wc.status);
        expected -= n;
        if (!n)
            pause_ms(1);
    }
}

static void post_receives(struct endpoint *e, int n)
{
    struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = LENGTH, .lkey = mr->lkey };
    struct ibv_recv_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad;
    while (n--)
        CHECK(!ibv_post_recv(e->qp, &wr, &bad));
}

struct operation {
    const char *name;
    enum ibv_wr_opcode opcode;
    int count, sges, inline_bytes;
};

static const struct operation operations[] = {
    { "send", IBV_WR_SEND, 1, 1, 0 },
    { "send_list", IBV_WR_SEND, LIST, 1, 0 },
    { "send_4_sges", IBV_WR_SEND, 1, SGES, 0 },
    { "send_inline_8", IBV_WR_SEND, 1, 0, 8 },
    { "send_inline_64", IBV_WR_SEND, 1, 0, 64 },
    { "write", IBV_WR_RDMA_WRITE, 1, 1, 0 },
    { "read", IBV_WR_RDMA_READ, 1, 1, 0 },
    { "compare_swap", IBV_WR_ATOMIC_CMP_AND_SWP, 1, 1, 0 },
    { "fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 1, 0 },
};

static void fill(const struct operation *op, struct ibv_send_wr *wrs, struct ibv_sge *sges)
{
    int atomic = op->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || op->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    int length = atomic ? 8 : op->inline_bytes ? op->inline_bytes : op->sges == SGES ? 16 : LENGTH;
    for (int i = 0; i < SGES; i++)
        sges[i] = (struct ibv_sge){ .addr = (uintptr_t)buffer + 16 * i, .length = length, .lkey = mr->lkey };
    for (int i = 0; i < op->count; i++) {
        wrs[i] = (struct ibv_send_wr){
            .wr_id = i,
            .next = i + 1 < op->count ? &wrs[i + 1] : NULL,
            .sg_list = sges,
            .num_sge = op->inline_bytes ? 1 : op->sges,
            .opcode = op->opcode,
            .send_flags = IBV_SEND_SIGNALED | (op->inline_bytes ? IBV_SEND_INLINE : 0),
        };
        uint64_t remote = (uintptr_t)buffer + REMOTE;
        if (atomic) {
            wrs[i].wr.atomic.remote_addr = remote;
            wrs[i].wr.atomic.rkey = mr->rkey;
            wrs[i].wr.atomic.compare_add = 1;
            wrs[i].wr.atomic.swap = 2;
        } else {
            wrs[i].wr.rdma.remote_addr = remote;
            wrs[i].wr.rdma.rkey = mr->rkey;
        }
    }
}

static void post_classic(const struct operation *op, struct ibv_send_wr *wrs)
{
    struct ibv_send_wr *bad;
    const char *name = op->name;
    struct ibv_qp *qp = a.qp;
    BEGIN(name);
    int error = ibv_post_send(qp, wrs, &bad);
    if (error)
        refused("ibv_post_send", error);
    END();
}

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

/* The requests that fill() describes. */
static void post_extended(const struct operation *op, struct ibv_sge *sges)
{
    struct ibv_qp_ex *q = a.qpx;
    const char *name = op->name;
    uint64_t remote = (uintptr_t)buffer + REMOTE, addr = sges->addr;
    uint32_t rkey = mr->rkey, lkey = mr->lkey, length = sges->length;
    size_t inline_bytes = op->inline_bytes, n = op->sges;
    /* The provider of version 44 does not set the inline flag itself, and the kernel then looks for entries. */
    unsigned int flags = IBV_SEND_SIGNALED | (op->inline_bytes ? IBV_SEND_INLINE : 0);
    void *data = buffer;

    if (op->inline_bytes)
        WR_BATCH(1, (ibv_wr_send(q), ibv_wr_set_inline_data(q, data, inline_bytes)));
    else if (op->sges > 1)
        WR_BATCH(1, (ibv_wr_send(q), ibv_wr_set_sge_list(q, n, sges)));
    else if (op->count > 1)
        WR_BATCH(LIST, (ibv_wr_send(q), ibv_wr_set_sge(q, lkey, addr, length)));
    else if (op->opcode == IBV_WR_SEND)
        WR_BATCH(1, (ibv_wr_send(q), ibv_wr_set_sge(q, lkey, addr, length)));
    else if (op->opcode == IBV_WR_RDMA_WRITE)
        WR_BATCH(1, (ibv_wr_rdma_write(q, rkey, remote), ibv_wr_set_sge(q, lkey, addr, length)));
    else if (op->opcode == IBV_WR_RDMA_READ)
        WR_BATCH(1, (ibv_wr_rdma_read(q, rkey, remote), ibv_wr_set_sge(q, lkey, addr, length)));
    else if (op->opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
        WR_BATCH(1, (ibv_wr_atomic_cmp_swp(q, rkey, remote, 1, 2), ibv_wr_set_sge(q, lkey, addr, length)));
    else
        WR_BATCH(1, (ibv_wr_atomic_fetch_add(q, rkey, remote, 1), ibv_wr_set_sge(q, lkey, addr, length)));
}

static void measure_sends(int extended)
{
    struct ibv_send_wr wrs[LIST];
    struct ibv_sge sges[SGES];
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        const struct operation *op = &operations[i];
        fill(op, wrs, sges);
        for (int round = 0; round < ROUNDS; round++) {
            int receives = op->opcode == IBV_WR_SEND ? op->count : 0;
            post_receives(&b, receives);
            if (extended)
                post_extended(op, sges);
            else
                post_classic(op, wrs);
            drain(a.send_cq, op->count);
            drain(b.recv_cq, receives);
        }
    }
}

/* Receives go to b, and are used up by sends. */
static void measure_receives(void)
{
    struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = LENGTH, .lkey = mr->lkey };
    struct ibv_recv_wr wrs[LIST], *bad;
    struct ibv_qp *qp = b.qp;
    struct { const char *name; int count; } kinds[] = { { "recv", 1 }, { "recv_list", LIST } };
    for (int k = 0; k < 2; k++) {
        for (int round = 0; round < ROUNDS; round++) {
            int n = kinds[k].count;
            for (int i = 0; i < n; i++)
                wrs[i] = (struct ibv_recv_wr){ .wr_id = i, .sg_list = &sge, .num_sge = 1, .next = i + 1 < n ? &wrs[i + 1] : NULL };
            const char *name = kinds[k].name;
            BEGIN(name);
            int error = ibv_post_recv(qp, wrs, &bad);
            if (error)
                refused("ibv_post_recv", error);
            END();
            for (int i = 0; i < n; i++) {
                struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
                CHECK(!ibv_post_send(a.qp, &send, &bad_send));
            }
            drain(a.send_cq, n);
            drain(b.recv_cq, n);
        }
    }
}

/* Puts n completions of writes into a's send completion queue. */
static void prepare_completions(int n)
{
    struct ibv_send_wr wrs[LIST], *bad;
    struct ibv_sge sges[SGES];
    struct operation write = { "", IBV_WR_RDMA_WRITE, n, 1, 0 };
    fill(&write, wrs, sges);
    CHECK(!ibv_post_send(a.qp, wrs, &bad));
    pause_ms(100);
}

static void measure_polls_classic(const char *name, int n)
{
    struct ibv_wc wc[POLL];
    struct ibv_cq *cq = a.send_cq;
    if (n)
        prepare_completions(n);
    int room = n ? n : 1;
    BEGIN(name);
    int got = ibv_poll_cq(cq, room, wc);
    if (got != n)
        refused("ibv_poll_cq", got);
    END();
    for (int i = 0; i < n; i++)
        CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id == (uint64_t)i);
}

static void measure_polls_extended(const char *name, int n, int whole)
{
    struct ibv_wc wc[POLL] = { 0 };
    struct ibv_cq_ex *cq = a.send_cqx;
    struct ibv_poll_cq_attr attr = { 0 };
    if (n)
        prepare_completions(n);
    int got = 0, error;
    BEGIN(name);
    error = ibv_start_poll(cq, &attr);
    if (!error) {
        do {
            wc[got].wr_id = cq->wr_id;
            wc[got].status = cq->status;
            if (whole) {
                wc[got].opcode = ibv_wc_read_opcode(cq);
                wc[got].byte_len = ibv_wc_read_byte_len(cq);
                wc[got].qp_num = ibv_wc_read_qp_num(cq);
                wc[got].wc_flags = ibv_wc_read_wc_flags(cq);
                wc[got].imm_data = ibv_wc_read_imm_data(cq);
            }
            error = ++got < n ? ibv_next_poll(cq) : ENOENT;
        } while (!error);
        ibv_end_poll(cq);
    }
    if (got != n)
        refused("ibv_start_poll", got);
    END();
    for (int i = 0; i < n; i++)
        CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id == (uint64_t)i);
    /* All of it is used. */
    __asm__ volatile("" : : "r"(wc) : "memory");
}

static void measure_polls(int extended)
{
    for (int round = 0; round < ROUNDS; round++) {
        if (extended) {
            measure_polls_extended("poll", 1, 1);
            measure_polls_extended("poll_16", POLL, 1);
            measure_polls_extended("poll_status", 1, 0);
            measure_polls_extended("poll_status_16", POLL, 0);
            measure_polls_extended("poll_empty", 0, 1);
        } else {
            measure_polls_classic("poll", 1);
            measure_polls_classic("poll_16", POLL);
            measure_polls_classic("poll_empty", 0);
        }
    }
}

/* Ten instructions, one of them a system call: the counter must say so. */
static void calibrate(void)
{
    const char *name = "calibration";
    long number = 39 /* getpid */;
    __asm__ volatile("int3\n nop\n nop\n nop\n nop\n syscall\n nop\n nop\n nop\n nop\n nop\n int3"
                     : "+a"(number) : "D"(name) : "rcx", "r11", "memory");
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: librxe DEVICE post|wr\n");
        return 2;
    }
    int extended = !strcmp(argv[2], "wr");
    set_up(argv[1], extended);
    calibrate();
    measure_sends(extended);
    if (!extended)
        measure_receives();
    measure_polls(extended);
    return 0;
}
