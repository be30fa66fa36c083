"""Objects for a claim, a hold or a membership cannot be copied.  A copy of a Ring attaches anew."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle

import pytest

import gpuring
from gpuring.ring import debug

COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {p}": lambda it, p=p: pickle.dumps(it, p) for p in range(6)},
}


@pytest.fixture
def things(name):
    """An object of each class, by the name of the class."""
    with contextlib.ExitStack() as stack:
        ring = stack.enter_context(
            gpuring.create(name, slots=8, shape=(3,), dtype="u1", device="host")
        )
        producer, consumer = ring.producer(), ring.consumer()
        producer.claim_many(3).publish()
        server = stack.enter_context(
            gpuring.serve(f"{name}-s", request=((3,), "u1"), response=((3,), "u1"), device="host")
        )
        client = stack.enter_context(gpuring.connect(server.name))
        pending = client.request()
        call = pending.call
        pending.publish()
        taken = server.take()
        yield {
            "Producer": producer,
            "Consumer": consumer,
            "WriteSlot": producer.claim(),
            "WriteBatch": producer.claim_many(2),
            "ReadSlot": consumer.acquire(),
            "ReadBatch": consumer.acquire_many(2),
            "AsyncFrames": aiter(consumer),
            "Server": server,
            "Client": client,
            "RequestSlot": client.request(),
            "PendingCall": call,
            "Batch": taken,
            "Call": taken[0],
            "AnswerSlot": taken[0].answer(),
        }


@pytest.mark.parametrize("made", COPIES.values(), ids=COPIES)
def test_what_stands_for_a_claim_or_a_membership_is_not_copied(things, made):
    for kind, thing in things.items():
        with pytest.raises(TypeError, match=rf"^{kind} cannot be copied or pickled"):
            made(thing)


@pytest.mark.parametrize("made", COPIES.values(), ids=COPIES)
def test_what_users_do_not_see_is_not_copied_either(name, made):
    with gpuring.create(name, slots=4, shape=(3,), dtype="u1", device="host") as ring:
        producer = ring.producer()
        for thing in (producer._peer, producer._peer.header):
            with pytest.raises(TypeError, match="cannot"):
                made(thing)


@pytest.mark.parametrize("made", COPIES.values(), ids=COPIES)
def test_peers_and_batches_are_not_copied_in_debug_mode_either(name, made, monkeypatch):
    monkeypatch.setattr(debug, "ON", True)
    with gpuring.create(name, slots=4, shape=(3,), dtype="u1", device="host") as ring:
        producer, consumer = ring.producer(), ring.consumer()
        batch = producer.claim_many(2)
        for thing in (producer, consumer, batch, batch[0]):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                made(thing)


def test_a_batch_may_be_taken_apart(name):
    with gpuring.create(name, slots=4, shape=(3,), dtype="u1", device="host") as ring:
        batch = ring.producer().claim_many(3)
        assert batch[1:] == tuple(batch)[1:]
        assert list(batch) == [*batch]
        assert (*batch,)[0] is batch[0]


def test_a_ring_pickles_as_attach_by_name(name):
    with gpuring.create(name, slots=4, shape=(3,), dtype="u1", device="host") as ring:
        for made in (copy.copy(ring), pickle.loads(pickle.dumps(ring))):
            with made as other:
                assert other is not ring
                assert (other.name, other.slots) == (name, 4)
        assert not ring.closed
        gpuring.attach(name).close()


def test_an_async_loop_is_not_copied_while_it_holds_a_frame(name):
    """A copy would release the frame of the first loop, whatever is in the slot by then."""

    async def body(frames):
        await anext(frames)
        with pytest.raises(TypeError, match="AsyncFrames"):
            copy.copy(frames)

    with gpuring.create(name, slots=4, shape=(3,), dtype="u1", device="host") as ring:
        producer, consumer = ring.producer(), ring.consumer()
        producer.claim().publish()
        asyncio.run(body(aiter(consumer)))
