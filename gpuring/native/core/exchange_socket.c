/* Where the processes of a ring meet to hand descriptors to each other: a Unix socket for each, in
 * a directory of the ring (docs/abi.md, "Handing descriptors on"):
 *
 *   /dev/shm/gpuring+EPOCH/PIDNS-PID-START      all in hexadecimal digits, as in the header
 *
 * A socket that nobody listens at refuses connections, in any namespace. So a path that was left
 * by a killed process is known by that alone (gr_remove_stale), and sockets.py does the same.
 */
#define _GNU_SOURCE
#include "exchange_socket.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

/* Writes the directory of the ring, and returns its length. */
int gr_socket_directory(const struct gr_ring *ring, struct sockaddr_un *at) {
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = sprintf(at->sun_path, "/dev/shm/gpuring+");
    for (size_t k = 0; k < sizeof ring->head->epoch; k++)
        length += sprintf(at->sun_path + length, "%02x", ring->head->epoch[k]);
    return length;
}

/* At most 101 of the 108 bytes that such a path may have. */
void gr_socket_path(const struct gr_ring *ring, const struct gr_who *who, const char *suffix,
                    struct sockaddr_un *at) {
    int length = gr_socket_directory(ring, at);
    snprintf(at->sun_path + length, sizeof at->sun_path - (size_t)length, "/%llx-%llx-%llx%s",
             (unsigned long long)who->pidns, (unsigned long long)who->pid,
             (unsigned long long)who->start, suffix);
}

int gr_new_socket(void) {
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static int connected(const struct sockaddr_un *at, bool to_hear) {
    int fd = gr_new_socket();
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
    gr_socket_path(ring, who, "", &at);
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
    const struct gr_who who = gr_who_is(entry);
    struct sockaddr_un at;
    gr_socket_path(ring, &who, "", &at);
    remove_if_stale(&at);
    gr_socket_path(ring, &who, "~", &at);
    remove_if_stale(&at);
    gr_socket_directory(ring, &at);
    rmdir(at.sun_path); /* unless others have sockets there */
}

/* Under gr_lock_handles, of a ring that is not among the handles any more, and before its
 * descriptors are closed. Another handle of this process takes the socket over. */
void gr_withdraw_offer(struct gr_ring *ring, struct gr_ring *handles) {
    if (ring->listen_fd < 0) return;
    struct gr_ring *other = handles;
    while (other && !(other->slots_fd >= 0 && gr_same_ring(other, ring))) other = other->next;
    if (other) {
        other->listen_fd = ring->listen_fd;
        other->listen_ino = ring->listen_ino;
        ring->listen_fd = -1;
        return;
    }
    const struct gr_who me = gr_who_am_i(ring);
    struct sockaddr_un at;
    gr_socket_path(ring, &me, "", &at);
    unlink(at.sun_path);
    gr_socket_directory(ring, &at);
    rmdir(at.sun_path); /* unless others have sockets there */
}
