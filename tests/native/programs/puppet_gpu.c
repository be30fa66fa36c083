/* The puppet's commands on a GPU. They call the driver as a user's program does. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <time.h>

#include "puppet.h"

struct place place = {GPURING_MEMORY_HOST, GPURING_DEVICE_DEFAULT, GPURING_SYNC_AUTO,
                      GPURING_GATE_AUTO, NULL, 0};

/* Number 0 is the default stream. */
static void *streams[MOST];
/* What a held stream waits for, and where a frame is copied to. Both are memory of CUDA. */
static volatile uint64_t *latch;
static unsigned char *seen;
static uint64_t nbytes;

static int (*fill)(uint64_t, unsigned char, size_t, void *);
static int (*copy)(uint64_t, uint64_t, size_t, void *);
static int (*wait_value)(void *, uint64_t, uint64_t, unsigned);
static int (*query)(void *);

/* Memory of the program's own, in which a ring may lie. */
static void *cuda;
static uint64_t own, own_nbytes;
static int is_virtual;

static void find(void *library, const char *symbol, void *function) {
    void *found = dlsym(library, symbol);
    if (!found) abort();
    memcpy(function, &found, sizeof found);
}

/* DEVICE: loads the driver, and makes the streams 1 to 3. */
static void do_gpu(void) {
    int (*init)(unsigned), (*retain)(void **, int), (*use)(void *), (*create)(void **, unsigned),
        (*alloc)(void **, size_t);
    void *library = cuda = dlopen("libcuda.so.1", RTLD_NOW), *context, *address;
    const int device = (int)number();
    if (!library) abort();
    find(library, "cuInit", &init);
    find(library, "cuDevicePrimaryCtxRetain", &retain);
    find(library, "cuCtxSetCurrent", &use);
    find(library, "cuStreamCreate", &create);
    find(library, "cuMemAllocHost_v2", &alloc);
    find(library, "cuMemsetD8Async", &fill);
    find(library, "cuMemcpyAsync", &copy);
    find(library, "cuStreamWaitValue64_v2", &wait_value);
    find(library, "cuStreamQuery", &query);
    int wrong = init(0) || retain(&context, device) || use(context) || alloc(&address, 4096);
    latch = address;
    *latch = 0;
    for (int k = 1; k < 4; k++) wrong = wrong || create(&streams[k], 1 /* non-blocking */);
    printf("%s", wrong ? "wrong" : "GPURING_OK");
}

/* CUmemAllocationProp, CUmemAccessDesc */
struct property {
    int type, handle_types, location, device;
    void *unused;
    unsigned char flags[8];
};
struct access {
    int location, device, flags;
};

static int allocate_virtual(void) {
    int (*create)(uint64_t *, size_t, const struct property *, unsigned long long),
        (*reserve)(uint64_t *, size_t, size_t, uint64_t, unsigned long long),
        (*map)(uint64_t, size_t, size_t, uint64_t, unsigned long long),
        (*release)(uint64_t), (*allow)(uint64_t, size_t, const struct access *, size_t);
    const struct property as = {1 /* pinned */, 1 /* a descriptor */, 1 /* on a device */, 0, NULL, {0}};
    const struct access both = {1, 0, 3 /* to read and to write */};
    uint64_t memory;
    find(cuda, "cuMemCreate", &create);
    find(cuda, "cuMemAddressReserve", &reserve);
    find(cuda, "cuMemMap", &map);
    find(cuda, "cuMemRelease", &release);
    find(cuda, "cuMemSetAccess", &allow);
    return create(&memory, own_nbytes, &as, 0) || reserve(&own, own_nbytes, 0, 0, 0) ||
           map(own, own_nbytes, 0, memory, 0) || release(memory) || allow(own, own_nbytes, &both, 1);
}

/* plain or virtual, NBYTES */
static void do_allocate(void) {
    int (*alloc)(uint64_t *, size_t);
    is_virtual = strcmp(word(), "virtual") == 0;
    own_nbytes = (uint64_t)number();
    find(cuda, "cuMemAlloc_v2", &alloc);
    printf("%s", (is_virtual ? allocate_virtual() : alloc(&own, own_nbytes)) ? "wrong" : "GPURING_OK");
}

static void do_free(void) {
    int (*give_back)(uint64_t), (*unmap)(uint64_t, size_t), (*forget)(uint64_t, size_t);
    find(cuda, "cuMemFree_v2", &give_back);
    find(cuda, "cuMemUnmap", &unmap);
    find(cuda, "cuMemAddressFree", &forget);
    const int wrong = is_virtual ? unmap(own, own_nbytes) || forget(own, own_nbytes) : give_back(own);
    printf("%s", wrong ? "wrong" : "GPURING_OK");
}

/* OFFSET NBYTES: the part of that memory that the next ring is given. */
static void do_give(void) {
    const uint64_t at = own + (uint64_t)number();
    place.given = (void *)(uintptr_t)at;
    place.given_nbytes = (uint64_t)number();
    printf("GPURING_OK");
}

static void *stream(void) { return streams[number() % MOST]; }

/* MEMORY DEVICE SYNC GATE */
static void do_under(void) {
    place.memory = (gpuring_memory)number();
    place.device = (int)number();
    place.sync = (gpuring_sync)number();
    place.gate = (gpuring_gate)number();
    printf("GPURING_OK");
}

/* ENDPOINT STREAM */
static void do_stream(void) {
    struct endpoint *end = endpoint();
    if (end->producer) gpuring_producer_stream(end->producer, stream());
    else gpuring_consumer_stream(end->consumer, stream());
    printf("GPURING_OK");
}

/* ENDPOINT STREAM, of its newest slot */
static void do_use_on(void) {
    struct endpoint *end = endpoint();
    gpuring_slot *slot = &end->slots[end->n ? end->n - 1 : 0];
    void *on = stream();
    answer(end->producer ? gpuring_producer_use_on(end->producer, slot, on, &error)
                         : gpuring_consumer_use_on(end->consumer, slot, on, &error));
}

static uint64_t size_of_slots(void) {
    gpuring_info info = GPURING_INFO;
    gpuring_get_info(ring, &info);
    return info.slot_nbytes;
}

/* ENDPOINT STREAM BYTE: the GPU fills its newest slot. */
static void do_fill(void) {
    struct endpoint *end = endpoint();
    void *on = stream();
    const uint64_t at = (uint64_t)(uintptr_t)end->slots[end->n - 1].data;
    printf("%s", fill(at, (unsigned char)number(), size_of_slots(), on) ? "wrong" : "GPURING_OK");
}

/* ENDPOINT STREAM: the GPU copies its newest frame, to be looked at later.  It goes through memory of
   the GPU, because CUDA waits for the stream before it copies from the host to the host. */
static void do_read(void) {
    static void *memory;
    static uint64_t there;
    struct endpoint *end = endpoint();
    void *on = stream();
    int (*alloc_host)(void **, size_t), (*alloc)(uint64_t *, size_t);
    nbytes = size_of_slots();
    if (!memory) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        find(library, "cuMemAllocHost_v2", &alloc_host);
        find(library, "cuMemAlloc_v2", &alloc);
        if (alloc_host(&memory, nbytes) || alloc(&there, nbytes)) abort();
    }
    seen = memory;
    memset(seen, 0xEE, nbytes);
    const uint64_t at = (uint64_t)(uintptr_t)end->slots[end->n - 1].data;
    const int wrong = copy(there, at, nbytes, on) || copy((uint64_t)(uintptr_t)seen, there, nbytes, on);
    printf("%s", wrong ? "wrong" : "GPURING_OK");
}

/* STREAM: waits for it, for ten seconds at most, and says what was copied. */
static void do_seen(void) {
    void *on = stream();
    int status = 600;
    for (int k = 0; status == 600 && k < 10000; k++) {
        status = query(on);
        if (status == 600) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    uint64_t same = 1;
    while (same < nbytes && seen[same] == seen[0]) same++;
    printf("GPURING_OK status=%d all=%d", status, same == nbytes ? seen[0] : -1);
}

bool obey_on_gpu(const char *verb) {
    if (strcmp(verb, "gpu") == 0) do_gpu();
    else if (strcmp(verb, "under") == 0) do_under();
    else if (strcmp(verb, "allocate") == 0) do_allocate();
    else if (strcmp(verb, "free") == 0) do_free();
    else if (strcmp(verb, "give") == 0) do_give();
    else if (strcmp(verb, "has-given") == 0)
        printf("GPURING_OK has=%d", gpuring_has_given((void *)(uintptr_t)own));
    else if (strcmp(verb, "stream") == 0) do_stream();
    else if (strcmp(verb, "use-on") == 0) do_use_on();
    else if (strcmp(verb, "fill") == 0) do_fill();
    else if (strcmp(verb, "read") == 0) do_read();
    else if (strcmp(verb, "seen") == 0) do_seen();
    else if (strcmp(verb, "query") == 0) printf("GPURING_OK status=%d", query(stream()));
    else if (strcmp(verb, "hold") == 0) /* STREAM, until "go" */
        printf("%s", wait_value(stream(), (uint64_t)(uintptr_t)latch, *latch + 1, 0) ? "wrong" : "GPURING_OK");
    else if (strcmp(verb, "go") == 0) {
        *latch = *latch + 1;
        printf("GPURING_OK");
    } else if (strcmp(verb, "setenv") == 0) { /* NAME VALUE, for the driver of the tests */
        const char *name = word();
        printf("%s", setenv(name, word(), 1) ? "wrong" : "GPURING_OK");
    } else if (strcmp(verb, "device-status") == 0) /* of the last error */
        printf("GPURING_OK status=%d", error.device_status);
    else return false;
    return true;
}
