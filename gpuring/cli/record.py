"""Record rings into an MCAP file, with all metadata and times: one channel for each ring.

Producers never wait for it, unless you say --lossless.  If the file is there, it writes FILE-1,
FILE-2, … instead.  A recorder that is killed loses at most the last second, or the last 4 MiB, of
each ring.  With --lossless --durable NAME it loses nothing, and goes on where it was when it is
started again.  It ends with the streams, or by Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpuring.cli.absent import say_who_is_waited_for
from gpuring.cli.options import add_owner, nbytes, positive
from gpuring.cli.text import complain
from gpuring.cli.trouble import CommandError, need
from gpuring.deadlines import deadline_of, left_s
from gpuring.errors import RingError
from gpuring.printable import counted

if TYPE_CHECKING:
    from gpuring.recording.files import Files
    from gpuring.recording.recorder import Recorder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="name", help="the rings' names")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the file, such as run.mcap"
    )
    parser.add_argument(
        "--lossless",
        action="store_true",
        help="miss no frame: producers wait while the disk is slow",
    )
    parser.add_argument(
        "--durable",
        metavar="NAME",
        help="read a durable subscription of this name in each ring, which stays when this ends",
    )
    parser.add_argument(
        "--patience",
        type=positive,
        metavar="S",
        help="how long producers wait while no recorder is there (default: for ever)",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="go on when a stream has ended, until a producer or the ring is started again",
    )
    parser.add_argument("--zstd", action="store_true", help="compress, which is much slower")
    parser.add_argument(
        "--split-size", type=nbytes, metavar="BYTES", help="begin another file after so much: 1GiB"
    )
    parser.add_argument(
        "--split-time", type=positive, metavar="S", help="begin another file after so many seconds"
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        metavar="S",
        help="seconds to wait for the rings (default: they must be there)",
    )
    add_owner(parser, "the other user whose rings they are")


def run(args: argparse.Namespace) -> int:
    need("mcap", extra="record")
    from gpuring.recording.files import Files, keep_freed_memory
    from gpuring.recording.recorder import Recorder, Source

    if args.patience is not None and args.durable is None:
        raise ValueError("--patience is for --durable")
    if len({*args.names}) < len(args.names):
        raise ValueError("a ring is named twice")
    if args.out.is_dir():
        raise ValueError(f"{args.out} is a folder: name a file in it, such as run.mcap")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if args.timeout:
        say_who_is_waited_for(args.command, args.names)
    with contextlib.ExitStack() as joined:
        deadline = deadline_of(args.timeout or 0.0)
        sources = [
            Source(
                name,
                timeout=left_s(deadline),
                owner=args.owner,
                lossless=args.lossless,
                durable=args.durable,
                patience=args.patience,
                follow=args.follow,
                say=_say,
            )
            for name in args.names
        ]
        files = Files(
            args.out,
            compressed=args.zstd,
            split_nbytes=args.split_size or math.inf,
            split_s=args.split_time or math.inf,
            durable=args.durable is not None,
            say=_say,
        )
        # After the file: the patience of a durable subscription begins anew when its reader leaves.
        try:
            for source in sources:
                joined.enter_context(source)
        except BaseException:
            files.give_up()
            raise
        keep_freed_memory()
        recorder = Recorder(sources, files)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: recorder.end())
        _say(f"{', '.join(args.names)} into {files.written[0]}; Ctrl-C ends it")
        try:
            recorder.run()
        except RingError:
            raise  # a RingTimeout is an OSError, too
        except OSError as error:
            path, why = error.filename or files.written[-1], error.strerror or error
            readable = [f"{counted(n, 'frame')} of {name}" for name, n in files.readable.items()]
            before = ", ".join(readable) or "no frame"
            raise CommandError(
                f"{path} cannot be written: {why}. Written before, and readable: {before}"
            ) from error
    for line in _summary(files, recorder):
        _say(line)
    return 1 if recorder.trouble else 0


def _say(text: str) -> None:
    complain(f"gpuring record: {text}")


def _summary(files: Files, recorder: Recorder) -> Iterator[str]:
    for name, counts in files.counts.items():
        missed = {"lost": counts.lost, "torn": counts.torn, "redelivered": counts.redelivered}
        more = "".join(f", {number} {what}" for what, number in missed.items() if number)
        yield f"{counted(counts.frames, 'frame')} of {name}{more}"
    first, *others = map(str, files.written)
    more = f" and {len(others)} more, the last is {others[-1]}" if others else ""
    yield f"written: {first}{more}"
    for each in recorder.trouble:
        yield str(each).replace(
            "consumer that has joined with `reattach`", "recorder with --follow"
        )
