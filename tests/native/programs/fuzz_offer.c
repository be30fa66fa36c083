/* Hostile clients and servers: a fuzzer of the sockets at which descriptors are handed on
 * (core/exchange_*.c), for the address and undefined-behaviour sanitizers. Clients connect, send
 * random bytes with random descriptors or nothing, and go. Servers that pass for peers do the same.
 * The watchdog's steps are called as verbs, so an input gives the same result each time. After each
 * input no descriptor may be left open, and an honest client must get the slots.
 *
 *   gcc -std=gnu11 -g -O1 -DGR_FAULTS -fsanitize=address,undefined -fno-sanitize-recover=all \
 *       -pthread tests/native/programs/fuzz_offer.c $(find gpuring/native/core -name '*.c' …) -o fuzz
 *   ./fuzz --inputs 1000000 --seed 1         --first K --inputs 1: input K again
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core.h"
/* Included for their static functions. The other files are linked. No thread is started, so an
 * input gives the same result each time. */
#define pthread_create(...) EAGAIN
#include "../../../gpuring/native/core/exchange_talk.c"
#include "../../../gpuring/native/core/pidfds.c"
#include "../../../gpuring/native/core/thread.c"
#include "../../../gpuring/native/core/watchdog.c"

#include "fuzz.h"

enum { RINGS = 2, CLIENTS = 80, SERVERS = 6, GIVEN = 5, WORDS = 5 };
static struct gr_ring *rings[RINGS];
static int slots[RINGS], clients[CLIENTS], servers[SERVERS], given[GIVEN];
static uint32_t client_count;
static struct gr_who fake[SERVERS];

/* ---- what comes and goes --------------------------------------------------------------------- */

static int open_count(void) {
    int n = 0;
    DIR *all = opendir("/proc/self/fd");
    while (readdir(all)) n++;
    closedir(all);
    return n;
}
static struct sockaddr_un at(const struct gr_ring *ring, const struct gr_who *who) {
    struct sockaddr_un made = {.sun_family = AF_UNIX};
    int n = sprintf(made.sun_path, "/dev/shm/gpuring+");
    for (int k = 0; k < 16; k++) n += sprintf(made.sun_path + n, "%02x", ring->head->epoch[k]);
    sprintf(made.sun_path + n, "/%llx-%llx-%llx", (ull)who->pidns, (ull)who->pid, (ull)who->start);
    return made;
}
static int any_socket(void) {
    static const int types[] = {SOCK_SEQPACKET, SOCK_SEQPACKET, SOCK_SEQPACKET, SOCK_STREAM, SOCK_DGRAM};
    return socket(AF_UNIX, types[below(COUNT(types))] | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}
static void say(int fd) {
    static uint8_t bytes[70000];
    uint64_t words[WORDS] = {UINT64_C(0x6465726566666f01), below(4), below(4), below(3) ? below(4) : rings[0]->pidns, below(5)};
    size_t nbytes = below(4) ? sizeof words : below(4) ? below(200) : below(sizeof bytes);
    memset(bytes, (int)below(256), nbytes);
    memcpy(bytes, words, nbytes < sizeof words ? nbytes : sizeof words);
    if (below(3) == 0 && nbytes) bytes[below(nbytes)] ^= (uint8_t)(1 << below(8));
    if (below(6) == 0 && nbytes >= 8) memcpy(bytes + below(nbytes / 8) * 8, &(uint64_t){random64()}, 8);
    union {
        char bytes[CMSG_SPACE(GIVEN * sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec part = {.iov_base = bytes, .iov_len = nbytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    uint32_t n = below(GIVEN + 1);
    if (n) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(n * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        *rights = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(n * sizeof(int))};
        for (uint32_t k = 0; k < n; k++) memcpy(CMSG_DATA(rights) + k * sizeof(int), &given[below(GIVEN)], sizeof(int));
    }
    if (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) { /* the other side is gone, or is full */
    }
}
/* Returns the descriptor that comes first, or -1; closes the others. */
static int listen_to(int fd, int *got_nbytes) {
    uint64_t words[WORDS + 1];
    union {
        char bytes[CMSG_SPACE(GIVEN * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {.iov_base = words, .iov_len = sizeof words};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control};
    ssize_t nbytes = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    int first = -1;
    *got_nbytes = (int)nbytes;
    if (nbytes < 0) return -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
        for (size_t k = 0; k < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); k++) {
            int got;
            memcpy(&got, CMSG_DATA(c) + k * sizeof(int), sizeof(int));
            if (first < 0) first = got;
            else close(got);
        }
    return first;
}

/* ---- verbs ----------------------------------------------------------------------------------- */

static void attend(void) {
    doing = "attend";
    bool all = false;
    for (int turns = 0; turns < 4 && !all; turns++) { /* the hearer makes room */
        all = gr_answer(gr_lock_handles());
        gr_unlock_handles();
        hear_talks();
    }
    REQUIRE(all);
}
static void look(void) {
    doing = "a look at the peers";
    struct gr_ring *handles = gr_lock_handles();
    gr_begin_look();
    for (struct gr_ring *ring = handles; ring; ring = ring->next) refresh(ring);
    gr_end_look();
    REQUIRE(process_count <= MAX_UNKNOWN + RINGS * SERVERS);
    struct pollfd polled[3];
    REQUIRE(gr_list_sockets(handles, polled, 3) <= 3);
    if (below(4) == 0)
        for (uint32_t k = 0; k < process_count; k++) processes[k].exited = below(2);
    gr_unlock_handles();
}
static void fetch(struct gr_ring *ring) {
    doing = "fetch";
    static struct gr_fetch fetching;
    int kept = ring->slots_fd; /* otherwise it would be had from this very process */
    gr_fetch_begin(&fetching, ring);
    for (uint32_t turns = 1 + below(3); turns > 0; turns--) {
        for (int k = 0; k < RINGS; k++) if (rings[k] == ring) ring->slots_fd = -1;
        int fd = gr_fetch_go_on(&fetching, ring, 0);
        ring->slots_fd = kept;
        REQUIRE(fd >= 0 || errno == EAGAIN || errno == ENOENT);
        if (fd >= 0) close(fd);
        for (int k = 0; k < SERVERS && fd < 0; k++) {
            int other = accept4(servers[k], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (other < 0) continue;
            if (below(4)) say(other);
            if (client_count < CLIENTS) clients[client_count++] = other;
            else close(other);
        }
    }
    gr_fetch_end(&fetching);
}
static void act(void) {
    struct gr_ring *ring = rings[below(RINGS)];
    uint32_t k = client_count ? below(client_count) : 0;
    struct gr_who me = gr_who_am_i(ring);
    struct sockaddr_un where = at(ring, &me);
    int nbytes, fd;
    switch (below(12)) {
    case 0: case 1: case 2: /* one more, which may speak at once; now and then a crowd that does not */
        for (uint32_t n = below(64) ? 1 : CLIENTS; n > 0 && client_count < CLIENTS; n--) {
            if ((fd = any_socket()) < 0) break;
            if (connect(fd, (struct sockaddr *)&where, sizeof where) != 0) close(fd);
            else {
                clients[client_count++] = fd;
                if (n == 1 && below(2)) say(fd);
            }
            if (n % 16 == 2) attend();
        }
        break;
    case 3: if (client_count) say(clients[k]); break;
    case 4: if (client_count && (fd = listen_to(clients[k], &nbytes)) >= 0) close(fd); break;
    case 5: if (client_count) shutdown(clients[k], (int)below(3)); break;
    case 6: if (client_count) close(clients[k]), clients[k] = clients[--client_count]; break;
    case 7: case 8: attend(); break;
    case 9: look(); break;
    case 10: fetch(ring); break;
    case 11: /* an entry names a process whose socket is somebody else's */
        k = below(ring->max_peers);
        struct gr_peer_entry *entry = &ring->peer[k];
        struct gr_who who = below(4) ? fake[below(SERVERS)] : (struct gr_who){random64(), random64(), random64()};
        gr_store_relaxed(&entry->id, below(5)), gr_store_relaxed(&entry->pid, who.pid);
        gr_store_relaxed(&entry->start, who.start), gr_store_relaxed(&entry->pidns, who.pidns);
        gr_store_relaxed(&entry->word, below(3) ? peer_word(GR_LIVE, GR_PRODUCER, GR_NONE) : peer_word(GR_FREE, 0, 0));
        if (below(4) == 0) REQUIRE(gr_reap_dead(ring, NULL) == GR_OK);
        break;
    }
}

/* ---- honest ones ----------------------------------------------------------------------------- */

static void honest(void) {
    doing = "an honest client";
    uint32_t k = below(RINGS);
    struct gr_who me = gr_who_am_i(rings[k]);
    struct sockaddr_un where = at(rings[k], &me);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), got = -1, nbytes;
    while (connect(fd, (struct sockaddr *)&where, sizeof where) != 0) {
        REQUIRE(errno == EAGAIN);
        attend();
    }
    for (int turn = 0; turn < 8 && got < 0; turn++) attend(), got = listen_to(fd, &nbytes);
    struct stat theirs, mine;
    REQUIRE(got >= 0 && nbytes == WORDS * 8 && fstat(got, &theirs) == 0 && fstat(slots[k], &mine) == 0);
    REQUIRE(theirs.st_ino == mine.st_ino);
    close(got);
    close(fd);
}
static void end_input(int before) {
    while (client_count) close(clients[--client_count]);
    for (int k = 0; k < RINGS; k++) {
        for (uint32_t p = 0; p < rings[k]->max_peers; p++) gr_store_relaxed(&rings[k]->peer[p].word, peer_word(GR_FREE, 0, 0));
        memset(rings[k]->exited, 0, sizeof rings[k]->exited);
    }
    for (int k = 0; k < SERVERS; k++)
        for (int fd; (fd = accept4(servers[k], NULL, NULL, SOCK_CLOEXEC)) >= 0;) close(fd);
    for (int k = 0; k < 8; k++) attend();
    honest();
    attend();
    while (process_count) forget_process(process_count - 1);
    REQUIRE(open_count() == before);
}

int main(int argc, char **argv) {
    uint64_t inputs = 20000, first = 0;
    begin_run(argc, argv, &inputs, &first);
    REQUIRE(open_pipe(&watchdog) && open_pipe(&hearer));
    watchdog.runs = hearer.runs = true; /* no thread begins: their steps are ours */
    const struct gr_config configs[RINGS] = {
        {.slots = 2, .max_peers = 6, .max_subscriptions = 2, .slot_nbytes = 64, .spec_nbytes = 2},
        {.slots = 2, .max_peers = 6, .max_subscriptions = 2, .slot_nbytes = 64, .spec_nbytes = 2, .memory = GR_MEMORY_VMM, .sync = GR_SYNC_TIMELINE}};
    uint8_t zeros[64] = {0}, epoch[16];
    rng = (uint64_t)gr_now_ns() ^ (uint64_t)getpid();
    for (int k = 0; k < RINGS; k++) {
        for (int b = 0; b < 16; b++) epoch[b] = (uint8_t)below(256);
        int fd = memfd_create("fuzz", MFD_CLOEXEC);
        fchmod(fd, 0600);
        rings[k] = gr_create(fd, &configs[k], epoch, zeros, zeros, "{}");
        close(fd);
        slots[k] = memfd_create("slots", MFD_CLOEXEC);
        REQUIRE(rings[k] && gr_offer(rings[k], slots[k]) == GR_OK);
    }
    for (int k = 0; k < SERVERS; k++) { /* all of them in the first ring's directory */
        fake[k] = (struct gr_who){.pid = (uint64_t)k + 1, .start = 7, .pidns = 8};
        struct sockaddr_un where = at(rings[0], &fake[k]);
        servers[k] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        REQUIRE(bind(servers[k], (struct sockaddr *)&where, sizeof where) == 0 && listen(servers[k], 4) == 0);
    }
    pid_t child = fork();
    if (child == 0) pause();
    int end[2];
    REQUIRE(pipe2(end, O_CLOEXEC) == 0);
    given[0] = slots[0], given[1] = end[0], given[2] = gr_pidfd(getpid()), given[3] = gr_pidfd(child), given[4] = servers[0];
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    int64_t start = gr_now_ns();
    int before = open_count();
    for (input = first; input < first + inputs; input++) {
        rng = seed * 0x2545f4914f6cdd1du + input * 0xda942042e4dd58b5u;
        for (uint32_t steps = 1 + below(60); steps > 0; steps--) act();
        end_input(before);
    }
    for (int k = 0; k < SERVERS; k++) {
        struct sockaddr_un where = at(rings[0], &fake[k]);
        unlink(where.sun_path);
    }
    struct gr_who me = gr_who_am_i(rings[0]);
    struct sockaddr_un where = at(rings[0], &me);
    for (int k = 0; k < RINGS; k++) gr_detach(rings[k]);
    REQUIRE(access(where.sun_path, F_OK) != 0);
    printf("{\"inputs\": %llu, \"findings\": 0, \"seed\": %llu, \"seconds\": %.1f}\n", (ull)inputs, (ull)seed,
           (double)(gr_now_ns() - start) / 1e9);
    return 0;
}
