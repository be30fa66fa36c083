/* The floor: the leanest ring between two processes that is still right.  What CUDA itself costs.
 *
 * One producer, K consumers that each see every frame, one slab of N slots shared through one IPC memory handle;
 * sequence s lives in slot s mod N.  Host order: the producer's cursor `head` and one cursor `tail` per consumer, each
 * alone in its cache line; waits spin.  Device order, one of two: an interprocess event per peer and slot, recorded
 * before the cursor moves and read after it; or one 64-bit word per peer in registered shared memory, written by
 * cuStreamWriteValue64 and awaited (>=) by cuStreamWaitValue64: a peer has one stream, so one word that rises is enough.
 *   producer of s: wait for every tail >= s-N; order the stream behind the readers' fences of s-N; stamp; record; head = s
 *   consumer of s: wait for head >= s; order the stream behind the producer's fence of s; check; record; tail = s
 * The host never waits for a GPU in here (gate stream), so a slot is used again in the order of the streams alone.
 *
 * A floor and no rival: it knows no death (a killed peer stops everybody), no late joiners or leavers, one producer, one
 * stream per process, no metadata, no lossy or shared reading, no sleeping waits, no validation of what it maps.
 *
 *   floor --what throughput|burst|roundtrip|oneway|wake [--sync event,timeline] [--gate stream|host] [--kernel 0|1]
 *         [--skip-complete 0|1] [--slots N] [--consumers K] [--nbytes B] [--frames N] [--seconds S] [--warmup W]
 * sync, gate, kernel, skip-complete and slots take comma lists; every combination is one measurement and prints one JSON
 * object with raw samples.  skip-complete: a fence that the host sees complete costs no stream wait.  frames: rounds of a
 * latency, frames of the others; throughput without it runs for `seconds`, at the rate that its warm-up reached.
 *
 * Build: nvcc -O2 -std=c++17 floor.cu -o floor                                                                          */
#include <cuda.h>
#include <cuda_runtime.h>

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "kernels.cu"

using u64 = unsigned long long;

constexpr int MAX_SLOTS = 256, MAX_CONSUMERS = 8, MAX_SAMPLES = 8192;
constexpr int WINDOWS = 25;
constexpr u64 TIMED = 7; /* every 7th frame's host time is taken: the clock stays out of the rate; no lap is a multiple */
constexpr u64 OPEN_END = ~0ull;

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

struct Header {
    alignas(4096) Fences fences[2]; /* pages of their own: these are registered with CUDA */
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
    bool timeline, host_gate, kernel, skip;
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
    if (cell.skip && complete(fence, slot, seq)) return;
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

/* --- what is measured --------------------------------------------------------------------------------------------- */

/* The streams fall behind the hosts until their queues are full, so the rate is taken when that is over, in windows of one
 * unbroken run.  The producer fixes the end before it publishes the last frame of the warm-up, so no reader misses it. */
static void throughput_producer(Ring &ring) {
    u64 warm = base + options.warmup;
    double half = 0;
    for (u64 seq = base + 1; seq <= load(header->end); seq++) {
        wait_free(ring, seq);
        double start = seq % TIMED ? 0 : now_ns();
        write_frame(ring, seq);
        if (seq == warm - options.warmup / 2) half = now_ns();
        if (seq == warm) {
            double rate = (options.warmup / 2) / (now_ns() - half) * 1e9;
            u64 frames = options.frames ? options.frames : (u64)(rate * options.seconds);
            u64 laps = std::max(frames / WINDOWS / cell.slots, 1ull);
            store(header->window, laps * cell.slots);
            store(header->end, warm + WINDOWS * laps * cell.slots);
        }
        publish(ring, seq);
        if (start != 0 && seq > warm) sample(PRODUCER, (now_ns() - start) / 1e3);
    }
}

static void throughput_consumer(Ring &ring, int k) {
    u64 warm = base + options.warmup, mark = warm, window = 0;
    double before = 0;
    for (u64 seq = base + 1; seq <= load(header->end); seq++) {
        wait_published(ring, seq);
        double start = seq % TIMED || k ? 0 : now_ns();
        read_frame(ring, k, seq);
        if (start != 0 && seq > warm) sample(CONSUMER, (now_ns() - start) / 1e3);
        if (seq == mark && k == 0) {
            double now = now_ns();
            if (seq > warm) sample(RATE, window / (now - before) * 1e9);
            before = now;
            window = load(header->window);
            mark += window;
        }
    }
}

/* A lap of one side, then of the other: neither waits for anybody while its clock runs. */
static void burst(Ring &ring, bool producer) {
    u64 baton = 0, end = load(header->end);
    for (u64 lap = base; lap < end; lap += cell.slots, baton += 2) {
        if (!producer) await(header->baton, baton + 1);
        double start = now_ns();
        for (u64 seq = lap + 1; seq <= lap + cell.slots; seq++)
            if (producer) {
                wait_free(ring, seq);
                write_frame(ring, seq);
                publish(ring, seq);
            } else {
                wait_published(ring, seq);
                read_frame(ring, 0, seq);
            }
        double took = now_ns() - start;
        CHECK(cudaStreamSynchronize(stream));
        if (lap >= base + options.warmup) sample(producer ? PRODUCER : CONSUMER, took / cell.slots);
        store(header->baton, baton + (producer ? 1 : 2));
        if (producer) await(header->baton, baton + 2);
    }
}

static void roundtrip_asker(Ring &there, Ring &back) {
    for (u64 seq = base + 1, end = load(header->end); seq <= end; seq++) {
        double start = now_ns();
        wait_free(there, seq);
        write_frame(there, seq);
        publish(there, seq);
        wait_published(back, seq);
        read_frame(back, 0, seq);
        finish(back.read[0], (int)(seq % cell.slots), seq);
        if (seq > base + options.warmup) sample(LATENCY, (now_ns() - start) / 1e3);
    }
}

static void roundtrip_echoer(Ring &there, Ring &back) {
    for (u64 seq = base + 1, end = load(header->end); seq <= end; seq++) {
        wait_published(there, seq);
        read_frame(there, 0, seq);
        wait_free(back, seq);
        write_frame(back, seq);
        publish(back, seq);
    }
}

static void oneway(Ring &ring, bool producer) {
    for (u64 seq = base + 1, end = load(header->end); seq <= end; seq++)
        if (producer) {
            wait_free(ring, seq);
            write_frame(ring, seq);
            store(header->began_ns, (u64)now_ns());
            publish(ring, seq);
            await(header->baton, seq);
        } else {
            wait_published(ring, seq);
            read_frame(ring, 0, seq);
            finish(ring.read[0], (int)(seq % cell.slots), seq);
            double now = now_ns();
            if (seq > base + options.warmup) sample(LATENCY, (now - load(header->began_ns)) / 1e3);
            store(header->baton, seq);
        }
}

/* Only a sleeper that the kernel really woke counts: futex returns 0 to it alone. */
static void wake(bool waker) {
    constexpr double FALL_ASLEEP_NS = 50e3;
    for (u64 round = 1, end = load(header->end); round <= end; round++)
        if (waker) {
            await(header->asleep, round);
            for (double start = now_ns(); now_ns() - start < FALL_ASLEEP_NS;) pause_cpu();
            store(header->began_ns, (u64)now_ns());
            header->doorbell.store((uint32_t)round, std::memory_order_release);
            syscall(SYS_futex, &header->doorbell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
            await(header->baton, round);
        } else {
            store(header->asleep, round);
            long status = -1;
            while (header->doorbell.load(std::memory_order_acquire) != (uint32_t)round)
                status = syscall(SYS_futex, &header->doorbell, FUTEX_WAIT, (uint32_t)round - 1, nullptr, nullptr, 0);
            double now = now_ns();
            if (status == 0 && round > options.warmup) sample(LATENCY, (now - load(header->began_ns)) / 1e3);
            store(header->baton, round);
        }
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

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
    CHECK(cudaHostRegister(header->fences, sizeof header->fences, cudaHostRegisterPortable | cudaHostRegisterMapped));
    char *fences;
    CHECK(cudaHostGetDevicePointer((void **)&fences, header->fences, 0));
    auto place = [&](Fence &fence, Word &word) {
        fence.word = &word.value;
        fence.address = (CUdeviceptr)(fences + ((char *)&word - (char *)header->fences));
    };
    bool both_ways = options.what == "roundtrip";
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

static void print_series(const char *name, int series) {
    printf(", \"%s\": [", name);
    for (int i = 0; i < header->count[series]; i++) printf(i ? ", %.6g" : "%.6g", header->sample[series][i]);
    putchar(']');
}

/* The measurement's JSON, on one line.  Raw samples: windows' frames/s, or µs, or ns per frame of a lap. */
static void print_cell(u64 frames) {
    u64 bad = 0;
    for (u64 count : header->wrong) bad += count;
    printf("{\"what\": \"%s\", \"sync\": \"%s\", \"gate\": \"%s\", \"kernel\": %s, \"skip_complete\": %s, "
           "\"slots\": %d, \"consumers\": %d, \"nbytes\": %llu, \"frames\": %llu, \"wrong\": %llu",
           options.what.c_str(), cell.timeline ? "timeline" : "event", cell.host_gate ? "host" : "stream",
           cell.kernel ? "true" : "false", cell.skip ? "true" : "false", cell.slots, options.consumers, options.nbytes,
           frames, bad);
    if (options.what == "throughput") {
        print_series("frames_per_s", RATE);
        print_series("producer_us", PRODUCER);
        print_series("consumer_us", CONSUMER);
    } else if (options.what == "burst") {
        print_series("producer_ns", PRODUCER);
        print_series("consumer_ns", CONSUMER);
    } else
        print_series("us", LATENCY);
    puts("}");
    if (fflush(stdout)) die("stdout: %s", strerror(errno));
}

static void play(int role) {
    bool producer = role == 0;
    const std::string &what = options.what;
    if (what == "throughput" && producer) throughput_producer(rings[0]);
    if (what == "throughput" && !producer) throughput_consumer(rings[0], role - 1);
    if (what == "burst") burst(rings[0], producer);
    if (what == "roundtrip" && producer) roundtrip_asker(rings[0], rings[1]);
    if (what == "roundtrip" && !producer) roundtrip_echoer(rings[0], rings[1]);
    if (what == "oneway") oneway(rings[0], producer);
    if (what == "wake") wake(producer);
}

static void run_role(int role) {
    int processes = options.consumers + 1;
    bool on_gpu = options.what != "wake";
    if (on_gpu) join_rings(role, processes);
    for (const Cell &next : options.cells) {
        cell = next;
        if (role == 0) {
            u64 rounds = options.frames + options.warmup;
            if (options.what == "burst") rounds = (rounds + cell.slots - 1) / cell.slots * cell.slots;
            store(header->end, options.what == "throughput" ? OPEN_END : base + rounds);
            store(header->baton, 0);
            std::fill(header->count, header->count + SERIES, 0);
        }
        if (on_gpu) {
            CHECK(cudaMemsetAsync(wrong, 0, sizeof *wrong, stream));
            CHECK(cudaStreamSynchronize(stream));
        }
        meet(processes);
        play(role);
        if (on_gpu) {
            CHECK(cudaMemcpyAsync(&header->wrong[role], wrong, sizeof *wrong, cudaMemcpyDeviceToHost, stream));
            CHECK(cudaStreamSynchronize(stream));
        }
        u64 end = load(header->end); /* before the meeting: role 0 sets the next one after it */
        meet(processes);
        if (role == 0) print_cell(end - base);
        base = end;
    }
    meet(processes); /* nobody's memory or events go while somebody may still use them */
}

/* The parent never touches CUDA: its children are this program again, each with a role. */
static int run_parent(int count, char **arguments, int fd) {
    std::vector<pid_t> children;
    pid_t parent = getpid();
    bool failed = false;
    for (int role = 0; role <= options.consumers && !failed; role++) {
        std::string as_role = std::to_string(role), as_fd = std::to_string(fd);
        std::vector<char *> argv(arguments, arguments + count);
        for (const char *extra : {"--role", as_role.c_str(), "--fd", as_fd.c_str()}) argv.push_back((char *)extra);
        argv.push_back(nullptr);
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* whoever kills the parent ends the children */
            if (getppid() == parent) execv("/proc/self/exe", argv.data());
            _exit(127);
        }
        failed = child < 0;
        if (child > 0) children.push_back(child);
    }
    while (!children.empty()) {
        if (failed)
            for (pid_t child : children) kill(child, SIGKILL);
        int status = 0;
        pid_t ended = waitpid(-1, &status, 0);
        if (ended < 0) die("waitpid: %s", strerror(errno));
        children.erase(std::find(children.begin(), children.end(), ended));
        if (status && !failed && WIFSIGNALED(status))
            fprintf(stderr, "floor: pid %d: %s%s\n", ended, strsignal(WTERMSIG(status)),
                    WTERMSIG(status) == SIGALRM ? ": its deadline passed" : "");
        failed |= status != 0;
    }
    return failed;
}

static std::vector<std::string> items(const std::string &list) {
    std::vector<std::string> found(1);
    for (char c : list)
        if (c == ',')
            found.emplace_back();
        else
            found.back() += c;
    return found;
}

static u64 number(const std::string &text, u64 low, u64 high) {
    char *rest;
    u64 value = strtoull(text.c_str(), &rest, 10);
    if (text.empty() || *rest || value < low || value > high)
        die("%s is not a number from %llu to %llu", text.c_str(), low, high);
    return value;
}

static bool second(const std::string &text, const char *first, const char *second) {
    if (text != first && text != second) die("%s is neither %s nor %s", text.c_str(), first, second);
    return text == second;
}

static void parse(int count, char **arguments, int *fd) {
    std::map<std::string, std::string> given{
        {"--what", ""},     {"--sync", "event"},  {"--gate", "stream"}, {"--kernel", "1"},     {"--skip-complete", "1"},
        {"--slots", "8"},   {"--consumers", "1"}, {"--nbytes", "4096"}, {"--frames", "0"},     {"--seconds", "0.3"},
        {"--warmup", "1500"}, {"--device", "0"},  {"--deadline", "60"}, {"--role", "-1"},      {"--fd", "-1"}};
    for (int i = 1; i < count; i += 2) {
        if (!given.count(arguments[i]) || i + 1 == count) die("%s: unknown or without a value", arguments[i]);
        given[arguments[i]] = arguments[i + 1];
    }
    options.what = given["--what"];
    options.role = atoi(given["--role"].c_str());
    *fd = atoi(given["--fd"].c_str());
    options.seconds = atof(given["--seconds"].c_str());
    options.nbytes = number(given["--nbytes"], 8, 1ull << 32) / 8 * 8;
    options.frames = number(given["--frames"], 0, 1ull << 32);
    options.warmup = number(given["--warmup"], 2, 1ull << 32);
    options.device = (int)number(given["--device"], 0, 1023);
    options.deadline_s = (unsigned)number(given["--deadline"], 1, 3600);
    bool streaming = options.what == "throughput";
    bool known = streaming || options.what == "burst" || options.what == "roundtrip" || options.what == "oneway";
    if (!known && options.what != "wake") die("--what throughput, burst, roundtrip, oneway or wake");
    if (!streaming && !options.frames) die("--what %s needs --frames", options.what.c_str());
    options.consumers = (int)number(given["--consumers"], 1, streaming ? MAX_CONSUMERS : 1);
    for (const std::string &sync : items(given["--sync"]))
        for (const std::string &gate : items(given["--gate"]))
            for (const std::string &kernel : items(given["--kernel"]))
                for (const std::string &skip : items(given["--skip-complete"]))
                    for (const std::string &slots : items(given["--slots"])) {
                        options.cells.push_back({second(sync, "event", "timeline"), second(gate, "stream", "host"),
                                                 second(kernel, "0", "1"), second(skip, "0", "1"),
                                                 (int)number(slots, 1, MAX_SLOTS)});
                        options.max_slots = std::max(options.max_slots, options.cells.back().slots);
                    }
}

int main(int count, char **arguments) {
    int fd;
    parse(count, arguments, &fd);
    alarm(options.deadline_s + (options.role < 0 ? 5 : 0)); /* children first: the parent tells which */
    if (options.role < 0) {
        fd = memfd_create("floor", 0);
        if (fd < 0 || ftruncate(fd, sizeof(Header))) die("memfd: %s", strerror(errno));
        return run_parent(count, arguments, fd);
    }
    void *mapped = mmap(nullptr, sizeof(Header), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) die("mmap: %s", strerror(errno));
    header = (Header *)mapped;
    run_role(options.role);
    return 0;
}
