/*
 * Memory windows of type 2: bound and invalidated in turn.
 */
#include "rings.h"

static void bind_classic(struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
    struct operation bind = { "bind_mw", IBV_WR_BIND_MW, 1, 0, 0, &a, &b };
    struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind_info = *info;
    post_classic(&bind, &wr);
}

static void bind_extended(struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
    struct ibv_qp_ex *q = a.qpx;
    const char *name = "bind_mw";
    unsigned int flags = IBV_SEND_SIGNALED;
    WR_BATCH(1, ibv_wr_bind_mw(q, mw, rkey, info));
}

static void invalidate_classic(uint32_t rkey)
{
    struct operation invalidate = { "local_inv", IBV_WR_LOCAL_INV, 1, 0, 0, &a, &b };
    struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = rkey };
    post_classic(&invalidate, &wr);
}

static void invalidate_extended(uint32_t rkey)
{
    struct ibv_qp_ex *q = a.qpx;
    const char *name = "local_inv";
    unsigned int flags = IBV_SEND_SIGNALED;
    WR_BATCH(1, ibv_wr_local_inv(q, rkey));
}

void measure_windows(int extended)
{
    struct ibv_mw_bind_info info = {
        .mr = mr, .addr = (uintptr_t)buffer, .length = LENGTH, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE,
    };
    struct ibv_mw *mw;
    now = "windows";
    CHECK(mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2));
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t rkey = ibv_inc_rkey(mw->rkey);
        (extended ? bind_extended : bind_classic)(mw, rkey, &info);
        drain(a.send_cq, 1);
        mw->rkey = rkey;
        (extended ? invalidate_extended : invalidate_classic)(rkey);
        drain(a.send_cq, 1);
    }
    CHECK(!ibv_dealloc_mw(mw));
}
