"""close() while another thread of the process is in a verb of the same peer."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import gpuring
from gpuring.native.snapshot import snapshot
from gpuring.ring import joining
from tests.helpers.processes import poll
from tests.helpers.promise import promise
from tests.helpers.rings import small_ring


def fill(producer):
    for _ in range(2):
        producer.claim(0).publish()


WAITS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "claim": ("producer", lambda peer: peer.claim()),
    "claim_many": ("producer", lambda peer: peer.claim_many(2)),
    "acquire": ("consumer", lambda peer: peer.acquire()),
    "acquire_many": ("consumer", lambda peer: peer.acquire_many(2)),
    "iterate": ("consumer", lambda peer: next(iter(peer))),
    "latest": ("lossy", lambda peer: peer.latest()),
}


class Waiter:
    """A thread that calls a verb, and how that ended."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self._call = call
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error

    def end(self) -> BaseException | None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.error


def peer_of(ring, kind):
    return ring.producer() if kind == "producer" else ring.consumer("x", lossless=kind != "lossy")


def named_in(ring, number):
    """The words that name a peer."""
    seen = snapshot(ring._header)
    found = [slot for slot in seen["slots"] if slot["phase"] == "writing"]
    found = [slot for slot in found if slot["owner"] == number]
    for subscription in seen["subscriptions"].values():
        found += [t for t in subscription["takes"] if (t["phase"], t["member"]) == ("held", number)]
    return found


@promise(
    "failure.md",
    "`close()` by another thread ends a waiting call with `RingClosed`, and waits until that call "
    "has returned.",
)
@pytest.mark.parametrize("what", ["endpoint", "ring"])
@pytest.mark.parametrize("verb", WAITS)
def test_close_ends_a_wait_of_another_thread(name, verb, what):
    kind, call = WAITS[verb]
    with small_ring(name, 2) as ring, gpuring.attach(name) as mine:
        keeper = ring.consumer("keeper")
        if kind == "producer":
            with ring.producer() as producer:
                fill(producer)
        peer = peer_of(mine, kind)
        waiter = Waiter(lambda: call(peer))
        poll(lambda: ring.stats().peers[-1].waiting)
        (peer if what == "endpoint" else mine).close()
        error = waiter.end()
        assert isinstance(error, gpuring.RingClosed), error
        assert peer.closed
        assert ring._header.live_peers() == [keeper.peer]


def test_close_ends_a_select_of_another_thread(name):
    with small_ring(name, 2) as ring:
        one, other = ring.consumer(), ring.consumer()
        waiter = Waiter(lambda: [ready.acquire(0) for ready in gpuring.select([one, other])])
        poll(lambda: all(peer.waiting for peer in ring.stats().peers))
        other.close()
        assert isinstance(waiter.end(), gpuring.RingClosed)
        assert not one.closed


def test_a_closing_ring_lets_nobody_join(name):
    """A thread that goes on after its wait was ended would find the ring still open."""
    with small_ring(name, 2) as ring:
        consumer = ring.consumer()

        def waits_and_joins():
            with pytest.raises(gpuring.RingClosed):
                consumer.acquire()
            ring.consumer()

        waiter = Waiter(waits_and_joins)
        poll(lambda: ring.stats().peers[-1].waiting)
        header = ring._header
        ring.close()
        assert isinstance(waiter.end(), gpuring.RingClosed)
        assert header.live_peers() == []


@promise("failure.md", "After that the call takes nothing any more.")
@pytest.mark.parametrize("verb", ["claim", "acquire", "latest"])
def test_close_against_a_verb_at_full_speed_leaves_no_word(name, verb):
    """Between giving back what is held and leaving, close lets nobody take a slot."""
    with (
        small_ring(name, 2) as ring,
        ring.producer() as producer,
        ring.consumer("keeper") as keeper,
    ):
        kind, _ = WAITS[verb]
        for _ in range(100):
            peer = peer_of(ring, kind)
            began = threading.Event()

            def runs(peer=peer, began=began):
                while True:
                    if kind == "producer":
                        slot = peer.claim(20)
                        began.set()
                        slot.publish()
                        keeper.acquire(20).release()
                    else:
                        producer.claim(20).publish()
                        keeper.acquire(20).release()
                        slot = getattr(peer, verb)(20)
                        began.set()
                        slot.release()

            waiter = Waiter(runs)
            assert began.wait(20)
            peer.close()
            error = waiter.end()
            assert isinstance(error, gpuring.RingError), error
            assert named_in(ring, peer.peer) == []
            assert ring._header.live_peers() == [producer.peer, keeper.peer]
            while True:
                try:
                    keeper.acquire(0).release()
                except gpuring.RingTimeout:
                    break


def test_who_cannot_leave_can_be_used_again(name, monkeypatch):
    """The verbs of an endpoint whose close has failed work, as `close` says: it stays open."""
    with small_ring(name, 2) as ring, ring.producer() as producer, ring.consumer() as reader:

        def refuse():
            raise gpuring.RingTimeout("somebody has the lock")

        monkeypatch.setattr(reader, "_finish", refuse)
        with pytest.raises(gpuring.RingTimeout):
            reader.close()
        monkeypatch.undo()
        producer.claim(0).publish()
        reader.acquire(0).release()


def test_a_signal_handler_that_closes_when_the_slot_has_come_is_obeyed(name):
    """The verb has taken a slot, but has not returned.  close gives that slot back."""
    in_time = 0
    with small_ring(name, 2) as ring, ring.consumer() as reader:
        for _ in range(50):
            producer = ring.producer()
            fill(producer)
            held = reader.acquire(0)

            def meanwhile(held=held):
                poll(lambda: ring.stats().peers[-1].waiting)
                held.release()  # and the other thread cannot run before we let it
                _thread.interrupt_main()

            before = signal.signal(signal.SIGINT, lambda *_, close=producer.close: close())
            thread = threading.Thread(target=meanwhile)
            thread.start()
            try:
                producer.claim(10)
            except gpuring.RingClosed:
                in_time += 1
            finally:
                thread.join()
                time.sleep(0)  # where the signal comes at the latest, if the other thread was slow
                signal.signal(signal.SIGINT, before)
            reader.acquire(0).release()
            assert ring._header.live_peers() == [reader.peer]
    assert in_time


class Told:
    """A lock that records which threads are about to take it."""

    def __init__(self, lock: Any) -> None:
        self._lock, self.takers = lock, set[threading.Thread]()

    def __enter__(self) -> None:
        self.takers.add(threading.current_thread())
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("join", ["producer", "consumer"])
def test_close_closes_who_joins_at_that_moment(name, monkeypatch, join):
    """Otherwise that peer would be in the ring without a lock, and be taken for dead."""
    with small_ring(name, 2) as ring:
        handle = gpuring.attach(name)
        closing = threading.Thread(target=handle.close)
        how = joining.AsConsumer if join == "consumer" else joining.AsProducer
        enter, lock = how.__call__, Told(handle._joining)

        def meanwhile(*args: Any) -> Any:
            peer = enter(*args)
            closing.start()
            poll(lambda: closing in lock.takers or handle.closed)  # close waits for this thread
            return peer

        monkeypatch.setattr(how, "__call__", meanwhile)
        monkeypatch.setattr(handle, "_joining", lock)
        endpoint = getattr(handle, join)()
        closing.join()
        assert endpoint.closed
        assert ring._header.live_peers() == []
        assert ring._header.reap() == []


# ---- slots that another thread closes -----------------------------------------------------------


def closed_by_another(ring):
    thread = threading.Thread(target=ring.close)
    thread.start()
    thread.join(10)
    assert ring.closed


@promise(
    "failure.md",
    "If a producer or its ring is closed before the block of a claimed slot has ended, the frame "
    "is not published. The block, `publish` and every look at the slot then raise `RingClosed`.",
)
@pytest.mark.parametrize("many", [False, True], ids=["slot", "batch"])
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_frame_that_is_closed_before_the_end_of_its_block_is_no_published_frame(
    name, many, by_hand
):
    with small_ring(name, 2) as ring, ring.consumer() as frames:
        mine = gpuring.attach(name)
        producer = mine.producer()
        claimed = producer.claim_many(2, 0) if many else producer.claim(0)
        slot = claimed[0] if many else claimed

        def closes():
            for other in claimed[1:] if many else ():
                other.abandon()
            closed_by_another(mine)
            if by_hand:
                claimed.publish()

        told = r"sequence 2\) was given back when this producer"
        with pytest.raises(gpuring.RingClosed, match=told), claimed:
            closes()
        for use in (lambda: slot.array, slot.publish, lambda: slot.meta):
            with pytest.raises(gpuring.RingClosed):
                use()
        with pytest.raises((gpuring.RingTimeout, gpuring.EndOfStream)):
            frames.acquire(0)


@promise("failure.md", "If the block ends by an error of its own, that error is raised instead.")
def test_a_block_that_raises_tells_its_own_error(name):
    with small_ring(name, 2):
        mine = gpuring.attach(name)
        producer = mine.producer()

        def closes():
            with producer.claim(0):
                closed_by_another(mine)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            closes()


def test_a_frame_that_was_read_when_its_consumer_is_closed_is_released(name):
    with small_ring(name, 2) as ring, ring.producer() as producer:
        mine = gpuring.attach(name)
        frames = mine.consumer()
        producer.claim(0).publish()
        with frames.acquire(0) as slot:
            closed_by_another(mine)
        with pytest.raises(gpuring.RingClosed, match="this consumer was closed"):
            slot.release()
        fill(producer)
