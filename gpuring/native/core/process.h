/* Who a process is: for headers, where a pid alone would not tell. No state. */
#pragma once

#include <sys/types.h>

#include "ring.h"

/* A process as it names itself in headers. */
struct gr_who {
    uint64_t pid, start, pidns;
};
static inline bool gr_same_who(const struct gr_who *a, const struct gr_who *b) {
    return a->pid == b->pid && a->start == b->start && a->pidns == b->pidns;
}

static inline struct gr_who gr_who_am_i(const struct gr_ring *ring) {
    return (struct gr_who){.pid = ring->pid, .start = ring->start, .pidns = ring->pidns};
}

static inline struct gr_who gr_who_is(const struct gr_peer_entry *entry) {
    return (struct gr_who){.pid = gr_load_acquire(&entry->pid),
                           .start = gr_load_acquire(&entry->start),
                           .pidns = gr_load_acquire(&entry->pidns)};
}

int gr_pidfd(pid_t pid); /* -1: errno */
uint64_t gr_process_start(pid_t pid, char *state);
uint64_t gr_pid_namespace(void); /* of this process; 0 if nobody can say */
