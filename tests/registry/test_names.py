"""Rings by name: create, attach and replace, other processes, pickles, and rings that are not
closed."""

from __future__ import annotations

import gc
import os
import sys
import threading
import warnings
from pathlib import Path

import pytest

import gpuring
from gpuring import native
from gpuring.registry import directory, new_names
from gpuring.registry import segment as segments
from gpuring.ring import debug
from tests.helpers.places import Place
from tests.helpers.processes import Pipe, up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of

OPTIONS = {"slots": 2, "shape": 4, "dtype": "u1"}


def reader(pipe: Pipe, ring: gpuring.Ring | str, place: Place) -> list[int]:
    """Reads everything from a ring that it gets by name or pickled."""
    if isinstance(ring, str):
        ring = gpuring.attach(ring, timeout=20)
    with ring, ring.consumer("all") as frames:
        pipe.send("ready")
        return [int(place.read(slot)[0]) for slot in frames]


def test_another_process_attaches_and_reads(place, name, children):
    with place.create(name, **OPTIONS) as ring:
        by_pickle, by_name = (children(reader, how, place) for how in (ring, name))
        assert [by_pickle.receive(), by_name.receive()] == ["ready"] * 2
        with ring.producer() as producer:
            for k in range(20):
                with producer.claim(timeout=20) as slot:
                    place.fill(slot, k)
        results = by_pickle.result() + by_name.result()
    assert sorted(results) == list(range(20))


def test_a_ring_in_the_same_process(place, name):
    with place.create(name, **OPTIONS) as ring, gpuring.attach(name) as other:
        with ring.producer() as producer, other.consumer() as frames:
            with producer.claim() as slot:
                place.fill(slot, 6)
            with frames.acquire(timeout=5) as slot:
                assert place.read(slot).tolist() == [6] * 4
        other.close()
        assert ring.producer() is not None


def test_a_closed_ring_is_not_among_those_that_there_are(name, monkeypatch):
    monkeypatch.setattr(directory, "_MAX_LISTED", 1)
    monkeypatch.setattr(segments, "names", lambda: [name, f"{name}-2"])
    told = f"'{name}-x': this host has"
    with gpuring.create(f"{name}-2", **OPTIONS, device="host"):
        with gpuring.create(name, **OPTIONS, device="host") as ring:
            ring.subscribe("recorder")
            with pytest.raises(gpuring.RingNotFound, match=rf"{told} {name} and 1 more\. "):
                gpuring.attach(f"{name}-x")
        with pytest.raises(gpuring.RingNotFound, match=rf"{told} {name}-2\. "):
            gpuring.attach(f"{name}-x")  # a closed one keeps its name
        gpuring.unlink(name)


def test_no_ring_of_that_name(name):
    with pytest.raises(gpuring.RingNotFound, match=rf"{name}.*/dev/shm"):
        gpuring.attach(name)
    with pytest.raises(
        gpuring.RingNotFound, match=rf"'{name}' came within [\d.]+ s: this host has"
    ):
        gpuring.attach(name, timeout=0.05)
    with pytest.raises(gpuring.RingNotFound):
        gpuring.unlink(name)


def test_a_ring_appears_whole(name, monkeypatch):
    """A process that finds its name can attach to it at once."""
    given, take_name = [], native.take_name

    def watched(*args):
        given.extend(segments.listing()[name])  # the slots have a name before the ring
        with pytest.raises(gpuring.RingNotFound):
            gpuring.attach(name)
        take_name(*args)
        gpuring.attach(name).close()

    monkeypatch.setattr(native, "take_name", watched)
    with gpuring.create(name, **OPTIONS, device="host") as ring:
        assert given == [segments.slots_name(name, ring._epoch)]
        assert name not in gpuring.clean()
        gpuring.attach(name).close()


def retired(name: str) -> None:
    gpuring.attach(name)._header.retire()


def without_slots(name: str) -> None:
    (slots,) = [path for path in segments_of(name) if "+" in path]
    segments.unlink(f"/{slots}")


def connect(name: str, timeout: float = 0.0) -> gpuring.Client:
    return gpuring.connect(name, timeout=timeout)


def about_to_lose_its_name(name: str) -> native.File:
    file = segments.look(segments.header_name(name)).open(os.O_RDWR)
    assert native.lock(file.fd, native.NAME_BYTE)
    return file


@pytest.mark.parametrize("state", [retired, without_slots, about_to_lose_its_name])
@pytest.mark.parametrize("how", [gpuring.attach, connect])
def test_attach_waits_for_a_ring_that_is_being_replaced(name, monkeypatch, state, how):
    described = ((4,), "u1")

    def make(**more):
        if how is gpuring.attach:
            return gpuring.create(name, **OPTIONS, device="host", **more)
        return gpuring.serve(name, request=described, response=described, device="host", **more)

    with make():
        kept = state(name)
        with pytest.raises(gpuring.RingNotFound, match=name):
            how(name)
        looked, wait = threading.Event(), new_names.Arrivals.wait

        def waits(*args):
            looked.set()  # attach has found nothing, and waits
            wait(*args)

        monkeypatch.setattr(new_names.Arrivals, "wait", waits)
        found: list = []
        thread = threading.Thread(target=lambda: found.append(how(name, timeout=20)))
        thread.start()
        assert looked.wait(20)
        if kept is not None:
            kept.close()
        with make(replace=True):
            thread.join()
            found[0].close()


@pytest.mark.slow
@pytest.mark.parametrize("state", [retired, without_slots])
def test_serve_ends_where_a_living_process_keeps_half_a_service(name, state):
    described = ((4,), "u1")
    terms = {"request": described, "response": described, "device": "host"}
    with gpuring.serve(name, **terms):
        state(name)
        with pytest.raises(gpuring.RingNotFound, match=name):
            gpuring.serve(name, **terms)


@pytest.mark.parametrize("kind", ["empty", "damaged"])
def test_incompatible_means_damaged_and_is_not_waited_for(name, kind):
    path = Path("/dev/shm", segments.header_name(name)[1:])
    path.write_bytes(b"" if kind == "empty" else b"x" * 9000)
    with pytest.raises(gpuring.RingIncompatible):
        gpuring.attach(name, timeout=1000)
    path.unlink()


@promise(
    "failure.md",
    "A ring whose creator lives is replaced only by `create(..., replace=True)`, and with "
    "`replace=False` no ring is replaced.",
)
def test_a_name_is_taken(name):
    with gpuring.create(name, **OPTIONS, device="host") as ring:
        before = segments_of(name)
        for replace in (None, False):
            with pytest.raises(gpuring.RingExists) as caught:
                gpuring.create(name, **OPTIONS, device="host", replace=replace)
            text = str(caught.value)
            for part in (name, f"pid {os.getpid()} (this process)", "0 living", "`replace`"):
                assert part in text
        assert segments_of(name) == before
        gpuring.attach(name).close()
        assert ring.stats().cursor == 2
        ring._header.retire()  # as a process does that is about to take the name
        with pytest.raises(gpuring.RingExists, match="existed a moment ago"):
            gpuring.create(name, **OPTIONS, device="host", replace=False)


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
        old.close()  # must not remove the new ring's name
        with gpuring.attach(name) as other:
            assert other.slots == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"slots": 0}, {"slots": 1025}, {"slots": -1}, {"slots": 1.0}, {"slots": "2"},
        {"max_peers": 0}, {"max_peers": 251}, {"max_subscriptions": 251}, {"max_subscriptions": 0},
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
    with pytest.raises(ValueError, match="at most 63488 bytes as JSON"):
        gpuring.create(name, slots=1, fields=fields, device="host")
    assert segments_of(name) == []


def test_a_ring_that_is_forgotten_warns_and_is_closed(name):
    ring = gpuring.create(name, **OPTIONS, device="host")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del ring
    assert any(name in str(w.message) and w.category is ResourceWarning for w in caught)
    assert segments_of(name) == []


@promise(
    "failure.md",
    "With `GPURING_DEBUG=1` it always names the line where the object was made.",
)
def test_a_consumer_that_is_dropped_warns_and_leaves(name, monkeypatch):
    """Otherwise producers would wait for ever, because it is lossless and nobody can read its
    frames."""
    monkeypatch.setattr(debug, "ON", True)
    with gpuring.create(name, **OPTIONS, device="host") as ring, ring.producer() as producer:
        frames = ring.consumer()
        line = sys._getframe().f_lineno - 1
        with producer.claim(0):
            pass
        slot = frames.acquire(0)
        del slot
        frames._owned = frames  # a circle: the garbage collector finds it
        del frames
        with pytest.warns(ResourceWarning, match="a consumer was not closed") as told:
            gc.collect()
        # Other warnings may be about what earlier tests have left.
        assert any(f"{__file__}:{line}" in str(each.message) for each in told)
        assert len(ring.stats().peers) == 1
        for _ in range(5):
            producer.claim(0).publish()


@promise(
    "failure.md",
    "A producer or a consumer that is dropped without `close()` leaves the ring, and what it had "
    "claimed or held is given back. A `ResourceWarning` says so, which `python -X dev` shows.",
)
def test_whatever_is_dropped_leaves_at_once(name):
    """It leaves without the garbage collector, also with an open claim or hold."""
    gc.disable()
    try:
        with gpuring.create(name, **OPTIONS, device="host") as ring:
            with pytest.warns(ResourceWarning, match="a producer was not closed") as told:
                ring.producer().claim(0).publish()  # the slot has kept the producer
            assert isinstance(told[0].source, gpuring.Producer)
            assert ring.stats().peers[1:] == ()
            told.clear()
            frames = ring.consumer(start="oldest")
            slot = frames.acquire(0)
            del frames
            assert slot.array[0] is not None  # the slot keeps the consumer
            with pytest.warns(ResourceWarning, match="a consumer was not closed"):
                slot.release()
            assert ring.stats().subscriptions == ()
    finally:
        gc.enable()


class Camera:
    def __init__(self, ring):
        self.ring = ring

    def __del__(self):
        self.ring.close()


@pytest.mark.filterwarnings("ignore:.* was not closed:ResourceWarning")
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_ring_that_is_garbage_with_its_producer_is_left_in_order(name, by_hand):
    """The garbage collector comes to the older one first, which is the ring.  The producer still
    leaves in order."""
    with gpuring.create(name, **OPTIONS, device="host") as ring, ring.consumer() as frames:
        mine = gpuring.attach(name)
        header = mine._header
        camera = Camera(mine) if by_hand else None
        producer = mine.producer()
        producer.claim(0).publish()
        held = producer.claim(0)  # an open slot and its producer keep each other: a circle
        producer.camera = camera
        del mine, producer, held, camera
        gc.collect()
        assert header.lock_fd == -1  # it was closed
        frames.acquire(0).release()
        with pytest.raises(gpuring.EndOfStream):  # PeerLost would mean a death
            frames.acquire(0)
        assert ring._header.reaps == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_whatever_is_dropped_leaves_where_warnings_are_errors(name, role):
    with gpuring.create(name, **OPTIONS, device="host") as ring, ring.producer() as producer:
        dropped = getattr(ring, role)()
        producer.claim(0).publish()
        slot = dropped.claim(0) if role == "producer" else dropped.acquire(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del dropped, slot
            gc.collect()
        assert len(ring.stats().peers) == 1


def ends_in_order(pipe: Pipe, name: str) -> None:
    global forgotten  # closed at exit  # noqa: PLW0603
    forgotten = gpuring.create(name, **OPTIONS, device="host")
    producer = forgotten.producer()
    producer.claim().publish()
    pipe.ask()


def test_a_process_that_ends_without_closing_ends_the_stream_in_order(name, children):
    child = up(children(ends_in_order, name))
    with gpuring.attach(name) as ring, ring.consumer(start="oldest") as frames:
        child.finish()
        assert frames.acquire(timeout=20).seq == 2
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire(timeout=20)
