"""Integer arguments take what Python takes as an index: also NumPy's integers, but no bool and no
float."""

from __future__ import annotations

import numpy as np
import pytest

import gpuring

RING = {"slots": 4, "shape": 8, "dtype": "u1", "device": "host"}
NUMBERS = {"slots": 4, "max_peers": 3, "max_subscriptions": 2, "mode": 0o600, "shape": 8}
NO_INTEGERS = [True, np.True_, 1.0, np.float64(1), "1", None]


@pytest.mark.parametrize("what", NUMBERS)
@pytest.mark.parametrize("kind", [np.int64, np.uint16])
def test_numpys_integers_are_taken(name, what, kind):
    with gpuring.create(name, **RING | {what: kind(NUMBERS[what])}) as ring:
        header = ring._header
        if what != "shape":
            assert getattr(header, what, NUMBERS[what]) == NUMBERS[what]
        assert ring.spec.fields[0].shape == (8,)


@pytest.mark.parametrize("what", ["slots", "max_peers", "max_subscriptions", "mode"])
@pytest.mark.parametrize("value", NO_INTEGERS, ids=repr)
def test_nothing_else_is_taken_for_a_number_of_a_ring(name, what, value):
    with pytest.raises(TypeError, match=f"{what} must be an int, not"):
        gpuring.create(name, **RING | {what: value})


@pytest.mark.parametrize(
    "value", [True, 1.5, (True,), (1.0, 2), "8", b"ab", {2, 3}, {2: 3}], ids=repr
)
def test_nothing_else_is_taken_for_a_shape(name, value):
    with pytest.raises(ValueError, match="a shape must be a positive integer or a sequence"):
        gpuring.create(name, **RING | {"shape": value})


@pytest.mark.parametrize("shape", [0, (0, 4)], ids=repr)
def test_an_empty_frame_is_refused_with_what_to_do(name, shape):
    with pytest.raises(ValueError, match="No frame is empty: its metadata can say"):
        gpuring.create(name, **RING | {"shape": shape})
    with (
        gpuring.create(name, **RING) as ring,
        ring.producer() as producer,
        pytest.raises(ValueError, match="No frame is empty"),
    ):
        producer.claim(0, shape=shape)


def test_a_batch_has_a_number_of_slots_that_may_be_numpys(name):
    """batch/test_batches.py has what is refused."""
    with gpuring.create(name, **RING) as ring, ring.consumer() as frames:
        with ring.producer().claim_many(np.int64(2), 0) as batch:
            assert len(batch) == 2
        with frames.acquire_many(np.int64(1), 0) as got:
            assert len(got) == 1


def test_a_subscription_starts_at_an_integer(name):
    with gpuring.create(name, **RING) as ring, ring.producer() as producer:
        for _ in range(3):
            producer.claim(0).publish()
        with ring.consumer(start=np.int64(5)) as frames, frames.acquire(0) as slot:
            assert slot.seq == 5
        for value in (1.5, True, None):
            with pytest.raises(TypeError, match='must be "next", "oldest" or a sequence, not'):
                ring.consumer(start=value)
        for value in ("newest", -1, 2**47):
            with pytest.raises(ValueError, match="start must be"):
                ring.consumer(start=value)


def test_a_service_counts_in_integers(name):
    with gpuring.serve(
        name, request=(8, "u1"), response=(8, "u1"), slots=np.int64(4), device="host"
    ) as server:
        for value in (True, 1.5):
            with pytest.raises(TypeError, match="calls must be an int"):
                gpuring.connect(name, calls=value)
            with pytest.raises(TypeError, match="max_batch must be an int"):
                server.take(value, timeout=0)
        with gpuring.connect(name, calls=np.int64(2)) as client:
            with client.request(1):
                pass
            assert len(server.take(np.int64(2), timeout=1)) == 1
