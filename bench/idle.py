"""What it costs to wait: CPU time of many processes, each waiting for a frame that does not come.

    python -m bench.idle [--processes 62] [--settle 5] [--seconds 10]

There is one ring in host memory.  Each process has one consumer, all of one subscription, and there
is no producer.  The figures cover `seconds` after `settle` seconds of waiting.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import gpuring
from gpuring.cli.measure import options, stored
from gpuring.cli.measure.cpu import cpu_s
from gpuring.cli.measure.crew import Crew, Pipe
from gpuring.cli.measure.figures import Distribution, Figure
from gpuring.cli.measure.settings import ring_name
from gpuring.cli.options import count, seconds


def wait(pipe: Pipe, name: str) -> None:
    with gpuring.attach(name) as ring, ring.consumer("all") as frames:
        pipe.send()
        with contextlib.suppress(gpuring.EndOfStream):
            frames.acquire()


def figures(processes: int, settle_s: float, seconds_s: float) -> Iterator[Figure]:
    spec: Any = {"slots": 8, "shape": 64, "dtype": "u1", "device": "host", "max_peers": 64}
    with Crew() as crew, gpuring.create(ring_name(), **spec) as ring:
        waiting = [crew.start(wait, ring.name) for _ in range(processes)]
        for part in waiting:
            part.receive()
        time.sleep(settle_s)
        before, began = sum(cpu_s(part.pid) for part in waiting), time.monotonic()
        time.sleep(seconds_s)
        used = sum(cpu_s(part.pid) for part in waiting) - before
        percent = Distribution.of([100 * used / (time.monotonic() - began)])
        setting = {"processes": processes}
        yield Figure("waiting", "CPU of all", "gpuring", "% of a core", setting, percent)


def main() -> int:
    parser = options.parser("python -m bench.idle", __doc__)
    parser.add_argument("--processes", type=count, default=62, metavar="N")
    parser.add_argument("--settle", type=seconds, default=5, metavar="S")
    options.add_seconds(parser, 10)
    options.add_json(parser)
    args = parser.parse_args()
    return stored.run(
        figures(args.processes, args.settle, args.seconds), sys.argv[1:], args.json
    ).status


if __name__ == "__main__":
    sys.exit(main())
