"""How fast a recorder writes frames of 1080p NV12, compared with `cat` of the same file.

    python -m bench.recording [--rounds 5] [--folder DIR]... [--json FILE]

A producer in another process publishes 300 frames as fast as the recorder takes them.  The ways of
recording and `cat` take turns within each round.  What was recorded is read again and compared.
Without --folder it writes to /dev/shm and to the current folder, 1 GB at a time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import gpuring
from bench import options
from gpuring.cli.measure import stored
from gpuring.cli.measure.attempt import Wrong
from gpuring.cli.measure.crew import Crew, Pipe
from gpuring.cli.measure.figures import Distribution, Figure
from gpuring.cli.measure.settings import remove_rings, ring_name

GROUP = "recording"
FRAMES, SLOTS = 300, 8
FIELDS: dict[str, Any] = {"y": ((1080, 1920), "u1"), "uv": ((540, 960, 2), "u1")}
NBYTES = 1080 * 1920 * 3 // 2
PATIENCE_S = 60.0
WAYS: dict[str, dict[str, bool]] = {
    "plain": {},
    "durable": {"durable": True},
    "zstd": {"compressed": True},
}


class Speed(NamedTuple):
    gb_s: float
    """Gigabytes of frames in a second."""
    cpu_ms: float
    """Of the recorder, for each frame."""


class Times(NamedTuple):
    s: float
    cpu_s: float
    """Of this process and of those that it has waited for."""

    @classmethod
    def now(cls) -> Times:
        user, system, children_user, children_system, elapsed = os.times()
        return cls(elapsed, user + system + children_user + children_system)

    def speed(self) -> Speed:
        """The speed since these times."""
        now = Times.now()
        return Speed(
            FRAMES * NBYTES / 1e9 / (now.s - self.s), 1e3 * (now.cpu_s - self.cpu_s) / FRAMES
        )


def pictures() -> list[dict[str, Any]]:
    """A slope with a little noise, which compresses about as well as video of a camera."""
    noise = np.random.default_rng(28)
    slope = np.add.outer(np.arange(1080), np.arange(1920)) // 8 % 200
    return [
        {
            "y": (slope + noise.integers(0, 4, slope.shape)).astype("u1"),
            "uv": noise.integers(126, 130, (540, 960, 2)).astype("u1"),
        }
        for _ in range(4)
    ]


def publish(pipe: Pipe, name: str) -> None:
    sources = pictures()
    with (
        gpuring.create(name, slots=SLOTS, fields=FIELDS, device="host") as ring,
        ring.producer() as producer,
    ):
        pipe.send()
        pipe.receive()  # the recorder has joined
        for k in range(FRAMES):
            with producer.claim(PATIENCE_S) as slot:
                for field, array in sources[k % 4].items():
                    slot[field][...] = array


def record(crew: Crew, path: Path, *, durable: bool = False, compressed: bool = False) -> Speed:
    from gpuring.recording.files import Files  # needs mcap
    from gpuring.recording.recorder import Recorder, Source

    name = ring_name()
    with crew.start(publish, name) as producer:
        producer.receive()
        with Source(name, lossless=True, durable="recorder" if durable else None) as source:
            recorder = Recorder([source], Files(path, durable=durable, compressed=compressed))
            producer.send()
            begun = Times.now()
            recorder.run()
            speed = begun.speed()
        producer.result()
    return speed


def cat(path: Path) -> Speed:
    with path.open("rb") as source, path.with_suffix(".cat").open("wb") as target:
        begun = Times.now()
        subprocess.run(["cat"], stdin=source, stdout=target, check=True, timeout=PATIENCE_S)
        return begun.speed()


def check(path: Path) -> None:
    from gpuring.recording import read

    sources = pictures()
    found = 0
    for frame in read(path):
        for field, array in sources[found % 4].items():
            if not np.array_equal(frame[field], array):
                raise Wrong(f"frame {found} of {path} differs")
        found += 1
    if found != FRAMES:
        raise Wrong(f"{path} has {found} frames of {FRAMES}")


def measure(crew: Crew, folder: Path) -> Iterator[tuple[str, Speed]]:
    """Measures one round."""
    with TemporaryDirectory(dir=folder) as place:
        for way, how in WAYS.items():
            path = Path(place) / f"{way}.mcap"
            yield way, record(crew, path, **how)
            check(path)
            if way == "plain":
                yield "cat", cat(path)
            for file in Path(place).iterdir():
                file.unlink()


def figures(rounds: int, folders: list[Path]) -> Iterator[Figure]:
    with Crew() as crew, contextlib.ExitStack() as stack:
        stack.callback(remove_rings)
        for folder in folders:
            found: dict[str, list[Speed]] = {}
            for _ in range(rounds + 1):
                for way, speed in measure(crew, folder):
                    found.setdefault(way, []).append(speed)
            for way, all_of_them in found.items():
                where, kept = f"{way}, {folder}", all_of_them[1:]  # the first round warms up
                for what, unit, values in (
                    ("written", "GB/s", [speed.gb_s for speed in kept]),
                    ("CPU of a frame", "ms", [speed.cpu_ms for speed in kept]),
                ):
                    spread = Distribution.of(values)
                    yield Figure(GROUP, what, where, unit, values=spread, verified="every byte")


def main() -> int:
    from gpuring.recording.files import keep_freed_memory

    parser = options.parser("python -m bench.recording", __doc__)
    options.add_rounds(parser, 5)
    parser.add_argument("--folder", type=Path, action="append", metavar="DIR", help="to write to")
    options.add_json(parser)
    args = parser.parse_args()
    keep_freed_memory()  # the command does so, too
    folders = args.folder or [Path("/dev/shm"), Path()]
    return stored.run(figures(args.rounds, folders), sys.argv[1:], args.json).status


if __name__ == "__main__":
    options.run(main)
