/* Threads of this library, and the pipes that wake them.
 *
 * A program may close all its descriptors, as a daemon does, and their numbers may be those of its
 * own files then. So a pipe is looked at before it is used, and before anything that came with it:
 * an inode tells whether a descriptor is still the same. A thread whose pipe is gone ends, and
 * closes nothing. The next start makes another one.
 */
#define _GNU_SOURCE
#include "thread.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_pipe_of(const struct gr_thread *thread, int fd) {
    struct stat now;
    return fd >= 0 && fstat(fd, &now) == 0 && S_ISFIFO(now.st_mode) && now.st_ino == thread->ino;
}

static bool open_pipe(struct gr_thread *thread) {
    struct stat at;
    int fds[2];
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    thread->out = fds[0];
    thread->in = fds[1];
    thread->ino = fstat(fds[0], &at) == 0 ? (uint64_t)at.st_ino : 0;
    return true;
}

bool gr_has_its_pipe(const struct gr_thread *thread) { return is_pipe_of(thread, thread->out); }

void gr_close_pipe(struct gr_thread *thread) {
    if (is_pipe_of(thread, thread->out)) close(thread->out);
    if (is_pipe_of(thread, thread->in)) close(thread->in);
    thread->out = thread->in = -1;
    thread->runs = false;
}

/* The process has closed its descriptors. Their numbers may be those of other files by now. */
static void lose(struct gr_thread *thread) {
    thread->runs = false;
    thread->out = thread->in = -1;
    thread->life++;
    if (thread->lost) thread->lost();
}

void gr_wake(struct gr_thread *thread) {
    if (!thread->runs) return;
    if (!is_pipe_of(thread, thread->in)) lose(thread);
    else if (write(thread->in, "", 1) < 0) { /* full: it is awake */
    }
}

bool gr_goes_on(struct gr_thread *thread, uint64_t life) {
    char woken[256];
    if (thread->life != life) return false;
    if (!is_pipe_of(thread, thread->out)) {
        lose(thread);
        return false;
    }
    if (read(thread->out, woken, sizeof woken) < 0) { /* something else has happened */
    }
    return true;
}

/* Nobody joins a thread of this library: most of them live as long as the process. Of each that
 * runs when the process ends valgrind says that 288 bytes are possibly lost. Those are the C
 * library's (allocate_dtv), and belong to the thread. */
int gr_begin_thread(void *(*run)(void *), void *argument) {
    pthread_t made;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&made, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) return error;
    pthread_setname_np(made, "gpuring"); /* for debuggers and `top -H` */
    pthread_detach(made);
    return 0;
}

void gr_start_thread(struct gr_thread *thread, void *(*run)(void *)) {
    if (thread->runs && !is_pipe_of(thread, thread->in)) lose(thread);
    if (thread->runs || !open_pipe(thread)) return;
    thread->runs = gr_begin_thread(run, (void *)(uintptr_t)thread->life) == 0;
    if (!thread->runs) gr_close_pipe(thread);
}
