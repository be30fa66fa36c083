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
 *         [--slots N] [--consumers K] [--nbytes B] [--frames N] [--seconds S] [--warmup W]
 * sync, gate, kernel and slots take comma lists; every combination is one measurement and prints one JSON object with
 * raw samples.  A fence that the host sees complete costs no stream wait.  frames: rounds of a latency, frames of the
 * others; throughput without it runs for `seconds`, at the rate that its warm-up reached.
 *
 * Build: nvcc -O2 -std=c++17 -I../gpuring/cli/measure floor.cu -o floor
 * floor_ring.cu has the ring.  Here is what is measured, and the processes. */
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <map>

#include "floor_ring.cu"

/* --- what is measured --------------------------------------------------------------------------------------------- */

constexpr int WINDOWS = 25;
constexpr u64 OPEN_END = ~0ull;

/* The streams fall behind the hosts until their queues are full, so the rate is taken when that is over, in windows of one
 * unbroken run.  The producer fixes the end before it publishes the last frame of the warm-up, so no reader misses it. */
static void throughput_producer(Ring &ring) {
    u64 warm = base + options.warmup;
    double half = 0;
    for (u64 seq = base + 1; seq <= load(header->end); seq++) {
        wait_free(ring, seq);
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
    }
}

static void throughput_consumer(Ring &ring, int k) {
    u64 warm = base + options.warmup, mark = warm, window = 0;
    double before = 0;
    for (u64 seq = base + 1; seq <= load(header->end); seq++) {
        wait_published(ring, seq);
        read_frame(ring, k, seq);
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

static void asker(Ring &there, Ring &back, bool one_way) {
    for (u64 seq = base + 1, end = load(header->end); seq <= end; seq++) {
        double start = now_ns();
        store(header->began_ns, (u64)start);
        wait_free(there, seq);
        write_frame(there, seq);
        publish(there, seq);
        wait_published(back, seq);
        read_frame(back, 0, seq);
        finish(back.read[0], (int)(seq % cell.slots), seq);
        if (!one_way && seq > base + options.warmup) sample(LATENCY, (now_ns() - start) / 1e3);
    }
}

static void echoer(Ring &there, Ring &back, bool one_way) {
    for (u64 seq = base + 1, end = load(header->end); seq <= end; seq++) {
        wait_published(there, seq);
        read_frame(there, 0, seq);
        if (one_way) {
            finish(there.read[0], (int)(seq % cell.slots), seq);
            if (seq > base + options.warmup) sample(LATENCY, (now_ns() - load(header->began_ns)) / 1e3);
        }
        wait_free(back, seq);
        write_frame(back, seq);
        publish(back, seq);
    }
}

/* Only a sleeper that the kernel really woke counts: futex returns 0 to it alone. */
static void wake(bool waker) {
    constexpr double FALL_ASLEEP_NS = 500e3; /* as long as the library's sleeper has had */
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

static void print_series(const char *name, int series) {
    printf(", \"%s\": [", name);
    for (int i = 0; i < header->count[series]; i++) printf(i ? ", %.6g" : "%.6g", header->sample[series][i]);
    putchar(']');
}

/* The measurement's JSON, on one line.  Raw samples: windows' frames/s, or µs, or ns per frame of a lap. */
static void print_cell(u64 frames) {
    u64 bad = 0;
    for (u64 count : header->wrong) bad += count;
    printf("{\"what\": \"%s\", \"sync\": \"%s\", \"gate\": \"%s\", \"kernel\": %s, "
           "\"slots\": %d, \"consumers\": %d, \"nbytes\": %llu, \"frames\": %llu, \"wrong\": %llu",
           options.what.c_str(), cell.timeline ? "timeline" : "event", cell.host_gate ? "host" : "stream",
           cell.kernel ? "true" : "false", cell.slots, options.consumers, options.nbytes, frames, bad);
    if (options.what == "throughput") {
        print_series("frames_per_s", RATE);
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
    bool one_way = what == "oneway";
    if ((one_way || what == "roundtrip") && producer) asker(rings[0], rings[1], one_way);
    if ((one_way || what == "roundtrip") && !producer) echoer(rings[0], rings[1], one_way);
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
        {"--what", ""},     {"--sync", "event"},  {"--gate", "stream"}, {"--kernel", "1"},
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
                for (const std::string &slots : items(given["--slots"])) {
                    options.cells.push_back({second(sync, "event", "timeline"), second(gate, "stream", "host"),
                                             second(kernel, "0", "1"), (int)number(slots, 1, MAX_SLOTS)});
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
