/*
 * Polling of a's completions.
 */
#include "rings.h"
#include <errno.h>

void prepare_completions(int n)
{
    struct ibv_send_wr wrs[LIST], *bad;
    struct ibv_sge sges[MANY_SGES];
    struct operation write = { "", IBV_WR_RDMA_WRITE, n, 1, 0, &a, &b };
    fill(&write, wrs, sges);
    /* When the last one's bytes are in their own place, which takes what it takes on a busy machine, its completion is near. */
    volatile char *last = buffer + REMOTE + LENGTH;
    wrs[n - 1].wr.rdma.remote_addr += LENGTH;
    buffer[0] = 1;
    *last = 0;
    CHECK(!ibv_post_send(a.qp, wrs, &bad));
    for (int tries = 0; !*last; tries++) {
        CHECK(tries < 10000);
        pause_ms(1);
    }
    pause_ms(100);
}

static void measure_polls_classic(const char *name, int n)
{
    struct ibv_wc wc[LIST];
    struct ibv_cq *cq = a.send_cq;
    now = name;
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
    struct ibv_wc wc[LIST] = { 0 };
    struct ibv_cq_ex *cq = a.send_cqx;
    struct ibv_poll_cq_attr attr = { 0 };
    now = name;
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

/*
 * The sum of the numbers of completions, used where they are. No more are asked for than there are: after an ibv_next_poll
 * that finds none, the ibv_end_poll of rdma-core's rxe takes one all the same, and the queue is no longer empty.
 */
static void measure_polls_in_place(const char *name, int n)
{
    struct ibv_cq_ex *cq = a.send_cqx;
    struct ibv_poll_cq_attr attr = { 0 };
    uint64_t sum = 0;
    int error, left = n;
    now = name;
    prepare_completions(n);
    BEGIN(name);
    error = ibv_start_poll(cq, &attr);
    if (!error) {
        do {
            if (cq->status != IBV_WC_SUCCESS)
                break;
            sum += cq->wr_id;
            error = --left ? ibv_next_poll(cq) : ENOENT;
        } while (!error);
        ibv_end_poll(cq);
    }
    END();
    CHECK(sum == (uint64_t)n * (n - 1) / 2);
}

void measure_polls(int extended)
{
    for (int round = 0; round < ROUNDS; round++) {
        if (extended) {
            measure_polls_extended("poll", 1, 1);
            measure_polls_extended("poll_16", POLL, 1);
            measure_polls_extended("poll_status", 1, 0);
            measure_polls_extended("poll_status_16", POLL, 0);
            measure_polls_extended("poll_32", LIST, 1);
            measure_polls_extended("poll_status_32", LIST, 0);
            measure_polls_in_place("poll_in_place_32", LIST);
            measure_polls_extended("poll_empty", 0, 1);
        } else {
            measure_polls_classic("poll", 1);
            measure_polls_classic("poll_16", POLL);
            measure_polls_classic("poll_32", LIST);
            measure_polls_classic("poll_empty", 0);
        }
    }
}
