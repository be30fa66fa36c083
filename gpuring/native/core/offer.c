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
 * What is said there, and who says it, is in talk.c. The watchdog of the process listens.
 *
 * A socket that nobody listens at refuses connections, in any namespace. So a path that was left by
 * a killed process is known by that alone (gr_remove_stale), and segment.py does the same.
 */
#define _GNU_SOURCE
#include "offer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 64, AGAIN_NS = 10 * 1000 * 1000 }; /* when to ask again */

/* ---- paths ----------------------------------------------------------------------------------- */

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

static int connected(const struct sockaddr_un *at, bool to_hear) {
    int fd = new_socket();
    /* Nobody can send it a descriptor then, so its close never waits. */
    if (fd >= 0 && !to_hear) shutdown(fd, SHUT_RD);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)at, sizeof *at) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

int gr_connect(const struct gr_ring *ring, const struct gr_who *who) {
    struct sockaddr_un at;
    path_of(ring, who, "", &at);
    return connected(&at, true);
}

static void remove_if_stale(const struct sockaddr_un *at) {
    int fd = connected(at, false);
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

/* ---- offers ---------------------------------------------------------------------------------- */

/* Gives what this process has just made the owner, as far as that goes, and the mode. It is taken
 * hold of first: whoever may write the directory may put a link there meanwhile, and root would
 * change the rights of what the link names. */
static bool hand_over(const char *path, mode_t kind, const struct stat *header, mode_t mode) {
    struct stat made;
    char held[64];
    int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return false;
    snprintf(held, sizeof held, "/proc/self/fd/%d", fd);
    bool done = fstat(fd, &made) == 0;
    if (done && ((made.st_mode & S_IFMT) != kind || made.st_uid != geteuid() ||
                 (kind == S_IFSOCK && made.st_nlink > 1))) {
        errno = EPERM;
        done = false;
    }
    if (done) {
        if (chown(held, header->st_uid, header->st_gid) != 0 &&
            chown(held, (uid_t)-1, header->st_gid) != 0) { /* as far as it goes */
        }
        done = chmod(held, mode) == 0;
    }
    int error = errno;
    close(fd);
    errno = error;
    return done;
}

/* The path appears when connections are accepted, so a path that refuses them is stale. What has
 * the path by then is what an earlier program of this process has left (execve). */
static int listener(const struct gr_ring *ring) {
    struct stat header;
    struct sockaddr_un directory, made, at;
    const struct gr_who me = gr_who_am_i(ring);
    directory_of(ring, &directory);
    path_of(ring, &me, "~", &made);
    path_of(ring, &me, "", &at);
    if (fstat(ring->lock_fd, &header) != 0) return -1;
    const mode_t mode = header.st_mode & 0777;
    int fd = -1, error = 0;
    /* ENOENT: somebody tidied in between. */
    for (int tries = 0; tries < 3; tries++) {
        fd = new_socket();
        /* Whoever may write a directory of peers may search it. */
        bool there = fd >= 0 && (mkdir(directory.sun_path, 0700) == 0
                                     ? hand_over(directory.sun_path, S_IFDIR, &header,
                                                 mode | (mode & 0222) >> 1)
                                     : errno == EEXIST);
        if (there) {
            unlink(made.sun_path);
            if (bind(fd, (struct sockaddr *)&made, sizeof made) == 0 &&
                hand_over(made.sun_path, S_IFSOCK, &header, mode) && listen(fd, BACKLOG) == 0 &&
                rename(made.sun_path, at.sun_path) == 0)
                return fd;
        }
        error = errno;
        if (fd >= 0) close(fd);
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
    struct stat at;
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
        if (listen_fd >= 0 && fstat(listen_fd, &at) == 0) ring->listen_ino = at.st_ino;
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
        other->listen_ino = ring->listen_ino;
        ring->listen_fd = -1;
        return;
    }
    const struct gr_who me = gr_who_am_i(ring);
    struct sockaddr_un at;
    path_of(ring, &me, "", &at);
    unlink(at.sun_path);
    directory_of(ring, &at);
    rmdir(at.sun_path); /* unless others have sockets there */
}

/* ---- fetching -------------------------------------------------------------------------------- */

static void list(struct gr_fetch *fetch, const struct gr_ring *ring, struct gr_who who) {
    const struct gr_who me = gr_who_am_i(ring);
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

/* Connects to those who can be connected to. 1: one of them is to be asked again soon. -1: this process cannot make one; errno. */
static int greet_all(struct gr_fetch *fetch, const struct gr_ring *ring) {
    int again = 0;
    for (uint32_t k = 0; k < fetch->n; k++) {
        struct gr_asked *asked = &fetch->asked[k];
        if (asked->fd >= 0 || asked->gone) continue;
        if (gr_now_ns() < asked->next_ns) {
            again = 1;
            continue;
        }
        asked->fd = gr_greet(ring, &asked->who);
        if (asked->fd < 0 && is_here(errno)) return -1;
        asked->gone = asked->fd < 0 && errno != EAGAIN && errno != EINTR;
        asked->met |= !asked->gone;
        if (asked->fd < 0 && !asked->gone) again = 1;
    }
    return again;
}

/* A copy of what this process has offered itself. -1: errno, ENOENT if it has offered nothing. */
static int own(const struct gr_ring *ring) {
    struct gr_ring *other = gr_lock_handles();
    while (other && !(other->slots_fd >= 0 && same_ring(other, ring) && gr_has_its_files(other)))
        other = other->next;
    errno = ENOENT;
    int fd = other ? fcntl(other->slots_fd, F_DUPFD_CLOEXEC, 0) : -1, error = errno;
    gr_unlock_handles();
    errno = error;
    return fd;
}

/* Waits until `until_ns`, or a signal, for the first descriptor that comes, and returns it.
 * -1: errno is EAGAIN if some have not answered yet, ENOENT if there is nobody who could, or what
 * this process lacks. */
int gr_fetch_go_on(struct gr_fetch *fetch, struct gr_ring *ring, int64_t until_ns) {
    struct pollfd polled[GR_MAX_PEERS + 1];
    int slots = own(ring);
    if (slots < 0 && is_here(errno)) return -1;
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
        if (again && left_ms > AGAIN_NS / 1000000) left_ms = AGAIN_NS / 1000000;
        int fired = poll(polled, fetch->n, left_ms > 1000000 ? 1000000 : (int)left_ms);
        for (uint32_t k = 0; k < fetch->n && fired > 0; k++) {
            struct gr_asked *asked = &fetch->asked[k];
            struct gr_heard heard;
            if (asked->fd < 0 || !polled[k].revents) continue;
            int said = gr_hear(asked->fd, &heard);
            if (said == 0) continue;
            const bool lost = said < 0 && errno == EMFILE;
            close(asked->fd);
            asked->fd = -1;
            asked->without = said > 0 && heard.slots < 0;
            asked->gone = !asked->without;
            asked->next_ns = gr_now_ns() + AGAIN_NS;
            if (lost && slots < 0) {
                errno = EMFILE;
                return -1;
            }
            if (said < 0) continue;
            const struct gr_who me = gr_who_am_i(ring);
            gr_lock_handles();
            gr_keep_pidfd(&me, &heard);
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
