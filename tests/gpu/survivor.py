"""A process that survives a death: how long it may wait, and what it checks afterwards."""

from __future__ import annotations

import json
import os
import select
import threading
import time
from pathlib import Path
from typing import Any

import gpuring
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.helpers.processes import PATIENCE_S, Child

HELD_S = 60  # how long a victim's GPU work would take if it lived
RECOVERY_S = 40
"""What is asserted is that survivors go on at all, and before the victim's work would have ended.

On a GPU that many processes share, the kernel may need seconds to remove a context, and streams
wait for their turns."""


def my_turn(pipe):
    """Sends that this process is up, with a CUDA context, and waits for its turn.

    Returns a stream, our kernels, and a latch that may hold the stream until it is killed."""
    kernels = tools()
    stream = library.new_stream()
    pipe.ask("up")
    return stream, kernels, kernels.Latch(limit_s=HELD_S)


def started(children, count, target, *args):
    """Children that are up: each has a CUDA context already."""
    found = [children(target, *args) for _ in range(count)]
    for child in found:
        assert child.receive() == "up"
    return found


def publish_and_hang(pipe, name, device=0):
    """Publishes a frame that this GPU does not write."""
    library.use(device)
    stream, kernels, latch = my_turn(pipe)
    producer = gpuring.attach(name, timeout=20).producer(gate="stream")
    slot = producer.claim(10, stream=stream)
    latch.hold(stream)
    kernels.stamp(slot, slot.seq, stream)
    slot.publish()
    pipe.ask("published")


class Killing:
    """Kills a victim by SIGKILL after `delay_s`, and takes the time until the kernel has removed
    the process with its GPU context.  Nobody can go on before that."""

    def __init__(self, victim: Child, delay_s: float = 0) -> None:
        self._victim = victim
        self._pidfd = os.pidfd_open(victim.pid)
        self._thread = threading.Timer(delay_s, self._run)
        self._thread.start()

    def _run(self) -> None:
        self.sent = time.monotonic()
        self._victim.process.kill()
        select.select([self._pidfd], [], [], PATIENCE_S)
        self._gone = time.monotonic()
        os.close(self._pidfd)

    def waited_s(self) -> tuple[float, float]:
        """How long the caller has waited until now, and for how much of that time the victim was
        there."""
        now = time.monotonic()
        self._thread.join()
        return now - self.sent, self._gone - self.sent


def report(figures: dict[str, Any]) -> None:
    """Prints figures, and appends them as a line of JSON to the file that GPURING_FIGURES names."""
    print(figures)
    if path := os.environ.get("GPURING_FIGURES"):
        with Path(path).open("a") as file:
            file.write(json.dumps(figures) + "\n")


def still_healthy(round_number):
    """Checks that this process can load a kernel and allocate.  With a stuck stream it could do
    neither."""
    name = f"k{round_number}"
    source = f'extern "C" __global__ void {name}(long long *x) {{ *x = {round_number}; }}'
    x = library.zeros(1)
    library.launch(source, name, library.current_stream(), library.span(x)[:1])
    assert library.to_host(x).tolist() == [round_number]


def ring_is_whole(ring):
    """Goes through every slot twice, so none was lost."""
    kernels = tools()
    wrong = kernels.counter()
    with ring.consumer() as consumer, ring.producer() as producer:
        for _ in range(2 * ring.slots):
            with producer.claim(10) as slot:
                kernels.stamp(slot, slot.seq, None)
            with consumer.acquire(10) as slot:
                kernels.check(slot, slot.seq, wrong, None)
    assert kernels.count(wrong) == 0
