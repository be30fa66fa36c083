"""The two processes of bench/services.py: an engine and a client, of a service and of two rings.

Run as a script, with the gpuring of any checkout in PYTHONPATH:

    engine NAME DEVICE        the engine's process
    client NAME DEVICE PID    the client's process; PID is that of the engine

Each line of the input is an order, and each line of the output is an answer.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import mmap
import os
import select
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WORDS = 512
META: Any = [("word", "u8"), ("client", "u8"), ("call", "u8"), ("until_ns", "u8")]
"""Of the rings by hand: what a request of a service carries, too."""
CALLS = {"one": 1, "eight": 8, "batch": 8, "sync32": 32, "async32": 32}
BELL = ("head", "bell")


# ---- what is written and read ----


class OnHost:
    """Writes and checks the first word only."""

    def put(self, slot: Any, word: int) -> None:
        slot.array[0] = word

    def answer(self, request: Any, slot: Any) -> int:
        word: int = request.array[0]
        slot.array[0] = word
        return word

    def check(self, slot: Any, word: int) -> None:
        assert slot.array[0] == word

    def finish(self) -> None:
        """Waits until all that was put and checked is done."""

    def expect_right(self) -> None:
        """Raises SystemExit if a word was wrong."""


class OnGpu:
    """Writes and checks all words by kernels.  The metadata of a request tells the engine what they
    are."""

    def __init__(self) -> None:
        from gpuring.cli.measure.kernels import cupy_tools

        tools = cupy_tools()
        self._stream = tools.stream
        self._wrong = tools.cupy.zeros(1, tools.cupy.uint64)
        self._stream.synchronize()
        self._stamp = tools.kernel("stamp", "driver", 0, WORDS, 0)
        self._check = tools.kernel("check", "driver", 0, WORDS, 0, int(self._wrong.data.ptr))

    def put(self, slot: Any, word: int) -> None:
        slot.meta["word"] = word
        self._stamp.launch(slot.array.data.ptr, word)

    def answer(self, request: Any, slot: Any) -> int:
        word = int(request.meta["word"])
        self._check.launch(request.array.data.ptr, word)
        self._stamp.launch(slot.array.data.ptr, word)
        return word

    def check(self, slot: Any, word: int) -> None:
        self._check.launch(slot.array.data.ptr, word)

    def finish(self) -> None:
        self._stream.synchronize()

    def expect_right(self) -> None:
        if wrong := int(self._wrong.get(stream=self._stream)[0]):
            raise SystemExit(f"{wrong} words are wrong")


WORK: dict[str, Callable[[], Any]] = {"host": OnHost, "cuda": OnGpu}

# ---- the engine's process ----


def engine(name: str, device: str) -> None:
    """Answers requests of the service and of the two rings until its parent closes the pipe."""
    import gpuring

    work = WORK[device]()
    shape: Any = ((WORDS,), "u8")
    options: Any = {"slots": 64, "shape": WORDS, "dtype": "u8", "meta": META, "device": device}
    meta: Any = {} if device == "host" else {"request_meta": META[:1]}
    with (
        gpuring.serve(name, request=shape, response=shape, device=device, **meta) as server,
        gpuring.create(f"{name}.there", **options) as there,
        gpuring.create(f"{name}.back", **options) as back,
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
                    _serve(work, server, most)
                else:
                    _answer(work, requests, answers, most)
            work.finish()
            work.expect_right()
            print("done", flush=True)


def _serve(work: Any, server: Any, most: int) -> None:
    while True:
        with server.take(most) as calls:
            for call in calls:
                with call.answer() as slot:
                    word = work.answer(call, slot)
        if word == 0:
            return


def _answer(work: Any, requests: Any, answers: Any, most: int) -> None:
    while True:
        if most == 1:
            with requests.acquire() as request, answers.claim() as slot:
                word = work.answer(request, slot)
        else:
            with requests.acquire_many(most) as batch, answers.claim_many(len(batch)) as slots:
                for request, slot in zip(batch, slots, strict=False):
                    word = work.answer(request, slot)
                for request in batch[len(slots) :]:
                    with answers.claim() as slot:
                        word = work.answer(request, slot)
        if word == 0:
            return


# ---- the client's process ----


def client(name: str, device: str, pid: int) -> None:
    """Measures what each line of its input asks for."""
    import gpuring

    work = WORK[device]()
    with (
        gpuring.connect(name, timeout=60, calls=32) as service,
        gpuring.attach(f"{name}.there", timeout=60) as there,
        gpuring.attach(f"{name}.back", timeout=60) as back,
        there.producer() as requests,
        back.consumer() as answers,
    ):
        print("up", flush=True)
        for line in sys.stdin:
            program, form, seconds = line.split()
            turn: Any = (
                Service(work, service) if program == "service" else Rings(work, requests, answers)
            )
            used = (service.ring, service._mailbox._ring) if program == "service" else (there, back)
            print(json.dumps(_measured(turn, form, float(seconds), pid, used)), flush=True)


class Rings:
    """Two rings that are used by hand."""

    def __init__(self, work: Any, requests: Any, answers: Any) -> None:
        self.work, self.requests, self.answers = work, requests, answers

    def send(self, word: int) -> int:
        with self.requests.claim() as slot:
            self.work.put(slot, word)
        return word

    def finish(self, call: Any, word: int) -> None:
        with self.answers.acquire() as slot:
            self.work.check(slot, word)

    def batch(self, first: int, n: int) -> None:
        words, sent, back = iter(range(first, first + n)), 0, first
        while sent < n:
            with self.requests.claim_many(n - sent) as slots:
                for slot in slots:
                    self.work.put(slot, next(words))
            sent += len(slots)
        while back < first + n:
            with self.answers.acquire_many(first + n - back) as slots:
                for slot in slots:
                    self.work.check(slot, back)
                    back += 1


class Service:
    """Calls of a service."""

    def __init__(self, work: Any, service: Any) -> None:
        self.work, self.service = work, service

    def send(self, word: int) -> Any:
        with self.service.request() as slot:
            self.work.put(slot, word)
            return slot.call

    def finish(self, call: Any, word: int) -> None:
        with call.result() as slot:
            self.work.check(slot, word)

    def batch(self, first: int, n: int) -> None:
        calls = [self.send(word) for word in range(first, first + n)]
        for word, call in enumerate(calls, first):
            self.finish(call, word)

    async def task(self, words: Iterator[int], over: Callable[[], bool]) -> None:
        while not over():
            word = next(words)
            with await self.service.request_async() as slot:
                self.work.put(slot, word)
                call = slot.call
            with await call as answer:
                self.work.check(answer, word)


def _measured(turn: Any, form: str, seconds: float, pid: int, used: Any) -> dict[str, float]:
    _run(turn, form, 0.05)
    before = _waits(pid, used)
    mine, theirs, began = time.process_time_ns(), _cpu_ns(pid), time.perf_counter_ns()
    trips, calls = _run(turn, form, seconds)
    waits = {key: value - before[key] for key, value in _waits(pid, used).items()}
    turn.work.finish()
    wall_ns = time.perf_counter_ns() - began
    mine, theirs = time.process_time_ns() - mine, _cpu_ns(pid) - theirs
    turn.finish(turn.send(0), 0)  # ends the engine's loop
    turn.work.finish()
    turn.work.expect_right()
    return {
        "p50": statistics.median(trips) / 1e3 if trips else 0.0,
        "rate": calls * 1e9 / wall_ns,
        "client": mine / calls / 1e3,
        "engine": theirs / calls / 1e3,
        **{key: value * 1e3 / calls for key, value in waits.items()},
    }


def _waits(pid: int, used: Any) -> dict[str, int]:
    """How often the main thread of each process has slept, and how often the bells of the two rings
    were rung."""
    return {
        "client_sleeps": _sleeps(os.getpid()),
        "engine_sleeps": _sleeps(pid),
        "there_bells": _bell(used[0]),
        "back_bells": _bell(used[1]),
    }


def _sleeps(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def _bell(ring: Any) -> int:
    from gpuring.registry.segment import header_name, path_of
    from tests.helpers.layout import FIELDS

    with open(path_of(header_name(ring.name)), "rb") as file:  # noqa: PTH123
        return int(struct.unpack_from("=I", file.read(mmap.PAGESIZE), FIELDS[BELL].offset)[0])


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
            turn.work.finish()
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


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        engine(*sys.argv[2:])
    else:
        client(sys.argv[2], sys.argv[3], int(sys.argv[4]))
