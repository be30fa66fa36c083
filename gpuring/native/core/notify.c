/* Doorbells as file descriptors: a bell is a futex, and an event loop sleeps in poll()
 * (docs/decisions/0007-doorbells-as-descriptors.md). One native thread of the process, the notifier
 * thread, sleeps at the bells of all rings that have an armed notifier, looks on behalf of each
 * armed peer, and makes the peer's eventfd readable.
 *
 * Edge D, no lost wake-up, as in wait.c. The sleeper is spread over two threads: the owner
 * announces, in gr_notifier_arm; the notifier thread reads the bell, looks, and sleeps. A mutex
 * orders the two. The owner makes the notifier thread begin again, unless it sleeps at that very
 * bell, at the value that the owner read before its own look.
 */
#define _GNU_SOURCE
#include "notify.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "acquire.h"
#include "bell.h"
#include "handles.h"
#include "thread.h"
#include "trace.h"
#include "wait.h"
#include "watchdog.h"

struct gr_notifier {
    struct gr_notifier *next, *prev;
    /* The peer as it was when it was armed; its owner may use the peer meanwhile. */
    struct gr_peer look;
    int fd;              /* an eventfd; -1 in a forked child */
    struct stat at;      /* which one it is */
    bool at_end;         /* the end of the stream is no answer: it waits until the stream goes on */
    bool armed;          /* counted in its ring's waiters */
    bool raised;         /* the descriptor is readable */
};

/* This mutex guards everything below. The notifier thread holds it while it looks, and not while
 * it sleeps. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct gr_notifier *notifiers;
static bool running, asleep;
static struct gr_waited waited[GR_MAX_WAITED]; /* what it sleeps at; the first is `kicks` */
static uint32_t waited_count;
static gr_word32 kicks;

static uint64_t address_of(const gr_word32 *word) { return (uintptr_t)word; }

/* False if the program has closed all its descriptors, as a daemon does: the number may be that of a
 * file of the program then. But an eventfd of the program looks the same. */
static bool is_ours(const struct gr_notifier *notifier) {
    struct stat now;
    return notifier->fd >= 0 && fstat(notifier->fd, &now) == 0 &&
           now.st_dev == notifier->at.st_dev && now.st_ino == notifier->at.st_ino;
}

/* ---- a forked child: no thread, no descriptor; gr_forked refuses the peers ------------------- */

static void fork_prepare(void) { pthread_mutex_lock(&mutex); }
static void fork_parent(void) { pthread_mutex_unlock(&mutex); }
static void fork_child(void) {
    for (struct gr_notifier *notifier = notifiers; notifier; notifier = notifier->next) {
        /* It shares the parent's description: the child's writes would wake the parent. */
        if (is_ours(notifier)) close(notifier->fd);
        notifier->fd = -1;
        notifier->armed = false; /* the parent is counted, not the child */
    }
    notifiers = NULL;
    running = asleep = false;
    pthread_mutex_unlock(&mutex);
}
static void install_fork_handlers(void) { pthread_atfork(fork_prepare, fork_parent, fork_child); }

/* ---- under the mutex ------------------------------------------------------------------------- */

static void disarm(struct gr_notifier *notifier) {
    if (notifier->armed) gr_withdraw(&notifier->look, GR_ARMED);
    notifier->armed = false;
}

static void make_readable(struct gr_notifier *notifier) {
    uint64_t one = 1;
    disarm(notifier);
    if (!notifier->raised && is_ours(notifier) &&
        write(notifier->fd, &one, sizeof one) < 0) { /* full: it is readable */
    }
    notifier->raised = true;
}

static void make_unreadable(struct gr_notifier *notifier) {
    uint64_t count;
    if (notifier->raised && is_ours(notifier) &&
        read(notifier->fd, &count, sizeof count) < 0) { /* its owner has read it */
    }
    notifier->raised = false;
}

/* The ring may be unmapped, and another one mapped at its address, so the notifier thread must not
 * count as asleep at that bell. */
static void forget_bell(const struct gr_notifier *notifier) {
    if (!notifier->look.ring) return;
    for (uint32_t k = 1; k < waited_count; k++)
        if (waited[k].address == address_of(&notifier->look.ring->head->bell))
            waited[k].address = 0;
}

static bool sleeps_at(const gr_word32 *bell, uint32_t value) {
    for (uint32_t k = 1; asleep && k < waited_count; k++)
        if (waited[k].address == address_of(bell)) return waited[k].value == value;
    return false;
}

static void kick(void) {
    if (!asleep) return; /* it is about to look at everything */
    asleep = false;
    /* Partner: look_around loads `kicks` under the mutex, before the notifier thread sleeps on
     * that value. */
    atomic_fetch_add_explicit(&kicks, 1, memory_order_seq_cst);
    syscall(SYS_futex, &kicks, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static enum gr_result answer_of(const struct gr_notifier *notifier) {
    enum gr_result result = gr_ready(&notifier->look);
    if (!notifier->at_end) return result;
    return result == GR_ENDED || result == GR_PEER_LOST ? GR_BLOCKED : GR_OK;
}

/* The owner goes on to other things. A trace shows the wait all the same, even a trace that begins
 * later than the wait. */
static void trace_wait(struct gr_notifier *notifier) {
    uint64_t seq;
    struct gr_culprit culprit;
    struct gr_peer *look = &notifier->look;
    const bool told = look->wait.traced;
    look->wait.traced = gr_traced(look->ring);
    if (told || notifier->at_end || !look->wait.traced) return;
    if (gr_look(look, &seq, &culprit) == GR_BLOCKED) gr_trace_wait(look, &culprit, true);
}

/* ---- the notifier thread --------------------------------------------------------------------- */

/* Looks on behalf of every armed peer, and lists the bells to sleep at. The bell of a notifier
 * that becomes readable in this look is listed once more: its owner will most likely arm again
 * before the next change, and need not wake the notifier thread then. False: there are more bells
 * than one sleep can wait for. */
static bool look_around(void) {
    bool all = true;
    waited[0] = (struct gr_waited){.value = atomic_load_explicit(&kicks, memory_order_seq_cst),
                                   .address = address_of(&kicks),
                                   .flags = GR_WAITED_U32 | GR_WAITED_PRIVATE};
    waited_count = 1;
    for (struct gr_notifier *notifier = notifiers; notifier; notifier = notifier->next) {
        if (!notifier->armed) continue;
        const gr_word32 *bell = &notifier->look.ring->head->bell;
        /* [edge D, sleeper] partner: gr_ring_bell. The announcement was made in gr_notifier_arm,
         * and the bell is read before the look. If the bell is listed already, it was read even
         * earlier. */
        uint32_t value = atomic_load_explicit(bell, memory_order_seq_cst), k = 1;
        while (k < waited_count && waited[k].address != address_of(bell)) k++;
        if (k == GR_MAX_WAITED) all = false;
        else if (k == waited_count)
            waited[waited_count++] = (struct gr_waited){
                .value = value, .address = address_of(bell), .flags = GR_WAITED_U32};
        gr_tell_of_joins(notifier->look.ring);
        if (answer_of(notifier) != GR_BLOCKED) make_readable(notifier);
        trace_wait(notifier);
    }
    return all;
}

static void *notify(void *unused) {
    (void)unused;
    /* The longest sleep, as in wait.c. Dead peers are left to the watchdog. */
    int64_t slice_ns = GR_SLICE_NS;
    pthread_mutex_lock(&mutex);
    for (;;) {
        bool all = look_around();
        int64_t until_ns =
            waited_count == 1 ? INT64_MAX : gr_now_ns() + (all ? slice_ns : GR_NAP_NS);
        asleep = true;
        pthread_mutex_unlock(&mutex);
        /* EFAULT: a ring was unmapped meanwhile. Either way, look again. */
        gr_wait_bells(waited, waited_count, until_ns);
        slice_ns = gr_now_ns() < until_ns           ? GR_SLICE_NS
                   : slice_ns < GR_SLICE_MAX_NS / 2 ? 2 * slice_ns
                                                    : GR_SLICE_MAX_NS;
        pthread_mutex_lock(&mutex);
        asleep = false;
    }
    return NULL;
}

/* ---- for the owner --------------------------------------------------------------------------- */

struct gr_notifier *gr_notifier_open(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    gr_mind_forks();
    pthread_once(&once, install_fork_handlers);
    struct gr_notifier *notifier = calloc(1, sizeof *notifier);
    if (!notifier) return NULL;
    notifier->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (notifier->fd >= 0) fstat(notifier->fd, &notifier->at);
    pthread_mutex_lock(&mutex);
    if (notifier->fd >= 0 && !running) {
        errno = gr_begin_thread(notify, NULL);
        running = errno == 0;
    }
    if (notifier->fd < 0 || !running) {
        int error = errno;
        pthread_mutex_unlock(&mutex);
        if (notifier->fd >= 0) close(notifier->fd);
        free(notifier);
        errno = error;
        return NULL;
    }
    notifier->next = notifiers;
    if (notifiers) notifiers->prev = notifier;
    notifiers = notifier;
    pthread_mutex_unlock(&mutex);
    return notifier;
}

/* GR_BLOCKED: the descriptor is not readable now, and will be when the peer's verb has an answer.
 * Anything else: the verb has an answer, and the descriptor is readable. at_end: of a consumer that
 * has come to the end of the stream; the answer is then that a producer has joined since. */
enum gr_result gr_notifier_arm(struct gr_notifier *notifier, const struct gr_peer *me,
                               bool at_end) {
    if (gr_forked(me->ring)) return GR_FORKED;
    const gr_word32 *bell = &me->ring->head->bell;
    pthread_mutex_lock(&mutex);
    /* The notifier serves another peer from now on. */
    if (notifier->look.ring != me->ring || notifier->look.self.id != me->self.id) {
        disarm(notifier);
        forget_bell(notifier);
    }
    notifier->look = *me;
    notifier->at_end = at_end;
    /* A peer that was reaped is not announced: it could not take its count back. */
    if (!notifier->armed && is_mine(me)) {
        /* [edge D, sleeper] partner: gr_ring_bell. Announce first, then read the bell, then
         * look. */
        gr_announce(&notifier->look, GR_ARMED);
        notifier->armed = true;
    }
    uint32_t value = atomic_load_explicit(bell, memory_order_seq_cst);
    enum gr_result result = answer_of(notifier);
    if (result != GR_BLOCKED) make_readable(notifier);
    else {
        make_unreadable(notifier); /* whatever made it readable came before this look */
        notifier->look.wait.begun_ns = gr_now_coarse_ns();
        notifier->look.wait.traced = false;
        trace_wait(notifier);
        if (!sleeps_at(bell, value)) kick();
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

void gr_notifier_disarm(struct gr_notifier *notifier) {
    pthread_mutex_lock(&mutex);
    if (notifier->armed && gr_traced(notifier->look.ring)) /* a wait that is given up */
        gr_trace(&notifier->look, 0, GR_DID_STOP, 0, 0, 0);
    disarm(notifier);
    pthread_mutex_unlock(&mutex);
}

void gr_notifier_clear(struct gr_notifier *notifier) {
    pthread_mutex_lock(&mutex);
    disarm(notifier);
    make_unreadable(notifier);
    pthread_mutex_unlock(&mutex);
}

void gr_notifier_raise(struct gr_notifier *notifier) {
    pthread_mutex_lock(&mutex);
    make_readable(notifier);
    forget_bell(notifier);
    notifier->look.ring = NULL; /* its owner is about to leave */
    pthread_mutex_unlock(&mutex);
}

void gr_notifier_close(struct gr_notifier *notifier) {
    pthread_mutex_lock(&mutex);
    /* Otherwise it is a parent's, and this is a forked child. */
    if (notifier->fd >= 0) {
        disarm(notifier);
        forget_bell(notifier);
        if (notifier->prev) notifier->prev->next = notifier->next;
        else notifiers = notifier->next;
        if (notifier->next) notifier->next->prev = notifier->prev;
        if (is_ours(notifier)) close(notifier->fd);
    }
    pthread_mutex_unlock(&mutex);
    free(notifier);
}

bool gr_is_looked_at(const struct gr_ring *ring) {
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (const struct gr_notifier *each = notifiers; each; each = each->next)
        found |= each->look.ring == ring;
    pthread_mutex_unlock(&mutex);
    return found;
}

int gr_notifier_fd(const struct gr_notifier *notifier) { return notifier->fd; }
