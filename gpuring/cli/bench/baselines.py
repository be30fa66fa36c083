"""The baselines: the simplest hand-overs between two processes on this machine.

* **bare word**: both watch a word in shared memory; there is nothing else. On a GPU each side also
  runs one kernel on memory of its own before it changes the word: nothing is copied or shared, and
  the GPU switches between the two processes as it does for a ring.
* **two pipes**: the numbers of written slots go one way, those of read slots the other; 8 slots.
* **pipe**: a reader asleep in read() is woken by a write.
* **one process**: the same kernels on one stream of one process; nothing is handed over.

Written in Python, as the programs that use rings are. No frame is in it, so what is verified is
that each number arrives once and in order.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..measure.attempt import Wrong, attempt
from ..measure.crew import Crew, Pipe
from ..measure.figures import Distribution, Figure
from ..measure.kernels import WORDS, cuda_tools
from ..measure.settings import SLOTS, Place, Settings
from . import latency, throughput, wakeup

WORD = "bare word"
PIPES = "two pipes"
PIPE = "pipe"
ALONE = "one process"
_WARM_UP = 100
_PATIENCE_S = 60.0
_THERE, _BACK = 0, 16
"""Indices of the two words: on cache lines of their own."""
_LOOKS = 2000
_END = (1 << 64) - 1
_IN_ORDER = "each number arrived once and in order"


def run(settings: Settings, crew: Crew, place: Place, seconds: float) -> Iterator[Figure]:
    """What the figures of a ring in this place are compared with; rates over so many seconds."""
    where = settings.where(place, kernel=place.on_gpu)
    word = Figure(latency.GROUP, "one-way", WORD, "µs", where)
    yield from attempt(word, partial(_word, settings, crew, word))
    rate = Figure(throughput.GROUP, "frames/s", ALONE, "frames/s", where)
    if place.on_gpu:
        yield from attempt(rate, partial(_alone, crew, rate, seconds))
        return
    rate = replace(rate, program=PIPES)
    yield from attempt(rate, partial(_pipes, crew, rate, seconds))
    wake = Figure(wakeup.GROUP, "wake-up", PIPE, "µs", settings.where(place))
    yield from attempt(wake, partial(_pipe, settings, crew, wake))


def _word(settings: Settings, crew: Crew, blank: Figure) -> Iterator[Figure]:
    rounds, limit_s = settings.rounds(2000, 10_000), settings.seconds(1.5, 4.0)
    kernel = bool(blank.setting["kernel"])
    with tempfile.NamedTemporaryFile(prefix="gpuring-bench-", dir="/dev/shm") as shared:
        shared.truncate(mmap.PAGESIZE)
        with crew.start(answer_word, shared.name, kernel) as other:
            other.receive()
            began = crew.call(
                ask_word, shared.name, kernel, rounds, limit_s, patience_s=_PATIENCE_S
            )
            seen = other.result()
    if len(seen) != len(began):
        raise Wrong(f"{len(began)} numbers were sent, {len(seen)} arrived")
    us = [(end - start) / 1e3 for start, end in zip(began, seen, strict=True)]
    yield replace(blank, values=Distribution.of(us[_WARM_UP:]), verified=_IN_ORDER)


def _pipes(crew: Crew, blank: Figure, seconds: float) -> Iterator[Figure]:
    with _fifos("there", "back") as (there, back), crew.start(take, there, back) as reader:
        marks = crew.call(give, there, back, seconds, patience_s=_PATIENCE_S)
        read = reader.result()
    if read != throughput.STRIDE * (len(marks) - 1):
        raise Wrong(f"{throughput.STRIDE * (len(marks) - 1)} numbers were sent, {read} arrived")
    rates = throughput.rates_of([marks])
    yield replace(blank, values=Distribution.of(rates), verified=_IN_ORDER)


def _pipe(settings: Settings, crew: Crew, blank: Figure) -> Iterator[Figure]:
    with _fifos("bell") as (bell,), crew.start(hear, bell) as sleeper:
        rounds = settings.rounds(1500, 4000) + wakeup.WARM_UP
        rung = crew.call(ring, bell, rounds, patience_s=_PATIENCE_S)
        heard = sleeper.result()
    if [sent for sent, _ in heard] != rung:
        raise Wrong("not every number arrived once and in order")
    us = [(woken - sent) / 1e3 for sent, woken in heard][wakeup.WARM_UP :]
    yield replace(blank, values=Distribution.of(us), verified=_IN_ORDER)


def _alone(crew: Crew, blank: Figure, seconds: float) -> Iterator[Figure]:
    marks = crew.call(both_sides, seconds)
    verified = "the kernels told right words from wrong ones"
    yield replace(blank, values=Distribution.of(throughput.rates_of([marks])), verified=verified)


@contextlib.contextmanager
def _fifos(*names: str) -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory(prefix="gpuring-bench-") as folder:
        paths = [str(Path(folder, name)) for name in names]
        for path in paths:
            os.mkfifo(path)
        yield paths


# ---- the processes ------------------------------------------------------------------------------


@contextlib.contextmanager
def _words(path: str) -> Iterator[memoryview]:
    with (
        Path(path).open("r+b") as file,
        mmap.mmap(file.fileno(), 0) as memory,
        memoryview(memory) as plain,
        plain.cast("Q") as words,
    ):
        yield words


def ask_word(pipe: Pipe, path: str, kernel: bool, rounds: int, limit_s: float) -> list[int]:
    """When each round began."""
    work, clock, began = _work(kernel), time.monotonic_ns, []
    with _words(path) as words:
        for n in latency.rounds_within(rounds, limit_s):
            began.append(clock())
            work(n)
            words[_THERE] = n + 1
            _change(words, _BACK, n)
        words[_THERE] = _END
    return began


def answer_word(pipe: Pipe, path: str, kernel: bool) -> list[int]:
    """When each round's word was seen, and the kernel behind it was done."""
    seen: list[int] = []
    work, clock = _work(kernel), time.monotonic_ns
    with _words(path) as words:
        pipe.send("ready")
        while True:
            n = _change(words, _THERE, len(seen))
            if n == _END:
                return seen
            if n != len(seen) + 1:
                raise RuntimeError(f"{n} came instead of {len(seen) + 1}")
            work(n)
            seen.append(clock())
            words[_BACK] = n


def _change(words: memoryview, index: int, old: int) -> int:
    """Watches a word until it is another one.  After some looks others may run in between: on a
    busy machine the other side may have no core."""
    for _ in range(_LOOKS):
        if (word := words[index]) != old:
            return int(word)
    while (word := words[index]) == old:
        os.sched_yield()
    return int(word)


def _work(kernel: bool) -> Callable[[int], None]:
    """One kernel of the benchmarks on memory of its own, until it is done; or nothing."""
    if not kernel:
        return lambda n: None
    tools = cuda_tools()
    memory, busy = tools.zeros(WORDS), tools.busy
    stamp = tools.kernel("stamp", "driver", 0, WORDS, 0)

    def work(n: int) -> None:
        stamp.launch(memory.ptr, n)
        while busy():
            pass

    work(0)
    return work


def give(pipe: Pipe, there: str, back: str, seconds: float) -> list[int]:
    """Writes numbers, 8 of them in flight; the times at which each stride of them was written."""
    clock, stride = time.monotonic_ns, throughput.STRIDE
    full, free = os.open(there, os.O_WRONLY), os.open(back, os.O_RDONLY)
    n, marks = 0, [clock()]
    end = marks[0] + int(seconds * 1e9)
    while marks[-1] < end or not throughput.enough(marks):
        for _ in range(stride):
            if n >= SLOTS:
                os.read(free, 8)
            os.write(full, n.to_bytes(8, "little"))
            n += 1
        marks.append(clock())
    os.close(full)
    while os.read(free, 8):  # until the reader has them all
        pass
    os.close(free)
    return marks


def take(pipe: Pipe, there: str, back: str) -> int:
    """Reads numbers to the end; how many came in order."""
    full, free = os.open(there, os.O_RDONLY), os.open(back, os.O_WRONLY)
    n = 0
    while number := os.read(full, 8):
        if int.from_bytes(number, "little") != n:
            raise RuntimeError(f"{int.from_bytes(number, 'little')} came instead of {n}")
        n += 1
        os.write(free, number)
    os.close(full)
    os.close(free)
    return n


def ring(pipe: Pipe, bell: str, rounds: int) -> list[int]:
    """Writes the time, again and again, when the reader has had time to fall asleep."""
    rung, full = [], os.open(bell, os.O_WRONLY)
    for _ in range(rounds):
        time.sleep(wakeup.ASLEEP_S)
        rung.append(time.monotonic_ns())
        os.write(full, rung[-1].to_bytes(8, "little"))
    os.close(full)
    return rung


def hear(pipe: Pipe, bell: str) -> list[tuple[int, int]]:
    """What was written, and when it was read."""
    heard, full = [], os.open(bell, os.O_RDONLY)
    while number := os.read(full, 8):
        heard.append((int.from_bytes(number, "little"), time.monotonic_ns()))
    os.close(full)
    return heard


def both_sides(pipe: Pipe, seconds: float) -> list[int]:
    """Stamps and checks frames on one stream; the times at which each stride of them was launched,
    which a full queue holds up."""
    tools, clock = cuda_tools(), time.monotonic_ns
    words, wrong = tools.zeros(WORDS), tools.zeros(1)
    pointer = words.ptr
    stamp = tools.kernel("stamp", "driver", pointer, WORDS, 0)
    check = tools.kernel("check", "driver", pointer, WORDS, 0, wrong.ptr)
    tools.finish()
    n, marks = 0, [clock()]
    end = marks[0] + int(seconds * 1e9)
    while marks[-1] < end:
        for _ in range(throughput.STRIDE):
            stamp.launch(pointer, n)
            check.launch(pointer, n)
            n += 1
        marks.append(clock())
    if wrong.first():
        raise RuntimeError("a kernel found wrong words in its own process")
    return marks
