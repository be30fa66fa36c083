"""A camera, which notes in a file which pictures it has sent."""

import argparse
import time
from pathlib import Path

import gpuring

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("ring", help="ring for its pictures")
parser.add_argument("log", help="file for its notes")

HZ, H, W, SIDE = 25, 90, 160, 12


def place(pts):
    """The upper left corner of the square in a picture that was taken at this time (ns)."""
    n = pts * HZ // 10**9
    return 5 * n % (H - SIDE), 7 * n % (W - SIDE)


def main(name, log):
    with (
        gpuring.attach(name, timeout=None) as ring,
        ring.producer(reattach=True) as producer,
        Path(log).open("a", buffering=1) as sent,
    ):
        while True:
            with producer.claim() as slot:  # waits while the detectors are behind
                pts = time.time_ns()
                y, x = place(pts)
                slot.array[...] = 0
                slot.array[y : y + SIDE, x : x + SIDE] = 255
                slot.meta["pts"] = pts
            print(pts, file=sent)
            time.sleep(1 / HZ)


if __name__ == "__main__":
    gpuring.exit_on_sigterm()
    asked = parser.parse_args()
    main(asked.ring, asked.log)
