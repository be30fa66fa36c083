/* The processes that have peers in our rings, and those that have handed their pidfds over, which
 * may be about to join. One descriptor serves all peers of a process, in all rings, so an engine
 * with hundreds of clients needs one for each client.
 *
 * A process that has exited is kept until its peers are cleared. Its pidfd tells nothing new then.
 * To open another one and poll it would keep a CPU busy while LOCK is held by a stopped process.
 */
#define _GNU_SOURCE
#include "pidfds.h"

#include <unistd.h>

enum { MAX_UNKNOWN = 64 };

static struct gr_process processes[GR_MAX_PIDFDS];
static uint32_t process_count;
static uint64_t looks;

uint32_t gr_process_count(void) { return process_count; }

static struct gr_process *find(const struct gr_who *who) {
    for (uint32_t k = 0; k < process_count; k++)
        if (gr_same_who(&processes[k].who, who)) return &processes[k];
    return NULL;
}

/* The last one of the list takes the place of the one that is removed. */
static void forget_process(uint32_t k) {
    close(processes[k].fd);
    processes[k] = processes[--process_count];
}

/* A process hands its pidfd over before it joins, so that it is known even if it is killed right
 * then. Of those that have no peer yet only a few are kept. One that is dropped is asked when it
 * has joined. */
void gr_know(const struct gr_who *who, int pidfd) {
    uint32_t unknown = 0;
    for (uint32_t k = 0; k < process_count; k++) unknown += processes[k].look == 0;
    if (find(who) || process_count == GR_MAX_PIDFDS || unknown == MAX_UNKNOWN) close(pidfd);
    else processes[process_count++] = (struct gr_process){.who = *who, .fd = pidfd};
}

/* ---- a look ---------------------------------------------------------------------------------- */

void gr_begin_look(void) { looks++; }

struct gr_process *gr_see_process(const struct gr_who *who) {
    struct gr_process *process = find(who);
    if (process) process->look = looks;
    return process;
}

struct gr_process *gr_add_process(const struct gr_who *who, int pidfd) {
    struct gr_process *process = &processes[process_count++];
    *process = (struct gr_process){.who = *who, .fd = pidfd, .look = looks};
    return process;
}

/* Forgets those whose peers have left, and those that had none and have exited. */
void gr_end_look(void) {
    for (uint32_t k = process_count; k-- > 0;)
        if (processes[k].look == 0 ? processes[k].exited : processes[k].look != looks)
            forget_process(k);
}

/* ---- what has been reported ------------------------------------------------------------------ */

uint32_t gr_list_pidfds(struct pollfd *polled) {
    for (uint32_t k = 0; k < process_count; k++)
        polled[k] = (struct pollfd){.fd = processes[k].exited ? -1 : processes[k].fd,
                                    .events = POLLIN};
    return process_count;
}

/* Since they were listed, others may have been added, at the end. */
void gr_note_exits(const struct pollfd *polled, uint32_t n) {
    for (uint32_t k = 0; k < n; k++) processes[k].exited |= polled[k].revents != 0;
}

void gr_close_pidfds(void) {
    while (process_count) close(processes[--process_count].fd);
}

void gr_lose_pidfds(void) { process_count = 0; }
