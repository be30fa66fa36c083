/* Offers: a process that has the descriptor of a ring's slots listens for those who want it
 * (exchange_socket.c says where).
 *
 * What is said there, and who says it, is in exchange_message.c. The watchdog of the process
 * answers.
 */
#define _GNU_SOURCE
#include "exchange_offer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "exchange_socket.h"
#include "handles.h"
#include "process.h"
#include "watchdog.h"

enum { BACKLOG = 64 };

/* Sets the mode, and as far as possible the owner, of a file that this process has just made. The
 * file is opened first: any process that may write the directory may put a link there meanwhile,
 * and root would change the rights of the file behind the link. */
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
    gr_socket_directory(ring, &directory);
    gr_socket_path(ring, &me, "~", &made);
    gr_socket_path(ring, &me, "", &at);
    if (fstat(ring->lock_fd, &header) != 0) return -1;
    const mode_t mode = header.st_mode & 0777;
    int fd = -1, error = 0;
    /* ENOENT: somebody tidied in between. */
    for (int tries = 0; tries < 3; tries++) {
        fd = gr_new_socket();
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

/* One handle of the process listens for all of its handles of this ring. Offering again changes
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
    while (other && !(other->listen_fd >= 0 && gr_same_ring(other, ring))) other = other->next;
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
