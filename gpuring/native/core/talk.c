/* What processes say to each other at the sockets of offer.c, and to whom.
 *
 * A connection carries one message each way. Each side sends its own as soon as it is connected,
 * and waits for none first: a word that says what this is, who the sender is, and, as SCM_RIGHTS, the
 * descriptor of the slots (if the sender offers it) and the sender's pidfd. A pidfd that was handed
 * over can be polled in any pid namespace, where the pid itself says nothing. Each process keeps
 * those of the others, so it knows when their GPU work is gone (reap.c).
 *
 * The watchdog of the process answers, so a main thread that never returns from a call into the
 * driver does not matter. It never waits for a client, and does a bounded number of steps at a
 * time. So it reads nothing that a client sends, and closes no connection: descriptors may have
 * come with it, also more than there is room for, and to close one may take seconds or for ever (a
 * TCP socket that lingers, a file of a FUSE). Another thread of the process does that, the hearer
 * (gr_hear_talks), and has no lock meanwhile. What a client sends is read once, into a buffer of
 * the right size. A client that sends nothing is answered all the same, and then forgotten.
 *
 * Who may write the header may have the slots. The kernel checks this when a client connects,
 * because the socket has the mode of the header; and each side asks for the user of the other
 * (may_be_peer), because a stranger may have put the socket there.
 */
#define _GNU_SOURCE
#include "offer.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef P_PIDFD /* glibc before 2.36 */
#define P_PIDFD 3
#endif

enum { ANSWERS = 32 }; /* at one look; the others come at the next one, which comes at once */
#define TALK_NS (INT64_C(5) * 1000 * 1000 * 1000) /* how long the other side may take */

/* The bytes "\1offered", read as a little-endian word. */
#define HELLO UINT64_C(0x6465726566666f01)
enum { HAS_SLOTS = 1, HAS_PIDFD = 2 };
struct message {
    uint64_t hello;
    struct gr_who who;
    uint64_t has; /* which descriptors come with it, in the order of these bits */
};

/* ---- who may --------------------------------------------------------------------------------- */

/* Whether the process at the other end has a user who may write the header. Its rights are those of
 * the moment when it connected, or began to listen. */
static bool may_be_peer(const struct gr_ring *ring, int fd) {
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

/* slots: -1 for none. If too many descriptors of this user are under way to processes that have not
 * read them (ETOOMANYREFS), it says who it is without any. Whoever wants them asks again. If the
 * other side is gone, nothing is said, and whoever reads gets to know that. */
static void tell(int fd, const struct gr_ring *ring, int slots) {
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
    /* The kernel says so first if the other side was killed before it had read what we said. What it
     * had said itself is still there. */
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

/* The pids of one's own namespace need no pidfd from others. */
void gr_keep_pidfd(const struct gr_who *me, const struct gr_heard *heard) {
    if (heard->pidfd < 0) return;
    if (heard->who.pidns == me->pidns) close(heard->pidfd);
    else gr_know(&heard->who, heard->pidfd);
}

/* ---- talks: connections whose other side has not been heard yet ------------------------------ */

/* The watchdog begins them, and the hearer ends them. */
static struct talk {
    int fd;
    uint64_t ino;     /* of its socket */
    int64_t until_ns; /* 0: it is only to be closed */
    struct gr_who me, asked; /* asked: zero if the other side has connected */
} talks[GR_MAX_TALKS];
static uint32_t talk_count;

static uint64_t ino_of(int fd) {
    struct stat at;
    return fstat(fd, &at) == 0 ? (uint64_t)at.st_ino : 0;
}

/* There is room for it. welcome: the other side may be a peer, so it is told who we are and what we
 * have, and is heard. */
static void begin_talk(int fd, const struct gr_ring *ring, struct gr_who asked, bool welcome,
                       int slots) {
    if (welcome) tell(fd, ring, slots);
    talks[talk_count++] = (struct talk){.fd = fd,
                                        .ino = ino_of(fd),
                                        .until_ns = welcome ? gr_now_ns() + TALK_NS : 0,
                                        .me = gr_who_am_i(ring),
                                        .asked = asked};
    gr_wake_hearer();
}

static void forget_talk(uint32_t k) {
    memmove(&talks[k], &talks[k + 1], (--talk_count - k) * sizeof *talks);
}

static bool is_ours(const struct talk *talk) { return ino_of(talk->fd) == talk->ino; }

/* One turn of the hearer, without gr_lock_handles. Nobody else ends talks meanwhile. True: it has
 * made room, and there was none. A process that closes everything just after a look here may lose a
 * message or a descriptor that it opens in the same moment.
 *
 * If there are many, the oldest make room. They have been answered, and those that were asked will
 * be asked again. */
bool gr_hear_talks(void) {
    gr_lock_handles();
    bool room = false;
    for (uint32_t k = 0; k < talk_count;) {
        const struct talk talk = talks[k];
        const bool ours = is_ours(&talk); /* not if the process closed everything */
        struct gr_heard heard = {.slots = -1, .pidfd = -1};
        gr_unlock_handles();
        const int said = ours && talk.until_ns ? gr_hear(talk.fd, &heard) : -1;
        gr_lock_handles();
        if (said == 0 && talk_count <= GR_MAX_TALKS / 2 && gr_now_ns() < talk.until_ns) {
            k++;
            continue;
        }
        room |= talk_count == GR_MAX_TALKS;
        forget_talk(k);
        gr_keep_pidfd(&talk.me, &heard);
        gr_unlock_handles();
        if (heard.slots >= 0) close(heard.slots);
        if (ours && is_ours(&talk)) close(talk.fd);
        gr_lock_handles();
    }
    gr_unlock_handles();
    return room;
}

uint32_t gr_list_talks(struct pollfd *polled) {
    for (uint32_t k = 0; k < talk_count; k++)
        polled[k] = (struct pollfd){.fd = talks[k].fd, .events = POLLIN};
    return talk_count;
}

void gr_end_talks(void) {
    for (uint32_t k = 0; k < talk_count; k++) talks[k].until_ns = 0;
    if (talk_count) gr_wake_hearer();
}

void gr_close_talks(void) {
    while (talk_count) close(talks[--talk_count].fd);
}

int gr_greet(const struct gr_ring *ring, const struct gr_who *who) {
    int fd = gr_connect(ring, who);
    if (fd < 0) return -1;
    if (!may_be_peer(ring, fd)) {
        close(fd);
        errno = EPERM;
        return -1;
    }
    tell(fd, ring, -1);
    return fd;
}

void gr_ask_for_pidfd(struct gr_ring *ring, const struct gr_who *who) {
    if (atomic_load_explicit(&ring->slots_fd, memory_order_relaxed) < 0 ||
        talk_count == GR_MAX_TALKS || !gr_has_hearer())
        return;
    for (uint32_t k = 0; k < talk_count; k++)
        if (gr_same_who(&talks[k].asked, who)) return;
    int fd = gr_connect(ring, who);
    if (fd >= 0) begin_talk(fd, ring, *who, may_be_peer(ring, fd), -1);
}

/* ---- for the watchdog ------------------------------------------------------------------------ */

/* Whether the descriptor is still that of our socket. Not if the process has closed all its
 * descriptors, as a daemon does. Then the number may be that of a socket at which the program itself
 * listens. */
static bool is_listening(const struct gr_ring *ring) {
    return ino_of(ring->listen_fd) == ring->listen_ino;
}

/* Answers those who have connected to this ring's socket. False: they cannot be answered now,
 * because there is no descriptor to do it with, or the hearer has not made room. */
static bool serve(struct gr_ring *ring) {
    if (!is_listening(ring)) {
        ring->listen_fd = -1;
        atomic_store_explicit(&ring->slots_fd, -1, memory_order_relaxed);
        return true;
    }
    for (int k = 0; k < ANSWERS; k++) {
        if (talk_count == GR_MAX_TALKS || !gr_has_hearer()) return false;
        int fd = accept4(ring->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
        int slots = atomic_load_explicit(&ring->slots_fd, memory_order_relaxed);
        begin_talk(fd, ring, (struct gr_who){0}, may_be_peer(ring, fd), slots);
    }
    return true;
}

uint32_t gr_list_sockets(const struct gr_ring *handles, struct pollfd *polled, uint32_t most) {
    uint32_t n = 0;
    for (const struct gr_ring *ring = handles; ring && n < most; ring = ring->next)
        if (ring->listen_fd >= 0)
            polled[n++] = (struct pollfd){.fd = ring->listen_fd, .events = POLLIN};
    return n;
}

bool gr_answer(struct gr_ring *handles) {
    bool can = true;
    for (struct gr_ring *ring = handles; ring; ring = ring->next)
        if (ring->listen_fd >= 0) can &= serve(ring);
    return can;
}
