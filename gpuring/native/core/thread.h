/* Threads of this library, and the pipes that wake them. A caller that starts, wakes or ends a
 * gr_thread has gr_lock_handles (handles.h). */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Starts a detached thread that takes no signals: those are for the threads of the program. 0, or
 * an error number. */
int gr_begin_thread(void *(*run)(void *), void *argument);

/* A thread that sleeps in poll(), and the pipe that wakes it. One that does not run has
 * {.out = -1, .in = -1}. */
struct gr_thread {
    _Atomic bool runs; /* any thread may read it */
    int out, in;
    uint64_t ino;  /* of the pipe */
    uint64_t life; /* how many threads there were: an earlier one has nothing to say any more */
    /* NULL, or called when the process has closed its descriptors: the numbers of what else the
     * thread had open may be those of other files by now. */
    void (*lost)(void);
};

/* Starts it, unless it runs. `run` gets the thread's life. If there can be no thread, it does not
 * run afterwards. */
void gr_start_thread(struct gr_thread *thread, void *(*run)(void *life));
void gr_wake(struct gr_thread *thread);
/* For the thread itself, after each sleep. False: it is to end, and has nothing that it may
 * close. */
bool gr_goes_on(struct gr_thread *thread, uint64_t life);
/* In a forked child, which does not have the thread. */
void gr_close_pipe(struct gr_thread *thread);
/* False: the process has closed its descriptors, and their numbers may be those of other files. */
bool gr_has_its_pipe(const struct gr_thread *thread);
