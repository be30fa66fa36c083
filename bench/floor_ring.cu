/* The ring of the floor: what its processes share, its kinds of fence, its two sides.  floor.cu says what it is for.

   One process is one role: role 0 produces, role k + 1 is consumer k; a round trip has a second ring the other way.  */
#include <cuda.h>
#include <cuda_runtime.h>

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "kernels.cu"

using u64 = unsigned long long;

constexpr int MAX_SLOTS = 256, MAX_CONSUMERS = 8, MAX_SAMPLES = 8192;

struct alignas(64) Word {
    std::atomic<u64> value;
};
static_assert(std::atomic<u64>::is_always_lock_free && sizeof(std::atomic<u64>) == 8, "the GPU writes these words");

struct RingHeader {
    Word head, tail[MAX_CONSUMERS];
    cudaIpcMemHandle_t slab;
    cudaIpcEventHandle_t written[MAX_SLOTS], read[MAX_CONSUMERS][MAX_SLOTS];
};

struct Fences {
    Word written, read[MAX_CONSUMERS];
};

enum { RATE, PRODUCER, CONSUMER, LATENCY = RATE, SERIES = 3 };

static_assert(2 * sizeof(Fences) <= 4096, "one page is registered");

struct Header {
    alignas(4096) Fences fences[2]; /* a page of their own, which is registered with CUDA */
    alignas(4096) Word arrived, end, baton, asleep, began_ns;
    Word window;
    alignas(64) std::atomic<uint32_t> doorbell;
    RingHeader ring[2]; /* [1] is the way back of a round trip */
    u64 wrong[MAX_CONSUMERS + 1];
    int count[SERIES];
    double sample[SERIES][MAX_SAMPLES];
};

/* The fence of one peer on one ring: where its GPU work has got to. */
struct Fence {
    cudaEvent_t event[MAX_SLOTS];
    std::atomic<u64> *word;
    CUdeviceptr address;
    u64 seen; /* words only rise, so what was seen once need not be read again */
};

struct Ring {
    RingHeader *header;
    char *slab;
    u64 head, tail[MAX_CONSUMERS]; /* as last seen: the shared cursors are read when these do not suffice */
    Fence written, read[MAX_CONSUMERS];
};

struct Cell {
    bool timeline, host_gate, kernel;
    int slots;
};

static struct {
    std::string what;
    std::vector<Cell> cells;
    int consumers, max_slots = 1, device, role = -1;
    unsigned deadline_s;
    u64 nbytes, frames, warmup;
    double seconds;
} options;

static Header *header;
static Ring rings[2];
static Cell cell;
static u64 base; /* the last sequence of the previous cell: sequences go on, so a stale frame never looks right */
static cudaStream_t stream;
static u64 *wrong;
static decltype(&cuStreamWriteValue64) write_value;
static decltype(&cuStreamWaitValue64) wait_value;

[[noreturn]] static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "floor: role %d: ", options.role);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    _exit(1);
}

static void must(cudaError_t status, const char *call) {
    if (status != cudaSuccess) die("%s: %s (%s)", call, cudaGetErrorName(status), cudaGetErrorString(status));
}
static void must(CUresult status, const char *call) {
    if (status != CUDA_SUCCESS) die("%s: CUresult %d", call, (int)status);
}
#define CHECK(call) must((call), #call)

static inline void pause_cpu() {
#if defined(__x86_64__)
    asm volatile("pause");
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

static inline double now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static inline u64 load(const Word &word) { return word.value.load(std::memory_order_acquire); }
static inline void store(Word &word, u64 value) { word.value.store(value, std::memory_order_release); }
static inline void await(const Word &word, u64 value) {
    while (load(word) < value) pause_cpu();
}

static void sample(int series, double value) {
    int &count = header->count[series];
    if (count < MAX_SAMPLES) header->sample[series][count++] = value;
}

/* Everybody has come here; what they stored before is seen after it. */
static void meet(int processes) {
    static u64 meetings = 0;
    header->arrived.value.fetch_add(1, std::memory_order_acq_rel);
    await(header->arrived, ++meetings * processes);
}

/* --- device order ------------------------------------------------------------------------------------------------- */

static inline bool complete(Fence &fence, int slot, u64 seq) {
    if (cell.timeline) {
        if (fence.seen < seq) fence.seen = fence.word->load(std::memory_order_acquire);
        return fence.seen >= seq;
    }
    cudaError_t status = cudaEventQuery(fence.event[slot]);
    if (status == cudaErrorNotReady) return false;
    must(status, "cudaEventQuery");
    return true;
}

static inline void finish(Fence &fence, int slot, u64 seq) {
    while (!complete(fence, slot, seq)) pause_cpu();
}

static inline void order(Fence &fence, int slot, u64 seq) {
    if (cell.host_gate) return finish(fence, slot, seq);
    if (complete(fence, slot, seq)) return;
    if (cell.timeline)
        CHECK(wait_value(stream, fence.address, seq, CU_STREAM_WAIT_VALUE_GEQ));
    else
        CHECK(cudaStreamWaitEvent(stream, fence.event[slot], 0));
}

static inline void record(Fence &fence, int slot, u64 seq) {
    if (cell.timeline)
        CHECK(write_value(stream, fence.address, seq, CU_STREAM_WRITE_VALUE_DEFAULT));
    else
        CHECK(cudaEventRecord(fence.event[slot], stream));
}

/* cudaLaunchKernel tells of its own failure; cudaGetLastError would also tell of an event that was not ready. */
static void launch(const void *kernel, char *slot, u64 words, u64 seq) {
    void *arguments[] = {&slot, &words, &seq, &wrong}; /* stamp takes the first three */
    unsigned blocks = (unsigned)std::min(std::max(words / 2048, 1ull), 1024ull);
    CHECK(cudaLaunchKernel(kernel, dim3(blocks), dim3(256), arguments, 0, stream));
}

/* --- the two sides of a ring -------------------------------------------------------------------------------------- */

static inline void wait_free(Ring &ring, u64 seq) {
    for (int k = 0; k < options.consumers; k++)
        while (ring.tail[k] + cell.slots < seq) {
            ring.tail[k] = load(ring.header->tail[k]);
            if (ring.tail[k] + cell.slots < seq) pause_cpu();
        }
}

static inline void write_frame(Ring &ring, u64 seq) {
    int slot = (int)(seq % cell.slots);
    if (seq > base + cell.slots)
        for (int k = 0; k < options.consumers; k++) order(ring.read[k], slot, seq - cell.slots);
    if (cell.kernel) launch((const void *)stamp, ring.slab + slot * options.nbytes, options.nbytes / 8, seq);
    record(ring.written, slot, seq);
}

static inline void publish(Ring &ring, u64 seq) { store(ring.header->head, seq); }

static inline void wait_published(Ring &ring, u64 seq) {
    while (ring.head < seq) {
        ring.head = load(ring.header->head);
        if (ring.head < seq) pause_cpu();
    }
}

static inline void read_frame(Ring &ring, int k, u64 seq) {
    int slot = (int)(seq % cell.slots);
    order(ring.written, slot, seq);
    if (cell.kernel) launch((const void *)check, ring.slab + slot * options.nbytes, options.nbytes / 8, seq);
    record(ring.read[k], slot, seq);
    store(ring.header->tail[k], seq);
}

/* --- joining ------------------------------------------------------------------------------------------------------- */

template <class Function> static void driver(const char *name, Function &function) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result));
#else
    CHECK(cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result));
#endif
    if (result != cudaDriverEntryPointSuccess || !found) die("the driver has no %s", name);
    function = (Function)found;
}

/* Its own events are made and exported by their recorder, everybody else opens them. */
static void share_events(Fence &fence, cudaIpcEventHandle_t *handles, bool mine, bool exporting) {
    for (int slot = 0; slot < options.max_slots && mine == exporting; slot++)
        if (mine) {
            CHECK(cudaEventCreateWithFlags(&fence.event[slot], cudaEventDisableTiming | cudaEventInterprocess));
            CHECK(cudaIpcGetEventHandle(&handles[slot], fence.event[slot]));
        } else
            CHECK(cudaIpcOpenEventHandle(&fence.event[slot], handles[slot]));
}

static void join_rings(int role, int processes) {
    CHECK(cudaSetDevice(options.device));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc((void **)&wrong, sizeof *wrong));
    driver("cuStreamWriteValue64", write_value);
    driver("cuStreamWaitValue64", wait_value);
    CHECK(cudaHostRegister(header->fences, 4096, cudaHostRegisterPortable | cudaHostRegisterMapped));
    char *fences;
    CHECK(cudaHostGetDevicePointer((void **)&fences, header->fences, 0));
    auto place = [&](Fence &fence, Word &word) {
        fence.word = &word.value;
        fence.address = (CUdeviceptr)(fences + ((char *)&word - (char *)header->fences));
    };
    bool both_ways = options.what == "roundtrip" || options.what == "oneway";
    for (bool exporting : {true, false}) {
        for (int r = 0; r < (both_ways ? 2 : 1); r++) {
            Ring &ring = rings[r];
            bool mine = role == r;
            ring.header = &header->ring[r];
            if (mine && exporting) {
                u64 granule = 2 << 20; /* an IPC handle maps whole granules */
                CHECK(cudaMalloc((void **)&ring.slab,
                                 (options.nbytes * options.max_slots + granule - 1) / granule * granule));
                CHECK(cudaIpcGetMemHandle(&ring.header->slab, ring.slab));
            } else if (!mine && !exporting) {
                CHECK(cudaIpcOpenMemHandle((void **)&ring.slab, ring.header->slab, cudaIpcMemLazyEnablePeerAccess));
            }
            place(ring.written, header->fences[r].written);
            share_events(ring.written, ring.header->written, mine, exporting);
            for (int k = 0; k < options.consumers; k++) {
                bool my_reads = role == (r == 0 ? k + 1 : 0);
                place(ring.read[k], header->fences[r].read[k]);
                /* A reader has no use for the fences of the others. */
                if (mine || my_reads) share_events(ring.read[k], ring.header->read[k], my_reads, exporting);
            }
        }
        meet(processes);
    }
    /* Kernels are loaded at their first launch, which must not be in a measurement. */
    launch((const void *)stamp, nullptr, 0, 0);
    launch((const void *)check, nullptr, 0, 0);
    CHECK(cudaStreamSynchronize(stream));
}
