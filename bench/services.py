"""What a service call costs, compared with two rings by hand for the same request and answer.

    python -m bench.services [--against CHECKOUT] [--rounds 5] [--seconds 0.5] [--json FILE]
    python -m bench.services --device cuda --mps on --forms eight

One client process and one engine process, 4 KiB requests and answers.  In host memory the first
word of each is written and checked.  On a GPU kernels write and check all words: the client writes
the request and checks the answer, and the engine checks the request and writes the answer.  A word
that is wrong ends the run.  With --against the gpuring of another checkout (built in place) is
measured as well, in turns with this one.  A figure has a value for each round.

* round trip: one call in flight; its median.  On a GPU it ends when the client's stream is idle.
* calls/s with 8 in flight, and in batches of 8: the client sends 8 calls and then takes 8 answers.
  On a GPU nobody waits for a stream but at the end of the measurement.
* client, engine: CPU time a call, of all threads.  Where the machine is busy these say more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench import mps, options
from gpuring.cli.bench import why_no_gpu
from gpuring.cli.measure import stored
from gpuring.cli.measure.crew import Crew
from gpuring.cli.measure.figures import Distribution, Figure

ROWS = (
    ("rings", "one"),
    ("service", "one"),
    ("rings", "eight"),
    ("service", "eight"),
    ("rings", "batch"),
    ("service", "batch"),
    ("service", "sync32"),
    ("service", "async32"),
)
FORMS = tuple(dict.fromkeys(form for _, form in ROWS))
PATIENCE_S = 90
"""A process that sends nothing for this time counts as stuck."""
END_S = 10
"""A process that was asked to end is killed after this time."""
HERE = Path(__file__).resolve().parent.parent
PROCESSES = str(Path(__file__).with_name("service_processes.py"))
PROGRAMS = {"rings": "two rings", "service": "service"}
"""What figures call them."""


class Pair:
    """An engine and a client of one checkout."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        checkout: Path,
        name: str,
        device: str,
        environment: Mapping[str, str],
    ) -> None:
        # The checkout's gpuring comes first, and then this process's own path.
        paths = filter(None, (str(checkout), environment.get("PYTHONPATH")))
        self._environment = {**environment, "PYTHONPATH": os.pathsep.join(paths)}
        self._engine = self._start(stack, "engine", name, device)
        _line(self._engine)  # until the client finds the new rings, and not those of an earlier run
        self._client = self._start(stack, "client", name, device, str(self._engine.pid))
        _line(self._client)

    def _start(self, stack: contextlib.ExitStack, *args: str) -> Any:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, PROCESSES, *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self._environment,
            )
        )
        stack.callback(_end, process)
        return process

    def measure(self, program: str, form: str, seconds: float) -> dict[str, float]:
        _tell(self._engine, f"{program} {form}")
        _tell(self._client, f"{program} {form} {seconds}")
        figures: dict[str, float] = json.loads(_line(self._client))
        _line(self._engine)
        return figures


def _end(process: Any) -> None:
    """Lets the process leave and remove its rings.  A killed engine would leave them under their
    names."""
    process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        print(f"killed, because it does not end: {' '.join(process.args)}", file=sys.stderr)
        process.kill()


def _tell(process: Any, line: str) -> None:
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _line(process: Any) -> str:
    there, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    line: str = process.stdout.readline() if there else ""
    if not line:
        why = f"said nothing for {PATIENCE_S} s"
        if there:
            process.wait(END_S)
            why = f"ended with status {process.returncode}"
        raise SystemExit(f"a process {why}: {' '.join(process.args)}")
    return line


Seen = dict[tuple[str, str, str], list[dict[str, float]]]
"""The rounds of each (checkout, program, form)."""
UNITS = {"p50": ("round trip", "µs"), "rate": ("calls/s", "calls/s"), "client": ("client", "µs"),
         "engine": ("engine", "µs")}  # fmt: skip


def _rounds(
    asked: argparse.Namespace,
    device: str,
    checkouts: Mapping[str, Path],
    environment: Mapping[str, str],
) -> Seen:
    seen: Seen = {}
    rows = [row for row in ROWS if row[1] in asked.forms]
    with contextlib.ExitStack() as stack:
        pairs = {
            which: Pair(stack, path, f"bench-services-{os.getpid()}-{which}", device, environment)
            for which, path in checkouts.items()
        }
        for _ in range(asked.rounds):
            for program, form in rows:
                for which, pair in pairs.items():
                    figures = pair.measure(program, form, asked.seconds)
                    seen.setdefault((which, program, form), []).append(figures)
    return seen


def _figures(asked: argparse.Namespace) -> Iterator[Figure]:
    checkouts = {"this": HERE} | ({"other": asked.against.resolve()} if asked.against else {})
    places = [("host", False)] if asked.device != "cuda" else []
    if asked.device != "host":
        with Crew() as crew:
            why_not = crew.call(why_no_gpu)
        if asked.device == "cuda" and why_not:
            raise SystemExit(f"--device cuda: {why_not}")
        places += [("cuda", on) for on in mps.modes(asked.mps)] if not why_not else []
    for device, on in places:
        with mps.environment(on) as environment:
            seen = _rounds(asked, device, checkouts, environment)
        for (which, program, form), rounds in seen.items():
            yield from _of_a_row(device, on, which, PROGRAMS[program], form, rounds)


def _of_a_row(
    device: str, on: bool, which: str, program: str, form: str, rounds: list[dict[str, float]]
) -> Iterator[Figure]:
    where: dict[str, Any] = {"memory": device, "form": form}
    where |= {"mps": on} if device == "cuda" else {}
    where |= {"checkout": which} if which != "this" else {}
    for key, (name, unit) in UNITS.items():
        if key == "p50" and form != "one":
            continue
        values = Distribution.of([each[key] for each in rounds])
        yield Figure("services", name, program, unit, where, values, "words of every call")


def main() -> int:
    parser = options.parser("python -m bench.services", __doc__)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    options.add_device(parser)
    options.add_mps(parser, None, "on a GPU (default: both where that can be had)")
    options.add_rounds(parser, 5)
    options.add_seconds(parser, 0.5)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    options.add_json(parser)
    asked = parser.parse_args()
    return stored.run(_figures(asked), sys.argv[1:], asked.json).status


if __name__ == "__main__":
    options.run(main)
