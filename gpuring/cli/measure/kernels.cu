/* The kernels of every benchmark: compiled by nvcc into the floor, by NVRTC for everybody else. */

/* Differs from that of any other sequence at every k: the factor is odd. */
__device__ unsigned long long word_of(unsigned long long seq, unsigned long long k) {
    return seq * 0x9E3779B97F4A7C15ull + k;
}

/* words[k] = word_of(seq, k) for k < n. */
extern "C" __global__ void stamp(unsigned long long *words, unsigned long long n, unsigned long long seq) {
    unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long k = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; k < n; k += step)
        words[k] = word_of(seq, k);
}

/* Adds to *wrong the number of words that are not word_of(seq, k).  volatile: read at that moment. */
extern "C" __global__ void check(const volatile unsigned long long *words, unsigned long long n,
                                 unsigned long long seq, unsigned long long *wrong) {
    unsigned long long bad = 0, step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long k = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; k < n; k += step)
        bad += words[k] != word_of(seq, k);
    if (bad) atomicAdd(wrong, bad);
}

/* Keeps its multiprocessors busy for ns nanoseconds: what a third process does to the GPU. */
extern "C" __global__ void busy(unsigned long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < ns);
}
