/* A descriptor that becomes readable with frames and, while an end is waited out, with new names. */
#define _GNU_SOURCE
#include "descriptor.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "../core/bell.h"
#include "../host/arrivals.h"
#include "../host/names.h"

int descriptor_fd(struct descriptor *of, int bell) {
    struct epoll_event readable = {.events = EPOLLIN};
    if (of->fd >= 0) return of->fd;
    of->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (of->timer < 0) return -1;
    of->fd = epoll_create1(EPOLL_CLOEXEC);
    if (of->fd >= 0 && epoll_ctl(of->fd, EPOLL_CTL_ADD, bell, &readable) == 0 &&
        epoll_ctl(of->fd, EPOLL_CTL_ADD, of->timer, &readable) == 0)
        return of->fd;
    const int why = errno;
    if (of->fd >= 0) close(of->fd);
    close(of->timer);
    of->fd = of->timer = -1;
    errno = why;
    return -1;
}

static void set_timer(const struct descriptor *of, int64_t ns) {
    const struct itimerspec when = {
        .it_value = {.tv_sec = ns / GH_LOOK_NS, .tv_nsec = ns % GH_LOOK_NS}};
    timerfd_settime(of->timer, 0, &when, NULL);
}

/* Other programs may make many names, and each would cost a look. So after two looks in a short
 * time the descriptor ignores names, and the timer makes it readable. It does the same where the
 * kernel does not report names. */
void listen_to_names(struct descriptor *of) {
    if (of->fd < 0) return;
    const int64_t now = gr_now_ns();
    const bool soon = now < of->looked_ns + LOOK_AGAIN_NS;
    struct epoll_event on_names = {.events = soon ? 0 : EPOLLIN};
    of->looked_ns = now;
    of->listens = true;
    if (of->names < 0) {
        of->names = gh_watch_names(GH_SHM);
        if (of->names >= 0) epoll_ctl(of->fd, EPOLL_CTL_ADD, of->names, &on_names);
    }
    if (of->names >= 0) {
        gh_drain_names(of->names);
        epoll_ctl(of->fd, EPOLL_CTL_MOD, of->names, &on_names);
    }
    set_timer(of, soon || of->names < 0 ? LOOK_AGAIN_NS : GH_LOOK_NS);
}

void hear_no_names(struct descriptor *of) {
    if (!of->listens) return;
    of->listens = false;
    set_timer(of, 0);
    if (of->names >= 0) {
        /* A forked child may have the bell's descriptor, too. Then close alone does not remove it. */
        epoll_ctl(of->fd, EPOLL_CTL_DEL, of->names, NULL);
        close(of->names);
    }
    of->names = -1;
}

void end_descriptor(struct descriptor *of, bool forked) {
    if (!forked) hear_no_names(of);
    else if (of->names >= 0) close(of->names); /* the rest is the parent's */
    if (of->fd < 0) return;
    close(of->fd);
    close(of->timer);
}
