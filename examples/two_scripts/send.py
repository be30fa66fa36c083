"""Terminal 1: sends arrays, and sees what terminal 2 (change.py) made of them."""

import argparse
import signal
import sys

import numpy as np

import gpuring

argparse.ArgumentParser(description=__doc__).parse_args()
gpuring.exit_on_sigterm()
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # Ctrl-C leaves no traceback
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
    print("waiting for change.py, in another terminal", file=sys.stderr)
    for n in range(4):
        with numbers.claim() as slot:
            slot.copy_from(np.full(8, n, "f4"))
        with squares.acquire() as slot:
            slot.copy_to(square)
            print(n, "came back as", square)
