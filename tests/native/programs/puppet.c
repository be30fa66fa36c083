/* A program in plain C that obeys commands by calling gpuring.h: one command a line, one answer a
 * line. tests/native/api drives it, and uses Python at the other end of its rings.
 *
 * An answer is the name of a status, a space, and then the results or the words of the error.
 * Endpoints are numbered in the order in which they have joined, and so are the open slots of each.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "puppet.h"

gpuring_ring *ring;
struct endpoint ends[MOST];
static uint32_t joined;
gpuring_error error;

#ifdef GR_FAULTS
/* Stops this process at the named fault point, or at the n-th one, until it gets SIGCONT. The fault
 * point of a wait for a lock does not count. */
static const char *stop_at = "";
static long halt_in, fork_in;

/* As another thread may do it at any time: the child does not know what this one has open. It is
 * killed with its parent. */
static void leave_a_child(void) {
    const pid_t parent = getpid();
    if (fork() != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(60);
    if (getppid() == parent) pause();
    _exit(0);
}

void gr_fault(const char *name);
void gr_fault(const char *name) {
    const int waits = strcmp(name, "lock: waits") == 0;
    if (!waits && fork_in > 0 && --fork_in == 0) leave_a_child();
    if (strcmp(name, stop_at) == 0) {
        stop_at = ""; /* once */
        raise(SIGSTOP);
    } else if (!waits && halt_in > 0 && --halt_in == 0) raise(SIGSTOP);
}
#endif

#ifdef GR_FAULTS
#include "../../../gpuring/native/host/leftovers.h"

/* Answers whether its ring cannot be found by any name any more. */
static void do_knows(void) {
    const struct gr_ring *header = *(struct gr_ring **)ring; /* its first member */
    printf("%d", gr_load_acquire(&header->head->magic) == 0);
}

/* NAME: what `gpuring clean` does with it. */
static void do_tidy(void) {
    struct gh_beside beside;
    bool removed = false;
    const char *name = strtok(NULL, " \n");
    gpuring_status status = GPURING_SYSTEM;
    if (gh_list_beside(name, &beside) == 0) {
        status = gh_remove_left(name, &beside, NULL, false, &removed, &error);
        gh_end_beside(&beside);
    }
    printf("%s removed=%d", gpuring_status_name(status), removed);
}
#endif

const char *word(void) {
    const char *found = strtok(NULL, " \n");
    return found ? found : "";
}
int64_t number(void) { return strtoll(word(), NULL, 10); }
static const char *name_or_none(const char *name) { return strcmp(name, "-") ? name : NULL; }
struct endpoint *endpoint(void) { return &ends[number() % MOST]; }

void answer(gpuring_status status) {
    printf("%s", gpuring_status_name(status));
    if (status != GPURING_OK) printf(" %s", error.text);
}

static void tell_slot(const gpuring_slot *slot) {
    const unsigned char *data = slot->host;
    printf(" seq=%" PRIu64 " number=%u first=%d lost=%" PRIu64 " producer=%u redelivered=%d restarted=%d shape=",
           slot->seq, slot->number, data ? data[0] : -1, slot->lost, slot->producer, slot->redelivered,
           slot->restarted);
    for (uint32_t k = 0; k < slot->dimensions; k++) printf("%s%" PRIu64, k ? "," : "", slot->shape[k]);
    if (slot->meta) {
        int64_t meta;
        memcpy(&meta, slot->meta, sizeof meta);
        printf(" meta=%" PRId64, meta);
    }
}

/* LABEL, and r(eattach) */
static void do_produce(void) {
    gpuring_producer_options options = GPURING_PRODUCER_OPTIONS;
    options.label = name_or_none(word());
    options.gate = place.gate;
    options.reattach = strchr(word(), 'r') != NULL;
    gpuring_status status =
        gpuring_join_producer(ring, &options, &ends[joined].producer, &error);
    answer(status);
    if (status == GPURING_OK)
        printf(" %u number=%u", joined, gpuring_producer_number(ends[joined].producer));
    joined += status == GPURING_OK;
}

/* SUBSCRIPTION START, letters, and the patience: l(ossy), d(rop), (death)s, r(eattach), (d)u(rable) */
static void do_consume(void) {
    gpuring_consumer_options options = GPURING_CONSUMER_OPTIONS;
    options.subscription = name_or_none(word());
    options.start = number();
    const char *flags = word();
    options.lossy = strchr(flags, 'l') != NULL;
    options.drop = strchr(flags, 'd') != NULL;
    options.gate = place.gate;
    options.deaths = strchr(flags, 's') != NULL;
    options.reattach = strchr(flags, 'r') != NULL;
    options.durable = strchr(flags, 'u') != NULL;
    options.patience_ns = number();
    gpuring_status status =
        gpuring_join_consumer(ring, &options, &ends[joined].consumer, &error);
    answer(status);
    if (status == GPURING_OK)
        printf(" %u number=%u", joined, gpuring_consumer_number(ends[joined].consumer));
    joined += status == GPURING_OK;
}

static void do_close(void) {
    struct endpoint *end = endpoint();
    const gpuring_status status = end->producer ? gpuring_close_producer(end->producer, &error)
                                                : gpuring_close_consumer(end->consumer, &error);
    answer(status);
    if (status == GPURING_OK) end->producer = NULL, end->consumer = NULL;
}

/* claim, try, acquire or latest: ENDPOINT TIMEOUT WANTED */
static void do_take(const char *verb) {
    struct endpoint *end = endpoint();
    const int64_t timeout = number(), wanted = number();
    gpuring_slot *slots = &end->slots[end->n];
    gpuring_status status;
    uint32_t got = 1;
    *slots = (gpuring_slot)GPURING_SLOT;
    if (strcmp(verb, "try") == 0) status = gpuring_try_claim(end->producer, slots, &error);
    else if (strcmp(verb, "latest") == 0)
        status = gpuring_latest(end->consumer, timeout, slots, &error);
    else if (wanted)
        status = end->producer ? gpuring_claim_many(end->producer, timeout, slots,
                                                    (uint32_t)wanted, &got, &error)
                               : gpuring_acquire_many(end->consumer, timeout, slots,
                                                      (uint32_t)wanted, &got, &error);
    else
        status = end->producer ? gpuring_claim(end->producer, timeout, slots, &error)
                               : gpuring_acquire(end->consumer, timeout, slots, &error);
    answer(status);
    if (status != GPURING_OK) return;
    for (uint32_t k = 0; k < got; k++) tell_slot(&slots[k]);
    end->n += got;
}

/* publish or abandon, or release: ENDPOINT COUNT BYTE META. The oldest slots come first. With a BYTE
 * below 0, and on a GPU, the slot stays as it is. */
static void do_end(const char *verb) {
    struct endpoint *end = endpoint();
    const uint32_t count = (uint32_t)number();
    const int byte = (int)number();
    const int64_t meta = number();
    gpuring_slot *slots = end->slots;
    gpuring_info info = GPURING_INFO;
    gpuring_get_info(ring, &info);
    for (uint32_t k = 0; end->producer && k < count && k < end->n; k++) {
        if (byte >= 0 && slots[k].host) memset(slots[k].host, byte, info.slot_nbytes);
        if (slots[k].meta) memcpy(slots[k].meta, &meta, sizeof meta);
    }
    if (strcmp(verb, "abandon") == 0) answer(gpuring_abandon(end->producer, slots, &error));
    else if (end->producer)
        answer(count == 1 ? gpuring_publish(end->producer, slots, &error)
                          : gpuring_publish_many(end->producer, slots, count, &error));
    else
        answer(count == 1 ? gpuring_release(end->consumer, slots, &error)
                          : gpuring_release_many(end->consumer, slots, count, &error));
    end->n = end->n > count ? end->n - count : 0;
    memmove(slots, slots + count, end->n * sizeof *slots);
}

/* ENDPOINT, and extents */
static void do_shape(void) {
    struct endpoint *end = endpoint();
    uint64_t shape[MOST];
    uint32_t n = 0;
    for (const char *extent = word(); *extent && n < MOST; extent = word())
        shape[n++] = strtoull(extent, NULL, 10);
    answer(gpuring_set_shape(end->producer, &end->slots[0], n, shape, &error));
}

static void do_poll(void) {
    struct endpoint *end = endpoint();
    const int64_t timeout = number();
    struct pollfd fd = {.events = POLLIN};
    const gpuring_status status = end->producer
                                      ? gpuring_producer_fd(end->producer, &fd.fd, &error)
                                      : gpuring_consumer_fd(end->consumer, &fd.fd, &error);
    answer(status);
    if (status == GPURING_OK) printf(" %d", poll(&fd, 1, (int)timeout));
}

/* TIMEOUT, and endpoints */
static void do_select(void) {
    gpuring_waited waited[MOST];
    uint32_t n = 0;
    const int64_t timeout = number();
    for (const char *end = word(); *end && n < MOST; end = word(), n++) {
        const struct endpoint *of = &ends[atoi(end) % MOST];
        waited[n] = (gpuring_waited){sizeof waited[n], of->producer, of->consumer, false};
    }
    const gpuring_status status = gpuring_select(waited, n, timeout, &error);
    answer(status);
    for (uint32_t k = 0; status == GPURING_OK && k < n; k++) printf(" %d", waited[k].ready);
}

static void obey(char *line) {
    const char *verb = strtok(line, " \n");
    error.text[0] = 0;
    if (!verb) printf("nothing");
#ifdef GR_FAULTS
    else if (strcmp(verb, "stop-at") == 0) {
        static char at[64];
        const char *rest = strtok(NULL, "\n");
        snprintf(at, sizeof at, "%s", rest ? rest : "");
        stop_at = at;
        printf("ok");
    } else if (strcmp(verb, "tidy") == 0) do_tidy();
    else if (strcmp(verb, "knows") == 0) do_knows();
    else if (strcmp(verb, "halt") == 0) {
        halt_in = number();
        printf("ok");
    } else if (strcmp(verb, "fork-in") == 0) {
        printf("%ld", fork_in);
        fork_in = number();
    }
#endif
    else if (strcmp(verb, "produce") == 0) do_produce();
    else if (strcmp(verb, "consume") == 0) do_consume();
    else if (strcmp(verb, "close") == 0) do_close();
    else if (strcmp(verb, "shape") == 0) do_shape();
    else if (strcmp(verb, "poll") == 0) do_poll();
    else if (strcmp(verb, "select") == 0) do_select();
    else if (strcmp(verb, "publish") == 0 || strcmp(verb, "abandon") == 0 ||
             strcmp(verb, "release") == 0)
        do_end(verb);
    else if (!obey_on_ring(verb) && !obey_misuse(verb) && !obey_on_gpu(verb)) do_take(verb);
    printf("\n");
    fflush(stdout);
}

int main(void) {
    char line[1024];
    while (fgets(line, sizeof line, stdin)) obey(line);
    return 0;
}
