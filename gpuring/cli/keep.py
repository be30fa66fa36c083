"""Hold a ring open in a process of its own, so that producers and consumers can come and go.

The keeper owns the ring's memory and joins nothing.  On Ctrl-C or SIGTERM it closes the ring and
ends.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
from typing import Any

import gpuring
from gpuring import slot_layout
from gpuring.cli.options import Refused, add_order, device, slots
from gpuring.cli.text import counted, nbytes
from gpuring.memory import kinds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the ring's name")
    parser.add_argument(
        "--slots", type=slots, required=True, metavar="N", help="frames in flight at the most"
    )
    parser.add_argument(
        "--shape", type=_shape, required=True, metavar="N,N,…", help="of a frame: 1080,1920,3"
    )
    parser.add_argument(
        "--dtype", type=_dtype, required=True, help="of a frame: uint8, f4, bfloat16, …"
    )
    parser.add_argument(
        "--meta",
        type=_meta,
        metavar="NAME:DTYPE,…",
        help="metadata of a frame: pts:i8,exposure:f4 (default: none)",
    )
    parser.add_argument("--device", type=device, help="host, cuda (default) or cuda:N")
    parser.add_argument(
        "--memory",
        choices=("auto", *kinds.ON_GPU),
        default="auto",
        help="how the slots on a GPU are shared (default: auto)",
    )
    add_order(parser)
    parser.add_argument(
        "--replace",
        action="store_true",
        help="close a ring of this name even if its creator is alive",
    )


def run(args: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = ("slots", "shape", "dtype", "meta", "device", "memory")
    options = {key: getattr(args, key) for key in asked}
    if args.replace:
        options["replace"] = True
    with gpuring.create(args.name, **options, sync=args.sync, gate=args.gate) as ring:
        ring.watch()
        ends = {signal.SIGINT, signal.SIGTERM}
        with contextlib.suppress(KeyboardInterrupt):
            print(
                f"keeping {ring.name}: {counted(ring.slots, 'slot')} of "
                f"{nbytes(ring.spec.slot_nbytes)} in {ring.memory} memory, sync {ring.sync}, "
                f"gate {ring.gate}; Ctrl-C ends it",
                flush=True,
            )
            signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # or one could come just before the wait
            signal.sigwait(ends)
        print(f"closing {ring.name}", flush=True)
    return 0


def _shape(text: str) -> tuple[int, ...]:
    try:
        extents = tuple(int(extent) for extent in text.split(","))
    except ValueError:
        extents = (0,)
    if min(extents) < 1:
        raise Refused(f"must be whole numbers above 0 with commas, as 1080,1920,3, not {text!r}")
    return extents


def _dtype(text: str) -> Any:
    """Raises Refused for what cannot be in a slot."""
    try:
        slot_layout.make(shape=1, dtype=text)
    except (TypeError, ValueError) as error:
        why = str(error).removeprefix(f"field {slot_layout.ARRAY!r}: ")
        raise Refused(f"{text!r} cannot be a frame's dtype ({why})") from None
    return text


def _meta(text: str) -> list[tuple[str, str]]:
    """Raises Refused for what cannot be metadata."""
    fields = [part.partition(":") for part in text.split(",")]
    if not all(name and dtype for name, _, dtype in fields):
        raise Refused(f"must be NAME:DTYPE with commas, as pts:i8,exposure:f4, not {text!r}")
    meta = [(name, dtype) for name, _, dtype in fields]
    try:
        slot_layout.make(shape=1, dtype="u1", meta=meta)
    except (TypeError, ValueError) as error:
        raise Refused(f"{text!r} cannot be metadata ({error})") from None
    return meta
