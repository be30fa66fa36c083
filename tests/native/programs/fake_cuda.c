/* The fake driver: its world, its streams, and what a step does. fake_calls.c has the driver's
 * functions.
 */
#define _GNU_SOURCE
#include "../../../gpuring/native/device/stream.h"
#include "fake_world.h"

#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct fc_world *fc_here;
void (*fc_on_paid)(uint64_t seq);
static int me = -1;
static const struct gr_ring *_Atomic served;
static pthread_t gpu;
static _Atomic bool running;

/* ---- the world ------------------------------------------------------------------------------- */

static void take(_Atomic int *lock) {
    for (int turn = 0; atomic_exchange_explicit(lock, 1, memory_order_acquire); turn++)
        if (turn > 20) sched_yield();
}
static void drop(_Atomic int *lock) { atomic_store_explicit(lock, 0, memory_order_release); }

/* A lock among the threads of this process. A thread that has the world's lock, or waits for it,
 * has this one. */
static _Atomic int here;

void fc_lock(struct fc_world *world) {
    take(&here);
    take(&world->lock);
}
void fc_unlock(struct fc_world *world) {
    drop(&world->lock);
    drop(&here);
}

/* Takes the lock for good, so that no other thread of this process has the world's lock when the
 * process ends. */
void fc_end_calls(void) { take(&here); }
/* The GPU's thread may have had the lock at the fork, and is not in the child. */
static void fork_child(void) { drop(&here); }

uint64_t fc_chance(struct fc_world *world, uint64_t n) { /* splitmix64; under the lock */
    uint64_t z = world->rng += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % n;
}

/* Keeps the first complaint, because later ones may be its consequences. */
void fc_complain(struct fc_world *world, const char *format, ...) {
    if (world->complained) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(world->complaint, sizeof world->complaint, format, arguments);
    va_end(arguments);
    world->complained = true;
}
const char *fc_complaint(struct fc_world *world) { return world->complained ? world->complaint : NULL; }

struct fc_world *fc_new(bool shared) {
    void *world = mmap(NULL, sizeof(struct fc_world), PROT_READ | PROT_WRITE,
                       (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
    if (world == MAP_FAILED) abort();
    return world;
}

/* Clears the books of frames only as far as they were used: to clear all would take longer than a
 * round. */
static void forget(struct fc_world *world) {
    uint64_t used = world->seqs < FC_SEQS ? world->seqs : FC_SEQS - 1;
    for (int p = 0; p < FC_PROCESSES; p++) memset(world->reading[p], 0, used + 1);
    memset(world->frame, 0, used + 1);
    for (int s = 0; s < FC_STREAMS; s++) world->stream[s].used = false;
}
void fc_forget(struct fc_world *world) {
    fc_lock(world);
    forget(world);
    fc_unlock(world);
}
void fc_reset(struct fc_world *world, uint64_t seed) {
    fc_lock(world);
    forget(world);
    memset((char *)world + offsetof(struct fc_world, serial), 0, offsetof(struct fc_world, stream) - offsetof(struct fc_world, serial));
    world->rng = seed;
    fc_unlock(world);
}

void fc_enter(struct fc_world *world, struct gd_driver *driver) {
    const char *missing;
    fc_here = world;
    if (!gd_driver_fill(driver, fc_find, NULL, &missing)) abort();
    fc_lock(world);
    for (me = 0; me < FC_PROCESSES && world->process[me].state != FC_FREE; me++) {
    }
    if (me == FC_PROCESSES) abort();
    world->process[me] = (struct fc_process){.state = FC_LIVE, .pid = getpid()};
    fc_unlock(world);
}
int fc_process(void) { return me; }

static bool queued(struct fc_world *world, int process) {
    for (int s = 0; s < FC_STREAMS; s++)
        if (world->stream[s].used && world->stream[s].process == process && world->stream[s].head != world->stream[s].tail)
            return true;
    return false;
}
bool fc_idle(struct fc_world *world, int process) {
    fc_lock(world);
    bool idle = !queued(world, process);
    fc_unlock(world);
    return idle;
}

void fc_leave(void) {
    fc_lock(fc_here);
    fc_here->process[me].state = FC_LEFT;
    fc_unlock(fc_here);
    fc_here = NULL;
    me = -1;
    fc_end_calls();
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Under the lock. */
static int new_stream(struct fc_world *world, int device, bool blocking, uint64_t thread) {
    for (int s = 0; s < FC_STREAMS; s++) {
        struct fc_stream *stream = &world->stream[s];
        if (stream->used && !(stream->destroyed && stream->head == stream->tail)) continue;
        stream->used = true;
        stream->destroyed = stream->capturing = stream->held = false;
        stream->head = stream->tail = 0;
        stream->process = me;
        stream->device = device;
        stream->blocking = blocking;
        stream->thread = thread;
        stream->handle = 0;
        stream->id = ++world->ids;
        return s;
    }
    abort();
}

/* Under the lock. The stream that a handle means in this thread now; -1: none. */
int fc_stream_of(struct fc_world *world, gd_stream handle) {
    uint64_t thread = handle == GD_LEGACY ? FC_ALL_THREADS : handle == GD_PER_THREAD ? gd_this_thread() : 0;
    int device = fc_current_device();
    for (int s = 0; s < FC_STREAMS; s++) {
        struct fc_stream *stream = &world->stream[s];
        if (!stream->used || stream->process != me || stream->destroyed) continue;
        if (thread ? stream->thread == thread && stream->device == device : stream->handle == handle) return s;
    }
    return thread && device >= 0 ? new_stream(world, device, true, thread) : -1;
}

gd_stream fc_stream(int device, bool blocking) {
    fc_lock(fc_here);
    struct fc_stream *stream = &fc_here->stream[new_stream(fc_here, device, blocking, 0)];
    gd_stream handle = 0x100;
    /* Takes the lowest handle that is free, which may be one of a stream just destroyed. */
    for (bool taken = true; taken; handle += taken ? 0x10 : 0) {
        taken = false;
        for (int s = 0; s < FC_STREAMS; s++) {
            struct fc_stream *other = &fc_here->stream[s];
            taken |= other->used && other->process == me && !other->destroyed && other->handle == handle;
        }
    }
    stream->handle = handle;
    fc_unlock(fc_here);
    return handle;
}

#define WITH_STREAM(handle, then)                                                                                      \
    do {                                                                                                               \
        fc_lock(fc_here);                                                                                              \
        int s_ = fc_stream_of(fc_here, handle);                                                                        \
        if (s_ < 0) abort();                                                                                           \
        fc_here->stream[s_].then;                                                                                      \
        fc_unlock(fc_here);                                                                                            \
    } while (0)
void fc_destroy_stream(gd_stream handle) { WITH_STREAM(handle, destroyed = true); }
void fc_hold_stream(gd_stream handle, bool held) { WITH_STREAM(handle, held = held); }
void fc_release_held(struct fc_world *world) {
    fc_lock(world);
    for (int s = 0; s < FC_STREAMS; s++) world->stream[s].held = false;
    fc_unlock(world);
}
void fc_begin_capture(gd_stream handle) { WITH_STREAM(handle, capturing = true); }
void fc_end_capture(gd_stream handle) { WITH_STREAM(handle, capturing = false); }

/* Puts an operation of the library (ours), or of its user, into a stream. A full queue blocks the
 * caller. */
int fc_put(gd_stream handle, struct fc_op op, bool ours) {
    struct fc_world *world = fc_here;
    for (;;) {
        fc_lock(world);
        int s = fc_stream_of(world, handle);
        if (s < 0) return fc_unlock(world), handle <= GD_PER_THREAD ? CU_INVALID_CONTEXT : FC_INVALID_HANDLE;
        struct fc_stream *stream = &world->stream[s];
        if (stream->capturing) {
            if (ours) fc_complain(world, "an operation of the library went into a graph (stream %#lx)", (long)handle);
            return fc_unlock(world), CU_OK;
        }
        if (fc_implicit_capture(world, stream)) return fc_unlock(world), FC_CAPTURE_IMPLICIT;
        if (stream->tail - stream->head < FC_QUEUE) {
            if (op.kind == FC_RECORD) {
                struct fc_event *event = &world->event[op.event];
                if (event->device != stream->device) return fc_unlock(world), FC_INVALID_HANDLE;
                op.value = ++event->records;
                event->done &= ~(UINT64_C(1) << op.value % 64);
            }
            op.serial = ++world->serial;
            stream->op[stream->tail++ % FC_QUEUE] = op;
            return fc_unlock(world), CU_OK;
        }
        fc_unlock(world);
        if (atomic_load(&world->has_gpu)) sched_yield();
        else if (!fc_step(world)) return FC_STUCK;
    }
}

/* ---- a step ---------------------------------------------------------------------------------- */

static uint64_t content(uint64_t seq, int k) { return (seq * FC_WORDS + (uint64_t)k) * 0x9e3779b97f4a7c15u; }

/* Whether another kernel is using that slot. A write spoils the reads that are under way. */
static bool meets(struct fc_world *world, struct fc_stream *but, uint32_t slot, enum fc_kind kind, bool spoil) {
    bool met = false;
    for (int s = 0; s < FC_STREAMS; s++) {
        struct fc_stream *stream = &world->stream[s];
        struct fc_op *op = &stream->op[stream->head % FC_QUEUE];
        if (!stream->used || stream == but || stream->head == stream->tail) continue;
        if (op->kind != kind || op->slot != slot || op->progress == 0) continue;
        met = true;
        if (spoil) op->spoilt = true;
    }
    return met;
}

static void pay(struct fc_world *world, uint64_t seq) {
    if (seq == 0) return;
    if (!(world->frame[seq] & FC_WRITTEN)) fc_complain(world, "the fence of frame %llu came before it was written", LL seq);
    world->frame[seq] |= FC_PAID;
    if (world->frame[seq] & FC_PUBLISHED && fc_on_paid) fc_on_paid(seq);
}

static bool ready(struct fc_world *world, struct fc_op *op) {
    const struct gr_ring *ring = served;
    gr_word *word = ring ? &ring->fence[op->offset] : NULL;
    switch (op->kind) {
    case FC_WAIT_EVENT: return world->event[op->event].done >> op->value % 64 & 1;
    case FC_WAIT_WORD:
        if (word && gr_load_acquire(&ring->work[op->offset]) < op->value)
            fc_complain(world, "a wait for %#llx, which nobody has promised", LL op->value);
        return word && gr_load_acquire(word) >= op->value;
    default: return true;
    }
}

/* The legacy default stream and the blocking ones of a process wait for each other. */
static bool in_turn(struct fc_world *world, struct fc_stream *stream, struct fc_op *op) {
    if (!stream->blocking) return true;
    for (int s = 0; s < FC_STREAMS; s++) {
        struct fc_stream *other = &world->stream[s];
        if (!other->used || other == stream || other->process != stream->process || other->device != stream->device) continue;
        if (!other->blocking || other->head == other->tail) continue;
        bool legacy = stream->thread == FC_ALL_THREADS || other->thread == FC_ALL_THREADS;
        if (legacy && other->op[other->head % FC_QUEUE].serial < op->serial) return false;
    }
    return true;
}

/* Does a small part of an operation. True: it was the last part. */
static bool part_of(struct fc_world *world, struct fc_stream *stream, struct fc_op *op) {
    uint64_t *data = world->data[op->slot % FC_SLOTS];
    const struct gr_ring *ring = served;
    gr_word *word = ring ? &ring->fence[op->offset] : NULL;
    switch (op->kind) {
    case FC_WRITE_WORD:
        if (gr_load_acquire(word) > op->value)
            fc_complain(world, "a fence fell from %#llx to %#llx", LL gr_load_acquire(word), LL op->value);
        pay(world, op->seq);
        gr_store_release(word, op->value);
        return true;
    case FC_RECORD:
        pay(world, op->seq);
        world->event[op->event].done |= UINT64_C(1) << op->value % 64;
        return true;
    case FC_WRITE:
        if (op->progress == 0) {
            if (meets(world, stream, op->slot, FC_WRITE, false))
                fc_complain(world, "two kernels write slot %u at a time, one of them frame %llu", op->slot, LL op->seq);
            meets(world, stream, op->slot, FC_READ, true);
        }
        data[op->progress] = content(op->seq, op->progress);
        if (++op->progress < FC_WORDS) return false;
        world->frame[op->seq] |= FC_WRITTEN;
        return true;
    case FC_READ:
        if (op->progress == 0) op->spoilt = meets(world, stream, op->slot, FC_WRITE, false);
        if (data[op->progress] != content(op->seq, op->progress)) op->spoilt = true;
        if (++op->progress < FC_WORDS) return false;
        world->reading[op->reader][op->seq] = op->spoilt ? FC_BROKEN : FC_WHOLE;
        if (op->spoilt && world->all_whole) fc_complain(world, "reader %d found frame %llu broken", op->reader, LL op->seq);
        return true;
    default: return true;
    }
}

bool fc_step(struct fc_world *world) {
    fc_lock(world);
    uint64_t first = fc_chance(world, FC_STREAMS);
    for (uint64_t k = 0; k < FC_STREAMS; k++) {
        struct fc_stream *stream = &world->stream[(first + k) % FC_STREAMS];
        if (!stream->used || stream->head == stream->tail) continue;
        /* A held stream hardly ever goes on. */
        if (stream->held && !(world->has_gpu && fc_chance(world, 1000) == 0)) continue;
        struct fc_op *op = &stream->op[stream->head % FC_QUEUE];
        if (!in_turn(world, stream, op) || !ready(world, op)) continue;
        bool slow = world->uneven && stream->id % 4 == 3 && fc_chance(world, 16);
        if (!slow && part_of(world, stream, op)) stream->head++;
        fc_unlock(world);
        return true;
    }
    fc_unlock(world);
    return false;
}

void fc_serve_ring(const struct gr_ring *ring) { served = ring; }

static void *run_gpu(void *argument) {
    struct fc_world *world = argument;
    while (atomic_load(&running))
        if (!fc_step(world)) nanosleep(&(struct timespec){.tv_nsec = 10 * 1000}, NULL);
    return NULL;
}
void fc_start(struct fc_world *world) {
    atomic_store(&running, true);
    atomic_store(&world->has_gpu, true);
    pthread_atfork(NULL, NULL, fork_child);
    if (pthread_create(&gpu, NULL, run_gpu, world) != 0) abort();
}
void fc_stop(void) {
    atomic_store(&running, false);
    pthread_join(gpu, NULL);
}

/* ---- death ----------------------------------------------------------------------------------- */

/* The kernel takes away a dead process's locks first, and its GPU work a moment later. Until then
 * that work goes on. */
bool fc_gpu_gone(struct fc_world *world, pid_t pid) {
    bool gone = true;
    fc_lock(world);
    for (int p = 0; p < FC_PROCESSES; p++) {
        struct fc_process *process = &world->process[p];
        if (process->pid != pid || process->state != FC_LIVE) continue;
        gone = fc_chance(world, 3) == 0;
        if (!gone) continue;
        process->state = FC_GONE;
        for (int s = 0; s < FC_STREAMS; s++)
            /* Its events stay as they are. */
            if (world->stream[s].process == p) world->stream[s].used = false;
    }
    fc_unlock(world);
    return gone;
}

/* ---- the user's kernels ---------------------------------------------------------------------- */

int fc_write(gd_stream stream, uint32_t slot, uint64_t seq) {
    if (seq >= FC_SEQS || slot >= FC_SLOTS) abort();
    if (fc_here->seqs < seq) fc_here->seqs = seq;
    return fc_put(stream, (struct fc_op){.kind = FC_WRITE, .slot = slot, .seq = seq}, false);
}
int fc_read_as(gd_stream stream, uint32_t slot, uint64_t seq, int reader) {
    if (seq >= FC_SEQS || slot >= FC_SLOTS) abort();
    fc_here->reading[reader][seq] = FC_READING;
    return fc_put(stream, (struct fc_op){.kind = FC_READ, .slot = slot, .seq = seq, .reader = reader}, false);
}
int fc_read(gd_stream stream, uint32_t slot, uint64_t seq) { return fc_read_as(stream, slot, seq, me); }
void fc_expect_whole(struct fc_world *world) { world->all_whole = true; }
void fc_uneven(struct fc_world *world) { world->uneven = true; }
void fc_paid(uint64_t seq) {
    fc_lock(fc_here);
    pay(fc_here, seq);
    fc_unlock(fc_here);
}
void fc_published(uint64_t seq) {
    fc_lock(fc_here);
    fc_here->frame[seq] |= FC_PUBLISHED;
    if (fc_here->frame[seq] & FC_PAID && fc_on_paid) fc_on_paid(seq);
    fc_unlock(fc_here);
}
int fc_reading(struct fc_world *world, int reader, uint64_t seq) {
    fc_lock(world);
    int reading = world->reading[reader][seq];
    fc_unlock(world);
    return reading;
}
unsigned fc_frame(struct fc_world *world, uint64_t seq) {
    fc_lock(world);
    unsigned frame = world->frame[seq];
    fc_unlock(world);
    return frame;
}

/* ---- refusals -------------------------------------------------------------------------------- */

void fc_refuse(struct fc_world *world, enum fc_function function, unsigned one_in, int status) {
    fc_lock(world);
    world->refusal[function].one_in = one_in;
    world->refusal[function].status = status;
    fc_unlock(world);
}
void fc_calm(struct fc_world *world) {
    for (int f = 0; f < FC_FUNCTIONS; f++) fc_refuse(world, (enum fc_function)f, 0, CU_OK);
}
