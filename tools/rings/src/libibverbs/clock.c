/*
 * A few operations, timed by the processor's time-stamp counter. In a guest whose clock counts instructions, that is how many
 * there were, those of the kernel among them if it had something to do meanwhile.
 */
#include "rings.h"
#include <stdio.h>
#include <x86intrin.h>

/* LIST posts of one request, as one sample. */
static uint64_t clock_posts(const struct operation *op)
{
    struct ibv_send_wr wrs[LIST], *bad;
    struct ibv_sge sges[MANY_SGES];
    struct ibv_qp *qp = op->from->qp;
    fill(op, wrs, sges);
    uint64_t start = __rdtsc();
    for (int i = 0; i < LIST; i += op->count) {
        int error = ibv_post_send(qp, wrs, &bad);
        if (error)
            refused("ibv_post_send", error);
    }
    return __rdtsc() - start;
}

static uint64_t clock_posts_extended(int count)
{
    struct ibv_qp_ex *q = a.qpx;
    uint64_t remote = (uintptr_t)buffer + REMOTE;
    uint32_t rkey = mr->rkey;
    uint64_t start = __rdtsc();
    for (int i = 0; i < LIST; i += count) {
        ibv_wr_start(q);
        for (int j = 0; j < count; j++) {
            q->wr_id = j;
            q->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
            ibv_wr_rdma_write(q, rkey, remote);
            ibv_wr_set_inline_data(q, buffer, 8);
        }
        int error = ibv_wr_complete(q);
        if (error)
            refused("ibv_wr_complete", error);
    }
    return __rdtsc() - start;
}

static uint64_t clock_polls(int extended)
{
    struct ibv_wc wc[LIST];
    struct ibv_poll_cq_attr attr = { 0 };
    struct ibv_cq_ex *cq = a.send_cqx;
    int got = 0;
    prepare_completions(LIST);
    uint64_t start = __rdtsc();
    if (!extended) {
        got = ibv_poll_cq(a.send_cq, LIST, wc);
    } else if (!ibv_start_poll(cq, &attr)) {
        do {
            wc[got].wr_id = cq->wr_id;
            wc[got].status = cq->status;
            wc[got].opcode = ibv_wc_read_opcode(cq);
            wc[got].byte_len = ibv_wc_read_byte_len(cq);
            wc[got].qp_num = ibv_wc_read_qp_num(cq);
            wc[got].wc_flags = ibv_wc_read_wc_flags(cq);
            wc[got].imm_data = ibv_wc_read_imm_data(cq);
        } while (++got < LIST && !ibv_next_poll(cq));
        ibv_end_poll(cq);
    }
    uint64_t end = __rdtsc();
    CHECK(got == LIST);
    __asm__ volatile("" : : "r"(wc) : "memory");
    return end - start;
}

/* Prints them as one line of JSON, each for LIST requests. */
void clock_all(int extended)
{
    const struct operation writes[] = {
        { "write_inline_8", IBV_WR_RDMA_WRITE, 1, 0, 8, &a, &b },
        { "write_inline_8_list", IBV_WR_RDMA_WRITE, LIST, 0, 8, &a, &b },
    };
    printf("{");
    for (int w = 0; w < 2; w++) {
        printf("\"%s\":[", writes[w].name);
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t ticks = extended ? clock_posts_extended(writes[w].count) : clock_posts(&writes[w]);
            printf("%s%llu", round ? "," : "", (unsigned long long)ticks);
            drain(a.send_cq, LIST);
        }
        printf("],");
    }
    printf("\"poll_32\":[");
    for (int round = 0; round < ROUNDS; round++)
        printf("%s%llu", round ? "," : "", (unsigned long long)clock_polls(extended));
    printf("]}\n");
}
