"""Both commands of a bridge are killed whole, at random, while frames go through it.

`python -m tests.bridge.killed_commands --frames 20000 --kills 20` prints what the far reader got.
A kill takes the supervisor, and its worker ends by that.  Needs pyzmq.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gpuring
from tests.helpers.commands import COMMAND, environment
from tests.helpers.processes import poll

WAIT_S = 60.0
SLOTS = 16


class Command:
    """A command that is started again when it was killed."""

    def __init__(self, *options: str) -> None:
        self.options = options
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "bridge", *self.options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=environment(), text=True,
        )  # fmt: skip

    def kill(self) -> None:
        """Kills the command.  Returns when its worker is gone, too, because both have the same
        standard error."""
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)

    def look(self) -> None:
        assert self.process.poll() is None, self.process.communicate(timeout=WAIT_S)[1]

    def end(self, how: int = signal.SIGINT) -> int:
        self.process.send_signal(how)
        self.process.communicate(timeout=WAIT_S)
        return self.process.returncode


@dataclass
class Told:
    """What a far reader got."""

    numbers: list[int] = field(default_factory=list)
    lost: int = 0
    kills: int = 0
    seconds: float = 0.0

    def take(self, slot: gpuring.ReadSlot) -> None:
        with slot:
            self.numbers.append(int(slot.array[0]))
            assert (slot.array == slot.array[0]).all()
            self.lost += slot.lost

    @property
    def is_in_order(self) -> bool:
        return all(a < b for a, b in zip(self.numbers, self.numbers[1:], strict=False))


def near_ring(name: str) -> gpuring.Ring:
    return gpuring.create(name, slots=SLOTS, shape=64, dtype="i8", device="host")


def put(producer: gpuring.Producer, n: int) -> None:
    with producer.claim(timeout=WAIT_S) as slot:
        slot.array[...] = n


def commands(near: str, far: str, *more: str) -> tuple[Command, Command]:
    """An exporter with `more` options, and an importer, with a port of their own."""
    port = random.Random(os.getpid() ^ time.monotonic_ns()).randrange(10_000, 30_000)
    where = f"127.0.0.1:{port}"  # the kernel gives no such port to programs that ask for any
    out = Command("export", near, "--listen", where, *more)
    return out, Command("import", f"{where}/{near}", "--as", far, "--device", "host")


def storm(
    near: str, far: str, *, frames: int, kills: int, seed: int, rate: float | None = None
) -> Told:
    """`rate`: how many frames a second are published.  None: as many as there is room for."""
    chance, told = random.Random(seed), Told()
    at = sorted(chance.sample(range(frames // 20, frames - frames // 20), kills))
    until = [0]
    begun = time.monotonic()

    def publish() -> None:
        for n in range(frames):
            if rate is not None:
                time.sleep(max(0.0, begun + n / rate - time.monotonic()))
            put(producer, n)
            until[0] = n + 1

    with near_ring(near) as ring, ring.producer() as producer:
        sides = commands(near, far)
        try:
            with (
                gpuring.attach(far, timeout=WAIT_S) as there,
                there.consumer("reader", start="oldest") as reader,
            ):
                poll(lambda: ring.stats().subscriptions, WAIT_S)
                thread = threading.Thread(target=publish, daemon=True)
                thread.start()
                patience = time.monotonic() + WAIT_S
                while time.monotonic() < patience:
                    if at and until[0] >= at[0]:
                        at.pop(0)
                        whom = chance.choice(sides)
                        whom.kill()
                        told.kills += 1
                        whom.start()
                    try:
                        told.take(reader.acquire(timeout=0.05))
                    except gpuring.PeerLost:
                        time.sleep(0.005)  # the error comes again until there is a producer
                    except gpuring.RingTimeout:
                        if until[0] == frames:
                            for side in sides:
                                side.look()
                    else:
                        patience = time.monotonic() + WAIT_S
                    if told.numbers and told.numbers[-1] == frames - 1:
                        break
                thread.join(WAIT_S)
        finally:
            for side in reversed(sides):
                side.end()
    told.seconds = time.monotonic() - begun
    return told


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=None)
    options = vars(parser.parse_args(arguments))
    name = f"killed-{os.getpid()}"
    told = storm(name, f"{name}-far", **options)
    got, unique = len(told.numbers), len(set(told.numbers))
    print(f"{gpuring.__file__}: {told.kills} kills of whole commands in {told.seconds:.0f} s")
    print(f"got {got} frames, {unique} different, in order: {told.is_in_order}, lost {told.lost}")
    for left in Path("/dev/shm").glob(f"gpuring.{name}*"):
        print("left:", left.name)


if __name__ == "__main__":
    main(sys.argv[1:])
