"""Real processes over real shared memory at full speed; afterwards their books must balance.

Every frame's whole content follows from (producer, k), so a torn or overwritten one cannot pass.
Short by default; `--stress-seconds 60` (or GPURING_STRESS_SECONDS) makes each configuration run on.
tests/storm/soak.py kills some of them.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

import gpuring
from gpuring.native.snapshot import snapshot
from tests.helpers.places import Place
from tests.helpers.processes import Pipe

WORDS = 1000
META = [("producer", "i4"), ("k", "i8")]
FRAMES = {False: 400, True: 60}
"""Of each producer when no time was asked for, by place.on_gpu.  Processes on a GPU take turns, so
a frame takes as long as all others that use it."""
_RAMP = np.arange(WORDS, dtype="u4")


def content(producer: int, k: int) -> np.ndarray:
    return _RAMP * np.uint32(2 * k + 1) + np.uint32(producer * 0x9E3779B1 + k & 0xFFFFFFFF)


@dataclass(frozen=True)
class Mix:
    """The peers of a run.  `shared` lists the member counts of lossless shared subscriptions."""

    slots: int
    producers: int = 1
    lossless: int = 0
    shared: tuple[int, ...] = ()
    lossy: int = 0
    latest: int = 0

    def __str__(self) -> str:
        return (
            f"{self.slots}slots-{self.producers}p-{self.lossless}all-"
            f"{'+'.join(map(str, self.shared)) or 0}shared-{self.lossy}lossy-{self.latest}latest"
        )


MIXES = (
    Mix(slots=1, lossless=1, lossy=1),
    Mix(slots=2, producers=2, shared=(2,), latest=2),
    Mix(slots=3, producers=2, lossless=1, shared=(2,), lossy=1, latest=1),
    Mix(slots=8, producers=1, lossless=2, shared=(3,)),
    Mix(slots=2, producers=2, lossy=2, latest=2),
)


# ---- roles -------------------------------------------------------------------------------------


def produce(pipe: Pipe, name: str, place: Place, me: int, frames: int, seconds: float) -> list[int]:
    """Publishes, and abandons every 17th claim.  Returns the k of each published frame."""
    published = []
    with gpuring.attach(name) as ring, ring.producer() as producer:
        pipe.ask()
        until = time.monotonic() + seconds
        k = 0
        while k < frames if not seconds else time.monotonic() < until:
            slot = producer.claim()
            place.fill(slot, content(me, k))
            slot.meta["producer"], slot.meta["k"] = me, k
            if k % 17 == 5:
                slot.abandon()
            else:
                slot.publish()
                published.append(k)
            k += 1
    return published


def consume(
    pipe: Pipe, name: str, place: Place, how: str, subscription: str | None
) -> list[tuple[int, int, int, int]]:
    """Reads to the end of the stream.  Returns (seq, producer, k, lost) of each frame."""
    seen = []
    with (
        gpuring.attach(name) as ring,
        ring.consumer(subscription, lossless=how == "lossless") as frames,
    ):
        pipe.send()
        while True:
            try:
                slot = frames.latest() if how == "latest" else frames.acquire()
            except gpuring.EndOfStream:
                return seen
            with slot:
                producer, k = int(slot.meta["producer"]), int(slot.meta["k"])
                got = place.read(slot)
                assert (got == content(producer, k)).all(), f"frame {slot.seq} is torn"
                assert (producer, k) == (slot.meta["producer"], slot.meta["k"])
                seen.append((slot.seq, producer, k, slot.lost))


def check_reader(seen: list[tuple[int, int, int, int]]) -> None:
    """Sequences rise, and so does each producer's k."""
    seqs = [seq for seq, *_ in seen]
    assert seqs == sorted(set(seqs))
    for producer in {producer for _, producer, _, _ in seen}:
        ks = [k for _, p, k, _ in seen if p == producer]
        assert ks == sorted(set(ks))


def check_ring(ring: gpuring.Ring) -> None:
    """Checks that no peer is left in the ring, and that nothing is claimed or held."""
    stats = ring.stats()
    assert (stats.peers, stats.subscriptions) == ((), ())
    phases = [slot["phase"] for slot in snapshot(ring._header)["slots"]]
    assert set(phases) <= {"ready", "void", "torn"}


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_the_books_balance(place, name, children, mix, pytestconfig):
    seconds = pytestconfig.getoption("--stress-seconds")
    with place.create(name, slots=mix.slots, shape=WORDS, dtype="u4", meta=META) as ring:
        readers = [
            (group, how, children(consume, name, place, how, group))
            for group, how in [
                *((None, "lossless") for _ in range(mix.lossless)),
                *(
                    (f"s{n}", "lossless")
                    for n, count in enumerate(mix.shared)
                    for _ in range(count)
                ),
                *((None, "lossy") for _ in range(mix.lossy)),
                *((None, "latest") for _ in range(mix.latest)),
            ]
        ]
        writers = [
            children(produce, name, place, p, FRAMES[place.on_gpu], seconds)
            for p in range(mix.producers)
        ]
        for child in [*(child for *_, child in readers), *writers]:
            child.receive()
        for writer in writers:
            writer.send()
        published = {(p, k) for p, writer in enumerate(writers) for k in writer.result()}
        assert published

        together: dict[str, list[tuple[int, int]]] = {}
        for group, how, child in readers:
            seen = child.result()
            check_reader(seen)
            frames = [(producer, k) for _, producer, k, _ in seen]
            assert set(frames) <= published
            if how == "lossless":
                assert sum(lost for *_, lost in seen) == 0
                together.setdefault(group or f"alone {child.pid}", []).extend(frames)
            elif seen:
                met = seen[-1][0] + 1 - mix.slots
                assert len(seen) + sum(lost for *_, lost in seen) == met
        for group, frames in together.items():
            assert Counter(frames) == Counter(dict.fromkeys(published, 1)), group
        check_ring(ring)
