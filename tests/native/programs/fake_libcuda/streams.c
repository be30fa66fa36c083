/* Streams, copies on them, and events. */
#define _GNU_SOURCE
#include "fake_libcuda.h"

enum { STREAMS = 64, QUEUE = 256 };

/* ---- streams --------------------------------------------------------------------------------- */

static struct stream {
    bool used;
    uint64_t id;
    struct op queue[QUEUE];
    unsigned first, n;
} streams[STREAMS];
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queued = PTHREAD_COND_INITIALIZER;
static uint64_t ids = 1;

/* The default streams are the first three. They order nothing among each other here. */
struct stream *stream_of(const void *handle) {
    const uintptr_t at = (uintptr_t)handle;
    return &streams[at < 3 ? at : 3 + at - FIRST];
}

static bool done(struct op *op) {
    switch (op->kind) {
    case WAIT: return atomic_load((_Atomic uint64_t *)op->a) >= op->value;
    case AWAIT: return atomic_load(&op->event.counts->done) >= op->value;
    case WRITE: atomic_store((_Atomic uint64_t *)op->a, op->value); break;
    case RECORD: atomic_store(&op->event.counts->done, op->value); break;
    case COPY: memcpy((void *)op->a, (void *)op->b, op->n); break;
    case ROWS:
        for (size_t k = 0; k < op->rows; k++)
            memcpy((char *)op->a + k * op->to_pitch, (char *)op->b + k * op->pitch, op->n);
        break;
    case FILL: memset((void *)op->a, (int)op->value, op->n); break;
    }
    return true;
}

/* Whether anything is left. */
static bool pump(void) {
    bool left = false;
    for (int k = 0; k < STREAMS; k++) {
        struct stream *stream = &streams[k];
        while (stream->n && done(&stream->queue[stream->first])) {
            stream->first = (stream->first + 1) % QUEUE;
            stream->n--;
        }
        left |= stream->n != 0;
    }
    return left;
}

static void *work(void *unused) {
    pthread_mutex_lock(&mutex);
    for (;;) {
        if (!pump()) {
            pthread_cond_wait(&queued, &mutex);
            continue;
        }
        pthread_mutex_unlock(&mutex);
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        pthread_mutex_lock(&mutex);
    }
    return unused;
}

static void start(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL)) abort();
}

int enqueue(const void *handle, struct op op) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    pthread_mutex_lock(&mutex);
    struct stream *stream = stream_of(handle);
    if (stream->n == QUEUE) abort();
    stream->queue[(stream->first + stream->n++) % QUEUE] = op;
    if (pump()) pthread_cond_signal(&queued);
    pthread_mutex_unlock(&mutex);
    return 0;
}

bool is_busy(const struct stream *stream) {
    pthread_mutex_lock(&mutex);
    pump();
    bool busy = stream && stream->n;
    for (int k = 0; !stream && k < STREAMS; k++) busy |= streams[k].n != 0;
    pthread_mutex_unlock(&mutex);
    return busy;
}
int finish(const struct stream *stream) {
    while (is_busy(stream)) nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    return 0;
}

int cuCtxSynchronize(void) { CALLED; return finish(NULL); }
int cuStreamCreate(void **handle, unsigned flags) {
    CALLED;
    (void)flags;
    pthread_mutex_lock(&mutex);
    int k = 3;
    while (streams[k].used) k++;
    streams[k].used = true;
    streams[k].id = ++ids + 8;
    *handle = (void *)(uintptr_t)(FIRST + k - 3);
    pthread_mutex_unlock(&mutex);
    return 0;
}
int cuStreamDestroy_v2(void *stream) {
    CALLED_ON(stream);
    stream_of(stream)->used = false;
    return 0;
}
int cuStreamQuery(void *stream) {
    CALLED_ON(stream);
    return is_busy(stream_of(stream)) ? CU_NOT_READY : 0;
}
int cuStreamSynchronize(void *stream) { CALLED_ON(stream); return finish(stream_of(stream)); }
int cuStreamIsCapturing(void *stream, int *capturing) {
    CALLED_ON(stream);
    *capturing = 0;
    return 0;
}
int cuStreamGetId(void *stream, ull *id) {
    CALLED_ON(stream);
    *id = (uintptr_t)stream < 3 ? (uintptr_t)stream : stream_of(stream)->id;
    return 0;
}
int cuStreamWaitValue64_v2(void *stream, uint64_t address, uint64_t value, unsigned flags) {
    CALLED_ON(stream);
    return flags ? 1 : enqueue(stream, (struct op){WAIT, .a = address, .value = value});
}
int cuStreamWriteValue64_v2(void *stream, uint64_t address, uint64_t value, unsigned flags) {
    CALLED_ON(stream);
    return flags ? 1 : enqueue(stream, (struct op){WRITE, .a = address, .value = value});
}
int cuStreamBatchMemOp_v2(void *stream, unsigned n, struct gd_mem_op *ops, unsigned flags) {
    CALLED_ON(stream);
    for (unsigned k = 0; k < n; k++)
        enqueue(stream, (struct op){ops[k].operation == CU_WAIT_64 ? WAIT : WRITE,
                                    .a = ops[k].address, .value = ops[k].value});
    return (int)flags;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* A copy from or to memory that CUDA does not know is waited for. */
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t n, void *stream) {
    CALLED_ON(stream);
    enqueue(stream, (struct op){COPY, .a = to, .b = from, .n = n});
    return is_known(to) && is_known(from) ? 0 : finish(stream_of(stream));
}
/* Host memory has a pointer of its own in the description. */
static uint64_t start_of(const struct gd_rows *rows) {
    return rows->kind == 1 ? (uint64_t)rows->host : rows->device;
}
int cuMemcpy2DAsync_v2(const struct gd_copy_2d *copy, void *stream) {
    CALLED_ON(stream);
    const uint64_t to = start_of(&copy->to), from = start_of(&copy->source);
    return enqueue(stream, (struct op){ROWS, .a = to, .b = from, .n = copy->width, .rows = copy->rows,
                                       .to_pitch = copy->to.pitch, .pitch = copy->source.pitch});
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, void *stream) {
    CALLED_ON(stream);
    return enqueue(stream, (struct op){FILL, .a = to, .value = value, .n = n});
}

/* ---- events ---------------------------------------------------------------------------------- */

int cuEventCreate(void **handle, unsigned flags) {
    CALLED;
    struct event *event = malloc(sizeof *event);
    event->fd = new_file(4096);
    event->counts = map(event->fd, 4096);
    if (!(flags & CU_EVENT_INTERPROCESS)) close(event->fd), event->fd = -1;
    *handle = event;
    return 0;
}
int cuEventDestroy_v2(void *handle) {
    CALLED;
    free(handle); /* what is queued still uses its counts */
    return 0;
}
int cuEventRecord(void *handle, void *stream) {
    CALLED_ON(stream);
    struct event *event = handle;
    const uint64_t n = atomic_fetch_add(&event->counts->recorded, 1) + 1;
    return enqueue(stream, (struct op){RECORD, .value = n, .event = *event});
}
int cuEventQuery(void *handle) {
    CALLED;
    const struct event *event = handle;
    is_busy(NULL);
    return atomic_load(&event->counts->done) < atomic_load(&event->counts->recorded) ? CU_NOT_READY : 0;
}
int cuEventSynchronize(void *handle) {
    CALLED;
    while (cuEventQuery(handle)) nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    return 0;
}
int cuStreamWaitEvent(void *stream, void *handle, unsigned flags) {
    CALLED_ON(stream);
    const struct event *event = handle;
    const uint64_t n = atomic_load(&event->counts->recorded);
    return flags ? 1 : enqueue(stream, (struct op){AWAIT, .value = n, .event = *event});
}
int cuIpcGetEventHandle(struct gd_ipc_handle *handle, void *event) {
    CALLED;
    *handle = handle_of(((struct event *)event)->fd, 4096);
    return 0;
}
int cuIpcOpenEventHandle(void **event, struct gd_ipc_handle handle) {
    CALLED;
    struct handle found;
    struct event *opened = malloc(sizeof *opened);
    *opened = (struct event){open_handle(&handle, &found), -1};
    *event = opened;
    return opened->counts ? 0 : CU_INVALID_HANDLE;
}
