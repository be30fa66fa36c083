/* A libcuda.so.1 without a GPU, for whole processes: memory is the host's, and streams are queues of
 * which a thread does what can be done.
 *
 * Memory of a GPU is a memfd, which other processes open by /proc or by its descriptor. So a frame that
 * one process writes is really read by another one, at another address. What is mapped for reading
 * only cannot be written. Work of a killed process is lost, and its events stay pending.
 *
 *   FAKE_CUDA_LOG         a file to which each call is added: its process, its name and its stream
 *   FAKE_CUDA_ATTRIBUTES  such as ",18=1,": attributes of the GPUs
 *   FAKE_CUDA_REFUSES     such as ",cuMemAlloc_v2=2,": what calls return instead of doing anything
 *
 * It stands for hardware, and has only what gpuring and its tests call.
 *
 *   contexts  the variables of the environment, devices, and contexts
 *   streams   streams, copies on them, and events
 *   memory    memory, and how other processes open it
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../../../gpuring/native/device/driver.h"

enum { DEVICES = 2, FIRST = 0x1000 };
typedef unsigned long long ull;

/* Only the functions of CUDA are seen from outside. */
#pragma GCC visibility push(hidden)

/* ---- contexts.c ------------------------------------------------------------------------------ */

/* Those that were pushed. */
extern _Thread_local uintptr_t stack[64];
extern _Thread_local int depth;
/* Adds the call to the log. Not 0: the call has to return this, because it is refused. */
int called(const char *name, const void *stream);
#define CALLED_ON(stream)                                                                          \
    do {                                                                                           \
        const int refused = called(__func__, (stream));                                            \
        if (refused) return refused;                                                               \
    } while (0)
#define CALLED CALLED_ON(NULL)

/* ---- streams.c ------------------------------------------------------------------------------- */

struct event {
    struct counts {
        _Atomic uint64_t recorded, done;
    } *counts;
    int fd; /* -1: not interprocess */
};

enum kind { WAIT, WRITE, COPY, ROWS, FILL, RECORD, AWAIT };
struct op {
    enum kind kind;
    uint64_t a, b, value;
    size_t n, rows, to_pitch, pitch;
    struct event event;
};
extern pthread_mutex_t mutex; /* of the streams, and of what memory is known */
struct stream;
struct stream *stream_of(const void *handle);
int enqueue(const void *handle, struct op op);
/* NULL: any of them. */
bool is_busy(const struct stream *stream);
int finish(const struct stream *stream);

/* ---- memory.c -------------------------------------------------------------------------------- */

bool is_known(uint64_t address);

/* A handle of CUDA that goes to other processes. */
struct handle {
    int pid, fd;
    size_t nbytes;
};
int new_file(size_t nbytes);
void *map(int fd, size_t nbytes);
struct gd_ipc_handle handle_of(int fd, size_t nbytes);
void *open_handle(const struct gd_ipc_handle *handle, struct handle *found);

#pragma GCC visibility pop

int cuGetErrorName(int status, const char **name);
int cuMemAlloc_v2(uint64_t *pointer, size_t nbytes);
int cuMemcpy2DAsync_v2(const struct gd_copy_2d *copy, void *stream);
int cuStreamDestroy_v2(void *stream);
int cuStreamSynchronize(void *stream);
