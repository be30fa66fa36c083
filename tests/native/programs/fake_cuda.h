/* A CUDA driver in C for the tests of device order: streams, events, captures and refusals, and a
 * GPU that checks.
 *
 * All of it lives in a `struct fc_world`, which may be memory that processes share. A stream is a
 * queue of operations. Each call of fc_step does one small part of one operation, drawn by chance
 * from those that could run. A test makes the steps itself, or has a thread do it (fc_start). In
 * the kill matrix that thread is the parent's. So the GPU work of a process that is stopped goes
 * on. A process that is killed loses what was queued, a little later than its locks (fc_gpu_gone),
 * and its pending events stay pending.
 *
 * Frames are plain words that only the user's kernels here write and read, one word at a time. What
 * must never happen is reported (fc_complaint). What became of each frame, and of each reading of
 * it, is written down, to be compared with what the library says.
 *
 * This file stands for hardware. It is compiled without the thread sanitizer, so that its lock
 * orders nothing in the library.
 */
#pragma once

#include <sys/types.h>

#include "../../../gpuring/native/device/state.h"

enum {
    FC_PROCESSES = 24, FC_STREAMS = 192, FC_EVENTS = 640, FC_HANDLES = 2048, FC_QUEUE = 64,
    FC_SLOTS = 16, FC_WORDS = 8, FC_SEQS = 1 << 16, FC_DEVICES = 2
};

/* Every function of the table by name, so that it can be refused. */
enum fc_function {
#define NAME(name, symbol, arguments) FC_##name,
    GD_FUNCTIONS(NAME)
#undef NAME
    FC_FUNCTIONS
};

enum { FC_NOT_READ = 0, FC_READING, FC_WHOLE, FC_BROKEN }; /* what a reading of a frame found */
/* What has become of a frame. PAID: the GPU has done its fence operation. */
enum { FC_WRITTEN = 1, FC_PAID = 2, FC_PUBLISHED = 4 };

struct fc_world;

/* An all-zero world is empty. shared: processes share it. */
struct fc_world *fc_new(bool shared);
void fc_reset(struct fc_world *world, uint64_t seed);
/* Another ring begins: forgets its frames, and all streams. */
void fc_forget(struct fc_world *world);

/* This process uses the world from now on; fills the table. To be called again after a fork. */
void fc_enter(struct fc_world *world, struct gd_driver *driver);
/* This process is about to be killed, or to end. None of its threads is in the world when this
 * returns. A thread that makes a call afterwards waits for ever. */
void fc_end_calls(void);
/* The streams of this process are empty, and it ends: fc_end_calls. */
void fc_leave(void);
int fc_process(void);

/* Sets the ring whose words the steps of this process read and write; NULL: none. A process that
 * makes steps must have the ring mapped. */
void fc_serve_ring(const struct gr_ring *ring);
bool fc_step(struct fc_world *world); /* false: nothing could run */
void fc_start(struct fc_world *world);
void fc_stop(void);
/* Whether the GPU work of a dead process is gone. Only asking makes it go, and that takes some
 * steps. */
bool fc_gpu_gone(struct fc_world *world, pid_t pid);

/* The user's CUDA. */
gd_stream fc_stream(int device, bool blocking);
/* Its work goes on, and the next stream gets its handle. */
void fc_destroy_stream(gd_stream stream);
void fc_hold_stream(gd_stream stream, bool held);
void fc_release_held(struct fc_world *world); /* also those of destroyed streams */
void fc_begin_capture(gd_stream stream);
void fc_end_capture(gd_stream stream);
int fc_write(gd_stream stream, uint32_t slot, uint64_t seq);
int fc_read(gd_stream stream, uint32_t slot, uint64_t seq);
/* As fc_read, for a reader that is another process. */
int fc_read_as(gd_stream stream, uint32_t slot, uint64_t seq, int reader);
void fc_set_device(int device);
/* The next fence operations that this thread enqueues are for frame seq (0: for none). */
void fc_pay_for(uint64_t seq);
/* To be called when gd_publish has returned GR_OK. */
void fc_published(uint64_t seq);
/* The CPU of a process has stored the fence of the frame. */
void fc_paid(uint64_t seq);

/* From now on this function is refused with `status`, one call in `one_in` (0: never). */
void fc_refuse(struct fc_world *world, enum fc_function function, unsigned one_in, int status);
void fc_calm(struct fc_world *world); /* refuses nothing any more */

/* Makes some streams far slower than the others. */
void fc_uneven(struct fc_world *world);
/* Nobody dies in this test, so a frame that is not whole is a complaint. */
void fc_expect_whole(struct fc_world *world);

/* Results. */
int fc_reading(struct fc_world *world, int reader, uint64_t seq);
unsigned fc_frame(struct fc_world *world, uint64_t seq);
bool fc_idle(struct fc_world *world, int process); /* nothing is queued */
const char *fc_complaint(struct fc_world *world); /* NULL: there is none */
/* Called when the fence operation of a frame is done, or when a frame is published after that. */
extern void (*fc_on_paid)(uint64_t seq);
