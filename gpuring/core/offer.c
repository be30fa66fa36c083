/* Descriptors that the processes of a ring hand to each other: of the slots, and of themselves.
 *
 * A process that has the descriptor of a ring's slots offers it (gr_offer). It then listens at a
 * Unix socket of its own, in a directory of the ring in /dev/shm:
 *
 *   /dev/shm/gpuring+EPOCH/PIDNS-PID-START      all in hexadecimal digits, as in the header
 *
 * So whoever has the header knows where to ask whom: the creator and each peer (gr_fetch_begin).
 * Containers that share /dev/shm and nothing else find each other there. A ring whose slots need no
 * descriptor has no socket.
 *
 * A connection carries one message each way. Each side sends its own as soon as it is connected,
 * and waits for none: a word that says what this is, who the sender is, and, as SCM_RIGHTS, the
 * descriptor of the slots (if the sender offers it) and the sender's pidfd. A pidfd that was handed
 * over can be polled in any pid namespace, where the pid itself says nothing. Each process keeps
 * those of the others, so it knows when their GPU work is gone (reap.c).
 *
 * The watchdog of the process listens, so a main thread that never returns from a call into the
 * driver does not matter. It never waits for a client, and does a bounded number of steps at a
 * time. What a client sends is read once, into a buffer of the right size. A client that sends
 * nothing is answered all the same, and then forgotten.
 *
 * Who may write the header may have the slots. The kernel checks this when a client connects,
 * because the socket has the mode of the header; and each side asks for the user of the other
 * (may_be_peer), because a stranger may have put the socket there.
 *
 * A socket that nobody listens at refuses connections, in any namespace. So a path that was left by
 * a killed process is known by that alone (gr_remove_stale), and segment.py does the same.
 */
#define _GNU_SOURCE
#include "offer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef P_PIDFD /* glibc before 2.36 */
#define P_PIDFD 3
#endif

/* Answered at one look; the others at the next one, which comes at once. */
enum { BACKLOG = 64, ANSWERS = 32 };
#define TALK_NS (INT64_C(5) * 1000 * 1000 * 1000) /* how long the other side may take */

/* The bytes "\1offered", read as a little-endian word. */
#define HELLO UINT64_C(0x6465726566666f01)
enum { HAS_SLOTS = 1, HAS_PIDFD = 2 };
struct message {
    uint64_t hello;
    struct gr_who who;
    uint64_t has; /* which descriptors come with it, in the order of these bits */
};

/* ---- paths ----------------------------------------------------------------------------------- */

static struct gr_who who_am_i(const struct gr_ring *ring) {
    return (struct gr_who){.pid = ring->pid, .start = ring->start, .pidns = ring->pidns};
}

/* Writes the directory of the ring, and returns its length. */
static int directory_of(const struct gr_ring *ring, struct sockaddr_un *at) {
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = sprintf(at->sun_path, "/dev/shm/gpuring+");
    for (size_t k = 0; k < sizeof ring->head->epoch; k++)
        length += sprintf(at->sun_path + length, "%02x", ring->head->epoch[k]);
    return length;
}

/* At most 101 of the 108 bytes that such a path may have. */
static void path_of(const struct gr_ring *ring, const struct gr_who *who, const char *suffix,
                    struct sockaddr_un *at) {
    int length = directory_of(ring, at);
    snprintf(at->sun_path + length, sizeof at->sun_path - (size_t)length, "/%llx-%llx-%llx%s",
             (unsigned long long)who->pidns, (unsigned long long)who->pid,
             (unsigned long long)who->start, suffix);
}

static int new_socket(void) {
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static int connected(const struct sockaddr_un *at) {
    int fd = new_socket();
    if (fd >= 0 && connect(fd, (const struct sockaddr *)at, sizeof *at) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static void remove_if_stale(const struct sockaddr_un *at) {
    int fd = connected(at);
    if (fd >= 0) close(fd);
    else if (errno == ECONNREFUSED) unlink(at->sun_path);
}

/* Under LOCK, for a peer that is dead: removes the path that its process has left, if it had one.
 * If the process lives, it listens there, and the path stays. */
void gr_remove_stale(const struct gr_ring *ring, const struct gr_peer_entry *entry) {
    struct gr_who who = {.pid = gr_load_relaxed(&entry->pid),
                         .start = gr_load_relaxed(&entry->start),
                         .pidns = gr_load_relaxed(&entry->pidns)};
    struct sockaddr_un at;
    path_of(ring, &who, "", &at);
    remove_if_stale(&at);
    path_of(ring, &who, "~", &at);
    remove_if_stale(&at);
    directory_of(ring, &at);
    rmdir(at.sun_path); /* unless others have sockets there */
}

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

/* slots: -1 for none. False: the other side is gone, or there is no descriptor left. */
static bool tell(int fd, const struct gr_ring *ring, int slots) {
    struct message message = {.hello = HELLO, .who = who_am_i(ring)};
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    int fds[2], n = 0, pidfd = gr_pidfd(getpid());
    if (slots >= 0) fds[n++] = slots, message.has |= HAS_SLOTS;
    if (pidfd >= 0) fds[n++] = pidfd, message.has |= HAS_PIDFD;
    struct iovec words = {.iov_base = &message, .iov_len = sizeof message};
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
    bool done = sendmsg(fd, &sent, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof message;
    if (pidfd >= 0) close(pidfd);
    return done;
}

struct heard {
    struct gr_who who;
    int slots, pidfd; /* -1 if it did not come */
};

/* Anything else that is readable would pass for a dead process. */
static bool is_pidfd(int fd) {
    siginfo_t info;
    return waitid((idtype_t)P_PIDFD, (id_t)fd, &info, WEXITED | WNOHANG | WNOWAIT) == 0 ||
           errno == ECHILD;
}

/* 1: a message was read. 0: not yet. -1: none will come, or what came is none; errno is EMFILE if
 * descriptors were lost because this process has too many. */
static int hear(int fd, struct heard *heard) {
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
    *heard = (struct heard){
        .who = message.who, .slots = slots ? fds[0] : -1, .pidfd = pidfd ? fds[n - 1] : -1};
    return 1;
}

/* The pids of one's own namespace need no pidfd from others. */
static void keep_pidfd(const struct gr_who *me, const struct heard *heard) {
    if (heard->pidfd < 0) return;
    if (heard->who.pidns == me->pidns) close(heard->pidfd);
    else gr_know(&heard->who, heard->pidfd);
}

/* ---- talks: connections whose other side has not said anything yet --------------------------- */

static struct talk {
    int fd;
    int64_t until_ns;
    struct gr_who me, asked; /* asked: zero if the other side has connected */
} talks[GR_MAX_TALKS];
static uint32_t talk_count;

static void end_talk(uint32_t k) {
    close(talks[k].fd);
    memmove(&talks[k], &talks[k + 1], (--talk_count - k) * sizeof *talks);
}

/* The oldest one makes room. It has been answered, and if it was asked, it will be asked again. */
static void begin_talk(int fd, const struct gr_ring *ring, struct gr_who asked) {
    if (talk_count == GR_MAX_TALKS) end_talk(0);
    talks[talk_count++] = (struct talk){
        .fd = fd, .until_ns = gr_now_ns() + TALK_NS, .me = who_am_i(ring), .asked = asked};
}

/* False: the talk is over. */
static bool go_on(const struct talk *talk) {
    struct heard heard;
    int said = hear(talk->fd, &heard);
    if (said <= 0) return said == 0 && gr_now_ns() < talk->until_ns;
    if (heard.slots >= 0) close(heard.slots);
    keep_pidfd(&talk->me, &heard);
    return false;
}

void gr_forget_talks(bool ours) {
    while (ours && talk_count) end_talk(talk_count - 1);
    talk_count = 0;
}

/* A connection to the process, to which our message is under way. -1: errno. */
static int greeted(const struct gr_ring *ring, const struct gr_who *who) {
    struct sockaddr_un at;
    path_of(ring, who, "", &at);
    int fd = connected(&at);
    if (fd >= 0 && !(may_be_peer(ring, fd) && tell(fd, ring, -1))) {
        close(fd);
        errno = EPERM;
        return -1;
    }
    return fd;
}

void gr_ask(struct gr_ring *ring, const struct gr_who *who) {
    if (atomic_load_explicit(&ring->slots_fd, memory_order_relaxed) < 0) return;
    for (uint32_t k = 0; k < talk_count; k++)
        if (gr_same_who(&talks[k].asked, who)) return;
    int fd = greeted(ring, who);
    if (fd >= 0) begin_talk(fd, ring, *who);
}

/* ---- for the watchdog ------------------------------------------------------------------------ */

/* Answers those who have connected to this ring's socket. False: they cannot be answered now. */
static bool serve(struct gr_ring *ring) {
    for (int k = 0; k < ANSWERS; k++) {
        int fd = accept4(ring->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EBADF || errno == ENOTSOCK || errno == EINVAL)) {
            ring->listen_fd = -1; /* the process has closed all its descriptors, as a daemon does */
            return true;
        }
        if (fd < 0) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
        int slots = atomic_load_explicit(&ring->slots_fd, memory_order_relaxed);
        if (!may_be_peer(ring, fd)) {
            close(fd);
            continue;
        }
        /* Whoever is gone already may have said who it was before. */
        tell(fd, ring, slots);
        begin_talk(fd, ring, (struct gr_who){0});
        if (!go_on(&talks[talk_count - 1])) end_talk(talk_count - 1); /* it has spoken already */
    }
    return true;
}

uint32_t gr_list_sockets(const struct gr_ring *handles, struct pollfd *polled, uint32_t most) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < talk_count && n < most; k++)
        polled[n++] = (struct pollfd){.fd = talks[k].fd, .events = POLLIN};
    for (const struct gr_ring *ring = handles; ring && n < most; ring = ring->next)
        if (ring->listen_fd >= 0)
            polled[n++] = (struct pollfd){.fd = ring->listen_fd, .events = POLLIN};
    return n;
}

bool gr_attend(struct gr_ring *handles) {
    bool can = true;
    for (uint32_t k = talk_count; k-- > 0;)
        if (!go_on(&talks[k])) end_talk(k);
    for (struct gr_ring *ring = handles; ring; ring = ring->next)
        if (ring->listen_fd >= 0) can &= serve(ring);
    return can;
}

/* ---- offers ---------------------------------------------------------------------------------- */

/* The path appears when connections are accepted, so a path that refuses them is stale. What has
 * the path by then is what an earlier program of this process has left (execve). */
static int listener(const struct gr_ring *ring) {
    struct stat header;
    struct sockaddr_un directory, made, at;
    const struct gr_who me = who_am_i(ring);
    directory_of(ring, &directory);
    path_of(ring, &me, "~", &made);
    path_of(ring, &me, "", &at);
    if (fstat(ring->lock_fd, &header) != 0) return -1;
    const mode_t mode = header.st_mode & 0777;
    int fd = -1, error = 0;
    /* ENOENT: somebody tidied in between. */
    for (int tries = 0; tries < 3; tries++) {
        /* Whoever may write a directory of peers may search it. */
        if (mkdir(directory.sun_path, 0700) == 0) {
            if (chown(directory.sun_path, header.st_uid, header.st_gid) != 0 &&
                chown(directory.sun_path, (uid_t)-1, header.st_gid) != 0) { /* as far as it goes */
            }
            chmod(directory.sun_path, mode | (mode & 0222) >> 1);
        } else if (errno != EEXIST) return -1;
        unlink(made.sun_path);
        if ((fd = new_socket()) < 0) return -1;
        if (bind(fd, (struct sockaddr *)&made, sizeof made) == 0) {
            if (lchown(made.sun_path, header.st_uid, header.st_gid) != 0 &&
                lchown(made.sun_path, (uid_t)-1, header.st_gid) != 0) { /* the same */
            }
            if (chmod(made.sun_path, mode) == 0 && listen(fd, BACKLOG) == 0 &&
                rename(made.sun_path, at.sun_path) == 0)
                return fd;
        }
        error = errno;
        close(fd);
        if (error != ENOENT) break;
    }
    unlink(made.sun_path);
    rmdir(directory.sun_path);
    errno = error;
    return -1;
}

static bool same_ring(const struct gr_ring *a, const struct gr_ring *b) {
    return memcmp(a->head->epoch, b->head->epoch, sizeof a->head->epoch) == 0;
}

/* One handle of the process listens for all that it has of this ring. Offering again changes
 * nothing. fd stays the caller's. GR_SYSTEM: errno, and nothing is left. */
enum gr_result gr_offer(struct gr_ring *ring, int fd) {
    if (gr_forked(ring)) return GR_FORKED;
    if (ring->lock_fd < 0) { /* it was given up */
        errno = EBADF;
        return GR_SYSTEM;
    }
    int slots = fcntl(fd, F_DUPFD_CLOEXEC, 0), error = errno;
    if (slots < 0) return GR_SYSTEM;
    struct gr_ring *other = gr_lock_handles();
    while (other && !(other->listen_fd >= 0 && same_ring(other, ring))) other = other->next;
    int before = ring->slots_fd, listen_fd = other || before >= 0 ? -1 : listener(ring);
    bool offered = before < 0 && (other || listen_fd >= 0);
    if (!offered) error = errno;
    if (offered) {
        ring->slots_fd = slots;
        ring->listen_fd = listen_fd;
    }
    gr_unlock_handles();
    if (offered) gr_watch(ring);
    else close(slots);
    errno = error;
    return offered || before >= 0 ? GR_OK : GR_SYSTEM;
}

/* Under gr_lock_handles, of a ring that is not among the handles any more, and before its descriptors
 * are closed. Another handle of this process takes the socket over. */
void gr_withdraw_offer(struct gr_ring *ring, struct gr_ring *handles) {
    if (ring->listen_fd < 0) return;
    struct gr_ring *other = handles;
    while (other && !(other->slots_fd >= 0 && same_ring(other, ring))) other = other->next;
    if (other) {
        other->listen_fd = ring->listen_fd;
        ring->listen_fd = -1;
        return;
    }
    const struct gr_who me = who_am_i(ring);
    struct sockaddr_un at;
    path_of(ring, &me, "", &at);
    unlink(at.sun_path);
    directory_of(ring, &at);
    rmdir(at.sun_path); /* unless others have sockets there */
}

/* ---- fetching -------------------------------------------------------------------------------- */

static void list(struct gr_fetch *fetch, const struct gr_ring *ring, struct gr_who who) {
    const struct gr_who me = who_am_i(ring);
    if (gr_same_who(&who, &me)) return;
    for (uint32_t k = 0; k < fetch->n; k++)
        if (gr_same_who(&fetch->asked[k].who, &who)) return;
    fetch->asked[fetch->n++] = (struct gr_asked){.who = who, .fd = -1};
}

/* Lists whom to ask: the creator, and the processes of all peers. */
void gr_fetch_begin(struct gr_fetch *fetch, struct gr_ring *ring) {
    const struct gr_head *head = ring->head;
    fetch->n = 0;
    list(fetch, ring, (struct gr_who){.pid = head->creator_pid,
                                      .start = head->creator_start,
                                      .pidns = head->creator_pidns});
    for (uint32_t p = 0; p < ring->max_peers; p++) {
        const struct gr_peer_entry *entry = &ring->peer[p];
        if (state_of(gr_load_acquire(&entry->word)) != GR_FREE)
            list(fetch, ring, (struct gr_who){.pid = gr_load_acquire(&entry->pid),
                                              .start = gr_load_acquire(&entry->start),
                                              .pidns = gr_load_acquire(&entry->pidns)});
    }
}

static bool is_here(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM; }

/* Connects to those who can be connected to. 1: one of them could not take the connection just now.
 * -1: this process cannot make one; errno. */
static int greet_all(struct gr_fetch *fetch, const struct gr_ring *ring) {
    int again = 0;
    for (uint32_t k = 0; k < fetch->n; k++) {
        struct gr_asked *asked = &fetch->asked[k];
        if (asked->fd >= 0 || asked->gone) continue;
        asked->fd = greeted(ring, &asked->who);
        if (asked->fd < 0 && is_here(errno)) return -1;
        asked->gone = asked->fd < 0 && errno != EAGAIN && errno != EINTR;
        asked->met |= !asked->gone;
        if (asked->fd < 0 && !asked->gone) again = 1;
    }
    return again;
}

static int own(const struct gr_ring *ring) {
    struct gr_ring *other = gr_lock_handles();
    while (other && !(other->slots_fd >= 0 && same_ring(other, ring))) other = other->next;
    int fd = other ? fcntl(other->slots_fd, F_DUPFD_CLOEXEC, 0) : -1;
    gr_unlock_handles();
    return fd;
}

/* Waits until `until_ns`, or a signal, for the first descriptor that comes, and returns it.
 * -1: errno is EAGAIN if some have not answered yet, ENOENT if there is nobody who could, or what
 * this process lacks. */
int gr_fetch_go_on(struct gr_fetch *fetch, struct gr_ring *ring, int64_t until_ns) {
    struct pollfd polled[GR_MAX_PEERS + 1];
    int slots = own(ring);
    while (slots < 0) {
        const int again = greet_all(fetch, ring);
        if (again < 0) return -1;
        bool open = again;
        for (uint32_t k = 0; k < fetch->n; k++) {
            polled[k] = (struct pollfd){.fd = fetch->asked[k].fd, .events = POLLIN};
            open |= polled[k].fd >= 0;
        }
        if (!open) {
            errno = ENOENT;
            return -1;
        }
        int64_t left_ms = (until_ns - gr_now_ns() + 999999) / 1000000;
        if (left_ms < 0) left_ms = 0;
        if (again && left_ms > 10) left_ms = 10;
        int fired = poll(polled, fetch->n, left_ms > 1000000 ? 1000000 : (int)left_ms);
        for (uint32_t k = 0; k < fetch->n && fired > 0; k++) {
            struct gr_asked *asked = &fetch->asked[k];
            struct heard heard;
            if (asked->fd < 0 || !polled[k].revents) continue;
            int said = hear(asked->fd, &heard);
            if (said == 0) continue;
            const bool lost = said < 0 && errno == EMFILE;
            close(asked->fd);
            asked->fd = -1;
            asked->gone = true;
            if (lost && slots < 0) {
                errno = EMFILE;
                return -1;
            }
            if (said < 0) continue;
            const struct gr_who me = who_am_i(ring);
            gr_lock_handles();
            keep_pidfd(&me, &heard);
            gr_unlock_handles();
            if (slots < 0) slots = heard.slots;
            else if (heard.slots >= 0) close(heard.slots);
        }
        if (slots < 0 && (fired < 0 || gr_now_ns() >= until_ns)) {
            errno = EAGAIN;
            return -1;
        }
    }
    return slots;
}

void gr_fetch_end(struct gr_fetch *fetch) {
    for (uint32_t k = 0; k < fetch->n; k++)
        if (fetch->asked[k].fd >= 0) close(fetch->asked[k].fd);
    fetch->n = 0;
}
