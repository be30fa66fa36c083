"""A client in C that was written from docs/abi.md alone (client/), beside Python programs.

What a frame holds, and how both sides write down what they had, is that of client/main.c.
"""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gpuring
from tests.helpers.processes import PATIENCE_S, Pipe, poll

CLIENT = Path(__file__).with_name("client")
FLAGS = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion"]
FLAGS += ["-Wno-sign-conversion", "-Wshadow", "-Wstrict-prototypes", "-Werror"]
WORDS = 32
_CONTENT = np.arange(1 << 12, dtype="u8") * np.uint64(0x9E3779B97F4A7C15)


class Frame(NamedTuple):
    seq: int
    who: int
    k: int
    again: bool = False


class Stranger:
    """A process of the client.  Its output goes to a file, so it never waits for us to read."""

    def __init__(self, program: Path, output: Path, *options: object, paused: bool) -> None:
        self.output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [program, *map(str, options)], stdout=file, stderr=subprocess.PIPE,
                stdin=subprocess.PIPE if paused else subprocess.DEVNULL,
            )  # fmt: skip
        self.pid = self.process.pid

    @property
    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    @property
    def frames(self) -> list[Frame]:
        """The frames that it has written or read so far."""
        return read(self.output)

    def said(self, line: str) -> None:
        """Waits until it has printed that."""

        def has_said() -> bool:
            if not (has := line in self.lines):
                self.check()
            return has

        poll(has_said)

    def has(self, n: int) -> None:
        """Waits until it has had n frames."""

        def has_had() -> bool:
            if not (has := len(self.frames) >= n):
                self.check()
            return has

        poll(has_had)

    def number(self) -> int:
        """Waits until it has joined.  Returns the peer's number."""

        def joined() -> list[str]:
            if not (lines := self.lines):
                self.check()
            return lines

        return int(poll(joined)[0].removeprefix("joined as "))

    def step(self) -> None:
        """Lets it go on with the frame that it has, or that it gets next."""
        assert self.process.stdin
        self.process.stdin.write(b".")
        self.process.stdin.flush()

    def free(self) -> None:
        """Lets it go on without steps."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.stdin = None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """Stops it.  It has stopped when this returns."""
        self.send(signal.SIGSTOP)
        stat = Path(f"/proc/{self.pid}/stat")
        poll(lambda: stat.read_text().rpartition(") ")[2].startswith("T"))

    def check(self) -> None:
        """Checks that it runs."""
        assert self.process.poll() is None, self.error()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def end(self) -> str:
        """Waits until it has ended by itself.  Returns the reason that it prints."""
        _, error = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, error.decode()
        return self.lines[-1]

    def lost(self) -> int:
        return int(self.lines[-2].removeprefix("lost "))

    def error(self) -> str:
        _, error = self.process.communicate(timeout=PATIENCE_S)
        return str(error.decode())


def read(path: Path) -> list[Frame]:
    rows = [line.split() for line in path.read_text().splitlines()]
    frames = [[int(each) for each in row] for row in rows if row and row[0].isdigit()]
    return [Frame(*row[:3], again=row[3:] == [1]) for row in frames]


# ---- the same in Python --------------------------------------------------------------------------


def make(name: str, words: int = WORDS, slots: int = 8, **options: Any) -> gpuring.Ring:
    meta = [("frame", "<u8")]
    return gpuring.create(
        name, slots=slots, shape=words, dtype="<u8", meta=meta, device="host", **options
    )


def fill(slot: gpuring.WriteSlot, who: int, k: int) -> None:
    first = who << 32 | k
    slot.array[...] = np.uint64(first) + _CONTENT[: len(slot.array)]
    slot.meta["frame"] = first


def frame_of(slot: gpuring.ReadSlot) -> Frame:
    first = int(slot.array[0])
    assert (slot.array == np.uint64(first) + _CONTENT[: len(slot.array)]).all()
    assert slot.meta["frame"] == first
    return Frame(slot.seq, first >> 32, first & 0xFFFFFFFF, slot.redelivered)


def produce(producer: gpuring.Producer, who: int, numbers: Sequence[int]) -> list[Frame]:
    made = []
    for k in numbers:
        with producer.claim(timeout=PATIENCE_S) as slot:
            fill(slot, who, k)
        made.append(Frame(slot.seq, who, k))
    return made


def drain(consumer: gpuring.Consumer) -> list[Frame]:
    """Reads to the end of the stream."""
    frames = []
    for slot in consumer:
        frames.append(frame_of(slot))
    return frames


def once(frames: list[Frame]) -> dict[int, Frame]:
    """The frames by their sequences.  Checks that none is there twice."""
    assert not [seq for seq, times in Counter(each.seq for each in frames).items() if times > 1]
    return {each.seq: each._replace(again=False) for each in frames}


def has_a_claim(pipe: Pipe, name: str) -> None:
    with gpuring.attach(name) as ring, ring.producer() as producer:
        slot = producer.claim(timeout=PATIENCE_S)
        pipe.ask(slot.seq)


def has_a_frame(pipe: Pipe, name: str, subscription: str) -> None:
    with gpuring.attach(name) as ring, ring.consumer(subscription) as consumer:
        pipe.send()
        pipe.ask(frame_of(consumer.acquire(timeout=PATIENCE_S)))
