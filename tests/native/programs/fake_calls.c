/* The driver's functions, as gpuring/native/device/driver.h lists them, over the world of fake_cuda.c. */
#define _GNU_SOURCE
#include "fake_world.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The device of this thread's current context (-1: none), and of those pushed below it. */
static _Thread_local int current = -1, pushed[8], depth;
static _Thread_local uint64_t paying;

int fc_current_device(void) { return current; }
void fc_set_device(int device) { current = device; }
void fc_pay_for(uint64_t seq) { paying = seq; }

/* Whether this call is refused. Then *status is its result. */
static bool refused(enum fc_function function, int *status) {
    struct fc_world *world = fc_here;
    fc_lock(world);
    unsigned one_in = world->refusal[function].one_in;
    bool yes = one_in && fc_chance(world, one_in) == 0;
    *status = world->refusal[function].status;
    fc_unlock(world);
    return yes;
}
static bool heads(void) {
    fc_lock(fc_here);
    bool yes = fc_chance(fc_here, 2);
    fc_unlock(fc_here);
    return yes;
}
#define REFUSAL(name)                                                                                                  \
    int refusal_;                                                                                                      \
    if (refused(FC_##name, &refusal_)) return refusal_
/* Refuses a call that may have been enqueued all the same, which the caller cannot tell. */
#define MAYBE_REFUSED(name, put)                                                                                       \
    do {                                                                                                               \
        int refusal_;                                                                                                  \
        if (!refused(FC_##name, &refusal_)) return put;                                                                \
        if (!gd_is_capture(refusal_) && heads()) (void)put;                                                            \
        return refusal_;                                                                                               \
    } while (0)

/* ---- devices and contexts -------------------------------------------------------------------- */

static void *context_of(int device) { return (void *)(uintptr_t)(0xc000 + device); }

static int init(unsigned flags) {
    REFUSAL(init);
    return flags ? FC_INVALID_VALUE : CU_OK;
}
static int get_error_name(int status, const char **name) {
    (void)status;
    *name = "CUDA_ERROR_OF_THE_FAKE";
    return CU_OK;
}
static int device_get_attribute(int *value, int attribute, int device) {
    (void)attribute, (void)device;
    REFUSAL(device_get_attribute);
    return *value = 1, CU_OK;
}
static int device_get_uuid(void *uuid, int device) {
    memset(uuid, device + 1, 16);
    return CU_OK;
}
static int primary_retain(void **context, int device) {
    REFUSAL(primary_retain);
    if (device < 0 || device >= FC_DEVICES) return 101;
    fc_here->process[fc_process()].retained++;
    return *context = context_of(device), CU_OK;
}
static int primary_release(int device) {
    (void)device;
    if (--fc_here->process[fc_process()].retained < 0) fc_complain(fc_here, "a context was released that nobody has");
    return CU_OK;
}
static int ctx_get_device(int *device) {
    REFUSAL(ctx_get_device);
    return current < 0 ? CU_INVALID_CONTEXT : (*device = current, CU_OK);
}
static int ctx_set_current(void *context) {
    REFUSAL(ctx_set_current);
    return current = (int)((uintptr_t)context - 0xc000), CU_OK;
}
static int ctx_push(void *context) {
    REFUSAL(ctx_push);
    if (depth == 8) return fc_complain(fc_here, "contexts are pushed and not popped"), FC_INVALID_VALUE;
    pushed[depth++] = current;
    current = (int)((uintptr_t)context - 0xc000);
    return CU_OK;
}
static int ctx_pop(void **context) {
    if (depth == 0) return fc_complain(fc_here, "a context is popped that was not pushed"), CU_INVALID_CONTEXT;
    *context = context_of(current);
    current = pushed[--depth];
    return CU_OK;
}

static bool captures(void) {
    bool any = false;
    fc_lock(fc_here);
    for (int s = 0; s < FC_STREAMS; s++)
        any |= fc_here->stream[s].used && fc_here->stream[s].process == fc_process() && fc_here->stream[s].capturing;
    fc_unlock(fc_here);
    return any;
}
static int ctx_synchronize(void) {
    REFUSAL(ctx_synchronize);
    if (current < 0) return CU_INVALID_CONTEXT;
    if (captures()) return CU_CAPTURE;
    while (!fc_idle(fc_here, fc_process())) {
        if (!atomic_load(&fc_here->has_gpu)) {
            /* No operation can go on, and there is no other thread that could change that. */
            if (!fc_step(fc_here)) return FC_STUCK;
        } else nanosleep(&(struct timespec){.tv_nsec = 10 * 1000}, NULL);
    }
    return CU_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int host_register(void *address, size_t nbytes, unsigned flags) {
    REFUSAL(host_register);
    struct fc_process *process = &fc_here->process[fc_process()];
    if (current < 0) return CU_INVALID_CONTEXT;
    if ((uintptr_t)address % 4096 || nbytes % 4096 || !(flags & CU_HOST_PORTABLE_MAPPED) || process->registered)
        return FC_INVALID_VALUE;
    return process->registered = true, CU_OK;
}
static int host_unregister(void *address) {
    (void)address;
    REFUSAL(host_unregister);
    if (!fc_here->process[fc_process()].registered) fc_complain(fc_here, "unregistered twice");
    if (captures()) return CU_CAPTURE;
    if (!fc_idle(fc_here, fc_process())) fc_complain(fc_here, "the fence table was taken from a GPU that uses it");
    fc_here->process[fc_process()].registered = false;
    return CU_OK;
}
static int host_device_pointer(uint64_t *pointer, void *address, unsigned flags) {
    (void)address, (void)flags;
    REFUSAL(host_device_pointer);
    return *pointer = FC_TABLE, CU_OK;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* The legacy default stream cannot be used while a stream that waits for it is captured. */
bool fc_implicit_capture(const struct fc_world *world, const struct fc_stream *stream) {
    bool any = false;
    for (int s = 0; s < FC_STREAMS && stream->thread == FC_ALL_THREADS; s++) {
        const struct fc_stream *other = &world->stream[s];
        any |= other->used && other->process == stream->process && other->blocking && other->capturing;
    }
    return any;
}

enum question { CAPTURING, ID, QUERY };
static int ask(void *handle, enum question question, int *capturing, unsigned long long *id) {
    int status = CU_OK;
    fc_lock(fc_here);
    int s = fc_stream_of(fc_here, (gd_stream)handle);
    struct fc_stream *stream = s < 0 ? NULL : &fc_here->stream[s];
    if (!stream) status = (gd_stream)handle <= GD_PER_THREAD ? CU_INVALID_CONTEXT : FC_INVALID_HANDLE;
    else if (fc_implicit_capture(fc_here, stream)) status = FC_CAPTURE_IMPLICIT;
    else if (question == CAPTURING) *capturing = stream->capturing;
    else if (stream->capturing) {
        if (question == ID) fc_complain(fc_here, "a capture was ended by asking for the stream's id");
        status = CU_CAPTURE;
    } else if (question == ID) *id = stream->id;
    else if (stream->head != stream->tail) status = CU_NOT_READY;
    fc_unlock(fc_here);
    return status;
}
static int stream_is_capturing(void *stream, int *status) {
    REFUSAL(stream_is_capturing);
    return ask(stream, CAPTURING, status, NULL);
}
static int stream_get_id(void *stream, unsigned long long *id) {
    REFUSAL(stream_get_id);
    return ask(stream, ID, NULL, id);
}
static int stream_query(void *stream) {
    REFUSAL(stream_query);
    return ask(stream, QUERY, NULL, NULL);
}

static int put_word(void *stream, enum fc_kind kind, uint64_t address, uint64_t value) {
    if (address < FC_TABLE || address % 8 || !fc_here->process[fc_process()].registered)
        return fc_complain(fc_here, "a word that the GPU does not have"), FC_INVALID_VALUE;
    struct fc_op op = {.kind = kind, .offset = (address - FC_TABLE) / 8, .value = value};
    if (kind == FC_WRITE_WORD) op.seq = paying;
    return fc_put((gd_stream)stream, op, true);
}
static int stream_wait_value(void *stream, uint64_t address, uint64_t value, unsigned flags) {
    (void)flags;
    MAYBE_REFUSED(stream_wait_value, put_word(stream, FC_WAIT_WORD, address, value));
}
static int stream_write_value(void *stream, uint64_t address, uint64_t value, unsigned flags) {
    (void)flags;
    MAYBE_REFUSED(stream_write_value, put_word(stream, FC_WRITE_WORD, address, value));
}
static int put_batch(void *stream, unsigned n, struct gd_mem_op *ops) {
    int status = CU_OK;
    if (n == 0 || n > 256) return FC_INVALID_VALUE;
    for (unsigned k = 0; k < n && status == CU_OK; k++)
        status = put_word(stream, ops[k].operation == CU_WAIT_64 ? FC_WAIT_WORD : FC_WRITE_WORD, ops[k].address,
                          ops[k].value);
    return status;
}
static int stream_batch(void *stream, unsigned n, struct gd_mem_op *ops, unsigned flags) {
    (void)flags;
    MAYBE_REFUSED(stream_batch, put_batch(stream, n, ops));
}

/* ---- events ---------------------------------------------------------------------------------- */

static void *pointer_to(int h) { return (void *)(uintptr_t)(h + 1 + ((uint64_t)fc_here->handle[h].generation << 20)); }

/* Under the lock. NULL: there is no such event any more, so the library must not ask for it. */
static struct fc_handle *handle_of(void *pointer) {
    uint64_t h = ((uintptr_t)pointer & 0xfffff) - 1;
    struct fc_handle *handle = h < FC_HANDLES ? &fc_here->handle[h] : NULL;
    bool good = handle && handle->open && handle->process == fc_process() &&
                handle->generation == (uintptr_t)pointer >> 20;
    if (!good) fc_complain(fc_here, "a destroyed event is used");
    else if (!fc_here->event[handle->event].used) fc_complain(fc_here, "an imported event is used whose original is gone");
    return good ? handle : NULL;
}
static int new_handle(int event, bool imported) {
    for (int h = 0; h < FC_HANDLES; h++) {
        struct fc_handle *handle = &fc_here->handle[h];
        if (handle->open) continue;
        *handle = (struct fc_handle){true, imported, event, fc_process(), handle->generation + 1};
        return h;
    }
    abort();
}

/* Under the lock. A destroyed event is not given out again before everything enqueued with it is
 * done. */
static bool is_enqueued(int event) {
    for (int s = 0; s < FC_STREAMS; s++) {
        const struct fc_stream *stream = &fc_here->stream[s];
        for (unsigned k = stream->head; stream->used && k != stream->tail; k++) {
            const struct fc_op *op = &stream->op[k % FC_QUEUE];
            if ((op->kind == FC_RECORD || op->kind == FC_WAIT_EVENT) && op->event == event) return true;
        }
    }
    return false;
}

static int event_create(void **event, unsigned flags) {
    REFUSAL(event_create);
    if (current < 0) return CU_INVALID_CONTEXT;
    int status = CU_OUT_OF_MEMORY;
    fc_lock(fc_here);
    for (int e = 0; e < FC_EVENTS && status != CU_OK; e++) {
        if (fc_here->event[e].used || is_enqueued(e)) continue;
        fc_here->event[e] = (struct fc_event){true, flags & CU_EVENT_INTERPROCESS, fc_process(), current, 0, 1};
        *event = pointer_to(new_handle(e, false));
        status = CU_OK;
    }
    fc_unlock(fc_here);
    return status;
}
static int event_destroy(void *event) {
    fc_lock(fc_here);
    struct fc_handle *handle = handle_of(event);
    if (handle) {
        handle->open = false;
        if (!handle->imported) fc_here->event[handle->event].used = false;
    }
    fc_unlock(fc_here);
    return handle ? CU_OK : FC_INVALID_HANDLE;
}
/* The event's number and its latest record. -1: it is not an event. */
static int event_of(void *event, uint64_t *records, bool *ipc, bool *imported, bool *done) {
    fc_lock(fc_here);
    struct fc_handle *handle = handle_of(event);
    if (handle) {
        struct fc_event *found = &fc_here->event[handle->event];
        *records = found->records;
        *ipc = found->ipc;
        *imported = handle->imported;
        *done = found->done >> found->records % 64 & 1;
    }
    int number = handle ? handle->event : -1;
    fc_unlock(fc_here);
    return number;
}
static int event_record(void *event, void *stream) {
    uint64_t records;
    bool ipc, imported, done;
    int number = event_of(event, &records, &ipc, &imported, &done);
    if (number < 0) return FC_INVALID_HANDLE;
    if (imported) fc_complain(fc_here, "somebody else's event is recorded");
    struct fc_op op = {.kind = FC_RECORD, .event = number, .seq = ipc ? paying : 0};
    MAYBE_REFUSED(event_record, fc_put((gd_stream)stream, op, true));
}
static int event_query(void *event) {
    REFUSAL(event_query);
    uint64_t records;
    bool ipc, imported, done;
    int number = event_of(event, &records, &ipc, &imported, &done);
    return number < 0 ? FC_INVALID_HANDLE : done ? CU_OK : CU_NOT_READY;
}
static int stream_wait_event(void *stream, void *event, unsigned flags) {
    (void)flags;
    uint64_t records;
    bool ipc, imported, done;
    int number = event_of(event, &records, &ipc, &imported, &done);
    if (number < 0) return FC_INVALID_HANDLE;
    struct fc_op op = {.kind = FC_WAIT_EVENT, .event = number, .value = records};
    MAYBE_REFUSED(stream_wait_event, fc_put((gd_stream)stream, op, true));
}
static int ipc_get_event_handle(struct gd_ipc_handle *handle, void *event) {
    REFUSAL(ipc_get_event_handle);
    uint64_t records, words[CU_IPC_HANDLE / 8] = {0};
    bool ipc, imported, done;
    int number = event_of(event, &records, &ipc, &imported, &done);
    if (number < 0 || !ipc || imported) return FC_INVALID_HANDLE;
    words[0] = 0xe4e27 + (uint64_t)number;
    words[7] = ~words[0];
    memcpy(handle->bytes, words, sizeof words);
    return CU_OK;
}
static int ipc_open_event_handle(void **event, struct gd_ipc_handle handle) {
    REFUSAL(ipc_open_event_handle);
    uint64_t words[CU_IPC_HANDLE / 8];
    memcpy(words, handle.bytes, sizeof words);
    if (current < 0) return CU_INVALID_CONTEXT;
    uint64_t number = words[0] - 0xe4e27;
    if (number >= FC_EVENTS || words[7] != ~words[0]) return FC_INVALID_HANDLE;
    fc_lock(fc_here);
    const struct fc_event *found = &fc_here->event[number];
    bool good = found->used && found->ipc && found->process != fc_process();
    if (good) *event = pointer_to(new_handle((int)number, true));
    fc_unlock(fc_here);
    return good ? CU_OK : FC_INVALID_HANDLE;
}

/* ---- the table ------------------------------------------------------------------------------- */

static int not_called(void) { abort(); } /* the device order does neither */

void *fc_find(void *library, const char *symbol) {
    (void)library;
#define FIND(name, text, arguments)                                                                                    \
    if (strcmp(symbol, text) == 0) {                                                                                   \
        int(*function) arguments = name;                                                                               \
        void *found;                                                                                                   \
        memcpy(&found, &function, sizeof found);                                                                       \
        return found;                                                                                                  \
    }
    GD_FUNCTIONS(FIND)
#undef FIND
#define ABORTS(name, text, arguments)                                                                                  \
    if (strcmp(symbol, text) == 0) {                                                                                   \
        int (*function)(void) = not_called;                                                                            \
        void *found;                                                                                                   \
        memcpy(&found, &function, sizeof found);                                                                       \
        return found;                                                                                                  \
    }
    GD_COPIES(ABORTS)
    GD_MEMORY(ABORTS)
#undef ABORTS
    return NULL;
}
