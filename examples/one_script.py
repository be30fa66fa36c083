"""send.py and change.py of two_scripts in one: the rings are arguments of the other process."""

import argparse
import multiprocessing
import signal
import sys

import numpy as np

import gpuring

try:
    from torch import from_dlpack
except ImportError:

    def from_dlpack(slot):
        return slot.array  # CuPy's on a GPU, and NumPy's in host memory


gpuring.exit_on_sigterm()  # also in the processes that it spawns


def change(there, back):
    with there, back, there.consumer(start="oldest") as numbers, back.producer() as squares:
        for number in numbers:
            with squares.claim() as slot:
                from_dlpack(slot)[...] = from_dlpack(number) ** 2


if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # Ctrl-C leaves no traceback
    argparse.ArgumentParser(description=__doc__).parse_args()
    device = "cuda"
    try:
        gpuring.create("numbers.probe", slots=1, shape=8, dtype="f4", device=device).close()
    except gpuring.DeviceError:
        device = "host"
        print("no GPU here, so this runs on host memory", flush=True)
    square = np.empty(8, "f4")
    with (
        gpuring.create("numbers", slots=2, shape=8, dtype="f4", device=device) as there,
        gpuring.create("squares", slots=2, shape=8, dtype="f4", device=device) as back,
        there.producer() as numbers,
        back.consumer() as squares,
    ):
        spawn = multiprocessing.get_context("spawn")
        other = spawn.Process(target=change, args=(there, back), daemon=True)
        ours = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other ends with this process
        other.start()
        signal.signal(signal.SIGINT, ours)
        for n in range(4):
            with numbers.claim() as slot:
                slot.copy_from(np.full(8, n, "f4"))
            with squares.acquire() as slot:
                slot.copy_to(square)
                print(n, "came back as", square)
    other.join()
