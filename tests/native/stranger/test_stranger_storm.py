"""Clients in C and Python programs in one ring are killed and stopped in turns, and others take
their place.  Afterwards what all have written down is compared: no frame of a lossless subscription
is lost, and none is read twice unless its first reader was killed while it had it.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

import gpuring
from tests.helpers.compiled import BUILD_S, build_alone, needs_compiler
from tests.helpers.processes import PATIENCE_S, Child, Pipe, poll
from tests.native.stranger import CLIENT, FLAGS, Frame, Stranger, fill, frame_of, make, once, read

pytestmark = [needs_compiler, pytest.mark.deadline(BUILD_S + 240)]

SANITIZERS = [*FLAGS, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
SUBSCRIPTION = "g"
WORDS = 4096
"""So many that a process that is killed is often just writing or reading a frame."""


def writes(pipe: Pipe, name: str, who: int, book: Path) -> None:
    """Writes frames until it is told to end."""
    with gpuring.attach(name) as ring, ring.producer() as producer, book.open("wb", 0) as file:
        pipe.send()
        for k in itertools.count():
            if pipe.told():
                return
            with producer.claim(timeout=PATIENCE_S) as slot:
                fill(slot, who, k)
            file.write(f"{slot.seq} {who} {k}\n".encode())


def reads(pipe: Pipe, name: str, book: Path) -> None:
    """Reads to the end of the stream.  Notes each frame before it releases it."""
    with (
        gpuring.attach(name) as ring,
        ring.consumer(SUBSCRIPTION) as consumer,
        book.open("wb", 0) as file,
    ):
        pipe.send()
        for slot in consumer:
            frame = frame_of(slot)
            file.write(f"{frame.seq} {frame.who} {frame.k} {int(frame.again)}\n".encode())


class Storm:
    """Two writers and two readers: one client and one Python program for each role.  A third
    client, the auditor, reads all frames and is never hit."""

    def __init__(
        self, name: str, folder: Path, start: Callable[..., Stranger],
        children: Callable[..., Child],
    ) -> None:  # fmt: skip
        self._name, self._folder, self._start, self._children = name, folder, start, children
        self._numbers = itertools.count(1)
        self._made: dict[str, Callable[[], Stranger | Child]] = {
            "C reader": lambda: self._client("consume", SUBSCRIPTION, "lossless", "next"),
            "Python reader": lambda: self._program(reads),
            "C writer": lambda: self._client("produce", self._who, 0),
            "Python writer": lambda: self._program(writes, self._who),
        }
        self.books: dict[int, Path] = {}
        """By pid."""
        self.killed: set[int] = set()
        self.pids: dict[str, set[int]] = defaultdict(set)
        self.auditor = start("consume", name, "auditor", "lossless", "next")
        self.auditor.number()
        self.there = {role: self._new(role) for role in self._made}

    @property
    def _who(self) -> int:
        return next(self._numbers)

    def _client(self, what: str, *options: object) -> Stranger:
        client = self._start(what, self._name, *options)
        client.number()
        self.books[client.pid] = client.output
        return client

    def _program(self, target: Callable[..., None], *options: object) -> Child:
        book = self._folder / f"program-{len(self.books)}"
        child = self._children(target, self._name, *options, book)
        child.receive()
        self.books[child.pid] = book
        return child

    def _new(self, role: str) -> Stranger | Child:
        made = self._made[role]()
        self.pids[role.split()[1]].add(made.pid)
        return made

    # ---- troubles ------------------------------------------------------------------------------

    def trouble(self, chance: random.Random) -> None:
        """Kills one of them, while another one may be stopped.  The others have to go on."""
        hit, other = chance.sample([*self.there], 2)
        if stops := chance.random() < 0.5:
            self.there[other].stop()
        if isinstance(victim := self.there[hit], Stranger):
            victim.check()
        victim.kill()
        self.killed.add(victim.pid)
        if stops:
            os.kill(self.there[other].pid, signal.SIGCONT)
        self.there[hit] = self._new(hit)
        seen = self._audited()
        poll(lambda: self._audited() > seen + 2000)  # about a hundred frames

    def _audited(self) -> int:
        return self.auditor.output.stat().st_size

    def end(self, ring: gpuring.Ring) -> None:
        """The writers leave, and then the readers read to the end."""
        for role in ("C writer", "Python writer"):
            writer = self.there[role]
            if isinstance(writer, Stranger):
                writer.send(signal.SIGTERM)
                assert writer.end() == "done"
            else:
                writer.send()
                writer.result()
        ring.close()
        for reader in (self.there["C reader"], self.there["Python reader"], self.auditor):
            if isinstance(reader, Stranger):
                assert reader.end() == "ended"
            else:
                reader.result()

    # ---- the books -----------------------------------------------------------------------------

    def balance(self) -> None:
        all_of_them = self.auditor.frames
        assert [each.seq for each in all_of_them] == sorted(each.seq for each in all_of_them)
        audited = once(all_of_them)
        assert len({(each.who, each.k) for each in all_of_them}) == len(all_of_them)

        readings: dict[int, list[tuple[int, Frame]]] = defaultdict(list)
        last: dict[int, Frame] = {}
        for pid in self.pids["reader"]:
            for frame in read(self.books[pid]):
                readings[frame.seq].append((pid, frame))
                last[pid] = frame
        assert readings.keys() == audited.keys()
        for seq, had in readings.items():
            assert {each._replace(again=False) for _, each in had} == {audited[seq]}
            with_it = [pid for pid, each in had if pid in self.killed and last[pid] == each]
            assert len(had) - len(with_it) <= 1, f"{seq} was read by {had}"
            assert sum(not each.again for _, each in had) <= 1, f"{seq} was read by {had}"

        written = [each for pid in self.pids["writer"] for each in read(self.books[pid])]
        assert once(written).items() <= audited.items()
        # a writer may be killed between publishing and noting it
        assert len(audited) - len(written) <= len(self.killed & self.pids["writer"])


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("troubles", [12, 150])
def test_no_frame_is_lost_and_none_is_read_twice(
    name, tmp_path, stranger, children, troubles, chance
):
    ring = make(name, WORDS, producers=4095)  # until it is closed, the stream goes on
    storm = Storm(name, tmp_path, stranger, children)
    for _ in range(troubles):
        storm.trouble(chance)
    storm.end(ring)
    storm.balance()


@pytest.mark.slow
def test_the_client_is_sound(name, tmp_path, tmp_path_factory, stranger, children, chance):
    """The client runs with sanitizers, which end it at the first fault."""
    program = build_alone(tmp_path_factory.mktemp("sanitized"), CLIENT, SANITIZERS)
    ring = make(name, WORDS, producers=4095)

    def start(*options: object) -> Stranger:
        return stranger(*options, program=program)

    storm = Storm(name, tmp_path, start, children)
    for _ in range(12):
        storm.trouble(chance)
    storm.end(ring)
    storm.balance()


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """A random generator whose seed is shown if the test fails."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    return random.Random(seed)
