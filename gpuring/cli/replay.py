"""Make the rings of a recording again, and publish its frames with the gaps that they had.

A pipeline can be tested with it.  The rings are on a GPU if they were on one; --device host or
--device cuda says where they are here.  It waits for lossless readers, and catches up then.  At
the end, or by Ctrl-C, it closes the rings: their readers read what is there, and get the end of
the stream.
"""

from __future__ import annotations

import argparse
import math
import signal
from pathlib import Path

from gpuring.cli.options import Refused, count, device, positive, seconds
from gpuring.cli.text import complain
from gpuring.cli.trouble import CommandError, need
from gpuring.errors import RingExists
from gpuring.printable import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="file", help="the files of one recording"
    )
    parser.add_argument(
        "--rate",
        type=_rate,
        default=1.0,
        metavar="R",
        help="how fast: 0.5 is half as fast, and max leaves no gaps (default: 1)",
    )
    parser.add_argument("--loop", action="store_true", help="begin again at the end")
    parser.add_argument(
        "--from",
        dest="start",
        type=seconds,
        default=0.0,
        metavar="S",
        help="begin S seconds after the first frame",
    )
    parser.add_argument(
        "--to", type=positive, metavar="S", help="end S seconds after the first frame"
    )
    parser.add_argument(
        "--as",
        dest="names",
        type=_renamed,
        action="append",
        default=[],
        metavar="NAME=NAME",
        help="give a ring another name: cam0=test0 (may be repeated)",
    )
    parser.add_argument("--device", type=device, help="host, cuda or cuda:N (default: as recorded)")
    parser.add_argument(
        "--readers",
        type=count,
        metavar="N",
        help="begin when each ring has N consumers (default: at once)",
    )


def run(args: argparse.Namespace) -> int:
    need("mcap", extra="record")
    from gpuring import recording
    from gpuring.recording.replay import Replay

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    recorded = recording.read(*args.files)
    names = dict(args.names)
    if unknown := sorted({*names} - {ring.name for ring in recorded.rings}):
        raise ValueError(f"the recording has no ring {unknown[0]!r}")
    if args.to is not None and args.to <= args.start:
        raise ValueError("--to must be after --from")
    if not recorded.rings:
        raise CommandError("the recording has no frames")
    start_ns = recorded.start_ns + round(args.start * 1e9)
    if start_ns > recorded.end_ns:
        length_s = (recorded.end_ns - recorded.start_ns) / 1e9
        raise ValueError(f"--from is behind the end: the recording has {length_s:.1f} s")
    end_ns = None if args.to is None else recorded.start_ns + round(args.to * 1e9)
    said = "interrupted"
    try:
        replay = Replay(recorded, names=names, device=args.device)
    except RingExists as error:
        there, _, _ = str(error).partition(". Choose another name")
        raise CommandError(f"{there}. Choose another name with --as NAME=NAME") from error
    with replay:
        made = ", ".join(ring.name for ring in replay.rings)
        wait = f"it waits for {counted(args.readers, 'reader')} of each; " if args.readers else ""
        complain(f"gpuring replay: {made}; {wait}Ctrl-C ends it")
        try:
            if args.readers:
                wanted = counted(args.readers, "consumer")
                replay.wait_for_readers(
                    args.readers,
                    lambda fewer: complain(
                        f"gpuring replay: it waits for {wanted} of {', '.join(fewer)}"
                    ),
                )
            again = True
            while again:
                replay.run(rate=args.rate, start_ns=start_ns, end_ns=end_ns)
                again = args.loop and replay.published > 0
            said = "the recording has ended"
        except KeyboardInterrupt:
            pass
    complain(f"gpuring replay: {counted(replay.published, 'frame')} published; {said}")
    return 0


def _rate(text: str) -> float:
    return math.inf if text == "max" else positive(text)


def _renamed(text: str) -> tuple[str, str]:
    old, _, new = text.partition("=")
    if not (old and new):
        raise Refused(f"must be NAME=NAME, such as cam0=test0, not {text!r}")
    return old, new
