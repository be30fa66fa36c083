"""Save frames of a ring as .npy or PNG files, to look at them.

It joins the ring as a lossy reader, so the producer never waits for it.  It takes the newest frame,
copies it to the host, gives the slot back, and only then writes the files: one for each field, and
the metadata as JSON.  Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import gpuring
from gpuring.cli.absent import say_who_is_waited_for
from gpuring.cli.options import add_owner, count, count_or_zero, positive
from gpuring.cli.text import complain
from gpuring.cli.trouble import CommandError, need
from gpuring.errors import EndOfStream, FrameTorn, PeerLost, RingTimeout
from gpuring.printable import counted
from gpuring.recording.message import Frame, RecordedRing, copier
from gpuring.recording.places import place_of
from gpuring.registry.jams import STUCK_S
from gpuring.ring import inner
from gpuring.slot_layout import Field

from .files import Writer, check_pictures

_HOW_TO_FOLLOW = re.compile(r"\. [^.]*`reattach`[^.]*$")
"""What programs can do at the end of a stream, and a tap cannot."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the ring's name")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the folder for the files"
    )
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--every", type=count, metavar="N", help="save at most one of N frames")
    pace.add_argument("--rate", type=positive, metavar="HZ", help="save at most HZ frames a second")
    parser.add_argument(
        "--count",
        type=count_or_zero,
        default=10,
        metavar="N",
        help="end after N frames (default: 10; 0: never)",
    )
    parser.add_argument(
        "--format",
        choices=("npy", "png"),
        default="npy",
        help="the format of the files (default: npy)",
    )
    parser.add_argument(
        "--field", action="append", metavar="NAME", help="save only this field (may be repeated)"
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        metavar="S",
        help="seconds to wait for the ring, and for each frame (default: the ring must be there, "
        "and a frame may take any time)",
    )
    add_owner(parser)


def run(args: argparse.Namespace) -> int:
    if args.format == "png":
        need("PIL")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if args.timeout:
        say_who_is_waited_for(args.command, [args.name])
    place = place_of(args.name, args.timeout or 0.0)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"the folder {args.out} cannot be made: {error.strerror}") from error
    with place:
        return _tap(args)


def _tap(args: argparse.Namespace) -> int:
    # gate: a stream that waits for a killed producer's event never wakes; a host wait does.
    with (
        gpuring.attach(args.name, owner=args.owner) as ring,
        ring.consumer(lossless=False, gate="host", label="tap") as frames,
    ):
        inner.expect_end(frames)
        fields = _chosen(ring.spec.fields, args.field)
        if args.format == "png":
            check_pictures(fields)
        names = [field.name for field in fields]
        writer = Writer(args.out, ring.name, ring.stats().epoch, args.format, names)
        copy = copier(RecordedRing.of(ring, names))
        saved = torn = 0
        reason, status = "", 0
        patience_s = args.timeout or STUCK_S
        pace = _Pace(args.every, args.rate)
        try:
            while not args.count or saved < args.count:
                pace.wait()
                try:
                    frame = take(frames, patience_s, copy, pace)
                except FrameTorn:
                    torn += 1
                    continue
                except RingTimeout as error:
                    if args.timeout:
                        raise
                    complain(f"gpuring tap: {error}. It waits on; Ctrl-C ends it")
                    patience_s = None
                    continue
                if frame is not None:
                    *files, _ = writer.write(frame)
                    print(_line(frame, files), flush=True)
                    saved += 1
        except KeyboardInterrupt:
            reason = "interrupted"
        except EndOfStream:
            reason = "the stream has ended"
        except (PeerLost, RingTimeout) as error:
            reason, status = _HOW_TO_FOLLOW.sub("", str(error)), 1
        torn += _passed_over(ring, frames)
        _summary(args, saved, torn, reason)
    return status


def take(
    frames: gpuring.Consumer,
    timeout: float | None,
    copy: Callable[[gpuring.ReadSlot], Frame],
    pace: _Pace,
) -> Frame | None:
    """A copy of the newest frame, or None if it is not due.  The slot is given back.

    Raises FrameTorn if the frame's producer died before it was written: the copy is complete by
    then, so the answer is final.
    """
    with frames.latest(timeout) as slot:
        if not pace.due(slot.seq):
            return None
        frame = copy(slot)
    pace.done(frame.seq)
    return frame


class _Pace:
    """Which frames are wanted: one of N, or so many a second, or else all that come."""

    def __init__(self, every: int | None, rate: float | None) -> None:
        self._every = every or 1
        self._interval_s = 1 / rate if rate else 0.0
        self._next_seq = 0
        self._next_s = 0.0

    def wait(self) -> None:
        """Waits until a frame may be due.  No slot is held meanwhile."""
        time.sleep(max(0.0, self._next_s - time.monotonic()))

    def due(self, seq: int) -> bool:
        return seq >= self._next_seq

    def done(self, seq: int) -> None:
        self._next_seq = seq + self._every
        self._next_s = time.monotonic() + self._interval_s


def _chosen(fields: Sequence[Field], names: Sequence[str] | None) -> list[Field]:
    if not names:
        return list(fields)
    known = {field.name: field for field in fields}
    for name in names:
        if name not in known:
            raise CommandError(f"the ring has no field {name!r}; it has {', '.join(known)}")
    return [field for field in fields if field.name in names]


def _passed_over(ring: gpuring.Ring, frames: gpuring.Consumer) -> int:
    """Torn frames that latest() did not even hand out."""
    return sum(peer.torn for peer in ring.stats().peers if peer.number == frames.peer)


def _line(frame: Frame, files: Sequence[Path]) -> str:
    lost = f"  ({frame.lost} passed over)" if frame.lost else ""
    return f"{frame.seq}  {', '.join(map(str, files))}{lost}"


def _summary(args: argparse.Namespace, saved: int, torn: int, reason: str) -> None:
    said = f"{counted(saved, 'frame')} of {args.name} saved in {args.out}"
    if torn:
        said += (
            f"; {counted(torn, 'torn frame')} thrown away (a producer died before its GPU was done)"
        )
    if reason:
        said += f"; {reason}"
    complain(f"gpuring tap: {said}")
