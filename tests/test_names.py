"""Rings by name: create, attach, replace; other processes, pickles; who forgets to close."""

from __future__ import annotations

import os
import pickle
import threading
import warnings

import pytest
from support import Pipe, Place, segments_of

import gpuring
from gpuring import segment as segments

OPTIONS = {"slots": 2, "shape": 4, "dtype": "u1"}


def reader(pipe: Pipe, ring: gpuring.Ring | str, place: Place) -> list[int]:
    """Reads everything; gets the ring pickled, or by name."""
    if isinstance(ring, str):
        ring = gpuring.attach(ring, timeout=20)
    with ring, ring.consumer("all") as frames:
        pipe.send("ready")
        return [int(place.read(slot.array)[0]) for slot in frames]


def test_another_process_attaches_and_reads(place, name, children):
    with place.create(name, **OPTIONS) as ring:
        by_pickle, by_name = (children(reader, how, place) for how in (ring, name))
        assert [by_pickle.receive(), by_name.receive()] == ["ready"] * 2
        with ring.producer() as producer:
            for k in range(20):
                with producer.claim(timeout=20) as slot:
                    place.fill(slot.array, k)
        results = by_pickle.result() + by_name.result()
    assert sorted(results) == list(range(20))


def test_a_ring_pickles_as_attach_by_name(name):
    with gpuring.create(name, **OPTIONS, device="host") as ring:
        with pickle.loads(pickle.dumps(ring)) as copy:
            assert copy is not ring
            assert copy.name == name
        assert not ring.closed
        gpuring.attach(name).close()


def test_a_ring_in_the_same_process(place, name):
    with place.create(name, **OPTIONS) as ring, gpuring.attach(name) as other:
        with ring.producer() as producer, other.consumer() as frames:
            with producer.claim() as slot:
                place.fill(slot.array, 6)
            with frames.acquire(timeout=5) as slot:
                assert place.read(slot.array).tolist() == [6] * 4
        other.close()
        assert ring.producer() is not None


def test_no_ring_of_that_name(name):
    with pytest.raises(gpuring.RingNotFound, match=rf"{name}.*/dev/shm"):
        gpuring.attach(name)
    with pytest.raises(gpuring.RingNotFound):
        gpuring.attach(name, timeout=0.05)
    with pytest.raises(gpuring.RingNotFound):
        gpuring.unlink(name)
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            gpuring.attach(name, timeout=wrong)


def test_attach_waits_for_the_ring_to_appear(place, name, children):
    child = children(reader, name, place)
    with place.create(name, **OPTIONS) as ring:
        assert child.receive() == "ready"
        with ring.producer() as producer, producer.claim(timeout=20) as slot:
            place.fill(slot.array, 1)
        assert child.result() == [1]


def test_attach_waits_for_a_ring_that_is_being_created(name):
    fd = segments.create(segments.header_name(name), 0o600)
    with pytest.raises(gpuring.RingIncompatible):
        gpuring.attach(name)
    assert name not in gpuring.clean()  # its creator lives
    rings = []
    thread = threading.Thread(target=lambda: rings.append(gpuring.attach(name, timeout=20)))
    thread.start()
    segments.unlink(segments.header_name(name))
    os.close(fd)
    with gpuring.create(name, **OPTIONS, device="host"):
        thread.join()
        rings[0].close()


def test_a_name_is_taken(name):
    with gpuring.create(name, **OPTIONS, device="host") as ring:
        before = segments_of(name)
        with pytest.raises(gpuring.RingExists) as caught:
            gpuring.create(name, **OPTIONS, device="host")
        text = str(caught.value)
        for part in (name, f"pid {os.getpid()}", "alive", "clean", "replace=True"):
            assert part in text
        assert segments_of(name) == before
        gpuring.attach(name).close()
        assert ring.stats().cursor == 2


def test_replace_starts_a_new_epoch_and_ends_the_old_one(place, name):
    old = place.create(name, **OPTIONS)
    frames, producer = old.consumer(), old.producer()
    epoch = old.stats().epoch
    with place.create(name, **OPTIONS | {"slots": 3}, replace=True) as ring:
        assert ring.stats().epoch != epoch
        with pytest.raises(gpuring.RingClosed):
            producer.claim()
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire()
        old.close()  # must not take the new ring's name with it
        with gpuring.attach(name) as other:
            assert other.slots == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"slots": 0}, {"slots": 1025}, {"slots": -1}, {"slots": 1.0}, {"slots": "2"},
        {"max_peers": 0}, {"max_peers": 65}, {"max_subscriptions": 65}, {"max_subscriptions": 0},
        {"shape": None}, {"dtype": None}, {"shape": -1}, {"shape": (2, 0)}, {"shape": (1,) * 9},
        {"shape": 1.5}, {"dtype": "O"}, {"dtype": "V0"}, {"dtype": "no dtype"}, {"dtype": "S0"},
        {"fields": {"a": (1, "u1")}}, {"meta": "i8"}, {"meta": [("a", "O")]},
        {"meta": [("a", "V70000")]}, {"device": "tpu"}, {"device": 1.5}, {"device": "host:1"},
        {"sync": "event"}, {"gate": "host"}, {"sync": "none"}, {"gate": "none"},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_arguments_leave_nothing_behind(name, wrong):
    expected = (TypeError, ValueError)
    if "device" in wrong:
        expected = (*expected, gpuring.DeviceError)
    with pytest.raises(expected):
        gpuring.create(name, **OPTIONS | {"device": "host"} | wrong)
    assert segments_of(name) == []


@pytest.mark.parametrize("fields", [{}, {"": (1, "u1")}, {1: (1, "u1")}, {"a": 1}, 7])
def test_wrong_fields_leave_nothing_behind(name, fields):
    with pytest.raises((TypeError, ValueError)):
        gpuring.create(name, slots=2, fields=fields, device="host")


def test_a_description_that_does_not_fit_says_how_much_there_is(name):
    fields = {f"field-{k}": ((1, 2, 3), "f8") for k in range(3000)}
    with pytest.raises(ValueError, match=r"65536"):
        gpuring.create(name, slots=1, fields=fields, device="host")
    assert segments_of(name) == []


def test_a_ring_that_is_forgotten_warns_and_is_closed(name):
    ring = gpuring.create(name, **OPTIONS, device="host")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del ring
    assert any(name in str(w.message) and w.category is ResourceWarning for w in caught)
    assert segments_of(name) == []


def ends_in_order(pipe: Pipe, name: str) -> None:
    global forgotten  # closed at exit  # noqa: PLW0603
    forgotten = gpuring.create(name, **OPTIONS, device="host")
    producer = forgotten.producer()
    producer.claim().publish()
    pipe.send()
    pipe.receive()


def test_a_process_that_ends_without_closing_ends_the_stream_in_order(name, children):
    child = children(ends_in_order, name)
    child.receive()
    with gpuring.attach(name) as ring, ring.consumer(start="oldest") as frames:
        child.send()
        child.result()
        assert frames.acquire(timeout=20).seq == 2
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire(timeout=20)
