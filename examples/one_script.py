"""send.py and change.py of two_scripts in one: the rings are arguments of the other process."""

import argparse
import multiprocessing

import gpuring

try:
    import cupy as xp

    xp.cuda.Device()  # raises without a GPU
    device = "cuda"
except Exception:
    import numpy as xp

    device = "host"

gpuring.exit_on_sigterm()  # also in the processes that it spawns

KERNEL = """extern "C" __global__ void square(const float *x, float *y) {
    y[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x];
}"""


def square(x, y):
    if device == "host":
        xp.square(x, out=y)
    else:
        xp.RawKernel(KERNEL, "square")((1,), (x.size,), (x, y))


def change(there, back):
    with there, back, there.consumer(start="oldest") as numbers, back.producer() as squares:
        for number in numbers:
            with squares.claim() as slot:
                square(number.array, slot.array)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    if device == "host":
        print("no GPU here, so this runs on host memory with NumPy", flush=True)
    with (
        gpuring.create("numbers", slots=2, shape=8, dtype="f4", device=device) as there,
        gpuring.create("squares", slots=2, shape=8, dtype="f4", device=device) as back,
        there.producer() as numbers,
        back.consumer() as squares,
    ):
        spawn = multiprocessing.get_context("spawn")
        other = spawn.Process(target=change, args=(there, back))
        other.start()
        for n in range(4):
            with numbers.claim() as slot:
                slot.copy_from(xp.full(8, n, "f4"))
            with squares.acquire() as slot:
                print(n, "came back as", slot.array)
    other.join()
