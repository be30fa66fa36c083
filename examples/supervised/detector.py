"""One of several detectors, which share the pictures of all cameras."""

import argparse
import contextlib

import gpuring

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("rings", nargs="+", help="rings of the cameras: cam0, cam1, …", metavar="RING")


def main(names):
    with contextlib.ExitStack() as stack:
        cameras = {}
        for name in names:
            ring = stack.enter_context(gpuring.attach(name, timeout=None))
            # Durable: what one detector had when it was killed the other one gets, and what comes
            # while there is none is kept.
            consumer = ring.consumer("detect", durable=True, reattach=True)
            cameras[stack.enter_context(consumer)] = name
        seen = stack.enter_context(gpuring.attach("seen", timeout=None))
        out = stack.enter_context(seen.producer(reattach=True))
        while True:
            for each in gpuring.select(cameras):
                try:
                    slot = each.acquire(0)
                except gpuring.RingTimeout:  # another detector was quicker
                    continue
                with slot, out.claim() as found:
                    found.array[0] = slot.array.any(axis=1).argmax()
                    found.array[1] = slot.array.any(axis=0).argmax()
                    found.meta["camera"] = int(cameras[each][3:])
                    found.meta["pts"] = slot.meta["pts"]
                    found.meta["lost"] = slot.lost


if __name__ == "__main__":
    gpuring.exit_on_sigterm()
    main(parser.parse_args().rings)
