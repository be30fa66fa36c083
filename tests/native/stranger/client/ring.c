/* The ring: its locks, its bell, and how it is found by its name. */
#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct head *head;
struct sub *sub;
struct peer *peer;
struct slot *slot;
struct take *take;
struct tear *tear;
word *work, *fence;
uint8_t *meta, *spec, *payload;
uint64_t n, peers, subs, words;
int lock_fd = -1;

/* ---- the process ----------------------------------------------------------------------------- */

_Noreturn void fail(const char *what) {
    fprintf(stderr, "stranger: %s\n", what);
    exit(2);
}
uint64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL); }
uint64_t start_of_process(void) {
    char line[1024];
    int fd = open("/proc/self/stat", O_RDONLY);
    ssize_t got = read(fd, line, sizeof line - 1);
    close(fd);
    if (got <= 0) fail("/proc/self/stat");
    line[got] = 0;
    char *field = strrchr(line, ')');
    for (int k = 2; k < 22 && field; k++) field = strchr(field + 1, ' ');
    return field ? strtoull(field, NULL, 10) : 0;
}
uint64_t pid_namespace(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

/* ---- locks ----------------------------------------------------------------------------------- */

bool lock_byte(int fd, short kind, int64_t byte) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}
bool is_locked(int64_t byte) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(lock_fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}
void take_lock(void) {
    uint64_t until = now_ns(CLOCK_MONOTONIC) + UINT64_C(5000000000);
    while (!try_lock()) {
        if (now_ns(CLOCK_MONOTONIC) > until) fail("nobody gives LOCK up");
        nap();
    }
}
bool try_lock(void) { return lock_byte(lock_fd, F_WRLCK, LOCK); }
void unlock(void) { lock_byte(lock_fd, F_UNLCK, LOCK); }

void ring_bell(void) {
    if (head->waiters == 0) return;
    head->bell += 1;
    syscall(SYS_futex, &head->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ---- attach ---------------------------------------------------------------------------------- */

int open_again(int fd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int other = open(path, O_RDWR | O_CLOEXEC);
    if (other < 0) fail(path);
    return other;
}
uint8_t *map(int fd, uint64_t nbytes) {
    void *where = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (where == MAP_FAILED) fail("mmap");
    return where;
}
void path_of_header(char path[256], const char *name) {
    snprintf(path, 256, "/dev/shm/gpuring.%s", name);
}
void path_of_slots(char path[256], const char *name, const uint8_t epoch[16]) {
    int end = snprintf(path, 200, "/dev/shm/gpuring.%s+", name);
    for (int k = 0; k < 16; k++) end += sprintf(path + end, "%02x", epoch[k]);
}

/* Where the tables of such a head are. Returns how many bytes it says that there are. */
uint64_t find_tables(const struct head *of, uint8_t *base) {
    n = of->slots, peers = of->max_peers, subs = of->max_subscriptions;
    uint64_t to_sub = 4096, to_peer = to_sub + 192 * subs, to_slot = to_peer + 256 * peers;
    uint64_t to_take = to_slot + 128 * n, to_tear = up_to(to_take + 16 * n * subs, 64);
    uint64_t to_work = up_to(to_tear + 16 * n * peers, 64);
    uint64_t to_fence = up_to(to_work + 8 * n * peers, 4096);
    uint64_t to_meta = up_to(to_fence + 8 * n * peers, 4096), to_spec = to_meta + n * up_to(of->meta_nbytes, 64);
    if (base) {
        head = (struct head *)base;
        sub = (struct sub *)(base + to_sub), peer = (struct peer *)(base + to_peer);
        slot = (struct slot *)(base + to_slot), take = (struct take *)(base + to_take);
        tear = (struct tear *)(base + to_tear);
        work = (word *)(base + to_work), fence = (word *)(base + to_fence);
        meta = base + to_meta, spec = base + to_spec;
    }
    return up_to(to_spec + of->spec_nbytes, 4096);
}

static const char *after(const char *text, const char *token) {
    for (; text && *token; token++, text++) {
        while (*text == ' ') text++;
        if (*text != *token) return NULL;
    }
    return text;
}

/* A frame is {"fields": [["array", [WORDS], "<u8"]], ...}. Looks whether the slots have that. */
static void read_spec(void) {
    char text[65537] = "", *end = NULL;
    memcpy(text, spec, head->spec_nbytes);
    const char *of = strstr(text, "\"fields\""), *canary = strstr(text, "\"canary\"");
    of = after(of, "\"fields\":[[\"array\",[");
    words = of ? strtoull(of, &end, 10) : 0;
    if (!words || !after(end, "],\"<u8\"]]")) fail("its frames are something else");
    canary = after(canary, "\"canary\":");
    if (head->slot_nbytes != up_to(8 * words, 256) + (canary ? strtoull(canary, NULL, 10) : 0))
        fail("its slots have another size");
}

/* Maps the header that has this name, with the shared lock on byte 259. False: there is none. */
bool map_header(const char *name) {
    char path[256];
    struct stat st;
    union {
        struct head head;
        uint8_t page[4096];
    } copy;
    path_of_header(path, name);
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return false;
    if (fd < 0 || fstat(fd, &st) != 0) fail(path);
    if (!S_ISREG(st.st_mode) || st.st_nlink > 1 || (st.st_uid != geteuid() && st.st_uid != 0) ||
        pread(fd, &copy, 4096, 0) != 4096)
        fail("it is no ring");
    if (copy.head.magic != 0 && copy.head.magic != MAGIC) fail("it is no ring");
    if (copy.head.version != VERSION) {
        fprintf(stderr, "stranger: layout version %u, not %d\n", copy.head.version, VERSION);
        exit(3);
    }
    const struct head *of = &copy.head;
    if (of->memory != HOST && of->memory != PINNED) fail("its slots are on a GPU");
    if (of->sync == 1) fail("its peers wait for events");
    if (of->slots < 1 || of->slots > 1024 || of->max_peers < 1 || of->max_peers > 250 ||
        of->max_subscriptions < 1 || of->max_subscriptions > 250 || of->meta_nbytes > 65536 ||
        of->spec_nbytes < 1 || of->spec_nbytes > 65536)
        fail("a count is out of its range");
    uint64_t nbytes = find_tables(of, NULL), size = (uint64_t)st.st_size;
    if (nbytes != of->nbytes || (size != nbytes && size != nbytes + TRACED * of->max_peers))
        fail("it has another size");
    lock_fd = open_again(fd);
    if (!lock_byte(lock_fd, F_RDLCK, ATTACHED)) fail("byte 259");
    int mapped = open_again(fd);
    uint8_t *base = map(mapped, nbytes);
    close(mapped);
    close(fd);
    find_tables(of, base);
    return true;
}
void unmap_header(void) {
    munmap(head, head->nbytes);
    close(lock_fd);
}

/* False: the ring is not there, or is about to go. */
bool attach(const char *name) {
    char path[256];
    struct stat st, of_slots;
    if (!map_header(name)) return false;
    int slots = -1;
    if (head->magic == MAGIC && !head->closed && !is_locked(NAME)) {
        path_of_slots(path, name, head->epoch);
        slots = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    }
    if (slots < 0) {
        unmap_header();
        return false;
    }
    if (fstat(lock_fd, &st) != 0 || fstat(slots, &of_slots) != 0 || !S_ISREG(of_slots.st_mode) ||
        of_slots.st_nlink > 1 || of_slots.st_uid != st.st_uid ||
        (uint64_t)of_slots.st_size != n * head->slot_nbytes)
        fail("its slots are something else");
    if (head->memory == PINNED) {
        int handed = hand_over();
        if (handed < 0 || fstat(handed, &st) != 0 || st.st_ino != of_slots.st_ino)
            fail("nobody hands the slots on");
        close(slots);
        slots = handed;
    }
    payload = map(slots, n * head->slot_nbytes);
    close(slots);
    read_spec();
    return true;
}

