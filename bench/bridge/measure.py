"""One carrier at work between a producer and a reader, in one setting."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.bridge import carriers, ends
from bench.bridge.carriers import HERE, Carrier
from bench.cpu import with_children_s
from gpuring.cli.measure.attempt import Wrong
from gpuring.cli.measure.crew import Crew, Part
from gpuring.cli.measure.settings import ring_name

END_S = 10


@dataclass
class Taken:
    """The figures of one carrier in one round.  Times are in seconds."""

    gb_s: float = 0
    near_s: float = 0
    """CPU time a frame of the process beside the near ring, saturated."""
    far_s: float = 0
    paced_s: list[float] = field(default_factory=list)
    """One way, of each frame, when they come at a leisurely pace."""
    saturated_s: list[float] = field(default_factory=list)


@contextlib.contextmanager
def carried(
    carrier: Carrier, crew: Crew, nbytes: int, slots: int, delay_ms: float = 0
) -> Iterator[Between]:
    """A producer, a carrier and a reader, which end with the block.  With `delay_ms` everything
    that the two sides of the carrier send to each other arrives so much later."""
    near, far, port = ring_name(), ring_name(), free_port()
    to_port = free_port() if delay_ms else port
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(crew.start(ends.produce, near, nbytes, slots))
        producer.receive()
        make = not carrier.engine
        reader = stack.enter_context(crew.start(ends.read, far, nbytes, slots, make))
        if make:
            reader.receive()
        if delay_ms:
            link = carriers.command("bench.bridge.relay", port, to_port, delay_ms)
            stack.enter_context(running(link))
        commands = (carrier.near(near, to_port), carrier.far(far, port, near, slots))
        processes = []
        for command in commands:
            processes.append(stack.enter_context(running(command)))
        if not make:
            reader.receive()
        yield Between(producer, reader, *(process.pid for process in processes))
        for part in (producer, reader):
            part.send(None)
            part.result()


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.create_server((HERE, 0)) as server:
        return int(server.getsockname()[1])


@dataclass
class Between:
    """The two ends, and the processes between them."""

    producer: Part
    reader: Part
    near_pid: int
    far_pid: int

    def send(
        self,
        kind: str,
        until: float = 0,
        every_s: float = 0,
        meanwhile: Callable[[], None] | None = None,
    ) -> tuple[list[int], list[int]]:
        """Lets frames be sent and read.  Returns the one-way time and the arrival of each in ns.
        Raises Wrong.  `kind` is "verify", "spoil" (a frame has a wrong word) or "timed".  It may
        also be "until told": then `meanwhile` is called when the first frame has come, and the last
        frame is sent when that has returned."""
        self.reader.send("verify" if kind == "spoil" else kind)
        self.producer.send((kind, until, every_s))
        if meanwhile is not None:
            self.reader.receive()
            meanwhile()
            self.producer.send("end")
        sent, _ = self.producer.receive()
        wrong, took, came = self.reader.receive()
        if wrong or len(took) != sent:
            raise Wrong(f"{wrong} words differ, and of {sent} frames {len(took)} came")
        return took, came

    def measure(self, seconds: float, every_s: float, paced: int, verified: int) -> Taken:
        """Verifies some frames, sends as many as possible for some seconds, and then `paced` frames
        at a slow pace."""
        self.send("verify", verified)
        before = self.cpu_s()
        took, came = self.send("timed", seconds)
        near_s, far_s = (after - was for after, was in zip(self.cpu_s(), before, strict=True))
        taken = Taken(near_s=near_s / len(came), far_s=far_s / len(came))
        taken.saturated_s = (np.array(took) / 1e9).tolist()
        taken.gb_s = (len(came) - 1) / max(1, came[-1] - came[0])  # frames a ns
        took, _ = self.send("timed", paced * every_s, every_s)
        taken.paced_s = (np.array(took) / 1e9).tolist()
        return taken

    def cpu_s(self) -> tuple[float, float]:
        """CPU time of the near and of the far side, with all processes that they have started."""
        return with_children_s(self.near_pid), with_children_s(self.far_pid)


def idle_percent(carrier: Carrier, crew: Crew, seconds: float) -> tuple[float, float]:
    """The CPU use of the two sides of a bridge while no frame comes, in percent of a core."""
    with carried(carrier, crew, 1 << 16, 8) as between:
        between.send("verify", 16)
        time.sleep(1)
        before, begun = between.cpu_s(), time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - begun
        after: Any = between.cpu_s()
        return tuple(100 * (now - was) / passed for now, was in zip(after, before, strict=True))
