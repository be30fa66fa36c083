"""What the processes of a storm write down while they live.

A sheet is written with write(2), row by row, so that of a killed process tells how far it came.
"""

from __future__ import annotations

import mmap
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gpuring

WORDS = 64
META = [("producer", "i4"), ("k", "i8")]
ROW = np.dtype([("mark", "S1"), ("again", "?"), ("producer", "<i4"), ("k", "<i8"), ("seq", "<i8"),
                ("lost", "<i8")])  # fmt: skip
MARKS = {
    "J": "is about to join: producer = which name, seq = when the ring was created",
    "S": "has joined: seq = first sequence that its subscription covers, k = when that was made",
    "p": "is about to publish", "P": "has published",
    "A": "has a frame, and its content is right", "a": "had a frame when it was interrupted",
    "I": "was interrupted, and goes on",
    "L": "was interrupted in a loop, which may have released a frame that it never had",
    "Z": "has left: lost = 1 if it had everything that will ever be in the ring",
}  # fmt: skip
MOST_PROCESSES = 1 << 18
_RAMP = np.arange(WORDS, dtype="u4")


def content(producer: int, k: int) -> np.ndarray:
    """The content of a frame.  Every word follows from its producer and its number."""
    step, start = 2 * k + 1, producer * 0x9E3779B1 + k
    return _RAMP * np.uint32(step & 0xFFFFFFFF) + np.uint32(start & 0xFFFFFFFF)


class Sheet:
    """Rows in a file."""

    def __init__(self, path: Path, row: np.dtype[Any] = ROW) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._blank, self._row = np.zeros(1, row), np.zeros(1, row)

    def __call__(self, mark: str, **values: Any) -> None:
        self._row[0] = self._blank[0]
        self._row["mark"] = mark
        for name, value in values.items():
            self._row[name] = value
        os.write(self._fd, self._row.tobytes())

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class RingSheet(Sheet):
    """The rows of one peer.  The file is there before the peer joins."""

    def __init__(self, folder: Path, ring: gpuring.Ring, index: int, who: str) -> None:
        stats = ring.stats()
        path = folder / "rings" / stats.epoch / who
        path.parent.mkdir(exist_ok=True)
        super().__init__(path)
        self.epoch = stats.epoch
        self("J", producer=index, seq=stats.created_ns)


def read(path: Path, nbytes: int = -1, row: np.dtype[Any] = ROW) -> np.ndarray:
    """The complete rows of a file, or those in its first bytes."""
    if not path.exists():
        return np.zeros(0, row)
    with path.open("rb") as file:
        data = file.read(nbytes)
    return np.frombuffer(data[: len(data) // row.itemsize * row.itemsize], row)


class Progress:
    """One counter for each process, which rises with each frame."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
        if create:
            os.ftruncate(fd, 8 * MOST_PROCESSES)
        self._words = memoryview(mmap.mmap(fd, 8 * MOST_PROCESSES)).cast("q")
        os.close(fd)

    def __getitem__(self, process: int) -> int:
        return self._words[process]

    def step(self, process: int) -> None:
        self._words[process] += 1


class Findings:
    """Faults that processes have found, one line each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def add(self, who: str, what: str, error: BaseException | None = None) -> None:
        text = f"{who}: {what}"
        if error is not None:
            text += "\n    " + "    ".join(traceback.format_exception(error))
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        os.write(fd, (text.rstrip() + "\0").encode())
        os.close(fd)

    def __iter__(self) -> Iterator[str]:
        return iter(self._path.read_bytes().decode().split("\0")[:-1])


def load(folder: Path) -> dict[str, Any]:
    """The sheets of one ring, by their writers."""
    return {path.name: read(path) for path in sorted(folder.iterdir())}
