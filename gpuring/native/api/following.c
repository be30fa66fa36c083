/* Over restarts: the end of a stream, the next ring, and what is left behind in the earlier one. */
#include "following.h"

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "../core/acquire.h"
#include "../core/annex.h"
#include "../core/bell.h"
#include "../core/handles.h"
#include "../core/lock.h"
#include "../core/members.h"
#include "../core/notify.h"
#include "../host/arrivals.h"
#include "../host/debts.h"
#include "../host/taking.h"
#include "durable.h"

/* Who waits for several endpoints, and a descriptor that was readable a moment ago, look so often. */
#define LOOK_AGAIN_NS INT64_C(50000000)

struct follower {
    /* The descriptor: an epoll of the notifier, of names, and of a timer. -1: nobody has asked. */
    int fd, names, timer;
    bool listens;
    int64_t looked_ns;
    gpuring_producer_options producer;
    gpuring_consumer_options consumer;
    char name[GH_SUBSCRIPTION], label[GH_LABEL + 1], subscription[GH_SUBSCRIPTION + 1];
};

struct left_behind {
    struct endpoint end;
    struct left_behind *next;
};

/* ---- joining --------------------------------------------------------------------------------- */

static struct follower *follower_named(const char *label) {
    struct follower *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->fd = made->names = made->timer = -1;
    if (label) strcpy(made->label, label); /* it was checked */
    return made;
}

struct follower *follower_of_producer(const gpuring_producer_options *options) {
    struct follower *made = follower_named(options->label);
    if (!made) return NULL;
    made->producer = *options;
    if (options->label) made->producer.label = made->label;
    return made;
}

struct follower *follower_of_consumer(const gpuring_consumer_options *options,
                                      const char name[GH_SUBSCRIPTION]) {
    struct follower *made = follower_named(options->label);
    if (!made) return NULL;
    made->consumer = *options;
    made->consumer.start = GPURING_START_OLDEST;
    memcpy(made->name, name, GH_SUBSCRIPTION);
    memcpy(made->subscription, name, GH_SUBSCRIPTION);
    if (options->label) made->consumer.label = made->label;
    if (options->subscription) made->consumer.subscription = made->subscription;
    return made;
}

gpuring_status join_as_producer(struct endpoint *end, const gpuring_producer_options *options,
                                gpuring_error *error) {
    const enum gr_result result = gr_join_producer(end->ring->header, &end->peer.core);
    const struct endpoint_options more = {.label = options->label,
                                          .spin_ns = options->spin_ns,
                                          .stream = options->stream,
                                          .gate = options->gate};
    return endpoint_begin(end, result, &more, error);
}

/* A durable subscription is made, and what earlier rings owe it is settled, before it is joined. */
gpuring_status join_as_consumer(struct endpoint *end, const gpuring_consumer_options *options,
                                const char name[GH_SUBSCRIPTION], gpuring_error *error) {
    gpuring_ring *ring = end->ring;
    enum gr_start from;
    uint64_t at;
    gpuring_status status = start_at(options->start, &from, &at, error);
    if (status == GPURING_OK && options->durable) {
        gpuring_subscribe_options durable = GPURING_SUBSCRIBE_OPTIONS;
        durable.start = options->start;
        durable.lossy = options->lossy;
        durable.drop = options->drop;
        durable.patience_ns = options->patience_ns;
        status = subscribe(ring, options->subscription, &durable, error);
    }
    if (status != GPURING_OK) return status;
    if (options->subscription) gh_settle(ring->name, ring->header);
    const enum gr_result result = gr_join_consumer(
        ring->header, name, options->lossy ? GR_LOSSY : GR_LOSSLESS,
        options->drop ? GR_DROP : GR_REDELIVER, from, at, &end->peer.core);
    const struct endpoint_options more = {.subscription = name,
                                          .label = options->label,
                                          .spin_ns = options->spin_ns,
                                          .stream = options->stream,
                                          .gate = options->gate};
    status = endpoint_begin(end, result, &more, error);
    end->peer.core.cursor.told_deaths = options->deaths;
    end->peer.core.cursor.follows = options->reattach;
    return status;
}

/* ---- at the end ------------------------------------------------------------------------------ */

static bool is_consumer(const struct endpoint *end) {
    return end->peer.core.self.role == GR_CONSUMER;
}

static bool is_end(const struct endpoint *end, enum gr_result result) {
    return is_consumer(end) ? result == GR_ENDED || result == GR_PEER_LOST : result == GR_CLOSED;
}

bool waits_out(const struct endpoint *end, enum gr_result result) {
    struct gr_ring *header = end->ring->header;
    if (!is_end(end, result)) return false;
    return end->follows ||
           (end->late >= 0 && end->late == producers_gone(header) && gr_creator_alive(header) &&
            !gr_load_acquire(&header->head->closed));
}

/* Notes that the stream has ended. For one that came later it has not begun yet. */
static void begin_rest(struct endpoint *end) {
    end->restarted |= end->late != producers_gone(end->ring->header);
}

bool rests(struct endpoint *end) {
    uint64_t seq;
    struct gr_culprit culprit;
    if (!end->follows && end->late < 0) return false; /* most of them: without a look */
    if (!waits_out(end, gr_look(&end->peer.core, &seq, &culprit))) return false;
    begin_rest(end);
    return true;
}

/* ---- the descriptor -------------------------------------------------------------------------- */

int follower_fd(struct endpoint *end) {
    struct follower *follows = end->follows;
    const int of_bell = gr_notifier_fd(end->notifier);
    if (!follows || follows->fd >= 0) return follows ? follows->fd : of_bell;
    struct epoll_event readable = {.events = EPOLLIN};
    follows->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (follows->timer < 0) return -1;
    follows->fd = epoll_create1(EPOLL_CLOEXEC);
    if (follows->fd >= 0 && epoll_ctl(follows->fd, EPOLL_CTL_ADD, of_bell, &readable) == 0 &&
        epoll_ctl(follows->fd, EPOLL_CTL_ADD, follows->timer, &readable) == 0)
        return follows->fd;
    const int why = errno;
    if (follows->fd >= 0) close(follows->fd);
    close(follows->timer);
    follows->fd = follows->timer = -1;
    errno = why;
    return -1;
}

static void set_timer(const struct follower *follows, int64_t ns) {
    const struct itimerspec when = {
        .it_value = {.tv_sec = ns / GH_LOOK_NS, .tv_nsec = ns % GH_LOOK_NS}};
    timerfd_settime(follows->timer, 0, &when, NULL);
}

/* Called before each look at an end. What comes after this makes the descriptor readable.
 *
 * Others may make many names. So after a look that came soon after another one, it is the timer that
 * has the next look made, as it is where the kernel does not report names. */
static void listen_to_names(struct follower *follows) {
    if (!follows || follows->fd < 0) return;
    const int64_t now = gr_now_ns();
    const bool soon = now < follows->looked_ns + LOOK_AGAIN_NS;
    struct epoll_event on_names = {.events = soon ? 0 : EPOLLIN};
    follows->looked_ns = now;
    follows->listens = true;
    if (follows->names < 0) {
        follows->names = gh_watch_names(GH_SHM);
        if (follows->names >= 0) epoll_ctl(follows->fd, EPOLL_CTL_ADD, follows->names, &on_names);
    }
    if (follows->names >= 0) {
        gh_drain_names(follows->names);
        epoll_ctl(follows->fd, EPOLL_CTL_MOD, follows->names, &on_names);
    }
    set_timer(follows, soon || follows->names < 0 ? LOOK_AGAIN_NS : GH_LOOK_NS);
}

static void hear_no_names(struct follower *follows) {
    if (!follows || !follows->listens) return;
    follows->listens = false;
    set_timer(follows, 0);
    if (follows->names >= 0) {
        /* A forked child may have it, too, and then close alone does not take it out. */
        epoll_ctl(follows->fd, EPOLL_CTL_DEL, follows->names, NULL);
        close(follows->names);
    }
    follows->names = -1;
}

void arm_fd(struct endpoint *end, bool at_end) {
    if (!at_end) hear_no_names(end->follows);
    if (!at_end || is_consumer(end)) gr_notifier_arm(end->notifier, &end->peer.core, at_end);
    else gr_notifier_clear(end->notifier); /* no bell tells of another ring, but names do */
}

/* ---- the next ring --------------------------------------------------------------------------- */

/* An endpoint may hold a ring after it has left it. The last one that lets it go detaches it. */
static void hold(gpuring_ring *ring) { atomic_fetch_add(&ring->endpoints, 1); }

static void let_go(gpuring_ring *ring) {
    atomic_fetch_sub(&ring->endpoints, 1);
    if (ring->is_followed) gpuring_detach(ring, NULL); /* refused as long as another one holds it */
}

gpuring_ring *ring_told(const struct endpoint *end) { return end->told ? end->told : end->ring; }

void tell_ring(struct endpoint *end) {
    if (end->told) let_go(end->told);
    end->told = NULL;
    end->restarted = false;
    end->late = -1;
}

/* Its place is in the next ring from now on. Frames that are held stay valid in the one before. */
static gpuring_status leave_behind(struct endpoint *end, struct endpoint *next,
                                   gpuring_error *error) {
    bool open = false;
    for (uint32_t i = 0; i < end->ring->header->slots; i++) open |= end->peer.use[i].open;
    struct left_behind *left = open ? calloc(1, sizeof *left) : NULL;
    if (open && !left) return gh_fail_system(error, ENOMEM, end->ring->name);
    next->notifier = end->notifier;
    /* They look at the other ring from now on. */
    if (end->notifier) gr_notifier_raise(end->notifier);
    if (end->joins) gr_notifier_raise(end->joins);
    end->notifier = NULL;
    gpuring_ring *before = end->ring;
    if (!open) {
        const gpuring_status status = endpoint_leave(end, error);
        if (status != GPURING_OK) {
            end->notifier = next->notifier;
            return status;
        }
    } else {
        /* Nobody has its mutex, so the copy gets one of its own. */
        left->end = (struct endpoint){.ring = end->ring,
                                      .data = end->data,
                                      .host = end->host,
                                      .stream = end->stream,
                                      .peer = end->peer,
                                      .late = -1};
        pthread_mutex_init(&left->end.peer.released.mutex, NULL);
        pthread_mutex_destroy(&end->peer.released.mutex);
        left->next = end->left;
        end->left = left;
    }
    if (!end->told) hold(end->told = before);
    else if (!open && before->is_followed) gpuring_detach(before, NULL);
    if (!end->home) hold(end->home = before); /* as long as this endpoint is open */
    return GPURING_OK;
}

/* What was lost on the way into the next ring counts from our last frame. */
static void count_on(const struct endpoint *end, struct endpoint *next) {
    struct gr_watermark mark = {.lost = 0};
    struct gr_cursor *cursor = &next->peer.core.cursor;
    const struct gh_spec *spec = &next->ring->spec;
    const int64_t begun = spec->is_bridged ? spec->lost_before : 0;
    gr_link(end->ring->header, &mark);
    gr_count_before(&next->peer.core);
    cursor->counts_on = end->peer.core.cursor.counts_on;
    cursor->lost_before = begun >= (int64_t)mark.lost ? end->peer.core.cursor.lost_before
                                                      : (uint32_t)begun;
}

/* The next ring is used under the same GPU. One in host memory takes none. */
static gpuring_status attach_to_next(const gpuring_ring *ring, gpuring_ring **next,
                                     gpuring_error *error) {
    gpuring_attach_options options = GPURING_ATTACH_OPTIONS;
    options.owner = ring->owner;
    options.device = ring->gpu < 0 ? ring->device : ring->gpu;
    return try_to_attach(ring->name, &options, false, next, error);
}

/* What another try cannot change. */
static bool is_for_good(gpuring_status status) {
    return status == GPURING_INVALID || status == GPURING_FORKED || status == GPURING_DEVICE ||
           status == GPURING_UNSUPPORTED;
}

/* *moved: false if the next ring refuses. It was closed or is full, and there may be another one
 * soon. */
static gpuring_status move(struct endpoint *end, bool *moved, gpuring_error *error) {
    gpuring_ring *ring;
    *moved = false;
    gpuring_status status = attach_to_next(end->ring, &ring, error);
    if (status != GPURING_OK) return is_for_good(status) ? status : GPURING_OK;
    ring->is_followed = true;
    struct endpoint next = {.ring = ring, .late = -1};
    const struct follower *as = end->follows;
    status = is_consumer(end) ? join_as_consumer(&next, &as->consumer, as->name, error)
                              : join_as_producer(&next, &as->producer, error);
    if (status != GPURING_OK) {
        gpuring_detach(ring, NULL);
        return is_for_good(status) ? status : GPURING_OK;
    }
    if (is_consumer(end)) count_on(end, &next);
    status = leave_behind(end, &next, error);
    if (status != GPURING_OK) {
        next.notifier = NULL;
        endpoint_leave(&next, NULL);
        gpuring_detach(ring, NULL);
        return status;
    }
    end->ring = ring;
    end->data = next.data;
    end->host = next.host;
    end->peer = next.peer; /* nobody has its mutex, as above */
    pthread_mutex_init(&end->peer.released.mutex, NULL);
    pthread_mutex_destroy(&next.peer.released.mutex);
    end->notifier = next.notifier;
    end->restarted = true;
    end->late = -1;
    *moved = true;
    return GPURING_OK;
}

gpuring_status look_on(struct endpoint *end, bool *goes_on, gpuring_error *error) {
    uint64_t seq;
    struct gr_culprit culprit;
    listen_to_names(end->follows);
    const enum gr_result result = gr_look(&end->peer.core, &seq, &culprit);
    *goes_on = false;
    /* It is over, unless another member gives a frame back. */
    if (result == GR_BLOCKED && culprit.reason == GR_BY_HOLDER) return GPURING_OK;
    if (!waits_out(end, result)) {
        if (!is_end(end, result)) end->late = -1;
        *goes_on = true;
        return GPURING_OK;
    }
    if (!end->follows) return GPURING_OK;
    const int next = gh_has_successor(end->ring->name, end->ring->header);
    if (next > 0) return move(end, goes_on, error);
    if (next == 0 || errno == EMFILE || errno == ENFILE) return GPURING_OK;
    return gh_fail_system(error, errno, end->ring->name);
}

gpuring_status wait_out(struct endpoint *end, int64_t deadline_ns, gpuring_error *error) {
    struct gh_arrivals arrivals = {0};
    gpuring_status status;
    bool goes_on;
    begin_rest(end);
    /* Without a descriptor or a thread it looks now and then. */
    struct gr_notifier *joins = deadline_ns && is_consumer(end) ? gr_notifier_open() : NULL;
    end->joins = joins;
    for (;;) {
        if (joins) gr_notifier_arm(joins, &end->peer.core, true); /* before the look */
        status = look_on(end, &goes_on, error);
        if (status != GPURING_OK || goes_on) break;
        const int64_t left =
            deadline_ns == INT64_MAX ? INT64_MAX : deadline_ns - (deadline_ns ? gr_now_ns() : 0);
        if (left <= 0) {
            status = GPURING_TIMEOUT;
            break;
        }
        gh_await_name(&arrivals, false, joins ? gr_notifier_fd(joins) : -1, left);
    }
    gh_end_arrivals(&arrivals);
    if (joins) gr_notifier_close(joins);
    end->joins = NULL;
    return status;
}

/* ---- what was left behind -------------------------------------------------------------------- */

static bool has(const struct endpoint *end, const gpuring_slot *slot) {
    const struct gr_ring *header = end->ring->header;
    const char *at = slot->data;
    return at >= end->data && at < end->data + header->slots * header->config.slot_nbytes;
}

void use_stream(struct endpoint *end, void *stream) {
    end->stream = stream;
    for (struct left_behind *left = end->left; left; left = left->next) left->end.stream = stream;
}

struct endpoint *where_open(struct endpoint *end, const gpuring_slot *slot) {
    if (!end->left || !HAS_SIZE(slot, data) || has(end, slot)) return end;
    for (struct left_behind *left = end->left; left; left = left->next)
        if (has(&left->end, slot)) return &left->end;
    return end;
}

/* If it cannot be left, it stays listed. */
static gpuring_status leave(struct left_behind **at, gpuring_error *error) {
    struct left_behind *left = *at;
    gpuring_ring *ring = left->end.ring;
    const gpuring_status status = endpoint_leave(&left->end, error);
    if (status != GPURING_OK) return status;
    *at = left->next;
    if (ring->is_followed) gpuring_detach(ring, NULL);
    free(left);
    return GPURING_OK;
}

void leave_if_done(struct endpoint *end, struct endpoint *owner) {
    if (owner == end) return;
    for (uint32_t i = 0; i < owner->ring->header->slots; i++)
        if (owner->peer.use[i].open) return;
    struct left_behind **at = &end->left;
    while (&(*at)->end != owner) at = &(*at)->next;
    leave(at, NULL); /* else with leave_all_behind */
}

gpuring_status leave_all_behind(struct endpoint *end, gpuring_error *error) {
    gpuring_status status = GPURING_OK;
    while (end->left && status == GPURING_OK) status = leave(&end->left, error);
    return status;
}

void end_following(struct endpoint *end) {
    const bool forked = gr_forked(end->ring->header);
    if (end->told) let_go(end->told);
    if (end->home && end->ring->is_followed) gpuring_detach(end->ring, NULL);
    if (end->home) let_go(end->home);
    if (!end->follows) return;
    if (!forked) hear_no_names(end->follows);
    else if (end->follows->names >= 0) close(end->follows->names); /* the rest is the parent's */
    if (end->follows->fd >= 0) {
        close(end->follows->fd);
        close(end->follows->timer);
    }
    free(end->follows);
}
