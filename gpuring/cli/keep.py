"""Hold a ring open in a process of its own, so that producers and consumers can come and go.

The keeper owns the memory and joins nothing.  It ends, and closes the ring, on Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import signal

import numpy as np

import gpuring
from gpuring.cli.text import nbytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the ring's name")
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--shape", type=_shape, required=True, help="of a frame: 1080,1920,3")
    parser.add_argument("--dtype", type=np.dtype, required=True, help="of a frame: uint8, f4, …")
    parser.add_argument(
        "--meta", type=_meta, default=None, help="metadata of a frame: pts:i8,exposure:f4"
    )
    parser.add_argument("--device", default=None, help="cuda (default), cuda:N or host")
    parser.add_argument("--sync", choices=("auto", "event", "timeline"), default="auto")
    parser.add_argument("--gate", choices=("stream", "host"), default=None)
    parser.add_argument("--replace", action="store_true", help="remove a ring of this name first")


def run(args: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = {key: getattr(args, key) for key in ("slots", "shape", "dtype", "meta", "device")}
    with gpuring.create(
        args.name, **options, sync=args.sync, gate=args.gate, replace=args.replace
    ) as ring:
        ring.watch()
        size = nbytes(ring.spec.slot_nbytes)
        print(
            f"keeping {ring.name}: {ring.slots} slots of {size} in {ring.memory} memory, "
            f"sync {ring.sync}, gate {ring.gate}; Ctrl-C ends it",
            flush=True,
        )
        try:
            signal.pause()
        except KeyboardInterrupt:
            print(f"closing {ring.name}", flush=True)
    return 0


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(extent) for extent in text.split(","))


def _meta(text: str) -> list[tuple[str, ...]]:
    return [tuple(part.split(":", 1)) for part in text.split(",")]
