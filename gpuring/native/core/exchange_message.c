/* What processes say to each other at the sockets of exchange_socket.c, and to whom.
 *
 * "Handing descriptors on" in docs/abi.md has the message. Each side sends its own as soon as
 * it is connected, and waits for none first. Who may write the header may have the slots. The
 * kernel checks this when a client connects, because the socket has the mode of the header; and
 * each side asks for the user of the other (gr_may_be_peer), because a stranger may have put the
 * socket there.
 */
#define _GNU_SOURCE
#include "exchange_message.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exchange_socket.h"
#include "handles.h"
#include "pidfds.h"

#ifndef P_PIDFD /* glibc before 2.36 */
#define P_PIDFD 3
#endif

/* The bytes "\1offered", read as a little-endian word. */
#define HELLO UINT64_C(0x6465726566666f01)
enum { HAS_SLOTS = 1, HAS_PIDFD = 2 };
struct message {
    uint64_t hello;
    struct gr_who who;
    uint64_t has; /* which descriptors come with it, in the order of these bits */
};

/* ---- who may --------------------------------------------------------------------------------- */

/* Whether the process at the other end has a user who may write the header. Its rights are those
 * of the moment when it connected, or began to listen. */
bool gr_may_be_peer(const struct gr_ring *ring, int fd) {
    struct stat header;
    struct ucred other;
    socklen_t nbytes = sizeof other;
    if (fstat(ring->lock_fd, &header) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &nbytes) != 0)
        return false;
    if (other.uid == 0 || other.uid == geteuid() || other.uid == header.st_uid) return true;
    if (header.st_mode & S_IWOTH) return true;
    if (!(header.st_mode & S_IWGRP)) return false;
    gid_t groups[256];
    nbytes = sizeof groups;
    bool in = other.gid == header.st_gid;
    if (!in && getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &nbytes) == 0)
        for (size_t k = 0; k < nbytes / sizeof *groups; k++) in |= groups[k] == header.st_gid;
    return in;
}

/* ---- messages -------------------------------------------------------------------------------- */

static bool send_with(int fd, struct message *message, const int *fds, int n) {
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec words = {.iov_base = message, .iov_len = sizeof *message};
    struct msghdr sent = {.msg_iov = &words, .msg_iovlen = 1};
    if (n) {
        sent.msg_control = control.bytes;
        sent.msg_controllen = CMSG_SPACE((size_t)n * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&sent);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
        memcpy(CMSG_DATA(rights), fds, (size_t)n * sizeof(int));
    }
    return sendmsg(fd, &sent, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof *message;
}

/* slots: -1 for none. If too many descriptors of this user are under way to processes that have
 * not read them (ETOOMANYREFS), the message goes without any. A process that wants them asks again.
 * If the other side is gone, nothing is sent, and the next read reports that. */
void gr_tell(int fd, const struct gr_ring *ring, int slots) {
    struct message message = {.hello = HELLO, .who = gr_who_am_i(ring)};
    int fds[2], n = 0, pidfd = gr_pidfd(getpid());
    if (slots >= 0) fds[n++] = slots, message.has |= HAS_SLOTS;
    if (pidfd >= 0) fds[n++] = pidfd, message.has |= HAS_PIDFD;
    if (!send_with(fd, &message, fds, n) && errno == ETOOMANYREFS) {
        message.has = 0;
        send_with(fd, &message, NULL, 0);
    }
    if (pidfd >= 0) close(pidfd);
}

/* Anything else that is readable would pass for a dead process. */
static bool is_pidfd(int fd) {
    siginfo_t info;
    return waitid((idtype_t)P_PIDFD, (id_t)fd, &info, WEXITED | WNOHANG | WNOWAIT) == 0 ||
           errno == ECHILD;
}

int gr_hear(int fd, struct gr_heard *heard) {
    struct message message;
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec words = {.iov_base = &message, .iov_len = sizeof message};
    struct msghdr got = {.msg_iov = &words,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    ssize_t nbytes = recvmsg(fd, &got, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    /* The kernel says so first if the other side was killed before it had read what we said. What
     * it had said itself is still there. */
    if (nbytes < 0 && errno == ECONNRESET)
        nbytes = recvmsg(fd, &got, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (nbytes < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    int fds[2], n = 0;
    struct cmsghdr *rights = CMSG_FIRSTHDR(&got); /* there is room for two, whoever sent more */
    if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
        n = (int)((rights->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(rights), (size_t)n * sizeof(int));
    }
    const bool slots = nbytes == (ssize_t)sizeof message && message.has & HAS_SLOTS,
               pidfd = nbytes == (ssize_t)sizeof message && message.has & HAS_PIDFD;
    if (nbytes != (ssize_t)sizeof message || message.hello != HELLO || n != slots + pidfd ||
        (pidfd && !is_pidfd(fds[n - 1]))) {
        const bool lost = got.msg_flags & MSG_CTRUNC && n < 2; /* fewer than there is room for */
        while (n) close(fds[--n]);
        errno = lost ? EMFILE : EPROTO;
        return -1;
    }
    *heard = (struct gr_heard){
        .who = message.who, .slots = slots ? fds[0] : -1, .pidfd = pidfd ? fds[n - 1] : -1};
    return 1;
}

/* For a process of our own pid namespace we need no pidfd from others. */
void gr_keep_pidfd(const struct gr_who *me, const struct gr_heard *heard) {
    if (heard->pidfd < 0) return;
    if (heard->who.pidns == me->pidns) close(heard->pidfd);
    else gr_know(&heard->who, heard->pidfd);
}

int gr_greet(const struct gr_ring *ring, const struct gr_who *who) {
    int fd = gr_connect(ring, who);
    if (fd < 0) return -1;
    if (!gr_may_be_peer(ring, fd)) {
        gr_close_aside(fd);
        errno = EPERM;
        return -1;
    }
    gr_tell(fd, ring, -1);
    return fd;
}
