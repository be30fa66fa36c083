/* The sockets at which processes hand descriptors on: a pidfd, and the slots. */
#include "ring.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { HAS_SLOTS = 1, HAS_PIDFD = 2 };
struct message {
    char magic[8];
    uint64_t pid, start, pidns, has;
};
_Static_assert(sizeof(struct message) == 40, "message");

static int connect_to(uint64_t pid, uint64_t start, uint64_t pidns) {
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    int end = sprintf(path.sun_path, "/dev/shm/gpuring+");
    for (int k = 0; k < 16; k++) end += sprintf(path.sun_path + end, "%02x", head->epoch[k]);
    sprintf(path.sun_path + end, "/%llx-%llx-%llx", (unsigned long long)pidns,
            (unsigned long long)pid, (unsigned long long)start);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const struct timeval patience = {.tv_sec = 5};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(fd, (struct sockaddr *)&path, sizeof path) == 0) return fd;
    close(fd);
    return -1;
}

union rights {
    struct cmsghdr head;
    char room[CMSG_SPACE(2 * sizeof(int))];
};

static void say_who_we_are(int fd, int pidfd) {
    struct message said = {"\1offered", (uint64_t)getpid(), start_of_process(), pid_namespace(),
                           HAS_PIDFD};
    struct iovec part = {&said, sizeof said};
    union rights rights = {.head = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET,
                                    .cmsg_type = SCM_RIGHTS}};
    struct msghdr whole = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &rights,
                           .msg_controllen = CMSG_SPACE(sizeof(int))};
    memcpy(CMSG_DATA(&rights.head), &pidfd, sizeof pidfd);
    sendmsg(fd, &whole, MSG_NOSIGNAL);
}

/* The slots, or -1. What is no message is passed over. */
static int hear(int fd) {
    struct message said = {0};
    struct iovec part = {&said, sizeof said};
    union rights rights = {0};
    struct msghdr whole = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &rights,
                           .msg_controllen = sizeof rights};
    ssize_t got = recvmsg(fd, &whole, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == ECONNRESET) got = recvmsg(fd, &whole, MSG_CMSG_CLOEXEC);
    int fds[2] = {-1, -1};
    const struct cmsghdr *came = got < 0 ? NULL : CMSG_FIRSTHDR(&whole);
    if (came && came->cmsg_type == SCM_RIGHTS)
        memcpy(fds, CMSG_DATA(came), came->cmsg_len - CMSG_LEN(0));
    const bool right = got == sizeof said && memcmp(said.magic, "\1offered", 8) == 0 &&
                       (fds[0] >= 0) == (said.has != 0) && (fds[1] >= 0) == (said.has == 3);
    const bool has_slots = right && said.has & HAS_SLOTS;
    if (fds[0] >= 0 && !has_slots) close(fds[0]);
    if (fds[1] >= 0) close(fds[1]);
    return has_slots ? fds[0] : -1;
}

int hand_over(void) {
    int slots = -1, pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    for (uint64_t p = 0; p <= peers; p++) {
        const struct peer *of = &peer[p];
        if (p < peers && state_of(of->word) == FREE) continue;
        int fd = p < peers ? connect_to(of->pid, of->start, of->pidns)
                           : connect_to(head->creator_pid, head->creator_start, head->creator_pidns);
        if (fd < 0) continue;
        say_who_we_are(fd, pidfd);
        int got = hear(fd);
        if (slots < 0) slots = got;
        else if (got >= 0) close(got);
        close(fd);
    }
    close(pidfd);
    return slots;
}
