/*
 * Work requests by ibv_post_send.
 */
#include "requests.h"
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

struct ibv_mw_bind_info bind_info(const struct request *request)
{
    struct ibv_mw_bind_info info = { 0 };
    if (request->op == BIND) {
        info.mr = mr;
        info.addr = IOVA + request->offset;
        info.length = request->length;
        info.mw_access_flags = request->access;
    }
    return info;
}

void bind_type_1(struct queue *queue, struct request *request)
{
    struct ibv_mw_bind bind = { .send_flags = request->flags, .bind_info = bind_info(request) };
    CHECK(queue->batch_length == 1);
    errno = ibv_bind_mw(queue->qp, request->window->mw, &bind);
    CHECK(!errno);
}

static void fill(struct queue *queue, struct request *request, struct ibv_send_wr *wr, struct ibv_sge *sges)
{
    static const enum ibv_wr_opcode opcodes[] = {
        [SEND] = IBV_WR_SEND,
        [SEND_IMM] = IBV_WR_SEND_WITH_IMM,
        [SEND_INV] = IBV_WR_SEND_WITH_INV,
        [WRITE] = IBV_WR_RDMA_WRITE,
        [WRITE_IMM] = IBV_WR_RDMA_WRITE_WITH_IMM,
        [READ] = IBV_WR_RDMA_READ,
        [CAS] = IBV_WR_ATOMIC_CMP_AND_SWP,
        [FAA] = IBV_WR_ATOMIC_FETCH_AND_ADD,
        [BIND] = IBV_WR_BIND_MW,
        [INVALIDATE] = IBV_WR_LOCAL_INV,
    };
    memset(wr, 0, sizeof *wr);
    wr->opcode = opcodes[request->op];
    wr->send_flags = request->flags | (request->is_inline ? IBV_SEND_INLINE : 0);
    wr->sg_list = sges;
    wr->num_sge = request->pieces;
    for (int i = 0; i < request->pieces; i++) {
        uint64_t offset = request->piece[i].offset;
        sges[i].addr = request->is_inline ? (uintptr_t)buffer + offset : IOVA + offset;
        sges[i].length = request->piece[i].length;
        sges[i].lkey = mr->lkey;
    }
    switch (request->op) {
    case SEND_IMM:
        wr->imm_data = htonl(request->imm);
        break;
    case SEND_INV:
    case INVALIDATE:
        wr->invalidate_rkey = request->window->mw->rkey;
        break;
    case WRITE_IMM:
        wr->imm_data = htonl(request->imm);
        /* fall through */
    case WRITE:
    case READ:
        wr->wr.rdma.remote_addr = IOVA + request->remote;
        wr->wr.rdma.rkey = mr->rkey;
        break;
    case CAS:
    case FAA:
        wr->wr.atomic.remote_addr = IOVA + request->remote;
        wr->wr.atomic.rkey = mr->rkey;
        wr->wr.atomic.compare_add = request->a;
        wr->wr.atomic.swap = request->b;
        break;
    case BIND:
        wr->bind_mw.mw = request->window->mw;
        wr->bind_mw.rkey = ibv_inc_rkey(request->window->mw->rkey);
        wr->bind_mw.bind_info = bind_info(request);
        break;
    default:
        break;
    }
    if (request->to) {
        wr->wr.ud.ah = request->to->ah;
        wr->wr.ud.remote_qpn = queue->qp->qp_num;
        wr->wr.ud.remote_qkey = QKEY;
    }
    if (queue->srq)
        wr->qp_type.xrc.remote_srqn = queue->srqn;
}

void post_classic(struct queue *queue)
{
    static struct ibv_send_wr wrs[MAX_BATCH], *bad;
    static struct ibv_sge sges[MAX_BATCH][MAX_PIECES];
    int n = queue->batch_length;
    CHECK(n);
    for (int i = 0; i < n; i++) {
        fill(queue, &queue->batch[i], &wrs[i], sges[i]);
        wrs[i].next = i + 1 < n ? &wrs[i + 1] : NULL;
    }
    errno = ibv_post_send(queue->qp, wrs, &bad);
    CHECK(!errno);
    /* The program keeps the key of a window of type 2. */
    for (int i = 0; i < n; i++)
        if (queue->batch[i].op == BIND)
            queue->batch[i].window->mw->rkey = wrs[i].bind_mw.rkey;
}
