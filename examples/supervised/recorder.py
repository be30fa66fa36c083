"""A recorder, which writes a line for each picture that was looked at."""

import argparse
import time
from pathlib import Path

import gpuring

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("file", help="file for the lines")


def main(path):
    with (
        gpuring.attach("seen", timeout=None) as ring,
        ring.consumer("record", durable=True, reattach=True) as frames,
        Path(path).open("a", buffering=1) as file,
    ):
        for slot in frames:  # a frame that it held when it was killed comes again
            y, x = slot.array
            camera, pts, lost = slot.meta.item()
            print(camera, pts, y, x, lost, slot.lost, file=file)
            if pts % 199 == 0:
                time.sleep(0.5)  # the disk is slow now and then


if __name__ == "__main__":
    gpuring.exit_on_sigterm()
    main(parser.parse_args().file)
