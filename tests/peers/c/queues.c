/*
 * Queue pairs, each connected with itself.
 */
#include "requests.h"
#include <errno.h>
#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <string.h>

static const unsigned ACCESS =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

static uint64_t send_ops(enum ibv_qp_type type)
{
    uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    if (type != IBV_QPT_UD)
        ops |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND_WITH_INV |
               IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
    if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
        ops |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    return ops;
}

static void to_init(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = QKEY, .qp_access_flags = ACCESS };
    if (qp->qp_type == IBV_QPT_UC)
        attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    errno = ibv_modify_qp(qp, &attr, mask | (qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
    CHECK(!errno);
}

static void connect_to(struct ibv_qp *qp, uint32_t peer)
{
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = port.active_mtu,
        .dest_qp_num = peer,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 12,
        .ah_attr = { .dlid = port.lid, .port_num = PORT },
    };
    struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 6, .rnr_retry = 7, .max_rd_atomic = 4 };
    int to_rtr = IBV_QP_STATE, to_rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
    enum ibv_qp_type type = qp->qp_type;
    if (type != IBV_QPT_UD)
        to_rtr |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV)
        to_rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
        to_rts |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    if (type != IBV_QPT_UD && type != IBV_QPT_UC)
        to_rts |= IBV_QP_TIMEOUT;
    errno = ibv_modify_qp(qp, &rtr, to_rtr);
    CHECK(!errno);
    errno = ibv_modify_qp(qp, &rts, to_rts);
    CHECK(!errno);
}

/* The receiving end of an extended reliable connection, and its queue. */
static void make_xrc_recv(struct queue *queue, const struct ibv_qp_cap *cap)
{
    struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
    struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &domain);
    CHECK(xrcd);
    struct ibv_srq_init_attr_ex srq = {
        .attr = { .max_wr = cap->max_recv_wr, .max_sge = cap->max_recv_sge },
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
        .srq_type = IBV_SRQT_XRC,
        .pd = pd,
        .xrcd = xrcd,
        .cq = queue->recv_cq,
    };
    CHECK(queue->srq = ibv_create_srq_ex(context, &srq));
    CHECK(!ibv_get_srq_num(queue->srq, &queue->srqn));
    tell(queue->name, "srqn", queue->srqn);
    struct ibv_qp_init_attr_ex attr = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
    CHECK(queue->xrc_recv = ibv_create_qp_ex(context, &attr));
}

void make_queue(struct queue *queue, const char *kind, int signal_all, const struct ibv_qp_cap *cap, int extended)
{
    enum ibv_qp_type type = !strcmp(kind, "RC") ? IBV_QPT_RC
                            : !strcmp(kind, "UC") ? IBV_QPT_UC
                            : !strcmp(kind, "UD") ? IBV_QPT_UD
                                                  : IBV_QPT_XRC_SEND;
    CHECK(queue->send_cq = ibv_create_cq(context, CQ_DEPTH, NULL, NULL, 0));
    CHECK(queue->recv_cq = ibv_create_cq(context, CQ_DEPTH, NULL, NULL, 0));
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = queue->send_cq,
        .recv_cq = queue->recv_cq,
        .cap = *cap,
        .qp_type = type,
        .sq_sig_all = signal_all,
        .comp_mask = IBV_QP_INIT_ATTR_PD | (extended ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
        .pd = pd,
        .send_ops_flags = send_ops(type),
    };
    if (type == IBV_QPT_XRC_SEND) {
        make_xrc_recv(queue, cap);
        attr.recv_cq = NULL;
        attr.cap.max_recv_wr = attr.cap.max_recv_sge = 0;
    }
    CHECK(queue->qp = ibv_create_qp_ex(context, &attr));
    queue->qpx = extended ? ibv_qp_to_qp_ex(queue->qp) : NULL;
    struct ibv_qp *receiver = queue->xrc_recv ? queue->xrc_recv : queue->qp;
    to_init(queue->qp);
    if (queue->xrc_recv) {
        to_init(queue->xrc_recv);
        connect_to(queue->xrc_recv, queue->qp->qp_num);
    }
    connect_to(queue->qp, receiver->qp_num);
    tell(queue->name, "qpn", queue->qp->qp_num);
    struct mlx5dv_qp inside = { 0 };
    struct mlx5dv_obj object = { .qp = { .in = queue->qp, .out = &inside } };
    CHECK(!mlx5dv_init_obj(&object, MLX5DV_OBJ_QP));
    tell(queue->name, "blocks", inside.sq.wqe_cnt);
}
