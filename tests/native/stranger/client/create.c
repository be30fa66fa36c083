/* Creating a ring, and removing it. */
#include "ring.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MODE = 0600 };

/* A new file without a name, of which no page is missing. */
static int make(uint64_t nbytes) {
    int fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, MODE);
    if (fd < 0 || fchmod(fd, MODE) != 0 || posix_fallocate(fd, 0, (off_t)nbytes) != 0)
        fail("there is no room in /dev/shm");
    return fd;
}

static bool give_name(int fd, const char *path) {
    char from[64];
    snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, from, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0;
}

/* A frame has one array of 64-bit words, and its number as metadata. */
void create(const char *name, uint32_t slots, uint64_t words_of_a_frame) {
    char text[256], path[256], path_slots[256];
    int nchars = snprintf(text, sizeof text,
                          "{\"meta\": [[\"frame\", \"<u8\"]], \"fields\": [[\"array\", [%llu], \"<u8\"]], "
                          "\"made\": \"by a stranger\"}",
                          (unsigned long long)words_of_a_frame);
    struct head of = {.version = VERSION,
                      .slots = slots,
                      .max_peers = 32,
                      .max_subscriptions = 16,
                      .spec_nbytes = (uint32_t)nchars,
                      .slot_nbytes = up_to(8 * words_of_a_frame, 256),
                      .meta_nbytes = 8,
                      .created_ns = now_ns(CLOCK_REALTIME),
                      .creator_pid = (uint64_t)getpid(),
                      .creator_start = start_of_process(),
                      .creator_pidns = pid_namespace(),
                      .producers_in_all = 1,
                      .claim_hint = slots};
    if (getrandom(of.epoch, sizeof of.epoch, 0) != sizeof of.epoch) fail("getrandom");
    of.nbytes = find_tables(&of, NULL);

    int of_slots = make(slots * of.slot_nbytes);
    if (!lock_byte(of_slots, F_WRLCK, NAME)) fail("byte 260");
    int mapped = open_again(of_slots);
    payload = map(mapped, slots * of.slot_nbytes);
    close(mapped);
    path_of_slots(path_slots, name, of.epoch);
    if (!give_name(of_slots, path_slots)) fail(path_slots);

    int fd = make(of.nbytes);
    lock_fd = open_again(fd);
    if (!lock_byte(lock_fd, F_RDLCK, ATTACHED)) fail("byte 259");
    mapped = open_again(fd);
    uint8_t *base = map(mapped, of.nbytes);
    close(mapped);
    memcpy(base, &of, sizeof of);
    find_tables(&of, base);
    memcpy(spec, text, of.spec_nbytes);
    for (uint64_t i = 0; i < n; i++) {
        slot[i].word = claim_word(i, NOBODY, VOID);
        for (uint64_t v = 0; v < subs; v++) take_of(i, v)->word = claim_word(0, NOBODY, DONE);
    }
    if (!lock_byte(lock_fd, F_WRLCK, CREATOR)) fail("byte 257");
    head->magic = MAGIC;
    path_of_header(path, name);
    if (!give_name(fd, path)) {
        unlink(path_slots);
        fail("the name is taken");
    }
    close(fd);
    close(of_slots);
}

static void close_ring(void) {
    head->closed = 1;
    ring_bell();
}

static bool has_name(const char *path) {
    struct stat mine, there;
    return fstat(lock_fd, &mine) == 0 && stat(path, &there) == 0 && mine.st_ino == there.st_ino &&
           mine.st_dev == there.st_dev;
}

static void lock_name(void) {
    uint64_t until = now_ns(CLOCK_MONOTONIC) + UINT64_C(2000000000);
    while (!lock_byte(lock_fd, F_WRLCK, NAME) && now_ns(CLOCK_MONOTONIC) < until) nap();
}

/* What the creator does. */
void close_and_remove(const char *name) {
    char path[256];
    close_ring();
    path_of_slots(path, name, head->epoch);
    unlink(path);
    for (uint64_t v = 0; v < subs; v++)
        if (owner_of(sub[v].word) & DURABLE) return;
    head->magic = 0;
    path_of_header(path, name);
    lock_name();
    if (has_name(path)) unlink(path);
    lock_byte(lock_fd, F_UNLCK, NAME);
}

/* What any other process may do that has attached. */
bool remove_ring(const char *name) {
    char path[256], path_slots[256];
    path_of_header(path, name);
    path_of_slots(path_slots, name, head->epoch);
    lock_name();
    const bool is_this = has_name(path);
    if (is_this) {
        close_ring();
        head->magic = 0;
        unlink(path_slots);
        unlink(path);
    }
    close(lock_fd);
    return is_this;
}
