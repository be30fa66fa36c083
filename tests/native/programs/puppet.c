/* A program in plain C that does with gpuring.h what it is told: one command a line, one answer a line.
 * tests/native/api drives it, and has Python at the other end of its rings.
 *
 * An answer is the name of a status and a space, and then what there is to say, or the words of the
 * error. Endpoints have numbers, in the order in which they have joined; so have open slots of each.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "puppet.h"

gpuring_ring *ring;
static struct endpoint ends[MOST];
static uint32_t joined;
gpuring_error error;

#ifdef GR_FAULTS
/* Stops at the named place until somebody has this process go on, or at the so-and-so many-th one.
 * The wait for a lock counts as none. */
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

/* Whether its ring can be found by nobody any more, and says so. */
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

static void do_attach(void) {
    gpuring_attach_options options = GPURING_ATTACH_OPTIONS;
    const char *name = word();
    options.timeout_ns = number();
    options.device = place.device;
    answer(gpuring_attach(name, &options, &ring, &error));
}

/* What the next do_create does with a ring that is there, and with which subscriptions. */
static gpuring_replace replaces;
static const char *born[MOST];
static char born_text[256];
static uint32_t born_count;

static void do_born(void) {
    born_count = 0;
    const char *rest = strtok(NULL, "\n");
    snprintf(born_text, sizeof born_text, "%s", rest ? rest : "");
    for (char *at = strtok(born_text, " "); at && born_count < MOST; at = strtok(NULL, " "))
        born[born_count++] = at;
    printf("ok");
}

/* NAME SLOTS MODE, and of each field of a slot its name, dtype and extents, all with blanks between
 * them and "," behind. The fields of the metadata come behind a ";". */
static void do_create(void) {
    gpuring_create_options options = GPURING_CREATE_OPTIONS;
    static gpuring_field fields[2][MOST];
    uint32_t counts[2] = {0, 0}, kind = 0;
    const char *name = word();
    options.slots = (uint32_t)number();
    options.mode = (uint32_t)number();
    options.replace = replaces;
    options.subscriptions = born_count ? born : NULL;
    options.subscription_count = born_count;
    for (const char *next = word(); *next; next = word()) {
        if (strcmp(next, ";") == 0) {
            kind = 1;
            continue;
        }
        gpuring_field *field = &fields[kind][counts[kind]++ % MOST];
        *field = (gpuring_field)GPURING_FIELD;
        field->name = next;
        field->dtype = word();
        for (next = word(); strcmp(next, ",") != 0 && *next; next = word())
            field->shape[field->dimensions++ % GPURING_MAX_DIMENSIONS] = strtoull(next, NULL, 10);
    }
    options.fields = counts[0] ? fields[0] : NULL;
    options.field_count = counts[0];
    options.meta = counts[1] ? fields[1] : NULL;
    options.meta_count = counts[1];
    options.memory = place.memory;
    options.device = place.device;
    options.sync = place.sync;
    options.gate = place.gate;
    options.given = place.given;
    options.given_nbytes = place.given_nbytes;
    answer(gpuring_create(name, &options, &ring, &error));
}

/* NAME START FLAGS PATIENCE */
static void do_subscribe(void) {
    gpuring_subscribe_options options = GPURING_SUBSCRIBE_OPTIONS;
    const char *name = word();
    options.start = number();
    const char *flags = word();
    options.lossy = strchr(flags, 'l') != NULL;
    options.drop = strchr(flags, 'd') != NULL;
    options.patience_ns = number();
    answer(gpuring_subscribe(ring, name, &options, &error));
}

static void do_unsubscribe(void) {
    bool found = false;
    answer(gpuring_unsubscribe(ring, word(), &found, &error));
    printf(" found=%d", found);
}

static void tell_info(const gpuring_ring *of) {
    gpuring_info info = GPURING_INFO;
    answer(gpuring_get_info(of, &info));
    printf(" memory=%d sync=%d gate=%d device=%d mapped=%d", info.memory, info.sync, info.gate,
           info.device, info.mapped);
    printf(" slots=%u slot_nbytes=%" PRIu64 " meta_nbytes=%" PRIu64
           " closed=%d producers=%u consumers=%u next=%" PRIu64 " dropped=%" PRIu64 " pid=%" PRIu64,
           info.slots, info.slot_nbytes, info.meta_nbytes, info.closed, info.live_producers,
           info.live_consumers, info.next_seq, info.dropped, info.creator_pid);
}

static void do_info(void) { tell_info(ring); }

/* ENDPOINT: its ring. Without one: that of the last time, which is used again. */
static void do_told(void) {
    static const gpuring_ring *told;
    const char *number = word();
    if (*number) told = gpuring_consumer_ring(ends[atoi(number) % MOST].consumer);
    tell_info(told);
}

static void tell_field(const gpuring_field *field) {
    printf(" %s|%s|%" PRIu64 "|%" PRIu64 "|", field->name, field->dtype, field->offset,
           field->nbytes);
    for (uint32_t k = 0; k < field->dimensions; k++)
        printf("%s%" PRIu64, k ? "," : "", field->shape[k]);
}

static void do_fields(void) {
    gpuring_field field = GPURING_FIELD;
    printf("fields");
    for (uint32_t k = 0; gpuring_field_at(ring, k, &field) == GPURING_OK; k++) tell_field(&field);
    printf(" meta");
    for (uint32_t k = 0; gpuring_meta_at(ring, k, &field) == GPURING_OK; k++) tell_field(&field);
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

/* NAME: what each call answers to a structure whose size is too small. Numbers the wrong ones. */
static void do_small(void) {
    const char *name = word();
    gpuring_attach_options attach = GPURING_ATTACH_OPTIONS;
    gpuring_create_options create = GPURING_CREATE_OPTIONS;
    gpuring_producer_options produce = GPURING_PRODUCER_OPTIONS;
    gpuring_consumer_options consume = GPURING_CONSUMER_OPTIONS;
    gpuring_waited waited = GPURING_WAITED;
    gpuring_slot slot = GPURING_SLOT;
    gpuring_producer *producer;
    gpuring_consumer *consumer;
    gpuring_ring *made;
    uint32_t got;
    attach.size = create.size = produce.size = consume.size = waited.size = 8;
    waited.producer = ends[0].producer;
    slot.size = 0;
    const gpuring_status found[] = {
        gpuring_attach(name, &attach, &made, NULL),
        gpuring_create("small", &create, &made, NULL),
        gpuring_join_producer(ring, &produce, &producer, NULL),
        gpuring_join_consumer(ring, &consume, &consumer, NULL),
        gpuring_claim(ends[0].producer, 0, &slot, NULL),
        gpuring_try_claim(ends[0].producer, &slot, NULL),
        gpuring_claim_many(ends[0].producer, 0, &slot, 1, &got, NULL),
        gpuring_publish(ends[0].producer, &slot, NULL),
        gpuring_publish_many(ends[0].producer, &slot, 1, NULL),
        gpuring_select(&waited, 1, 0, NULL)};
    printf("wrong:");
    for (uint32_t k = 0; k < sizeof found / sizeof *found; k++)
        if (found[k] != GPURING_INVALID) printf(" %u=%s", k, gpuring_status_name(found[k]));
}

/* ENDPOINT: ends its first slot twice in one call. */
static void do_twice(void) {
    struct endpoint *end = endpoint();
    gpuring_slot slots[2];
    slots[0] = slots[1] = end->slots[0];
    answer(end->producer ? gpuring_publish_many(end->producer, slots, 2, &error)
                         : gpuring_release_many(end->consumer, slots, 2, &error));
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

/* What a forked child gets from every call on a handle of its parent, and from its own. */
static void do_fork(void) {
    fflush(stdout);
    const char *name = word();
    const pid_t pid = fork();
    if (pid != 0) {
        int status;
        waitpid(pid, &status, 0);
        printf("exit=%d", status);
        return;
    }
    alarm(20);
    gpuring_slot slot = GPURING_SLOT;
    gpuring_producer *producer;
    gpuring_consumer *consumer;
    gpuring_info info = GPURING_INFO;
    gpuring_waited waited = GPURING_WAITED;
    int fd, wrong = 0;
    waited.producer = ends[0].producer;
    wrong += gpuring_get_info(ring, &info) != GPURING_FORKED;
    wrong += gpuring_join_producer(ring, NULL, &producer, NULL) != GPURING_FORKED;
    wrong += gpuring_join_consumer(ring, NULL, &consumer, NULL) != GPURING_FORKED;
    wrong += gpuring_claim(ends[0].producer, 0, &slot, NULL) != GPURING_FORKED;
    wrong += gpuring_select(&waited, 1, 0, NULL) != GPURING_FORKED;
    wrong += gpuring_producer_fd(ends[0].producer, &fd, NULL) != GPURING_FORKED;
    wrong += gpuring_publish(ends[0].producer, &ends[0].slots[0], NULL) != GPURING_FORKED;
    wrong += gpuring_close_producer(ends[0].producer, NULL) != GPURING_OK;
    wrong += gpuring_detach(ring, NULL) != GPURING_OK;
    wrong += gpuring_attach(name, NULL, &ring, NULL) != GPURING_OK;
    wrong += gpuring_join_producer(ring, NULL, &producer, NULL) != GPURING_OK;
    wrong += gpuring_close_producer(producer, NULL) != GPURING_OK;
    wrong += gpuring_detach(ring, NULL) != GPURING_OK;
    _exit(wrong);
}

/* [ENDPOINT]: forks a child, which closes that consumer, and lives as long as this process. */
static void do_child(void) {
    int lives[2], closed[2];
    char byte = 0;
    const char *number = word();
    fflush(stdout);
    if (pipe(lives) != 0 || pipe(closed) != 0) return;
    if (fork() == 0) {
        alarm(60);
        close(lives[1]);
        if (*number && gpuring_close_consumer(ends[atoi(number) % MOST].consumer, NULL) != GPURING_OK)
            _exit(1);
        if (write(closed[1], &byte, 1) != 1) _exit(1);
        _exit((int)read(lives[0], &byte, 1)); /* 0: the parent has ended */
    }
    close(closed[1]);
    close(lives[0]);
    printf("%s", read(closed[0], &byte, 1) == 1 ? "ok" : "the child has failed");
    close(closed[0]);
}

/* A program that knows less than the library: what lies behind its slot stays as it is. */
static void do_old(void) {
    struct {
        gpuring_slot slot;
        unsigned char behind[64];
    } old;
    memset(&old, 0xaa, sizeof old);
    old.slot.size = offsetof(gpuring_slot, data);
    const gpuring_status status = gpuring_acquire(ends[0].consumer, 0, &old.slot, &error);
    unsigned char *at = (unsigned char *)&old + old.slot.size;
    answer(status);
    while (at < (unsigned char *)(&old + 1) && *at == 0xaa) at++;
    printf(" %d", at == (unsigned char *)(&old + 1));
    old.slot.data = NULL;
    answer(gpuring_release(ends[0].consumer, &old.slot, &error));
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
    else if (strcmp(verb, "attach") == 0) do_attach();
    else if (strcmp(verb, "detach") == 0) answer(gpuring_detach(ring, &error));
    else if (strcmp(verb, "create") == 0) do_create();
    else if (strcmp(verb, "replaces") == 0) printf("%d", replaces = (gpuring_replace)number());
    else if (strcmp(verb, "born") == 0) do_born();
    else if (strcmp(verb, "unlink") == 0) answer(gpuring_unlink(word(), &error));
    else if (strcmp(verb, "subscribe") == 0) do_subscribe();
    else if (strcmp(verb, "unsubscribe") == 0) do_unsubscribe();
    else if (strcmp(verb, "info") == 0) do_info();
    else if (strcmp(verb, "told") == 0) do_told();
    else if (strcmp(verb, "fields") == 0) do_fields();
    else if (strcmp(verb, "produce") == 0) do_produce();
    else if (strcmp(verb, "consume") == 0) do_consume();
    else if (strcmp(verb, "close") == 0) do_close();
    else if (strcmp(verb, "shape") == 0) do_shape();
    else if (strcmp(verb, "twice") == 0) do_twice();
    else if (strcmp(verb, "small") == 0) do_small();
    else if (strcmp(verb, "poll") == 0) do_poll();
    else if (strcmp(verb, "select") == 0) do_select();
    else if (strcmp(verb, "fork") == 0) do_fork();
    else if (strcmp(verb, "child") == 0) do_child();
    else if (strcmp(verb, "old") == 0) do_old();
    else if (strcmp(verb, "publish") == 0 || strcmp(verb, "abandon") == 0 ||
             strcmp(verb, "release") == 0)
        do_end(verb);
    else if (!obey_on_gpu(verb)) do_take(verb);
    printf("\n");
    fflush(stdout);
}

int main(void) {
    char line[1024];
    while (fgets(line, sizeof line, stdin)) obey(line);
    return 0;
}
