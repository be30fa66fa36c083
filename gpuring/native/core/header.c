/* Creates, validates, maps and copies headers.
 *
 * Nothing read from a segment is used as a count, an offset or an enum before it was checked
 * against its range and against the real size of the file. Whoever touches a mapping beyond the
 * end of its file is killed by SIGBUS. So nothing is mapped before that check, and a header whose
 * owner is not trusted is read into a copy (gr_read).
 */
#define _GNU_SOURCE
#include "header.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "handles.h"
#include "lock.h"

/* ---- handles --------------------------------------------------------------------------------- */

/* Makes a handle over `base`, where a whole header is mapped or was copied to. It takes over
 * lock_fd and base, also if it fails. NULL: errno. */
static struct gr_ring *handle(uint8_t *base, int lock_fd, const struct gr_config *config,
                              const struct gr_layout *layout) {
    struct gr_ring *ring = base == MAP_FAILED ? NULL : calloc(1, sizeof *ring);
    if (!ring) {
        int error = errno;
        if (base != MAP_FAILED) munmap(base, layout->nbytes);
        close(lock_fd);
        errno = error;
        return NULL;
    }
    struct stat at;
    if (fstat(lock_fd, &at) == 0) ring->lock_dev = at.st_dev, ring->lock_ino = at.st_ino;
    ring->lock_fd = lock_fd;
    ring->join_patience_ns = GR_PATIENCE_NS;
    ring->slots_fd = ring->listen_fd = -1;
    ring->head = (struct gr_head *)base;
    ring->sub = (struct gr_sub *)(base + layout->sub);
    ring->peer = (struct gr_peer_entry *)(base + layout->peer);
    ring->slot = (struct gr_slot *)(base + layout->slot);
    ring->take = (struct gr_take *)(base + layout->take);
    ring->tear = (struct gr_tear *)(base + layout->tear);
    ring->work = (gr_word *)(base + layout->work);
    ring->fence = (gr_word *)(base + layout->fence);
    ring->event = base + layout->event;
    ring->meta = base + layout->meta;
    ring->spec = base + layout->spec;
    ring->slots = config->slots;
    ring->max_peers = config->max_peers;
    ring->max_subscriptions = config->max_subscriptions;
    ring->producers_in_all = config->producers ? config->producers : 1;
    for (uint32_t u = 0; u < config->max_subscriptions; u++) ring->sub_bits[u / 64] |= bit_of(u);
    for (uint32_t p = 0; p < config->max_peers; p++) ring->peer_bits[p / 64] |= bit_of(p);
    ring->sub_words = (config->max_subscriptions + 63) / 64;
    ring->peer_words = (config->max_peers + 63) / 64;
    ring->layout = *layout;
    ring->config = *config;
    pthread_mutex_init(&ring->mutex, NULL);
    gr_enlist(ring);
    return ring;
}

/* Opens the file of fd once more. Locks belong to an open file description, and those of a mapped
 * one outlive its descriptors. -1: errno. */
int gr_again(int fd, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again_fd;
    do again_fd = open(path, flags | O_CLOEXEC);
    while (again_fd < 0 && errno == EINTR);
    return again_fd;
}

/* Maps the header in fd, which was opened at least for reading. NULL: errno. */
static struct gr_ring *map(int fd, const struct gr_config *config, const struct gr_layout *layout) {
    int lock_fd = gr_again(fd, O_RDWR), map_fd = lock_fd < 0 ? -1 : gr_again(fd, O_RDWR),
        error = errno;
    /* A shared lock, which each handle has. The creator asks for it before it frees what it
     * owns. */
    if (map_fd >= 0 && gr_lock_byte(lock_fd, F_RDLCK, GR_ATTACHED_BYTE) != 0) {
        error = errno;
        close(map_fd);
        map_fd = -1;
    }
    if (map_fd < 0) {
        if (lock_fd >= 0) close(lock_fd);
        errno = error;
        return NULL;
    }
    uint8_t *base = mmap(NULL, layout->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, map_fd, 0);
    error = errno;
    close(map_fd);
    errno = error;
    return handle(base, lock_fd, config, layout);
}

/* fd: a new, empty file, which should have no name yet. The header is complete when this returns.
 * NULL: errno. */
struct gr_ring *gr_create(int fd, const struct gr_config *config, const uint8_t epoch[16],
                          const uint8_t device_uuid[16],
                          const uint8_t memory_handle[GR_MEMORY_HANDLE], const void *spec) {
    struct gr_layout layout;
    char why[128];
    if (!gr_layout(config, &layout, why, sizeof why)) {
        errno = EINVAL;
        return NULL;
    }
    /* ftruncate would succeed even if there is too little space, and a later store would raise
     * SIGBUS. */
    int error = posix_fallocate(fd, 0, (off_t)layout.nbytes);
    if (error) {
        errno = error;
        return NULL;
    }
    struct gr_ring *ring = map(fd, config, &layout);
    if (!ring) return NULL;
    struct gr_head *head = ring->head;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    head->version = GR_VERSION;
    head->memory = config->memory;
    head->sync = config->sync;
    head->gate = config->gate;
    head->nbytes = layout.nbytes;
    memcpy(head->epoch, epoch, sizeof head->epoch);
    head->slots = config->slots;
    head->max_peers = config->max_peers;
    head->max_subscriptions = config->max_subscriptions;
    head->producers_in_all = ring->producers_in_all;
    head->spec_nbytes = config->spec_nbytes;
    head->slot_nbytes = config->slot_nbytes;
    head->meta_nbytes = config->meta_nbytes;
    head->created_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    head->creator_pid = ring->pid;
    head->creator_start = ring->start;
    head->creator_pidns = ring->pidns;
    memcpy(head->device_uuid, device_uuid, sizeof head->device_uuid);
    memcpy(head->memory_handle, memory_handle, sizeof head->memory_handle);
    memcpy(ring->spec, spec, config->spec_nbytes);
    /* Sequences start at N, as if a lap of void frames had come before, so all laps follow one
     * rule. */
    gr_store_relaxed(&head->claim_hint, config->slots);
    for (uint32_t i = 0; i < config->slots; i++) {
        gr_store_relaxed(&ring->slot[i].word, claim_word(i, GR_NONE, GR_VOID));
        for (uint32_t u = 0; u < config->max_subscriptions; u++)
            gr_store_relaxed(&take_of(ring, i, u)->word, claim_word(0, GR_NONE, GR_DONE));
    }
    if (gr_lock_byte(ring->lock_fd, F_WRLCK, GR_CREATOR_BYTE) != 0) {
        error = errno;
        gr_detach(ring);
        errno = error;
        return NULL;
    }
    /* Last: whoever reads the magic number sees a whole header. */
    gr_store_release(&head->magic, GR_MAGIC);
    return ring;
}

/* Partner: gr_attach, which looks at the magic number again when it has its lock. */
void gr_retire(struct gr_ring *ring) { gr_store_sc(&ring->head->magic, 0); }

/* ---- headers of others ----------------------------------------------------------------------- */

/* False: errno, which is EAGAIN if the file ends too early. */
static bool read_all(int fd, void *to, uint64_t nbytes, uint64_t at) {
    for (uint64_t done = 0; done < nbytes;) {
        ssize_t n = pread(fd, (uint8_t *)to + done, nbytes - done, (off_t)(at + done));
        if (n == 0) errno = EAGAIN;
        if (n == 0 || (n < 0 && errno != EINTR)) return false;
        if (n > 0) done += (uint64_t)n;
    }
    return true;
}

#define REFUSE(error, ...)                                                                         \
    do {                                                                                           \
        snprintf(text, text_nbytes, __VA_ARGS__);                                                  \
        *why = text;                                                                               \
        errno = error;                                                                             \
        return 0;                                                                                  \
    } while (0)
#define SHRINKS "it ends before its size: somebody changes that while it is read"

/* Reads what the header in fd says of itself, and checks it. False: as gr_attach returns NULL. The
 * page is copied once, so what was checked is what is used, whatever a peer writes meanwhile. */
bool gr_check(int fd, struct gr_config *config, struct gr_layout *layout, const char **why,
                    char *text, size_t text_nbytes) {
    union {
        struct gr_head head;
        uint8_t page[GR_PAGE];
    } copy;
    struct stat st;
    *why = NULL;
    if (fstat(fd, &st) != 0) return false;
    if (!S_ISREG(st.st_mode)) REFUSE(0, "it is no file");
    if (st.st_size < GR_PAGE)
        REFUSE(0, "it has %lld bytes, a header has at least %d", (long long)st.st_size, GR_PAGE);
    if (!read_all(fd, &copy, sizeof copy, 0)) {
        if (errno != EAGAIN) return false;
        REFUSE(0, SHRINKS);
    }
    const struct gr_head *head = &copy.head;
    uint64_t magic = gr_load_relaxed(&head->magic);
    *config = (struct gr_config){.slots = head->slots,
                                 .max_peers = head->max_peers,
                                 .max_subscriptions = head->max_subscriptions,
                                 .memory = head->memory,
                                 .sync = head->sync,
                                 .gate = head->gate,
                                 .producers = head->producers_in_all,
                                 .slot_nbytes = head->slot_nbytes,
                                 .meta_nbytes = head->meta_nbytes,
                                 .spec_nbytes = head->spec_nbytes};
    if (magic && magic != GR_MAGIC)
        REFUSE(0, "its magic number is %#llx, not %#llx", (unsigned long long)magic,
               (unsigned long long)GR_MAGIC);
    if (head->version != GR_VERSION)
        REFUSE(0, "its layout has version %u, this build reads version %d", head->version,
               GR_VERSION);
    char range[128];
    if (!gr_layout(config, layout, range, sizeof range)) REFUSE(0, "%s", range);
    if (head->nbytes != layout->nbytes || ((uint64_t)st.st_size != layout->nbytes &&
                                           (uint64_t)st.st_size != layout->traced_nbytes))
        REFUSE(0, "its counts need %llu bytes, it names %llu and has %lld",
               (unsigned long long)layout->nbytes, (unsigned long long)head->nbytes,
               (long long)st.st_size);
    /* All else is right: it was a ring. */
    if (!magic) REFUSE(ESTALE, "it was removed (its magic number is 0)");
    return true;
}

/* Checks a header and maps it. fd was opened at least for reading. NULL with *why set (text is
 * filled): not a ring of this build, or, if errno is ESTALE, a ring that was removed. NULL with
 * *why NULL: errno. */
struct gr_ring *gr_attach(int fd, const char **why, char *text, size_t text_nbytes) {
    struct gr_config config;
    struct gr_layout layout;
    if (!gr_check(fd, &config, &layout, why, text, text_nbytes)) return NULL;
    struct gr_ring *ring = map(fd, &config, &layout);
    /* It was removed before its remover could see our lock. */
    if (ring && gr_load_sc(&ring->head->magic) != GR_MAGIC) {
        gr_detach(ring);
        REFUSE(ESTALE, "it was removed just now");
    }
    return ring;
}

/* Copies a header, to look at it. No store of its owner can harm the reader. It refuses what
 * gr_attach refuses. Nobody may join through a copy, but it can tell who is alive. Event handles
 * and metadata are left out (zero), because they can be large and nobody looks at them. */
struct gr_ring *gr_read(int fd, const char **why, char *text, size_t text_nbytes) {
    struct gr_config config;
    struct gr_layout layout;
    if (!gr_check(fd, &config, &layout, why, text, text_nbytes)) return NULL;
    int lock_fd = gr_again(fd, O_RDONLY);
    if (lock_fd < 0) return NULL;
    uint8_t *base =
        mmap(NULL, layout.nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct gr_ring *ring = handle(base, lock_fd, &config, &layout);
    if (!ring) return NULL;
    if (read_all(fd, base, layout.event, 0) &&
        read_all(fd, ring->spec, config.spec_nbytes, layout.spec))
        return ring;
    int error = errno;
    gr_detach(ring);
    errno = error;
    if (error == EAGAIN) REFUSE(0, SHRINKS);
    return NULL;
}
