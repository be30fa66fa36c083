"""What a bridge writes into its far ring: origins of frames, and how far it has come."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import gpuring
from gpuring.ring import inner
from tests.helpers.compiled import BUILD_S, FAULTS, Edit, build, needs_compiler, run
from tests.helpers.rings import create_far, segments_of

NEAR, OTHER = b"n" * 16, b"o" * 16
_names = itertools.count()


@pytest.fixture
def ring() -> Iterator[gpuring.Ring]:
    name = f"link-{os.getpid()}-{next(_names)}"
    origin = {"host": "camera-host", "ring": "cam0"}
    with create_far(name, origin, slots=4, shape=(2,), dtype="u1", device="host") as made:
        yield made
    assert segments_of(name) == []


def bring(producer: gpuring.Producer, seq: int, lost: int = 0) -> None:
    with producer.claim(timeout=0) as slot:
        slot._set_origin(seq, 1_000 + seq, lost)


def test_without_a_bridge_there_is_no_link(ring):
    assert inner.link(ring) == (b"", 0, 0)
    with ring.producer() as producer:
        producer.claim(timeout=0).publish()
        assert inner.link(ring) == (b"", 0, 0)


def test_the_link_says_what_was_said_last(ring):
    for seq in (7, 8, 12):
        inner.set_link(ring, NEAR, seq, seq - 7)
        assert inner.link(ring) == (NEAR, seq, seq - 7)
    with gpuring.attach(ring.name) as attached:
        assert inner.link(attached) == (NEAR, 12, 5)
    inner.set_link(ring, OTHER, 3, 6)
    assert inner.link(ring) == (OTHER, 3, 6)


def test_the_clock_is_what_was_measured_last(ring):
    header = inner.header(ring)
    assert header.clock() is None
    for ahead in (-(10**15), 5, 10**15):
        inner.set_clock(ring, ahead, 7, 9)
        assert header.clock() == (ahead, 7, 9)
    with gpuring.attach(ring.name) as attached:
        assert inner.header(attached).clock() == (10**15, 7, 9)


def test_an_epoch_has_16_bytes(ring):
    with pytest.raises(ValueError, match="16 bytes, not 3"):
        inner.set_link(ring, b"abc", 1, 0)
    assert inner.link(ring) == (b"", 0, 0)


def test_a_published_frame_counts_before_the_link_is_set(ring):
    inner.set_link(ring, NEAR, 4, 0)
    with ring.producer() as producer:
        bring(producer, 5, 2**32 + 1)
        bring(producer, 7, 2**32 + 2)
        assert inner.link(ring) == (NEAR, 7, 2)
        inner.set_link(ring, NEAR, 9, 2**40)  # 8 and 9 were void
        assert inner.link(ring) == (NEAR, 9, 2**40)
        bring(producer, 10, 2**40 + 3)
        assert inner.link(ring) == (NEAR, 10, 2**40 + 3)


def test_what_was_not_published_does_not_count(ring):
    inner.set_link(ring, NEAR, 4, 0)
    with ring.producer() as producer:
        slot = producer.claim(timeout=0)
        slot._set_origin(5, 0, 0)
        assert inner.link(ring) == (NEAR, 4, 0)
        slot.abandon()
        assert inner.link(ring) == (NEAR, 4, 0)


def test_frames_of_an_earlier_link_do_not_count(ring):
    inner.set_link(ring, NEAR, 99, 0)
    with ring.producer() as producer:
        early = producer.claim(timeout=0)
        slot = producer.claim(timeout=0)
        early._set_origin(100, 0, 0)
        early.publish()
        inner.set_link(ring, OTHER, 4, 0)
        assert inner.link(ring) == (OTHER, 4, 0)
        slot._set_origin(5, 0, 0)  # claimed for the old link, and used for the new one
        slot.publish()
        assert inner.link(ring) == (OTHER, 5, 0)
        inner.set_link(ring, OTHER, 5, 0)
        inner.set_link(ring, NEAR, 100, 0)  # back to a ring whose frame is still there
        assert inner.link(ring) == (NEAR, 100, 0)


def test_a_frame_counts_after_its_slot_was_claimed_again(ring):
    """This happens if a new importer is killed after its claims, and before it has set the link."""
    inner.set_link(ring, NEAR, 4, 2)
    with ring.producer() as producer:
        bring(producer, 5, 2)
        bring(producer, 6, 3)
        slots = producer.claim_many(4, timeout=0)
        assert inner.link(ring) == (NEAR, 6, 3)
        inner.set_link(ring, NEAR, 5, 2)  # the importer is behind with that
        assert inner.link(ring) == (NEAR, 6, 3)
        slots.abandon()
        assert inner.link(ring) == (NEAR, 6, 3)
        inner.set_link(ring, NEAR, 8, 9)
        assert inner.link(ring) == (NEAR, 8, 9)


def test_a_frame_of_an_earlier_link_does_not_count_when_its_slot_is_claimed_again(ring):
    inner.set_link(ring, NEAR, 4, 0)
    with ring.producer() as producer:
        for seq in range(50, 54):
            bring(producer, seq)
        inner.set_link(ring, OTHER, 4, 0)
        slots = producer.claim_many(4, timeout=0)
        assert inner.link(ring) == (OTHER, 4, 0)
        slots.abandon()
        inner.set_link(ring, NEAR, 7, 0)
        assert inner.link(ring) == (NEAR, 7, 0)


def test_an_origin_belongs_to_a_claim(ring):
    with ring.producer() as producer:
        slot = producer.claim(timeout=0)
        with pytest.raises(ValueError, match="1 or more"):
            slot._set_origin(0, 0, 0)
        slot.publish()
        with pytest.raises(gpuring.RingError, match="no longer yours"):
            slot._set_origin(5, 0, 0)


def test_an_origin_is_part_of_the_description(ring):
    with gpuring.attach(ring.name) as attached:
        assert attached.spec.origin == {"host": "camera-host", "ring": "cam0"}
    with gpuring.create(f"{ring.name}-b", slots=1, shape=1, dtype="u1", device="host") as other:
        assert other.spec.origin is None
    for wrong in ({"host": "a"}, {"host": "a", "ring": 1}, {"host": "a", "ring": "b", "c": "d"}):
        with pytest.raises(ValueError, match="a host and a ring"):
            create_far("link-x", wrong, slots=1, shape=1, dtype="u1", device="host")


# ---- at every fault point (programs/link.c) ----------------------------------------------------

RUN_S = 60


def kills(place: Path, most: int, *edits: Edit) -> CompletedProcess[str]:
    program = build(place, "link.c", FAULTS, *edits)
    return run(program, most, 1, timeout=RUN_S)  # by the seed 1


@needs_compiler
@pytest.mark.deadline(BUILD_S + RUN_S)
def test_each_near_frame_comes_once_wherever_importers_are_killed(tmp_path):
    done = kills(tmp_path, 400)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["kills"] == 400
    assert told["frames"] > 400
    assert told["near rings"] > 10
    assert told["at random"] > 0
    steps = {"publish: recorded", "publish: ready", "origin: written", "link: half an epoch"}
    steps |= {
        "link: passing",
        "link: passed",
        "link: epoch",
        "link: written",
        "link: turned",
        "claim: claimed",
        "promised",
    }
    assert {*told["points"]} >= steps


MUTANTS: dict[str, Edit] = {
    "published frames do not count": (
        "annex.c",
        "if (shown(&ring->slot[i], &seq, &origin) && seq >= first) lift",
        "if (0) lift",
    ),
    "frames count before they are published": (
        "annex.c",
        "return phase_of(w) == GR_READY && gr_origin",
        "return phase_of(w) != GR_TORN && gr_origin",
    ),
    "frames of an earlier link count": (
        "annex.c",
        "seq >= first) first = seq + 1;",
        "0) first = 1;",
    ),
    "there is one copy, and it is written in place": (
        "annex.c",
        "return &ring->head->links[turn % 2];",
        "return &ring->head->links[turn * 0];",
    ),
    "the turn comes first": (
        "annex.c",
        "    struct gr_link *link = link_of(ring, turn + 1);",
        "    struct gr_link *link = link_of(ring, turn + 1);\n"
        "    gr_store_release(&head->link_turn, turn + 1);\n"
        '    GR_FAULT("link: turned first");',
    ),
    "what was lost is that of the watermark": (
        "annex.c",
        "mark->lost += (uint32_t)(origin->lost - (uint32_t)mark->lost);",
        "",
    ),
    "a claim takes a frame away without a note": (
        "claim.c",
        "gr_annex_overwrites(ring, &ring->slot[i], c - n);",
        ";",
    ),
    "the note forgets what was lost": (
        "annex.c",
        "gr_store_release(&link->passed_lost, origin.lost);",
        "",
    ),
    "the note comes with another link": (
        "annex.c",
        "first = passed = passed_lost = 0;",
        "first = 0;",
    ),
}


@needs_compiler
@pytest.mark.deadline(BUILD_S + RUN_S)
@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_reader_finds_each_mutant(mutant, tmp_path):
    done = kills(tmp_path, 2000, MUTANTS[mutant])
    assert done.returncode == -signal.SIGABRT, done.stdout
    assert "not so" in done.stderr
