"""Wrong arguments are refused: the error names the argument, what it got, and what it takes."""

from __future__ import annotations

import asyncio
import math
import re
from fractions import Fraction

import numpy as np
import pytest

import gpuring

RING = {"slots": 2, "shape": 4, "dtype": "u1", "device": "host"}
NO_NUMBERS = ["1", "yes", b"1", True, np.True_, [1], (), {}, object()]
NO_FLAGS = ["yes", "", 1, 0, np.int64(1), [], object()]


@pytest.fixture
def ring(name):
    with gpuring.create(name, **RING, meta=[("pts", "i8")]) as ring:
        yield ring


def said(error):
    """The text, where an object's address may be cut short."""
    return str(error.value)


TIMED = {
    "attach": lambda ring, value: gpuring.attach(ring.name, timeout=value),
    "claim": lambda ring, value: ring.producer().claim(value),
    "claim_many": lambda ring, value: ring.producer().claim_many(1, value),
    "acquire": lambda ring, value: ring.consumer().acquire(value),
    "acquire_many": lambda ring, value: ring.consumer().acquire_many(1, value),
    "latest": lambda ring, value: ring.consumer(lossless=False).latest(value),
    "serve": lambda ring, value: serve(ring.name, timeout=value),
    "connect": lambda ring, value: gpuring.connect(ring.name, timeout=value),
    "select": lambda ring, value: gpuring.select([ring.consumer()], value),
    "align": lambda ring, value: gpuring.align([ring.consumer()], timeout=value),
    "claim_async": lambda ring, value: asyncio.run(ring.producer().claim_async(value)),
    "acquire_async": lambda ring, value: asyncio.run(ring.consumer().acquire_async(value)),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("call", TIMED.values(), ids=TIMED)
def test_a_timeout_is_a_number_of_seconds(ring, call):
    for wrong in NO_NUMBERS:
        with pytest.raises(TypeError) as error:
            call(ring, wrong)
        assert said(error).startswith("timeout must be a number of seconds or None, not "), wrong
    for wrong in (-1, -0.5, math.nan, -math.inf, -(10**400), np.float32(-1)):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is looked at
            call(ring, wrong)
        assert said(error) == f"timeout must be a number of seconds >= 0 or None, not {wrong!r}"
    assert ring.stats().cursor == ring.slots


@pytest.mark.parametrize("kind", [int, float, np.float32, np.int64, Fraction])
def test_a_timeout_of_any_kind_of_number(ring, kind):
    with ring.producer() as producer, ring.consumer() as frames:
        producer.claim(kind(3)).publish()
        frames.acquire(kind(3)).release()
        with pytest.raises(gpuring.RingTimeout):
            frames.acquire(kind(0))


@pytest.mark.parametrize("timeout", [10**400, math.inf])
def test_a_timeout_without_end(ring, timeout):
    with ring.producer() as producer, gpuring.attach(ring.name, timeout=timeout):
        producer.claim(timeout).abandon()


def serve(name, **more):
    return gpuring.serve(name, request=(4, "u1"), response=(4, "u1"), device="host", **more)


FLAGS = {
    "engine": lambda ring, value: serve(ring.name, engine=value),
    "serve redeliver": lambda ring, value: serve(ring.name, redeliver=value),
    "serve replace": lambda ring, value: serve(ring.name, replace=value),
    "lossless": lambda ring, value: ring.consumer(lossless=value),
    "redeliver": lambda ring, value: ring.consumer(redeliver=value),
    "reattach": lambda ring, value: ring.consumer(reattach=value),
    "partial": lambda ring, value: gpuring.align([ring.consumer()], "pts", partial=value),
    "replace": lambda ring, value: gpuring.create(ring.name, **RING, replace=value),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("what", FLAGS)
def test_a_flag_is_true_or_false(ring, what):
    takes = "True, False or None" if what == "replace" else "True or False"
    for wrong in NO_FLAGS:
        with pytest.raises(TypeError) as error:
            FLAGS[what](ring, wrong)
        assert said(error).startswith(f"{what.split()[-1]} must be {takes}, not "), wrong
    assert not ring._header.closed  # replace="yes" was refused


OTHERS = [
    (lambda ring: gpuring.attach(ring.name, owner="nosuchuser"), TypeError,
     "owner must be the id of a user, an int, or None, not 'nosuchuser'"),
    (lambda ring: gpuring.attach(ring.name, owner=[]), TypeError, "owner must be .* not []"),
    (lambda ring: gpuring.attach(ring.name, owner=-1), ValueError,
     "owner must be the id of a user, from 0 to 4294967295, not -1"),
    (lambda ring: gpuring.attach(ring.name, owner=2**70), ValueError, "owner must be the id of"),
    (lambda ring: gpuring.create("x", **RING | {"slots": "4"}), TypeError,
     "slots must be an int, not '4'"),
    (lambda ring: gpuring.create("x", **RING | {"device": b"host"}), TypeError,
     "device must be 'host', 'cuda', 'cuda:N', a GPU's number or None, not b'host'"),
    (lambda ring: gpuring.create("x", **RING | {"device": -1}), ValueError,
     "device must be a GPU's number, 0 or more, not -1"),
    (lambda ring: gpuring.create("x", **RING, meta=["pts"]), TypeError,
     "meta: .* meta must be a structured dtype such as [('pts', 'i8')]"),
    (lambda ring: gpuring.create("x", **RING, meta="i8"), ValueError,
     "meta must be a structured dtype such as [('pts', 'i8')], not int64"),
    (lambda ring: gpuring.connect(ring.name, engine_s="5"), TypeError,
     "engine_s must be a number of seconds, not '5'"),
    (lambda ring: gpuring.connect(ring.name, calls="5"), TypeError,
     "calls must be an int, not '5'"),
    (lambda ring: serve(ring.name, slots="5"), TypeError, "slots must be an int, not '5'"),
    (lambda ring: gpuring.select(5), TypeError, "select takes several consumers .* not 5"),
    (lambda ring: gpuring.select([ring]), TypeError, "not a Ring"),
    (lambda ring: gpuring.align(5), TypeError, "align takes several consumers.* not 5"),
    (lambda ring: gpuring.align([ring.consumer()], by=1.5), TypeError,
     "by must be the name of a metadata field or None, not 1.5"),
    (lambda ring: gpuring.align([ring.consumer()], "pts", "2"), TypeError,
     "within must be a number, not '2'"),
    (lambda ring: gpuring.align([ring.consumer()], max_wait_s="2"), TypeError,
     "max_wait_s must be a number of seconds or None, not '2'"),
    (lambda ring: gpuring.align([ring.consumer()], depth="2"), TypeError,
     "depth must be an int, not '2'"),
    (lambda ring: gpuring.align([ring.consumer()], stream=5), TypeError,
     "is in host memory: it takes no stream"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(("call", "kind", "text"), OTHERS, ids=[text for _, _, text in OTHERS])
def test_other_wrong_arguments(ring, call, kind, text):
    with pytest.raises(kind, match=re.escape(text).replace(r"\.\*", ".*")):
        call(ring)


FORM = 'is described by (shape, dtype), such as ((1080, 1920), "u1"), not by {!r}'


@pytest.mark.parametrize(
    ("described", "text"),
    [
        ("u1", FORM.format("u1")),
        (4, FORM.format(4)),
        ((4,), FORM.format((4,))),
        ((4, "u1", 3), FORM.format((4, "u1", 3))),
        (("u1", 4), "a shape must be a positive integer or a sequence of them, such as "
         "(1080, 1920, 3), not 'u1'"),
        ((4, "pixels"), "dtype: NumPy makes no dtype of 'pixels'"),
    ],
)  # fmt: skip
def test_a_field_is_a_shape_and_a_dtype(name, described, text):
    with pytest.raises((TypeError, ValueError), match=re.escape(text)) as error:
        gpuring.create(name, slots=2, device="host", fields={"y": described})
    assert said(error).startswith("field 'y': ")


def test_none_is_no_kind_of_memory(name):
    with pytest.raises(TypeError, match='must be a kind, such as "auto", or an array'):
        gpuring.create(name, slots=2, shape=4, dtype="u1", device="host", memory=None)


def test_a_field_that_cannot_be_a_key_is_none(ring):
    with ring.producer() as producer, producer.claim(0) as slot:
        for wrong in ([], None, 0, "y"):
            with pytest.raises(KeyError, match="has no field"):
                slot[wrong]
        for wrong in ([], 0, "y"):
            with pytest.raises(KeyError, match="has no field"):
                slot.field(wrong)


def test_an_array_of_a_slot_is_not_put_in_its_place(ring, name):
    with (
        ring.producer() as producer,
        producer.claim(0) as slot,
        pytest.raises(AttributeError, match=r"slot\.array\[\.\.\.\] = value"),
    ):
        slot.array = slot.array
    fields = {"y": ((4, 6), "u1"), "uv": ((2, 3, 2), "u1")}
    with (
        gpuring.create(f"{name}-f", slots=2, fields=fields, device="host") as planes,
        planes.producer() as producer,
        producer.claim(0) as slot,
    ):
        with pytest.raises(TypeError, match=r"slot\['y'\]\[\.\.\.\] = value"):
            slot["y"] = slot["y"]
        with pytest.raises(TypeError, match="say which with field="):
            slot.copy_from(slot["y"])
        with pytest.raises(TypeError, match=r"slot\['y'\]\[\.\.\.\] = value does"):
            slot.copy_from(np.zeros((4, 6), "f4"), field="y")


@pytest.mark.parametrize(("shape", "helps"), [((1, 3), True), ((3, 1), False), ((3,), False)])
def test_a_smaller_frame_is_told_how_it_is_claimed(name, shape, helps):
    with (
        gpuring.create(name, slots=2, shape=(2, 3), dtype="u1", device="host") as ring,
        ring.producer() as producer,
        producer.claim(0) as slot,
        pytest.raises(ValueError, match=r"the frame has shape \(2, 3\)") as raised,
    ):
        slot.copy_from(np.zeros(shape, "u1"))
    assert (f"claim(shape={shape})" in str(raised.value)) is helps


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (np.zeros(4), r"the frame is uint8, the source float64\. "),
        ([0, 0, 0, 0], "not list. "),
        (0, "not int. "),
    ],
    ids=str,
)
def test_what_copy_from_does_not_take_is_told_how_it_is_written(name, source, told):
    with (
        gpuring.create(name, slots=2, shape=4, dtype="u1", device="host") as ring,
        ring.producer() as producer,
        producer.claim(0) as slot,
        pytest.raises(TypeError, match=told + r".*slot\.array"),
    ):
        slot.copy_from(source)


def test_metadata_is_written_in_place(name):
    with (
        gpuring.create(
            name, slots=2, shape=4, dtype="u1", meta=[("pts", "i8")], device="host"
        ) as ring,
        ring.producer() as producer,
        producer.claim(0) as slot,
        pytest.raises(AttributeError, match=r'slot\.meta\["pts"\] = value'),
    ):
        slot.meta = 7


def test_the_elements_of_a_frame_are_those_of_its_array(ring):
    with ring.producer() as producer, producer.claim(0) as slot:
        with pytest.raises(KeyError, match=r"slot\.array\["):
            slot[...]
        with pytest.raises(TypeError, match=r"slot\.array\[\.\.\.\] = value"):
            slot[...] = 0


def test_a_slot_cannot_be_looped_over(ring):
    with (
        ring.producer() as producer,
        producer.claim(0) as slot,
        pytest.raises(TypeError, match=r"a slot is one frame .* call latest"),
    ):
        list(slot)
