"""A camera: images with a bright square, which moves as the number of the image says."""

import argparse
import sys
import time

import numpy as np

import gpuring


def count(text):
    """The number of images on a command line."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return int(text)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("images", type=count, help="number of images")
parser.add_argument("ring", help="the name of the ring that it makes")
parser.add_argument("--device", default="host", help="where the ring is: host (default) or cuda")

H, W, SIDE, HZ = 270, 480, 24, 60


def place(pts):
    """The upper left corner of the square."""
    return 5 * pts % (H - SIDE), 7 * pts % (W - SIDE)


def main():
    args = parser.parse_args()
    with (
        gpuring.create(
            args.ring, slots=8, shape=(H, W), dtype="u1", meta=[("pts", "i8")], device=args.device
        ) as ring,
        ring.producer() as producer,
    ):
        sys.stdin.readline()  # Enter, when the detector is there
        for pts in range(args.images):
            image = np.zeros((H, W), "u1")
            y, x = place(pts)
            image[y : y + SIDE, x : x + SIDE] = 255
            with producer.claim() as slot:  # waits while the link or the detector is slow
                slot.copy_from(image)
                slot.meta["pts"] = pts
            time.sleep(1 / HZ)


if __name__ == "__main__":
    gpuring.exit_on_sigterm()
    try:
        main()
    except (ValueError, gpuring.RingError) as error:  # as a ring of this name that is there
        sys.exit(f"camera.py: {error}")
