"""Terminal 2: squares what terminal 1 (send.py) sends, on the GPU if the rings are there."""

import argparse
import signal
import sys

import gpuring

try:
    from torch import from_dlpack
except ImportError:

    def from_dlpack(slot):
        return slot.array  # CuPy's on a GPU, and NumPy's in host memory


argparse.ArgumentParser(description=__doc__).parse_args()
gpuring.exit_on_sigterm()
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # Ctrl-C leaves no traceback
print("waiting for send.py, in another terminal", file=sys.stderr)
with (
    gpuring.attach("numbers", timeout=60) as there,
    gpuring.attach("squares", timeout=60) as back,
    there.consumer(start="oldest") as numbers,
    back.producer() as squares,
):
    for number in numbers:
        with squares.claim() as slot:
            from_dlpack(slot)[...] = from_dlpack(number) ** 2
