"""Terminal 2: squares what terminal 1 (send.py) sends, with a CUDA kernel of its own."""

import gpuring

KERNEL = """extern "C" __global__ void square(const float *x, float *y) {
    y[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x];
}"""

with gpuring.attach("numbers", timeout=60) as there, gpuring.attach("squares", timeout=60) as back:
    if there.memory == "cuda":
        import cupy

        kernel = cupy.RawKernel(KERNEL, "square")

        def square(x, y):
            kernel((1,), (x.size,), (x, y))
    else:
        import numpy

        print("no GPU here, so this runs on host memory with NumPy", flush=True)

        def square(x, y):
            numpy.square(x, out=y)

    with there.consumer(start="oldest") as numbers, back.producer() as squares:
        for number in numbers:
            with squares.claim() as slot:
                square(number.array, slot.array)
