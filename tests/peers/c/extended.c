/*
 * Work requests by ibv_wr_start and what belongs to it.
 */
#include "requests.h"
#include <arpa/inet.h>
#include <errno.h>

static void payload(struct queue *queue, const struct request *request)
{
    struct ibv_qp_ex *q = queue->qpx;
    struct ibv_sge sges[MAX_PIECES];
    struct ibv_data_buf pieces[MAX_PIECES];
    for (int i = 0; i < request->pieces; i++) {
        uint64_t offset = request->piece[i].offset;
        uint32_t length = request->piece[i].length;
        sges[i] = (struct ibv_sge){ IOVA + offset, length, mr->lkey };
        pieces[i] = (struct ibv_data_buf){ buffer + offset, length };
    }
    /* Each form where it fits. */
    if (request->is_inline && request->pieces == 1)
        ibv_wr_set_inline_data(q, pieces[0].addr, pieces[0].length);
    else if (request->is_inline)
        ibv_wr_set_inline_data_list(q, request->pieces, pieces);
    else if (request->pieces == 1)
        ibv_wr_set_sge(q, sges[0].lkey, sges[0].addr, sges[0].length);
    else
        ibv_wr_set_sge_list(q, request->pieces, sges);
}

static void post(struct queue *queue, struct request *request)
{
    struct ibv_qp_ex *q = queue->qpx;
    uint64_t remote = IOVA + request->remote;
    q->wr_flags = request->flags;
    switch (request->op) {
    case SEND:
        ibv_wr_send(q);
        break;
    case SEND_IMM:
        ibv_wr_send_imm(q, htonl(request->imm));
        break;
    case SEND_INV:
        ibv_wr_send_inv(q, request->window->mw->rkey);
        break;
    case WRITE:
        ibv_wr_rdma_write(q, mr->rkey, remote);
        break;
    case WRITE_IMM:
        ibv_wr_rdma_write_imm(q, mr->rkey, remote, htonl(request->imm));
        break;
    case READ:
        ibv_wr_rdma_read(q, mr->rkey, remote);
        break;
    case CAS:
        ibv_wr_atomic_cmp_swp(q, mr->rkey, remote, request->a, request->b);
        break;
    case FAA:
        ibv_wr_atomic_fetch_add(q, mr->rkey, remote, request->a);
        break;
    case BIND: {
        struct ibv_mw_bind_info info = bind_info(request);
        uint32_t rkey = ibv_inc_rkey(request->window->mw->rkey);
        ibv_wr_bind_mw(q, request->window->mw, rkey, &info);
        request->window->mw->rkey = rkey;
        return;
    }
    case INVALIDATE:
        ibv_wr_local_inv(q, request->window->mw->rkey);
        return;
    default:
        fail("no such request by these functions", __FILE__, __LINE__);
    }
    if (request->to)
        ibv_wr_set_ud_addr(q, request->to->ah, queue->qp->qp_num, QKEY);
    if (queue->srq)
        ibv_wr_set_xrc_srqn(q, queue->srqn);
    payload(queue, request);
}

void post_extended(struct queue *queue)
{
    ibv_wr_start(queue->qpx);
    for (int i = 0; i < queue->batch_length; i++)
        post(queue, &queue->batch[i]);
    errno = ibv_wr_complete(queue->qpx);
    CHECK(!errno);
}
