"""What a service call costs, beside two rings by hand that carry the same request and answer.

    python bench/services.py [--against CHECKOUT] [--rounds 5] [--seconds 0.5]

One client process and one engine process, 4 KiB requests and answers in host memory.  The first
word of each is checked.  With --against the gpuring of another checkout (built in place) is
measured as well, in turns with this one, and every figure is the median of the rounds.

* round trip: one call in flight; its median.
* calls/s with 8 in flight, and in batches of 8: the client sends 8 calls and then takes 8 answers.
* client, engine: CPU time a call, of all threads.  Where the machine is busy these say more.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WORDS = 512
FORMS = ("one", "eight", "batch", "sync32", "async32")
CALLS = {"one": 1, "eight": 8, "batch": 8, "sync32": 32, "async32": 32}
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
HEAD = f"{'':34}{'p50 µs':>9}{'calls/s':>10}{'client µs':>11}{'engine µs':>11}"


# ---- the engine's process ----


def engine(name: str) -> None:
    """Answers requests of the service and of the two rings until its parent closes the pipe."""
    import select

    import gpuring

    shape: Any = ((WORDS,), "u8")
    options: Any = {"slots": 64, "shape": WORDS, "dtype": "u8", "device": "host"}
    meta = [("client", "u8"), ("call", "u8"), ("until_ns", "u8")]
    with (
        gpuring.serve(name, request=shape, response=shape, device="host") as server,
        gpuring.create(f"{name}.there", meta=meta, **options) as there,
        gpuring.create(f"{name}.back", meta=meta, **options) as back,
        there.consumer() as requests,
        back.producer() as answers,
    ):
        print("up", flush=True)
        while True:
            select.select([sys.stdin], [], [])
            order = sys.stdin.readline().split()
            if not order:
                return
            program, form = order
            most = 1 if form in ("one", "eight") else CALLS[form]
            with contextlib.suppress(gpuring.EndOfStream):
                if program == "service":
                    _serve(server, most)
                else:
                    _answer(requests, answers, most)
            print("done", flush=True)


def _serve(server: Any, most: int) -> None:
    while True:
        with server.take(most) as calls:
            for call in calls:
                word = call.array[0]
                with call.answer() as slot:
                    slot.array[0] = word
        if word == 0:
            return


def _answer(requests: Any, answers: Any, most: int) -> None:
    while True:
        if most == 1:
            with requests.acquire() as request, answers.claim() as slot:
                word = slot.array[0] = request.array[0]
        else:
            with requests.acquire_many(most) as batch, answers.claim_many(len(batch)) as slots:
                for request, slot in zip(batch, slots, strict=False):
                    word = slot.array[0] = request.array[0]
                for request in batch[len(slots) :]:
                    with answers.claim() as slot:
                        word = slot.array[0] = request.array[0]
        if word == 0:
            return


# ---- the client's process ----


def client(name: str, pid: int) -> None:
    """Measures what it is told to, line by line."""
    import gpuring

    with (
        gpuring.connect(name, timeout=20, calls=32) as service,
        gpuring.attach(f"{name}.there", timeout=20) as there,
        gpuring.attach(f"{name}.back", timeout=20) as back,
        there.producer() as requests,
        back.consumer() as answers,
    ):
        print("up", flush=True)
        for line in sys.stdin:
            program, form, seconds = line.split()
            turn: Any = Service(service) if program == "service" else Rings(requests, answers)
            print(json.dumps(_measured(turn, form, float(seconds), pid)), flush=True)


class Rings:
    """Two rings by hand."""

    def __init__(self, requests: Any, answers: Any) -> None:
        self.requests, self.answers = requests, answers

    def send(self, word: int) -> int:
        with self.requests.claim() as slot:
            slot.array[0] = word
        return word

    def finish(self, call: Any, word: int) -> None:
        with self.answers.acquire() as slot:
            assert slot.array[0] == word

    def batch(self, first: int, n: int) -> None:
        words, sent, back = iter(range(first, first + n)), 0, first
        while sent < n:
            with self.requests.claim_many(n - sent) as slots:
                for slot in slots:
                    slot.array[0] = next(words)
            sent += len(slots)
        while back < first + n:
            with self.answers.acquire_many(first + n - back) as slots:
                for slot in slots:
                    assert slot.array[0] == back
                    back += 1


class Service:
    """Calls of a service."""

    def __init__(self, service: Any) -> None:
        self.service = service

    def send(self, word: int) -> Any:
        with self.service.request() as slot:
            slot.array[0] = word
            return slot.call

    def finish(self, call: Any, word: int) -> None:
        with call.result() as slot:
            assert slot.array[0] == word

    def batch(self, first: int, n: int) -> None:
        calls = [self.send(word) for word in range(first, first + n)]
        for word, call in enumerate(calls, first):
            self.finish(call, word)

    async def task(self, words: Iterator[int], over: Callable[[], bool]) -> None:
        while not over():
            word = next(words)
            with await self.service.request_async() as slot:
                slot.array[0] = word
                call = slot.call
            with await call as answer:
                assert answer.array[0] == word


def _measured(turn: Any, form: str, seconds: float, pid: int) -> dict[str, float]:
    _run(turn, form, 0.05)
    mine, theirs, began = time.process_time_ns(), _cpu_ns(pid), time.perf_counter_ns()
    trips, calls = _run(turn, form, seconds)
    wall_ns = time.perf_counter_ns() - began
    mine, theirs = time.process_time_ns() - mine, _cpu_ns(pid) - theirs
    turn.finish(turn.send(0), 0)  # the engine's loop ends
    return {
        "p50": statistics.median(trips) / 1e3 if trips else 0.0,
        "rate": calls * 1e9 / wall_ns,
        "client": mine / calls / 1e3,
        "engine": theirs / calls / 1e3,
    }


def _cpu_ns(pid: int) -> int:
    return time.clock_gettime_ns((~pid << 3) | 2)  # the clock of that process's CPU time


def _run(turn: Any, form: str, seconds: float) -> tuple[list[int], int]:
    """The round trips in ns, if they are wanted, and the number of calls."""
    n, now, trips = CALLS[form], time.perf_counter_ns, []
    until, word = now() + int(seconds * 1e9), 0
    if form == "one":
        while now() < until:
            word += 1
            began = now()
            turn.finish(turn.send(word), word)
            trips.append(now() - began)
    elif form == "batch":
        while now() < until:
            turn.batch(word + 1, n)
            word += n
    elif form == "async32":
        words = iter(range(1, 1 << 62))

        async def main() -> None:
            over = lambda: now() >= until  # noqa: E731
            await asyncio.gather(*(turn.task(words, over) for _ in range(n)))

        asyncio.run(main())
        word = next(words) - 1
    else:
        flying: collections.deque[Any] = collections.deque()
        while now() < until:
            while len(flying) < n:
                word += 1
                flying.append((turn.send(word), word))
            turn.finish(*flying.popleft())
        while flying:
            turn.finish(*flying.popleft())
    return trips, word


# ---- both ----


class Pair:
    """An engine and a client of one checkout."""

    def __init__(self, stack: contextlib.ExitStack, checkout: Path, number: int) -> None:
        name = f"bench-services-{os.getpid()}-{number}"
        self._environment = os.environ | {"PYTHONPATH": str(checkout)}
        self._engine = self._start(stack, "engine", name)
        self._client = self._start(stack, "client", name, str(self._engine.pid))

    def _start(self, stack: contextlib.ExitStack, *args: str) -> Any:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, __file__, *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self._environment,
            )
        )
        stack.callback(process.kill)
        _line(process)
        return process

    def measure(self, program: str, form: str, seconds: float) -> dict[str, float]:
        _tell(self._engine, f"{program} {form}")
        _tell(self._client, f"{program} {form} {seconds}")
        figures: dict[str, float] = json.loads(_line(self._client))
        _line(self._engine)
        return figures


def _tell(process: Any, line: str) -> None:
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _line(process: Any) -> str:
    line: str = process.stdout.readline()
    if not line:
        raise SystemExit(f"a process died: {' '.join(process.args)}")
    return line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each figure in each round")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    asked = parser.parse_args()
    here = Path(__file__).resolve().parent.parent
    checkouts = {"this": here} | ({"other": asked.against.resolve()} if asked.against else {})
    rows = [row for row in ROWS if row[1] in asked.forms]
    seen: dict[tuple[str, str, str], list[dict[str, float]]] = collections.defaultdict(list)
    with contextlib.ExitStack() as stack:
        pairs = {
            which: Pair(stack, path, number)
            for number, (which, path) in enumerate(checkouts.items())
        }
        for _ in range(asked.rounds):
            for program, form in rows:
                for which, pair in pairs.items():
                    figures = pair.measure(program, form, asked.seconds)
                    seen[which, program, form].append(figures)
    print(f"{os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}", HEAD, sep="\n")
    for program, form in rows:
        for which in pairs:
            rounds = seen[which, program, form]
            p50, rate, mine, theirs = (
                statistics.median(each[key] for each in rounds)
                for key in ("p50", "rate", "client", "engine")
            )
            label = f"{program}, {form}, {which}"
            first = f"{p50:9.1f}" if form == "one" else " " * 9
            print(f"{label:34}{first}{rate:10,.0f}{mine:11.2f}{theirs:11.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["engine"]:
        engine(sys.argv[2])
    elif sys.argv[1:2] == ["client"]:
        client(sys.argv[2], int(sys.argv[3]))
    else:
        main()
