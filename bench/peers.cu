// One end of a ring on a GPU, in C++, for bench/peers.py.
//
//     ./peers produce RING SECONDS    for so long; prints when each 16th frame was published, in ns
//     ./peers consume RING 0          to the end of the stream; prints {"frames": …, "wrong": …}
//
// Both print a line when they have joined, and the producer then waits for one.  A small kernel writes
// 4 KiB of each frame, and one checks them.  peers.py has the same in Python.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <gpuring.hpp>

#include "kernels.cu"

using u64 = unsigned long long;
constexpr int THREADS = 256, STRIDE = 16;
constexpr u64 WORDS = 512;

static void must(cudaError_t status) {
    if (status == cudaSuccess) return;
    std::fprintf(stderr, "peers: %s\n", cudaGetErrorString(status));
    std::exit(1);
}

static long long now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

static void joined() {
    std::puts("joined");
    std::fflush(stdout);
}

static void produce(const gpuring::Ring &ring, double seconds, cudaStream_t stream) {
    gpuring::Producer producer(ring);
    producer.on(stream);
    joined();
    std::getchar();
    std::vector<long long> marks{now_ns()};
    while (marks.back() - marks.front() < seconds * 1e9) {
        for (int k = 0; k < STRIDE; k++) {
            auto slot = producer.claim();
            stamp<<<1, THREADS, 0, stream>>>(reinterpret_cast<u64 *>(slot->data()), WORDS, slot->seq());
            slot->publish();
        }
        marks.push_back(now_ns());
    }
    must(cudaGetLastError());
    must(cudaStreamSynchronize(stream));
    std::printf("[%lld", marks[0]);
    for (std::size_t k = 1; k < marks.size(); k++) std::printf(", %lld", marks[k]);
    std::puts("]");
}

static void consume(const gpuring::Ring &ring, cudaStream_t stream) {
    u64 frames = 0, *wrong, found;
    must(cudaMalloc(&wrong, sizeof *wrong));
    must(cudaMemset(wrong, 0, sizeof *wrong));
    must(cudaDeviceSynchronize());
    gpuring::Consumer consumer(ring);
    consumer.on(stream);
    joined();
    while (auto slot = consumer.next()) {
        check<<<1, THREADS, 0, stream>>>(reinterpret_cast<const volatile u64 *>(slot->data()), WORDS,
                                         slot->seq(), wrong);
        slot->release();
        frames++;
    }
    must(cudaGetLastError());
    must(cudaStreamSynchronize(stream));
    must(cudaMemcpy(&found, wrong, sizeof found, cudaMemcpyDeviceToHost));
    std::printf("{\"frames\": %llu, \"wrong\": %llu}\n", frames, found);
}

int main(int argc, char **argv) try {
    if (argc != 4) return 2;
    gpuring::Ring ring(argv[2], gpuring::seconds(30));
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (argv[1] == std::string("produce")) produce(ring, std::atof(argv[3]), stream);
    else consume(ring, stream);
} catch (const gpuring::Error &error) {
    std::fprintf(stderr, "peers: %s\n", error.what());
    return 1;
}
