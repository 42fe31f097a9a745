/*
 * The device, and the queue pairs.
 */
#include "rings.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void __attribute__((noreturn, cold)) fail(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, strerror(errno));
    exit(1);
}

void __attribute__((noreturn, cold, noinline)) refused(const char *what, int error)
{
    fprintf(stderr, "libibverbs: %s: %s: %d\n", now, what, error);
    exit(1);
}

const char *now = "set-up";
struct ibv_context *context;
struct ibv_pd *pd;
struct ibv_mr *mr;
char *buffer;
struct ibv_ah *ah;
int has_atomic_write, most_sges;
struct endpoint a, b, uc, ud, shared;

/* The way back to the own port. */
static struct ibv_ah_attr to_itself = { .port_num = 1 };

static uint64_t send_ops(enum ibv_qp_type type)
{
    uint64_t ops = IBV_QP_EX_WITH_SEND;
    if (type != IBV_QPT_RC)
        return ops;
    ops |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
           IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
    return has_atomic_write ? ops | IBV_QP_EX_WITH_ATOMIC_WRITE : ops;
}

static void create(struct endpoint *e, enum ibv_qp_type type, int extended)
{
    /* Without locks, where the provider can: as little work as the library can do. */
    struct ibv_cq_init_attr_ex cq = {
        .cqe = 4 * DEPTH,
        .wc_flags = IBV_CREATE_CQ_SUP_WC_FLAGS & IBV_WC_STANDARD_FLAGS,
        .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
        .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    };
    CHECK(e->recv_cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0));
    if (extended) {
        e->send_cqx = ibv_create_cq_ex(context, &cq);
        if (!e->send_cqx) {
            cq.comp_mask = 0;
            CHECK(e->send_cqx = ibv_create_cq_ex(context, &cq));
        }
        e->send_cq = ibv_cq_ex_to_cq(e->send_cqx);
    } else {
        CHECK(e->send_cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0));
    }
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = e->send_cq,
        .recv_cq = e->recv_cq,
        .srq = e->srq,
        .cap = { .max_send_wr = DEPTH, .max_recv_wr = e->srq ? 0 : 2 * DEPTH, .max_send_sge = most_sges, .max_recv_sge = !e->srq, .max_inline_data = INLINE },
        .qp_type = type,
        .comp_mask = IBV_QP_INIT_ATTR_PD | (extended ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
        .pd = pd,
        .send_ops_flags = send_ops(type),
    };
    CHECK(e->qp = ibv_create_qp_ex(context, &attr));
    e->qpx = extended ? ibv_qp_to_qp_ex(e->qp) : NULL;
    struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    if (type != IBV_QPT_UD)
        init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (type == IBV_QPT_RC)
        init.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
    CHECK(!ibv_modify_qp(e->qp, &init, mask | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
}

static void connect_to(struct endpoint *e, enum ibv_qp_type type, struct endpoint *peer)
{
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qp->qp_num,
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = 12,
        .ah_attr = to_itself,
    };
    struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 6, .max_rd_atomic = 16 };
    int to_rtr = IBV_QP_STATE, to_rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (type != IBV_QPT_UD)
        to_rtr |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (type == IBV_QPT_RC) {
        to_rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        to_rts |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    CHECK(!ibv_modify_qp(e->qp, &rtr, to_rtr));
    CHECK(!ibv_modify_qp(e->qp, &rts, to_rts));
}

static void send_to_itself(struct endpoint *e, enum ibv_qp_type type, int extended)
{
    create(e, type, extended);
    connect_to(e, type, e);
}

/* By LID on InfiniBand, by an address that can be routed elsewhere. */
static void find_itself(void)
{
    struct ibv_port_attr port;
    CHECK(!ibv_query_port(context, 1, &port));
    if (port.link_layer == IBV_LINK_LAYER_INFINIBAND) {
        to_itself.dlid = port.lid;
        return;
    }
    struct ibv_gid_entry entry = { 0 };
    int index = 0;
    while (ibv_query_gid_ex(context, 1, index, &entry, 0) || entry.gid_type != IBV_GID_TYPE_ROCE_V2 ||
           (entry.gid.raw[0] == 0xfe && entry.gid.raw[1] == 0x80))
        CHECK(++index < 16);
    to_itself.is_global = 1;
    to_itself.grh = (struct ibv_global_route){ .dgid = entry.gid, .sgid_index = index, .hop_limit = 64 };
}

void set_up(const char *name, int extended)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list);
    while (*list && strcmp(ibv_get_device_name(*list), name))
        list++;
    if (!*list) {
        fprintf(stderr, "libibverbs shows no device %s: is its provider for the device there (Debian package ibverbs-providers)?\n", name);
        exit(1);
    }
    CHECK(context = ibv_open_device(*list));
    struct ibv_device_attr_ex device = { 0 };
    CHECK(!ibv_query_device_ex(context, NULL, &device));
    has_atomic_write = device.device_cap_flags_ex >> 40 & 1;
    most_sges = has_atomic_write ? SGES : MANY_SGES;
    CHECK(pd = ibv_alloc_pd(context));
    CHECK(!posix_memalign((void **)&buffer, 4096, BUFFER));
    memset(buffer, 0, BUFFER);
    CHECK(mr = ibv_reg_mr(pd, buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                                                  IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND));
    find_itself();
    CHECK(ah = ibv_create_ah(pd, &to_itself));
    create(&a, IBV_QPT_RC, extended);
    create(&b, IBV_QPT_RC, extended);
    connect_to(&a, IBV_QPT_RC, &b);
    connect_to(&b, IBV_QPT_RC, &a);
    send_to_itself(&uc, IBV_QPT_UC, extended);
    send_to_itself(&ud, IBV_QPT_UD, extended);
    struct ibv_srq_init_attr srq = { .attr = { .max_wr = 2 * DEPTH, .max_sge = 1 } };
    CHECK(shared.srq = ibv_create_srq(pd, &srq));
    send_to_itself(&shared, IBV_QPT_RC, extended);
}

void pause_ms(int ms)
{
    struct timespec time = { 0, ms * 1000000 };
    nanosleep(&time, NULL);
}

void drain(struct ibv_cq *cq, int expected)
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
