"""A detector: finds the square in the images of several cameras, and checks where it is."""

import argparse
import collections
import contextlib
import statistics
import sys

from camera import count, place

import gpuring

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("images", type=count, help="number of images of each camera")
parser.add_argument("rings", nargs="+", help="rings with images of camera.py", metavar="RING")


def find(image):
    """The upper left corner of the bright square."""
    return int(image.any(axis=1).argmax()), int(image.any(axis=0).argmax())


def main():
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        rings = [stack.enter_context(gpuring.attach(name, timeout=60)) for name in args.rings]
        cameras = [stack.enter_context(ring.consumer(start="oldest")) for ring in rings]
        print("ready", flush=True)
        seen, ages = collections.Counter(), collections.defaultdict(list)
        while cameras:
            for each in gpuring.select(cameras, timeout=60):
                name = each.ring.name
                try:
                    with each.acquire(0) as slot:
                        assert slot.meta["pts"] == seen[name], "an image is missing"
                        assert find(slot.array) == place(seen[name]), "a wrong image"
                        seen[name] += 1
                        ages[name].append(slot.origin.age)  # by the clocks of both hosts
                except gpuring.EndOfStream:
                    cameras.remove(each)
    for name in args.rings:
        way = 1000 * statistics.median(ages[name])
        assert seen[name] == args.images, "the last images are missing"
        print(f"{name}  {seen[name]} images, each right and in order, {way:.1f} ms on the way")


if __name__ == "__main__":
    gpuring.exit_on_sigterm()
    try:
        main()
    except (ValueError, gpuring.RingError) as error:  # as a camera that was killed
        sys.exit(f"detector.py: {error}")
