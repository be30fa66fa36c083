/* The other processes of our rings, as descriptors that tell when they exit. For the watchdog, and
 * for code that gets a pidfd from another process; all under gr_lock_handles. */
#pragma once

#include <poll.h>

#include "process.h"

enum { GR_MAX_PIDFDS = 1023 };

struct gr_process {
    struct gr_who who;
    uint64_t look; /* the last one that found a peer of this process; 0: none has yet */
    int fd;        /* its pidfd */
    bool exited;   /* its pidfd has said so, and stays readable */
};

uint32_t gr_process_count(void);
/* Takes over the pidfd of a process of another pid namespace. */
void gr_know(const struct gr_who *who, int pidfd);

/* The watchdog's look at the peers of all rings, in this order. gr_see_process is called for the
 * process of each peer, and returns NULL if the process is not in the list. Then gr_add_process
 * adds it, if there is room. gr_end_look forgets the processes that were not seen. */
void gr_begin_look(void);
struct gr_process *gr_see_process(const struct gr_who *who);
struct gr_process *gr_add_process(const struct gr_who *who, int pidfd);
void gr_end_look(void);

/* gr_list_pidfds lists the pidfds that may still report an exit, and returns how many there are.
 * After the poll, gr_note_exits takes the same places, with what poll has reported. */
uint32_t gr_list_pidfds(struct pollfd *polled);
void gr_note_exits(const struct pollfd *polled, uint32_t n);

void gr_close_pidfds(void); /* in a forked child, whose parent has them, too */
/* The program has closed the pidfds, and their numbers may be those of its own files. */
void gr_lose_pidfds(void);
