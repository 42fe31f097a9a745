/*
 * Sends and receives.
 */
#include "rings.h"
#include <string.h>

static void post_receives(struct endpoint *e, int n)
{
    struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = ROOM, .lkey = mr->lkey };
    struct ibv_recv_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad;
    while (n--)
        CHECK(!(e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad)));
}

static const struct operation operations[] = {
    { "send", IBV_WR_SEND, 1, 1, 0, &a, &b },
    { "send_list", IBV_WR_SEND, LIST, 1, 0, &a, &b },
    { "send_4_sges", IBV_WR_SEND, 1, SGES, 0, &a, &b },
    { "send_inline_8", IBV_WR_SEND, 1, 0, 8, &a, &b },
    { "send_inline_64", IBV_WR_SEND, 1, 0, 64, &a, &b },
    { "send_30_sges", IBV_WR_SEND, 1, MANY_SGES, 0, &a, &b },
    { "write", IBV_WR_RDMA_WRITE, 1, 1, 0, &a, &b },
    { "write_inline_8", IBV_WR_RDMA_WRITE, 1, 0, 8, &a, &b },
    { "write_inline_8_list", IBV_WR_RDMA_WRITE, LIST, 0, 8, &a, &b },
    { "read", IBV_WR_RDMA_READ, 1, 1, 0, &a, &b },
    { "compare_swap", IBV_WR_ATOMIC_CMP_AND_SWP, 1, 1, 0, &a, &b },
    { "fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 1, 0, &a, &b },
    { "uc_send", IBV_WR_SEND, 1, 1, 0, &uc, &uc },
    { "ud_send", IBV_WR_SEND, 1, 1, 0, &ud, &ud },
    { "ud_send_inline_8", IBV_WR_SEND, 1, 0, 8, &ud, &ud },
    { "atomic_write", IBV_WR_ATOMIC_WRITE, 1, 1, 0, &a, &b },
};

void fill(const struct operation *op, struct ibv_send_wr *wrs, struct ibv_sge *sges)
{
    int atomic = op->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || op->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    int length = atomic || op->opcode == IBV_WR_ATOMIC_WRITE ? 8 : op->inline_bytes ? op->inline_bytes : op->sges == SGES ? 16 : op->sges == MANY_SGES ? 2 : LENGTH;
    for (int i = 0; i < MANY_SGES; i++)
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
        if (op->from == &ud) {
            wrs[i].wr.ud.ah = ah;
            wrs[i].wr.ud.remote_qpn = ud.qp->qp_num;
            wrs[i].wr.ud.remote_qkey = QKEY;
        } else if (atomic) {
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

void post_classic(const struct operation *op, struct ibv_send_wr *wrs)
{
    struct ibv_send_wr *bad;
    const char *name = op->name;
    struct ibv_qp *qp = op->from->qp;
    BEGIN(name);
    int error = ibv_post_send(qp, wrs, &bad);
    if (error)
        refused("ibv_post_send", error);
    END();
}

/* The requests that fill() describes. */
static void post_extended(const struct operation *op, struct ibv_sge *sges)
{
    struct ibv_qp_ex *q = op->from->qpx;
    const char *name = op->name;
    uint64_t remote = (uintptr_t)buffer + REMOTE, addr = sges->addr;
    uint32_t rkey = mr->rkey, lkey = mr->lkey, length = sges->length;
    size_t inline_bytes = op->inline_bytes, n = op->sges;
    /* The provider of version 44 does not set the inline flag itself, and the kernel then looks for entries. */
    unsigned int flags = IBV_SEND_SIGNALED | (op->inline_bytes ? IBV_SEND_INLINE : 0);
    uint32_t peer = op->to->qp->qp_num;
    struct ibv_ah *to = ah;
    void *data = buffer;

    if (op->from == &ud && op->inline_bytes)
        WR_BATCH(1, (ibv_wr_send(q), ibv_wr_set_ud_addr(q, to, peer, QKEY), ibv_wr_set_inline_data(q, data, inline_bytes)));
    else if (op->from == &ud)
        WR_BATCH(1, (ibv_wr_send(q), ibv_wr_set_ud_addr(q, to, peer, QKEY), ibv_wr_set_sge(q, lkey, addr, length)));
    else if (op->opcode == IBV_WR_ATOMIC_WRITE)
        WR_BATCH(1, ibv_wr_atomic_write(q, rkey, remote, data));
    else if (op->inline_bytes && op->count > 1)
        WR_BATCH(LIST, (ibv_wr_rdma_write(q, rkey, remote), ibv_wr_set_inline_data(q, data, inline_bytes)));
    else if (op->inline_bytes && op->opcode == IBV_WR_RDMA_WRITE)
        WR_BATCH(1, (ibv_wr_rdma_write(q, rkey, remote), ibv_wr_set_inline_data(q, data, inline_bytes)));
    else if (op->inline_bytes)
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

void measure_sends(int extended)
{
    struct ibv_send_wr wrs[LIST];
    struct ibv_sge sges[MANY_SGES];
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        const struct operation *op = &operations[i];
        /* The older function of version 44 writes no remote address for it. */
        if (op->opcode == IBV_WR_ATOMIC_WRITE && !(has_atomic_write && extended))
            continue;
        if (op->sges > most_sges)
            continue;
        now = op->name;
        fill(op, wrs, sges);
        for (int round = 0; round < ROUNDS; round++) {
            int receives = op->opcode == IBV_WR_SEND ? op->count : 0;
            post_receives(op->to, receives);
            if (extended)
                post_extended(op, sges);
            else
                post_classic(op, wrs);
            drain(op->from->send_cq, op->count);
            drain(op->to->recv_cq, receives);
        }
    }
}

/* Receives of each kind, used up by sends. */
void measure_receives(void)
{
    struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = ROOM, .lkey = mr->lkey }, sges[MANY_SGES];
    struct ibv_recv_wr wrs[LIST], *bad;
    struct ibv_send_wr sends[LIST], *bad_send;
    struct { const char *name; int count; struct endpoint *from, *to; } kinds[] = {
        { "recv", 1, &a, &b },
        { "recv_list", LIST, &a, &b },
        { "ud_recv", 1, &ud, &ud },
        { "srq_recv", 1, &shared, &shared },
        { "srq_recv_list", LIST, &shared, &shared },
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct ibv_qp *qp = kinds[k].to->qp;
        struct ibv_srq *srq = kinds[k].to->srq;
        int n = kinds[k].count;
        now = kinds[k].name;
        struct operation send = { "", IBV_WR_SEND, n, 1, 0, kinds[k].from, kinds[k].to };
        for (int round = 0; round < ROUNDS; round++) {
            for (int i = 0; i < n; i++)
                wrs[i] = (struct ibv_recv_wr){ .wr_id = i, .sg_list = &sge, .num_sge = 1, .next = i + 1 < n ? &wrs[i + 1] : NULL };
            const char *name = kinds[k].name;
            if (srq) {
                BEGIN(name);
                int error = ibv_post_srq_recv(srq, wrs, &bad);
                if (error)
                    refused("ibv_post_srq_recv", error);
                END();
            } else {
                BEGIN(name);
                int error = ibv_post_recv(qp, wrs, &bad);
                if (error)
                    refused("ibv_post_recv", error);
                END();
            }
            fill(&send, sends, sges);
            CHECK(!ibv_post_send(kinds[k].from->qp, sends, &bad_send));
            drain(kinds[k].from->send_cq, n);
            drain(kinds[k].to->recv_cq, n);
        }
    }
}
