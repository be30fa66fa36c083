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
 * It stands for hardware, and has only what gpuring and its tests call. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../../gpuring/native/device/driver.h"

enum { DEVICES = 2, STREAMS = 64, QUEUE = 256, FIRST = 0x1000, PORTABLE_MAPPED = 3 };
typedef unsigned long long ull;

/* ---- what the environment says --------------------------------------------------------------- */

/* The number behind ",name=" in a list. */
static int listed(const char *variable, const char *name, int otherwise) {
    char wanted[96];
    const char *list = getenv(variable);
    snprintf(wanted, sizeof wanted, ",%s=", name);
    const char *found = list ? strstr(list, wanted) : NULL;
    return found ? atoi(found + strlen(wanted)) : otherwise;
}

static int called(const char *name, const void *stream) {
    static _Atomic int log_fd = -1;
    const char *path = getenv("FAKE_CUDA_LOG");
    char line[128];
    if (path) {
        if (log_fd < 0) log_fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        const int n = snprintf(line, sizeof line, "%d %s %zu\n", getpid(), name, (size_t)stream);
        if (write(log_fd, line, (size_t)n) != n) abort();
    }
    return listed("FAKE_CUDA_REFUSES", name, 0);
}
#define CALLED_ON(stream)                                                                          \
    do {                                                                                           \
        const int refused = called(__func__, (stream));                                            \
        if (refused) return refused;                                                               \
    } while (0)
#define CALLED CALLED_ON(NULL)

/* ---- devices and contexts -------------------------------------------------------------------- */

static _Thread_local uintptr_t stack[64];
static _Thread_local int depth;

int cuInit(unsigned flags) { CALLED; return (int)flags; }
int cuDeviceGetCount(int *n) { CALLED; *n = DEVICES; return 0; }
int cuGetErrorName(int status, const char **name) {
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "CUDA_ERROR_%d", status);
    *name = text;
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    char name[16];
    CALLED;
    snprintf(name, sizeof name, "%d", attribute);
    *value = listed("FAKE_CUDA_ATTRIBUTES", name, attribute != CU_INTEGRATED);
    return device < DEVICES ? 0 : 101;
}
int cuDeviceGetUuid_v2(void *uuid, int device) {
    CALLED;
    memset(uuid, 0, 16);
    ((uint8_t *)uuid)[15] = (uint8_t)(device + 1);
    return 0;
}
int cuDeviceCanAccessPeer(int *able, int device, int other) {
    CALLED;
    *able = device != other;
    return 0;
}
int cuCtxEnablePeerAccess(void *context, unsigned flags) { CALLED; return context && !flags ? 0 : 1; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
    CALLED;
    *context = (void *)(uintptr_t)(FIRST + device);
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { CALLED; return device < DEVICES ? 0 : 101; }
int cuCtxGetDevice(int *device) {
    CALLED;
    if (!depth || !stack[depth - 1]) return CU_INVALID_CONTEXT;
    *device = (int)(stack[depth - 1] - FIRST);
    return 0;
}
int cuCtxSetCurrent(void *context) {
    CALLED;
    if (!depth) depth = 1;
    stack[depth - 1] = (uintptr_t)context;
    return 0;
}
int cuCtxPushCurrent_v2(void *context) {
    CALLED;
    stack[depth++] = (uintptr_t)context;
    return 0;
}
int cuCtxPopCurrent_v2(void **context) {
    called(__func__, NULL);
    depth--;
    if (context) *context = (void *)stack[depth];
    return 0;
}

/* ---- streams --------------------------------------------------------------------------------- */

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
static struct stream {
    bool used;
    uint64_t id;
    struct op queue[QUEUE];
    unsigned first, n;
} streams[STREAMS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queued = PTHREAD_COND_INITIALIZER;
static uint64_t ids = 1;

/* The default streams are the first three. They order nothing among each other here. */
static struct stream *stream_of(const void *handle) {
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

static int enqueue(const void *handle, struct op op) {
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

static bool is_busy(const struct stream *stream) {
    pthread_mutex_lock(&mutex);
    pump();
    bool busy = stream && stream->n;
    for (int k = 0; !stream && k < STREAMS; k++) busy |= streams[k].n != 0;
    pthread_mutex_unlock(&mutex);
    return busy;
}
static int finish(const struct stream *stream) {
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
/* Memory that CUDA knows. */
enum { REGIONS = 256 };
static struct region {
    void *base, *mirror;
    size_t nbytes;
    int fd;
    bool is_virtual;
} regions[REGIONS];

static struct region *region_at(const void *base) {
    for (int k = 0; k < REGIONS; k++)
        if (regions[k].base == base) return &regions[k];
    return NULL;
}
static uint64_t noted(void *base, size_t nbytes, int fd) {
    pthread_mutex_lock(&mutex);
    *region_at(NULL) = (struct region){base, NULL, nbytes, fd, false};
    pthread_mutex_unlock(&mutex);
    return (uint64_t)base;
}
/* What an address is in. */
static struct region *region_of(uint64_t address) {
    for (int k = 0; k < REGIONS; k++)
        if (address - (uint64_t)regions[k].base < regions[k].nbytes) return &regions[k];
    return NULL;
}
static bool is_known(uint64_t address) {
    for (int k = 0; k < REGIONS; k++) {
        const struct region *region = &regions[k];
        if (address - (uint64_t)region->base < region->nbytes ||
            (region->mirror && address - (uint64_t)region->mirror < region->nbytes))
            return true;
    }
    return false;
}

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

/* ---- what other processes open --------------------------------------------------------------- */

struct handle {
    int pid, fd;
    size_t nbytes;
};

static int new_file(size_t nbytes) {
    const int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)nbytes)) abort();
    return fd;
}
static void *map(int fd, size_t nbytes) {
    void *base = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return base == MAP_FAILED ? NULL : base;
}
static struct gd_ipc_handle handle_of(int fd, size_t nbytes) {
    const struct handle made = {getpid(), fd, nbytes};
    struct gd_ipc_handle handle = {{0}};
    memcpy(&handle, &made, sizeof made);
    return handle;
}
/* NULL: its process is gone, or it is our own, which the driver does not open again. */
static void *open_handle(const struct gd_ipc_handle *handle, struct handle *found) {
    char path[64];
    memcpy(found, handle, sizeof *found);
    if (found->pid == getpid()) return NULL;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", found->pid, found->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    void *base = map(fd, found->nbytes);
    close(fd);
    return base;
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

/* ---- memory ---------------------------------------------------------------------------------- */

/* Frees it, behind all work so far. */
static int given_back(uint64_t pointer) {
    struct region *region = pointer ? region_at((void *)pointer) : NULL;
    if (!region) return CU_INVALID_VALUE;
    finish(NULL);
    munmap(region->base, region->nbytes);
    if (region->fd >= 0) close(region->fd);
    *region = (struct region){0};
    return 0;
}

int cuMemAlloc_v2(uint64_t *pointer, size_t nbytes) {
    CALLED;
    const int fd = new_file(nbytes);
    *pointer = noted(map(fd, nbytes), nbytes, fd);
    return 0;
}
int cuMemGetAddressRange_v2(uint64_t *base, size_t *nbytes, uint64_t pointer) {
    CALLED;
    const struct region *region = region_of(pointer);
    if (!region) return CU_INVALID_VALUE;
    *base = (uint64_t)region->base;
    *nbytes = region->nbytes;
    return 0;
}
int cuMemFree_v2(uint64_t pointer) { CALLED; return given_back(pointer); }
int cuIpcGetMemHandle(struct gd_ipc_handle *handle, uint64_t pointer) {
    CALLED;
    const struct region *region = region_at((void *)pointer);
    if (!region || region->fd < 0 || region->is_virtual) return CU_INVALID_VALUE;
    *handle = handle_of(region->fd, region->nbytes);
    return 0;
}
int cuIpcOpenMemHandle_v2(uint64_t *pointer, struct gd_ipc_handle handle, unsigned flags) {
    CALLED;
    struct handle found;
    void *base = open_handle(&handle, &found);
    if (!base) return CU_INVALID_CONTEXT;
    *pointer = noted(base, found.nbytes, -1);
    return flags == CU_LAZY_PEER_ACCESS ? 0 : 1;
}
int cuIpcCloseMemHandle(uint64_t pointer) { CALLED; return given_back(pointer); }

int cuMemGetAllocationGranularity(size_t *nbytes, const struct gd_allocation *of, int option) {
    CALLED;
    *nbytes = 2 << 20;
    return of->type == CU_PINNED ? option : 1;
}
struct memory {
    int fd;
};
static uint64_t memory_of(int fd) {
    struct memory *memory = malloc(sizeof *memory);
    memory->fd = fd;
    return (uint64_t)memory;
}
int cuMemCreate(uint64_t *memory, size_t nbytes, const struct gd_allocation *of, ull flags) {
    CALLED;
    *memory = memory_of(new_file(nbytes));
    return of->handle_types == CU_FILE_DESCRIPTOR ? (int)flags : 1;
}
int cuMemRelease(uint64_t memory) {
    CALLED;
    close(((struct memory *)memory)->fd);
    free((struct memory *)memory);
    return 0;
}
int cuMemRetainAllocationHandle(uint64_t *memory, void *address) {
    CALLED;
    const struct region *region = region_of((uint64_t)address);
    if (!region || !region->is_virtual) return CU_INVALID_VALUE;
    *memory = memory_of(dup(region->fd));
    return 0;
}
int cuMemExportToShareableHandle(void *fd, uint64_t memory, int type, ull flags) {
    CALLED;
    *(int *)fd = dup(((struct memory *)memory)->fd);
    return type == CU_FILE_DESCRIPTOR ? (int)flags : 1;
}
int cuMemImportFromShareableHandle(uint64_t *memory, void *fd, int type) {
    CALLED;
    const int own = dup((int)(intptr_t)fd);
    if (own < 0 || type != CU_FILE_DESCRIPTOR) return CU_INVALID_VALUE;
    *memory = memory_of(own);
    return 0;
}
static void *reserve(void *at, size_t nbytes) {
    return mmap(at, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
}
int cuMemAddressReserve(uint64_t *pointer, size_t nbytes, size_t alignment, uint64_t at, ull flags) {
    CALLED;
    *pointer = noted(reserve(NULL, nbytes), nbytes, -1);
    return alignment || at || flags ? 1 : 0;
}
int cuMemAddressFree(uint64_t pointer, size_t nbytes) {
    CALLED;
    *region_at((void *)pointer) = (struct region){0};
    return munmap((void *)pointer, nbytes);
}
int cuMemMap(uint64_t pointer, size_t nbytes, size_t offset, uint64_t memory, ull flags) {
    CALLED;
    const int fd = ((struct memory *)memory)->fd;
    struct stat file;
    if (fstat(fd, &file) || (size_t)file.st_size < nbytes) return CU_INVALID_VALUE;
    mmap((void *)pointer, nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset);
    struct region *region = region_at((void *)pointer);
    region->fd = dup(fd);
    region->is_virtual = true;
    return (int)flags;
}
int cuMemUnmap(uint64_t pointer, size_t nbytes) {
    CALLED;
    struct region *region = region_at((void *)pointer);
    reserve((void *)pointer, nbytes);
    close(region->fd);
    region->fd = -1;
    region->is_virtual = false;
    return 0;
}
int cuMemSetAccess(uint64_t pointer, size_t nbytes, const struct gd_access *access, size_t n) {
    CALLED;
    const int writes = access->flags == CU_READ_WRITE ? PROT_WRITE : 0;
    return n == 1 ? mprotect((void *)pointer, nbytes, PROT_READ | writes) : 1;
}

struct pool {
    int fd;
    size_t nbytes;
};
int cuMemPoolCreate(void **pool, const struct gd_pool *of) {
    CALLED;
    struct pool *made = malloc(sizeof *made);
    *made = (struct pool){-1, 0};
    *pool = made;
    return of->handle_types == CU_FILE_DESCRIPTOR ? 0 : 1;
}
int cuMemPoolDestroy(void *pool) {
    CALLED;
    close(((struct pool *)pool)->fd);
    free(pool);
    return 0;
}
int cuMemAllocFromPoolAsync(uint64_t *pointer, size_t nbytes, void *pool, void *stream) {
    CALLED_ON(stream);
    struct pool *of = pool;
    *of = (struct pool){new_file(nbytes), nbytes};
    *pointer = noted(map(of->fd, nbytes), nbytes, -1);
    return 0;
}
int cuMemFreeAsync(uint64_t pointer, void *stream) { CALLED_ON(stream); return given_back(pointer); }
int cuMemPoolExportToShareableHandle(void *fd, void *pool, int type, ull flags) {
    CALLED;
    *(int *)fd = dup(((struct pool *)pool)->fd);
    return type == CU_FILE_DESCRIPTOR ? (int)flags : 1;
}
int cuMemPoolExportPointer(void *exported, uint64_t pointer) {
    CALLED;
    memset(exported, 0, 64);
    memcpy(exported, &region_at((void *)pointer)->nbytes, sizeof(size_t));
    return 0;
}
int cuMemPoolImportFromShareableHandle(void **pool, void *fd, int type, ull flags) {
    CALLED;
    const int own = dup((int)(intptr_t)fd);
    if (own < 0 || type != CU_FILE_DESCRIPTOR) return CU_INVALID_VALUE;
    struct pool *made = malloc(sizeof *made);
    *made = (struct pool){own, 0};
    *pool = made;
    return (int)flags;
}
int cuMemPoolImportPointer(uint64_t *pointer, void *pool, void *exported) {
    CALLED;
    size_t nbytes;
    memcpy(&nbytes, exported, sizeof nbytes);
    void *base = map(((struct pool *)pool)->fd, nbytes);
    if (!base) return CU_INVALID_VALUE;
    *pointer = noted(base, nbytes, -1);
    return 0;
}
int cuMemPoolSetAccess(void *pool, const struct gd_access *access, size_t n) {
    CALLED;
    return pool && access->flags == CU_READ_WRITE && n == 1 ? 0 : 1;
}

/* The GPU has host memory at another address. */
int cuMemHostRegister_v2(void *address, size_t nbytes, unsigned flags) {
    CALLED;
    if ((uintptr_t)address % 4096 || nbytes % 4096 || flags != PORTABLE_MAPPED) return 1;
    if (region_at(address)) return 712; /* CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED */
    noted(address, nbytes, -1);
    region_at(address)->mirror = mremap(address, 0, nbytes, MREMAP_MAYMOVE);
    return region_at(address)->mirror == MAP_FAILED ? 1 : 0;
}
int cuMemHostUnregister(void *address) {
    CALLED;
    struct region *region = region_at(address);
    if (!region) return 713; /* CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED */
    munmap(region->mirror, region->nbytes);
    *region = (struct region){0};
    return 0;
}
int cuMemHostGetDevicePointer_v2(uint64_t *pointer, void *address, unsigned flags) {
    CALLED;
    const struct region *region = region_at(address);
    if (!region) return 713;
    *pointer = (uint64_t)region->mirror;
    return (int)flags;
}
int cuMemAllocHost_v2(void **address, size_t nbytes) {
    CALLED;
    *address = calloc(1, nbytes);
    noted(*address, nbytes, -1);
    return 0;
}
int cuMemFreeHost(void *address) {
    CALLED;
    *region_at(address) = (struct region){0};
    free(address);
    return 0;
}
int cuPointerGetAttribute(void *value, int attribute, uint64_t pointer) {
    CALLED;
    *(int *)value = 0;
    return attribute == CU_DEVICE_ORDINAL && is_known(pointer) ? 0 : CU_INVALID_VALUE;
}
