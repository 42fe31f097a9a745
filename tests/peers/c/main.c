/*
 * Issues a list of work requests by libibverbs, and tells the numbers that they name things by:
 *
 *   requests classic|extended DEVICE LIST
 */
#include "requests.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct ibv_context *context;
struct ibv_pd *pd;
struct ibv_mr *mr;
char *buffer;
struct ibv_port_attr port;
union ibv_gid gid;

static int line_number;
static char *words[MAX_PIECES + 16];
static int count, next;
static struct queue queues[MAX_QUEUES];
static struct address addresses[MAX_THINGS];
static struct window windows[MAX_THINGS];
static int queue_count, address_count, window_count;

void __attribute__((noreturn, cold)) fail(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: line %d of the list: %s: %s\n", file, line, line_number, what, strerror(errno));
    exit(1);
}

void tell(const char *name, const char *what, uint64_t number)
{
    printf("number %s.%s %#llx\n", name, what, (unsigned long long)number);
}

static char *word(void)
{
    CHECK(next < count);
    return words[next++];
}

static uint64_t number(void)
{
    return strtoull(word(), NULL, 0);
}

static void name_it(char *name)
{
    const char *given = word();
    CHECK(strlen(given) < MAX_NAME);
    strcpy(name, given);
}

#define FIND(things, n, wanted)                        \
    do {                                               \
        for (int i = 0; i < (n); i++)                  \
            if (!strcmp((things)[i].name, (wanted)))   \
                return &(things)[i];                   \
        return NULL;                                   \
    } while (0)

static struct queue *queue(void)
{
    const char *name = word();
    FIND(queues, queue_count, name);
}

static struct address *address(const char *name)
{
    FIND(addresses, address_count, name);
}

static struct window *window(const char *name)
{
    FIND(windows, window_count, name);
}

static unsigned flags(void)
{
    unsigned all = 0;
    for (const char *c = word(); *c; c++)
        all |= *c == 's' ? IBV_SEND_SIGNALED : *c == 'e' ? IBV_SEND_SOLICITED : *c == 'f' ? IBV_SEND_FENCE : 0;
    return all;
}

static enum op operation(void)
{
    static const char *const names[] = { "SEND", "SEND_IMM", "SEND_INV", "WRITE", "WRITE_IMM", "READ", "CAS", "FAA" };
    const char *name = word();
    for (unsigned op = 0; op < sizeof names / sizeof *names; op++)
        if (!strcmp(name, names[op]))
            return op;
    fail(name, __FILE__, __LINE__);
}

static struct request *add(struct queue *q)
{
    CHECK(q && q->batch_length < MAX_BATCH);
    struct request *request = &q->batch[q->batch_length++];
    memset(request, 0, sizeof *request);
    return request;
}

static void read_pieces(struct request *request)
{
    for (; next < count; request->pieces++) {
        char *end;
        CHECK(request->pieces < MAX_PIECES);
        request->piece[request->pieces].offset = strtoull(word(), &end, 0);
        CHECK(*end == ':');
        request->piece[request->pieces].length = strtoul(end + 1, NULL, 0);
    }
}

static void read_send(void)
{
    struct request *request = add(queue());
    request->op = operation();
    request->flags = flags();
    request->imm = number();
    request->remote = number();
    request->a = number();
    request->b = number();
    const char *target = word();
    request->to = address(target);
    request->window = window(target);
    request->is_inline = !strcmp(word(), "inline");
    read_pieces(request);
}

static void read_window_request(enum op op)
{
    struct request *request = add(queue());
    request->op = op;
    CHECK(request->window = window(word()));
    request->flags = flags();
    if (op != BIND)
        return;
    request->offset = number();
    request->length = number();
    request->access = number();
}

static void read_receive(void)
{
    struct queue *q = queue();
    struct request request = { 0 };
    struct ibv_sge sges[MAX_PIECES];
    CHECK(q);
    read_pieces(&request);
    for (int i = 0; i < request.pieces; i++)
        sges[i] = (struct ibv_sge){ IOVA + request.piece[i].offset, request.piece[i].length, mr->lkey };
    struct ibv_recv_wr wr = { .sg_list = sges, .num_sge = request.pieces }, *bad;
    errno = q->srq ? ibv_post_srq_recv(q->srq, &wr, &bad) : ibv_post_recv(q->qp, &wr, &bad);
    CHECK(!errno);
}

static void read_queue(int extended)
{
    CHECK(queue_count < MAX_QUEUES);
    struct queue *q = &queues[queue_count];
    name_it(q->name);
    const char *kind = word();
    int signal_all = number();
    struct ibv_qp_cap cap = { 0 };
    cap.max_send_wr = number();
    cap.max_send_sge = number();
    cap.max_inline_data = number();
    cap.max_recv_wr = number();
    cap.max_recv_sge = number();
    make_queue(q, kind, signal_all, &cap, extended);
    queue_count++;
}

static void read_address(void)
{
    CHECK(address_count < MAX_THINGS);
    struct address *a = &addresses[address_count];
    struct ibv_ah_attr attr = { .dlid = port.lid, .port_num = PORT };
    name_it(a->name);
    attr.sl = number();
    attr.static_rate = number();
    attr.is_global = number();
    attr.grh.traffic_class = number();
    attr.grh.hop_limit = number();
    attr.grh.flow_label = number();
    attr.grh.sgid_index = GID_INDEX;
    attr.grh.dgid = gid;
    CHECK(a->ah = ibv_create_ah(pd, &attr));
    address_count++;
}

static void read_window(void)
{
    CHECK(window_count < MAX_THINGS);
    struct window *w = &windows[window_count];
    name_it(w->name);
    CHECK(queue());
    CHECK(w->mw = ibv_alloc_mw(pd, number() == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2));
    tell(w->name, "window", w->mw->rkey);
    window_count++;
}

static void make_region(void)
{
    size_t bytes = number();
    /* At that very address in the program, too: libmlx5 copies what comes inside a completion to where the work request says. */
    buffer = mmap((void *)IOVA, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(buffer == (void *)IOVA);
    for (size_t i = 0; i < bytes; i++)
        buffer[i] = i * 7 + (i >> 8);
    CHECK(mr = ibv_reg_mr(pd, buffer, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                                   IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND));
    tell("region", "lkey", mr->lkey);
    tell("region", "rkey", mr->rkey);
}

static void drain(struct ibv_cq *cq, uint64_t expected)
{
    time_t deadline = time(NULL) + 30;
    while (expected) {
        struct ibv_wc wc;
        int n = ibv_poll_cq(cq, 1, &wc);
        CHECK(n >= 0);
        CHECK(n || time(NULL) < deadline);
        if (n && wc.status != IBV_WC_SUCCESS)
            fail(ibv_wc_status_str(wc.status), __FILE__, __LINE__);
        expected -= n;
    }
}

static void submit(int extended)
{
    struct queue *q = queue();
    CHECK(q);
    struct request *first = &q->batch[0];
    int on_windows = q->batch_length && (first->op == BIND || first->op == UNBIND);
    if (on_windows && first->window->mw->type == IBV_MW_TYPE_1)
        bind_type_1(q, first);
    else if (extended)
        post_extended(q);
    else
        post_classic(q);
    q->batch_length = 0;
    drain(q->send_cq, number());
    drain(q->recv_cq, number());
}

static void open_device(const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list);
    while (*list && strcmp(ibv_get_device_name(*list), name))
        list++;
    CHECK(*list);
    CHECK(context = ibv_open_device(*list));
    CHECK(pd = ibv_alloc_pd(context));
    CHECK(!ibv_query_port(context, PORT, &port));
    CHECK(!ibv_query_gid(context, PORT, GID_INDEX, &gid));
}

int main(int argc, char **argv)
{
    static char line[4096];
    CHECK(argc == 4);
    setlinebuf(stdout);
    int extended = !strcmp(argv[1], "extended");
    open_device(argv[2]);
    FILE *list = fopen(argv[3], "r");
    CHECK(list);
    while (fgets(line, sizeof line, list)) {
        line_number++;
        count = next = 0;
        for (char *w = strtok(line, " \n"); w; w = strtok(NULL, " \n")) {
            CHECK(count < (int)(sizeof words / sizeof *words));
            words[count++] = w;
        }
        const char *what = word();
        if (!strcmp(what, "region"))
            make_region();
        else if (!strcmp(what, "queue"))
            read_queue(extended);
        else if (!strcmp(what, "address"))
            read_address();
        else if (!strcmp(what, "window"))
            read_window();
        else if (!strcmp(what, "receive"))
            read_receive();
        else if (!strcmp(what, "send"))
            read_send();
        else if (!strcmp(what, "bind"))
            read_window_request(BIND);
        else if (!strcmp(what, "unbind"))
            read_window_request(UNBIND);
        else if (!strcmp(what, "invalidate"))
            read_window_request(INVALIDATE);
        else if (!strcmp(what, "submit"))
            submit(extended);
        else
            fail(what, __FILE__, __LINE__);
    }
    CHECK(!ferror(list));
    printf("done\n");
    return 0;
}
