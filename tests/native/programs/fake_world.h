/* The world of the fake driver as it lies in memory, shared by fake_cuda.c and fake_calls.c. */
#pragma once

#include "fake_cuda.h"

#define LL (unsigned long long)

enum { FC_INVALID_VALUE = 1, FC_INVALID_HANDLE = 400, FC_CAPTURE_IMPLICIT = 906, FC_STUCK = 702 };
#define FC_ALL_THREADS UINT64_MAX /* fc_stream.thread of a legacy default stream */
#define FC_TABLE UINT64_C(0x7f0000000000) /* the address of the fence table on the GPU */

enum fc_kind { FC_WRITE_WORD, FC_WAIT_WORD, FC_RECORD, FC_WAIT_EVENT, FC_WRITE, FC_READ };
struct fc_op {
    enum fc_kind kind;
    int event;
    uint32_t slot;
    /* offset: of a fence word. value: what is stored or awaited, or the number of an event's
     * record. */
    uint64_t offset, value;
    uint64_t seq, serial;
    int progress, reader;
    bool spoilt;
};
struct fc_stream {
    bool used, destroyed, capturing, held, blocking;
    int process, device;
    gd_stream handle;
    uint64_t id, thread; /* 0: an ordinary stream */
    unsigned head, tail;
    struct fc_op op[FC_QUEUE];
};
struct fc_event {
    bool used, ipc;
    int process, device;
    /* Bit n % 64: record n is done. A CUDA event has far fewer records pending than that. */
    uint64_t records, done;
};
/* A process's handle of an event; the pointer names it and its generation. */
struct fc_handle {
    bool open, imported;
    int event, process;
    uint32_t generation;
};
enum fc_state { FC_FREE, FC_LIVE, FC_LEFT, FC_GONE };
struct fc_process {
    enum fc_state state;
    pid_t pid;
    bool registered;
    int retained;
};

struct fc_world {
    _Atomic int lock;
    _Atomic bool has_gpu; /* some thread makes steps */
    uint64_t rng, serial, ids, seqs; /* from serial to stream: cleared by fc_reset */
    bool complained, all_whole, uneven;
    char complaint[256];
    struct { unsigned one_in; int status; } refusal[FC_FUNCTIONS];
    struct fc_process process[FC_PROCESSES];
    struct fc_event event[FC_EVENTS];
    struct fc_handle handle[FC_HANDLES];
    uint64_t data[FC_SLOTS][FC_WORDS];
    struct fc_stream stream[FC_STREAMS];
    uint8_t frame[FC_SEQS], reading[FC_PROCESSES][FC_SEQS];
};

extern struct fc_world *fc_here; /* of this process */

void fc_lock(struct fc_world *world);
void fc_unlock(struct fc_world *world);
uint64_t fc_chance(struct fc_world *world, uint64_t n);
void fc_complain(struct fc_world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fc_stream_of(struct fc_world *world, gd_stream handle);
int fc_put(gd_stream handle, struct fc_op op, bool ours);
bool fc_implicit_capture(const struct fc_world *world, const struct fc_stream *stream);
int fc_current_device(void);
void *fc_find(void *library, const char *symbol);
