// Reads images from a ring on a GPU, and says how many edges a kernel finds in each.
//
//     gpuring keep cam0 --slots 8 --shape 480,640 --dtype u1 --meta pts:i8 --device cuda
//     nvcc -std=c++17 edges.cu -o edges $(python -m gpuring.config --nvcc)
//     ./edges cam0
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <cuda_runtime.h>
#include <gpuring.hpp>

// Counts the pixels that are much brighter or darker than the one to their left.
__global__ void edges(const unsigned char *image, std::uint64_t width, std::uint64_t height,
                      unsigned long long *found) {
    const std::uint64_t k = blockIdx.x * std::uint64_t(blockDim.x) + threadIdx.x;
    if (k >= width * height || k % width == 0) return;
    if (abs(int(image[k]) - int(image[k - 1])) > 64) atomicAdd(found, 1ull);
}

static void check(cudaError_t status) {
    if (status == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
    std::exit(1);
}

int main(int argc, char **argv) try {
    gpuring::Ring ring(argc > 1 ? argv[1] : "cam0", gpuring::seconds(10));
    const gpuring_field image = ring.field();
    const std::uint64_t height = image.shape[0], width = image.shape[1];
    cudaStream_t stream;
    unsigned long long *found;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cudaMallocManaged(&found, sizeof *found));

    gpuring::Consumer frames(ring);
    frames.on(stream); // acquire makes this stream wait for the producer's
    while (auto frame = frames.next()) {
        const auto pixels = frame->array<unsigned char>(); // a pointer for kernels
        const auto seq = frame->seq();
        const auto pts = frame->meta<std::int64_t>("pts");
        check(cudaMemsetAsync(found, 0, sizeof *found, stream));
        edges<<<unsigned(width * height / 256 + 1), 256, 0, stream>>>(pixels.data(), width, height,
                                                                      found);
        check(cudaGetLastError());
        frame->release(); // at once: the slot is free when the kernel has read it
        check(cudaStreamSynchronize(stream));
        std::printf("%llu %lld %llu\n", (unsigned long long)seq, (long long)pts, *found);
    }
    check(cudaFree(found));
    check(cudaStreamDestroy(stream));
} catch (const std::exception &error) { // gpuring::Error, or of field(), meta() and array()
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
