"""Write what all processes of a pipeline do into a trace, which ui.perfetto.dev shows.

It works on rings that run: nothing is started again, and no program is changed.  It shows who
wrote and read which frame, who waited for whom, what was lost, and who died.  Without a name it
traces all rings of this host.  Each of their processes writes events meanwhile.  Ctrl-C ends it
early.  With --join it puts traces of several hosts, which bridges connect, on one time line.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuring.cli.options import positive
from gpuring.cli.text import columns, complain, nbytes, seconds, wrap
from gpuring.cli.trouble import CommandError, need
from gpuring.deadlines import deadline_of
from gpuring.errors import RingError
from gpuring.printable import counted

if TYPE_CHECKING:
    from gpuring.tracing.collector import Collector
    from gpuring.tracing.longest import Wait

SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="name", help="rings and services")
    parser.add_argument(
        "--join",
        nargs="+",
        action="extend",
        type=Path,
        metavar="FILE",
        help="trace nothing, but put these traces of several hosts together",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="the file, such as pipeline.pftrace; one of this name is overwritten",
    )
    parser.add_argument(
        "--seconds", type=positive, metavar="S", help=f"for how long (default: {SECONDS:g})"
    )


def run(args: argparse.Namespace) -> int:
    need("perfetto", extra="trace")
    if args.join is not None:
        return _join(args)
    from gpuring.tracing.collector import Collector
    from gpuring.tracing.longest import longest
    from gpuring.tracing.perfetto import write
    from gpuring.tracing.timeline import Timeline

    if len({*args.names}) < len(args.names):
        raise ValueError("a ring is named twice")
    _check_folder(args.out)
    ended: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: ended.append(number))
    collector = Collector(args.names)
    if not collector.rings:
        raise CommandError("there is no ring on this host that can be traced")
    rings, length_s = counted(len(collector.rings), "ring"), args.seconds or SECONDS
    print(f"tracing {rings} for {seconds(length_s)}; Ctrl-C ends it", flush=True)
    try:
        collector.run(deadline_of(length_s), lambda: bool(ended))
    finally:
        collector.end()
    for number in (signal.SIGINT, signal.SIGTERM):  # from here on it can be broken off
        signal.signal(number, signal.default_int_handler)
    timeline = Timeline(collector.rings, collector.ended_ns)
    picture = timeline.draw()
    try:
        size = write(args.out, picture, timeline.pids, collector.threads)
    except RingError:
        raise
    except OSError as error:
        raise CommandError(f"{args.out} cannot be written: {error.strerror or error}") from error
    for line in (*_summary(collector), *_waits(longest(picture), timeline.pids)):
        print(wrap(line, columns(), "  "))
    print(f"{args.out}: {nbytes(size)}. Open it at https://ui.perfetto.dev")
    for name, why in collector.trouble.items():
        complain(f"gpuring trace: {name} was not traced: {why}")
    return 1 if collector.trouble else 0


def _join(args: argparse.Namespace) -> int:
    from gpuring.tracing.join import JoinError, join, label

    if args.names:
        raise ValueError(f"--join takes files, and {args.names[0]!r} is not among them")
    if args.seconds is not None:
        raise ValueError("--seconds says for how long to trace, and --join traces nothing")
    if len(args.join) < 2:
        raise ValueError("--join takes at least two files")
    _check_folder(args.out)
    try:
        traces, ways = join(args.join, args.out)
    except JoinError as error:
        raise CommandError(str(error)) from None
    for trace in traces[1:]:
        moved = f"moved by {trace.shift_ns / 1e9:+.6f} s, within {seconds(trace.error_ns / 1e9)}"
        print(wrap(f"{label(trace, traces)}: {moved}", columns(), "  "))
    for way in ways:
        took = f"{seconds(way.median_s)} in the median, within {seconds(way.error_s)}"
        line = f"{way.title}: {counted(way.frames, 'frame')}, {took}"
        print(wrap(line, columns(), "  "))
    print(f"{args.out}: {nbytes(args.out.stat().st_size)}. Open it at https://ui.perfetto.dev")
    return 0


def _check_folder(file: Path) -> None:
    """Before the trace, which would be lost."""
    folder = file.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise CommandError(
            f"{file} cannot be written: {folder} is no folder in which you may write"
        )


def _waits(waits: list[Wait], pids: Mapping[int, str]) -> Iterator[str]:
    for each in waits[:3]:
        who = f"{pids.get(each.pid) or 'a process'}, pid {each.pid},"
        took = seconds(each.in_all_s)
        if each.times > 1:
            took = f"{each.times} times, {took} in all, {seconds(each.longest_s)} at the most"
        before = ", from before the trace on" if each.before else ""
        yield f"{who} waited for {each.culprit}, in {each.ring}: {took}{before}"


def _summary(collector: Collector) -> Iterator[str]:
    from gpuring.native.tracer import EVENT_NBYTES, TRACE_EVENTS
    from gpuring.registry import segment

    full = shutil.disk_usage(segment.SHM).free < EVENT_NBYTES * TRACE_EVENTS
    no_room = f"{segment.SHM} has no room for them" if full else ""
    for ring in collector.rings:
        line = (
            f"{ring.title}: {counted(ring.events, 'event')} of {counted(len(ring.parts), 'peer')}"
        )
        if not ring.events:
            line += f"; {no_room or f'see `gpuring why {ring.name}`'}"
        if ring.missed:
            line += f", {ring.missed} more were overwritten before they were read"
        if ring.gaps:
            times = counted(ring.gaps, "time")
            line += f"; tracing was off {times}, because this command was stopped"
        yield line
