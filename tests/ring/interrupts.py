"""10,000 times Ctrl-C in the middle of a verb: what is still claimed or held, seen from outside.

    python -m tests.ring.interrupts --signals 10000 --seed 1

A child calls one verb again and again while another process makes or reads the frames, so that
slots come free at the same moments.  It catches KeyboardInterrupt, drops what it had, and goes on
with the same producers and consumers.  This process interrupts it, and looks at the rings itself:
before the child's next verb, where something may be left, and after it, where nothing may.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import gpuring
from tests.helpers import loops
from tests.helpers.processes import Child, Pipe

PATIENCE_S = 20
SLOTS = 4
ENDED = (gpuring.RingTimeout, gpuring.RingFull)


class Peers:
    """What the child plays with.  Each ring has another process at its other end."""

    def __init__(self, into: gpuring.Ring, out: gpuring.Ring) -> None:
        self.producer = into.producer()
        self.consumer, self.second = out.consumer(), out.consumer(lossless=False)
        self.lossy = out.consumer(lossless=False)


def claim(peers: Peers) -> None:
    slot = peers.producer.claim()
    slot.publish()


def claim_with(peers: Peers) -> None:
    with peers.producer.claim() as slot:
        slot.array[0] = 1


def claim_many(peers: Peers) -> None:
    with peers.producer.claim_many(3):
        pass


def acquire(peers: Peers) -> None:
    slot = peers.consumer.acquire()
    slot.release()


def acquire_with(peers: Peers) -> None:
    with peers.consumer.acquire() as slot:
        slot.array.sum()


def acquire_many(peers: Peers) -> None:
    with peers.consumer.acquire_many(3):
        pass


def latest(peers: Peers) -> None:
    with peers.lossy.latest():
        pass


def loop(peers: Peers) -> None:
    for slot in peers.consumer:
        slot.array.sum()


def select(peers: Peers) -> None:
    for each in gpuring.select([peers.consumer, peers.second]):
        with contextlib.suppress(gpuring.RingTimeout), each.acquire(0):
            pass


def claim_async(peers: Peers) -> None:
    async def main() -> None:
        while True:
            with await peers.producer.claim_async():
                pass

    loops.run(main())


def acquire_async(peers: Peers) -> None:
    async def main() -> None:
        while True:
            (await peers.consumer.acquire_async()).release()

    loops.run(main())


def loop_async(peers: Peers) -> None:
    async def main() -> None:
        async for slot in peers.consumer:
            slot.array.sum()

    loops.run(main())


VERBS: dict[str, Callable[[Peers], None]] = {
    each.__name__: each
    for each in (claim, claim_with, claim_many, acquire, acquire_with, acquire_many, latest, loop,
                 select, claim_async, acquire_async, loop_async)
}  # fmt: skip


class Switch:
    """Raises KeyboardInterrupt while it is on; again and again, for a `__del__` swallows one."""

    def __init__(self) -> None:
        self.on = False
        signal.signal(signal.SIGINT, self._raise)

    def _raise(self, *_: Any) -> None:
        if self.on:
            raise KeyboardInterrupt


def victim(pipe: Pipe, into: str, out: str) -> None:
    """Is told verbs; says when it is in one, when it was interrupted, when it has made one more."""
    switch = Switch()
    faulthandler.register(signal.SIGUSR1)
    warnings.simplefilter("ignore", ResourceWarning)
    with gpuring.attach(into) as one, gpuring.attach(out) as other:
        peers = Peers(one, other)
        pipe.send(os.getpid())
        while verb := pipe.receive():
            play, refused = VERBS[verb], 0
            pipe.send()
            try:
                try:
                    switch.on = True
                    while True:
                        refused += not played(play, peers)
                except KeyboardInterrupt:
                    switch.on = False
            except KeyboardInterrupt:  # the next one already
                switch.on = False
            pipe.send(refused)
            pipe.receive()
            next_verbs(peers)
            pipe.send()
            if pipe.receive():  # something is left: cycles may keep it, as those of an event loop
                gc.collect()
                next_verbs(peers)
                pipe.send()


def played(play: Callable[[Peers], None], peers: Peers) -> bool:
    """False: a task of an event loop that an interrupt has ended is still there, and waits."""
    try:
        play(peers)
    except RuntimeError as error:
        if "awaited by another task" not in str(error):
            raise
        gc.collect()
        return False
    return True


def next_verbs(peers: Peers) -> None:
    for endpoint in (peers.consumer, peers.second, peers.lossy):
        with contextlib.suppress(*ENDED):
            endpoint.acquire(0).release()
    with contextlib.suppress(*ENDED):
        peers.producer.claim(0).abandon()


def partner(pipe: Pipe, into: str, out: str) -> None:
    """Reads what the victim makes, and makes what it reads, at a pace that changes."""
    chance = random.Random(0)
    with (
        gpuring.attach(into) as one,
        gpuring.attach(out) as other,
        one.consumer() as frames,
        other.producer() as producer,
    ):
        pipe.send()
        while not pipe.told():
            for _ in range(chance.randrange(1, 40)):
                with contextlib.suppress(gpuring.RingTimeout):
                    frames.acquire(0).release()
                with contextlib.suppress(gpuring.RingFull):
                    producer.claim(0).publish()
            time.sleep(chance.random() * 0.0005)


def held(rings: list[gpuring.Ring], pid: int) -> int:
    """Claims and holds of a process."""
    peers = [peer for ring in rings for peer in ring.stats().peers if peer.pid == pid]
    return sum(len(peer.holding) for peer in peers)


def storm(signals: int, seed: int, verbs: list[str]) -> dict[str, Counter[str]]:
    """How often each verb was interrupted, and left something before and after the next one."""
    chance, found = random.Random(seed), {verb: Counter[str]() for verb in verbs}
    names = [f"interrupts-{os.getpid()}-{k}" for k in range(2)]
    children: list[Child] = []
    options: dict[str, Any] = {"slots": SLOTS, "shape": 8, "dtype": "u1", "device": "host"}
    with gpuring.create(names[0], **options) as one, gpuring.create(names[1], **options) as other:
        try:
            one_victim = Child(victim, tuple(names), PATIENCE_S)
            children.append(one_victim)
            children.append(Child(partner, tuple(names), PATIENCE_S))
            pid = one_victim.receive()
            children[1].receive()
            for k in range(signals):
                verb = verbs[k % len(verbs)]
                one_victim.send(verb)
                one_victim.receive()
                time.sleep(chance.random() * chance.choice([0.0001, 0.001, 0.003]))
                until = time.monotonic() + PATIENCE_S
                os.kill(pid, signal.SIGINT)
                while not one_victim.pipe.poll(0.05):  # it met the switch off, or a `__del__`
                    os.kill(pid, signal.SIGINT)
                    if time.monotonic() > until:
                        os.kill(pid, signal.SIGUSR1)  # faulthandler says where it is
                        raise AssertionError(f"{verb} is not to be interrupted")
                found[verb]["refused until the garbage was collected"] += one_victim.receive()
                found[verb]["interrupted"] += 1
                found[verb]["left before the next verb"] += bool(held([one, other], pid))
                one_victim.send()
                one_victim.receive()
                left = bool(held([one, other], pid))
                found[verb]["left after it"] += left
                one_victim.send(left)
                if left:
                    one_victim.receive()
                    left = bool(held([one, other], pid))
                    found[verb]["left after the garbage was collected"] += left
        finally:
            for child in children:
                child.end()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--signals", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbs", nargs="*", choices=VERBS, default=list(VERBS))
    args = parser.parse_args()
    found = storm(args.signals, args.seed, args.verbs)
    for verb, counts in found.items():
        print(f"{verb:>14}", ", ".join(f"{n} {what}" for what, n in counts.items()))
    print(
        f"{'all':>14}",
        ", ".join(f"{n} {what}" for what, n in sum(found.values(), Counter()).items()),
    )
    wrong = {
        verb: counts[
            # The task of an event loop that is over, and its exception, refer to each other.
            "left after the garbage was collected" if verb.endswith("_async") else "left after it"
        ]
        for verb, counts in found.items()
    }
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
