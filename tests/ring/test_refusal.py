"""Calls that are refused: what their errors say.  No claim and no hold is left behind."""

from __future__ import annotations

import contextlib
import os
import re

import pytest

import gpuring
from tests.helpers.interrupted import interrupts


@pytest.fixture
def ring(place, name):
    with place.create(
        name, slots=4, shape=(3, 5), dtype="f4", meta=[("pts", "i8"), ("box", "f4", 2)]
    ) as ring:
        yield ring


def test_a_blocked_claim_names_who_holds_the_frame(ring):
    with ring.producer() as producer, ring.consumer("display") as frames:
        for _ in range(4):
            producer.claim().publish()
        held = frames.acquire()
        with pytest.raises(gpuring.RingFull) as caught:
            producer.claim(timeout=0.01)
        assert isinstance(caught.value, TimeoutError)
        text = str(caught.value)
        assert re.search(
            rf"ring '{ring.name}'.*within 0.01 s.*pid {os.getpid()}\).*'display'.*has held "
            r"sequence 4 for \d+\.\d+ s",
            text,
        ), text
        with pytest.raises(gpuring.RingFull, match="at once"):
            producer.claim(timeout=0)
        held.release()


def test_a_blocked_claim_names_the_subscription_that_does_not_take(ring):
    with ring.producer() as producer, ring.consumer("display"):
        for _ in range(4):
            producer.claim().publish()
        with pytest.raises(gpuring.RingFull) as caught:
            producer.claim(timeout=0)
        text = str(caught.value)
        assert re.search(r"'display' has not taken sequence 4, published \d+\.\d+ s ago", text), (
            text
        )
        assert f"pid {os.getpid()}" in text, "whose process should be looked at?"


def test_a_ctrl_c_is_not_lost_while_the_words_are_found(ring):
    """The C code calls Python to learn whether the culprit is stopped, and cannot raise there."""
    with ring.producer() as producer, ring.consumer("display"):
        for _ in range(4):
            producer.claim().publish()
        for interrupt in interrupts():
            with interrupt, contextlib.suppress(gpuring.RingFull):
                producer.claim(timeout=0)
            assert interrupt.raised == (interrupt.where is not None), interrupt.where


def test_a_blocked_acquire_says_what_it_waits_for(ring):
    with ring.producer() as producer, ring.consumer() as frames:
        with pytest.raises(gpuring.RingTimeout, match="sequence 4 has not been published"):
            frames.acquire(timeout=0)
        slot = producer.claim()
        with pytest.raises(
            gpuring.RingTimeout, match=rf"pid {os.getpid()}.*has been writing sequence 4 for"
        ):
            frames.acquire(timeout=0)
        slot.abandon()


def test_a_call_that_times_out_leaves_no_claim_and_no_hold(ring):
    with ring.producer() as producer, ring.consumer() as frames:
        with pytest.raises(gpuring.RingTimeout):
            frames.acquire(timeout=0.001)
        for _ in range(4):
            producer.claim().publish()
        with pytest.raises(gpuring.RingFull):
            producer.claim(timeout=0.001)
        stats = ring.stats()
        assert all(peer.holding == () for peer in stats.peers)
        assert stats.cursor == 8


def test_wrong_subscriptions(ring):
    for wrong in ("", "#1", "a\0b", "x" * 65, "ü" * 33):
        with pytest.raises(ValueError, match="subscription"):
            ring.consumer(wrong)
    for wrong in (1, b"x"):
        with pytest.raises(TypeError, match="subscription"):
            ring.consumer(wrong)
    with ring.consumer("a"), pytest.raises(ValueError, match="'a' exists"):
        ring.consumer("a", lossless=False)
    assert ring.stats().peers == ()


def test_full_tables_say_which_and_how_many(place, name):
    with place.create(name, slots=2, shape=4, dtype="u1", max_peers=3, max_subscriptions=1) as ring:
        a, b = ring.consumer("x"), ring.consumer("x")
        with pytest.raises(
            gpuring.TooManyPeers, match=r"its only subscription is in use; .*max_subscriptions"
        ):
            ring.consumer("y")
        c = ring.producer()
        with pytest.raises(gpuring.TooManyPeers, match=r"all 3 entries.*max_peers"):
            ring.producer()
        for endpoint in (a, b, c):
            endpoint.close()


def test_a_ring_and_its_ends_say_what_they_are(ring):
    field = ring.spec.fields[0]
    assert (ring.shape, ring.dtype) == (field.shape, field.dtype)
    assert ring.fields == {field.name: (field.shape, field.dtype)}
    with ring.consumer("a") as frames:
        assert repr(frames) == f"<Consumer of {ring.name!r}: peer {frames.peer} of 'a', lossless>"
    assert repr(frames) == f"<Consumer of {ring.name!r}: closed>"


def test_an_alignment_says_what_it_is(ring):
    with ring.consumer() as left, ring.consumer() as right:
        names = f"{ring.name!r}, {ring.name!r}"
        aligned = gpuring.align([left, right], "pts", 2, partial=True)
        assert repr(aligned) == (
            f"<Aligned of {names}: by 'pts' within 2, partial, unmatched (0, 0)>"
        )
        aligned = gpuring.align([left, right])
        assert repr(aligned) == f"<Aligned of {names}: the newest of each, unmatched (0, 0)>"


def test_the_list_of_rings_is_a_list_that_is_shown_as_a_table(ring):
    found = gpuring.ls()
    assert isinstance(found, list)
    (mine,) = [one for one in found if one.name == ring.name]
    head, *rows = repr(found).splitlines()
    assert len(rows) == len(found)
    (row,) = [row for row in rows if row.startswith(f"{ring.name} ")]
    assert all(len(line) <= 58 + len(ring.name) for line in repr(type(found)([mine])).splitlines())
    assert head.split() == ["NAME", "MEMORY", "SLOTS", "SLOT", "BYTES", "CLAIMED", "PEERS", "STATE"]
    cells = [ring.name, ring.memory, "4", f"{mine.slot_nbytes:,}", "0", "0", "open"]
    assert row.split() == cells
    assert repr(type(found)()) == "[]"


@pytest.mark.parametrize("kind", [gpuring.ReadSlot, gpuring.WriteSlot])
def test_a_slot_of_no_ring_is_refused_and_ends_no_interpreter(kind):
    slot = kind()
    end = slot.release if kind is gpuring.ReadSlot else slot.publish
    for use in (lambda: slot.array, lambda: slot.meta, lambda: slot.use_on(1), end):
        with pytest.raises(gpuring.RingError, match="is no longer yours"):
            use()
    assert repr(slot).endswith("closed>")
