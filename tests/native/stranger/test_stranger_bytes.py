"""Sentences of docs/abi.md about bytes that clients and the library have to read alike, and about
what may change."""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest

import gpuring
from gpuring import native, slot_layout
from gpuring.ring.creation import create_of
from tests.helpers.compiled import needs_compiler
from tests.helpers.layout import FIELDS, SIZES
from tests.helpers.processes import PATIENCE_S
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of, waiters
from tests.helpers.words import poke
from tests.native.stranger import WORDS, drain, make, produce

pytestmark = needs_compiler


def header(name: str) -> Path:
    return Path(f"/dev/shm/gpuring.{name}")


# ---- a ring that the client has made -------------------------------------------------------------


@promise(
    "abi.md",
    "The JSON may get more keys within a version.",
    "A client passes over keys that it does not know.",
)
def test_a_ring_of_the_client_is_a_ring(name, stranger):
    """The ring's description has an unknown key, and its keys are in another order."""
    creator = stranger("create", name, 4, WORDS, paused=True)
    creator.said("created")
    with gpuring.attach(name, timeout=PATIENCE_S) as ring, ring.consumer() as consumer:
        assert json.loads(ring._header.spec)["made"] == "by a stranger"
        assert (ring.slots, ring.shape, ring.dtype) == (4, (WORDS,), np.dtype("<u8"))
        assert ring.stats().creator_pid == creator.pid
        assert ring.stats().creator_alive
        writer = stranger("produce", name, 9, 3)
        with ring.producer() as producer:
            made = produce(producer, 7, range(1))
            assert writer.end() == "done"
        assert sorted(drain(consumer)) == sorted(made + writer.frames)
        reader = ring.consumer()
        creator.step()
        assert creator.end() == "closed"
        with pytest.raises(gpuring.EndOfStream):
            reader.acquire(timeout=PATIENCE_S)
    assert segments_of(name) == []
    with pytest.raises(gpuring.RingNotFound):
        gpuring.attach(name)


def test_a_ring_of_a_dead_client_makes_way(name, stranger):
    creator = stranger("create", name, 4, WORDS, paused=True)
    creator.said("created")
    with pytest.raises(gpuring.RingExists):
        make(name)
    creator.kill()
    with make(name) as ring:
        assert len(segments_of(name)) == 2
        assert stranger("produce", name, 9, 3).end() == "done"
        assert ring.stats().cursor == 8 + 3


def test_a_client_whose_ring_was_replaced_leaves_the_new_one_alone(name, stranger):
    creator = stranger("create", name, 4, WORDS, paused=True)
    creator.said("created")
    with make(name, replace=True) as ring:
        there = segments_of(name)
        assert len(there) == 2
        assert creator.end() == "closed"
        assert segments_of(name) == there
        assert stranger("produce", name, 9, 3).end() == "done"
        assert ring.stats().cursor == 8 + 3


def test_two_clients_do_not_have_one_name(name, stranger):
    creator = stranger("create", name, 4, WORDS, paused=True)
    creator.said("created")
    other = stranger("create", name, 4, WORDS, paused=True)
    assert "the name is taken" in other.error()
    assert len(segments_of(name)) == 2
    assert creator.end() == "closed"
    assert segments_of(name) == []


def test_a_client_removes_a_ring_whoever_uses_it(name, stranger):
    with make(name) as ring, ring.producer() as producer, ring.consumer() as consumer:
        made = produce(producer, 7, range(3))
        assert stranger("remove", name).end() == "closed"
        assert segments_of(name) == []
        assert drain(consumer) == made
        with pytest.raises(gpuring.RingClosed):
            producer.claim(timeout=0)
        with pytest.raises(gpuring.RingNotFound):
            gpuring.attach(name)
        with make(name) as other:  # the old one's close leaves the new ring alone
            ring.close()
            assert gpuring.attach(name).stats().epoch == other.stats().epoch


@pytest.mark.parametrize("field", ["closed", "magic"])
def test_a_client_goes_on_where_another_one_was_killed_that_removed_the_ring(name, stranger, field):
    with make(name) as ring, header(name).open("rb") as file:
        poke(ring, "head", field, int(field == "closed"))
        assert stranger("remove", name).end() == "closed"
        assert segments_of(name) == []
        data = file.read(4096)
        for word, value in (("closed", 1), ("magic", 0)):
            assert struct.unpack_from("<Q", data, FIELDS["head", word].offset) == (value,)


# ---- what the client has to leave alone ----------------------------------------------------------


def test_a_client_leaves_the_canaries_alone(name, stranger):
    """Frames of a ring that was made in debug mode end before the next slot begins."""
    canary = slot_layout.SLOT_ALIGNMENT
    described = slot_layout.make(shape=WORDS + 1, dtype="<u8", canary_nbytes=canary)
    with create_of(described, name, slots=4, device="host") as ring:
        distance, end = described.slot_nbytes, 8 * (WORDS + 1)
        assert distance > end + canary
        (slots,) = Path("/dev/shm").glob(f"gpuring.{name}+*")
        with slots.open("r+b") as file:
            for at in range(0, 4 * distance, distance):
                file.seek(at + end)
                file.write(b"\xc7" * (distance - end))
        reader = stranger("consume", name, "x", "lossless", "next")
        reader.number()
        writer = stranger("produce", name, 9, 10)
        assert writer.end() == "done"
        assert reader.end() == "ended"
        assert len(reader.frames) == 10
        data = slots.read_bytes()
        for at in range(0, 4 * distance, distance):
            assert data[at : at + end].strip(b"\0")
            assert {*data[at + end : at + distance]} == {0xC7}
        assert ring.stats().cursor == 4 + 10


@pytest.mark.parametrize("joiner", ["client", "library"])
@pytest.mark.parametrize(("table", "stays"), [("peer", "ends"), ("sub", "redo")])
def test_a_join_leaves_nothing_of_the_owner_before(name, stranger, table, stays, joiner):
    """Only `ends` stays, which counts all owners of a peer's number, and `redo`, which rises."""
    fields = {field: its for (of, field), its in FIELDS.items() if of == table}
    begin = 4096 + (SIZES["sub"] if table == "peer" else 0)
    with make(name, max_subscriptions=1) as ring, header(name).open("r+b", buffering=0) as file:
        for field, its in fields.items():
            file.seek(begin + its.offset)
            file.write((b"\0" if field in ("word", stays) else b"\xff") * its.nbytes)
        if joiner == "client":
            assert stranger("consume", name, "x", "lossless", "next", paused=True).number() == 0
        else:
            consumer = ring.consumer("x")
            assert consumer.peer == 0
        file.seek(begin)
        data = file.read(SIZES[table])
    kept = [
        field for field, its in fields.items()
        if data[its.offset : its.offset + its.nbytes] == b"\xff" * its.nbytes
    ]  # fmt: skip
    assert not kept
    assert not any(data[fields[stays].offset :][: fields[stays].nbytes])


def test_a_client_takes_no_part_in_a_subscription_of_other_terms(name, stranger):
    with (
        make(name) as ring,
        ring.consumer("drops", redeliver=False),
        ring.consumer("lossy", lossless=False),
    ):
        for other in ("drops", "lossy"):
            reader = stranger("consume", name, other, "lossless", "next")
            assert "the subscription is another one" in reader.error()
        assert [len(each.members) for each in ring.stats().subscriptions] == [1, 1]
        assert waiters(ring) == 0


@pytest.mark.parametrize(("more", "fits"), [(1, True), (0.5, False)])
def test_a_header_may_be_longer_by_the_tables_of_traces(name, stranger, more, fits):
    with make(name, max_peers=2) as ring:
        whole = header(name).stat().st_size
        os.truncate(header(name), whole + int(more * SIZES["trace_table"] * 2))
        writer = stranger("produce", name, 9, 3)
        if fits:
            assert writer.end() == "done"
        else:
            assert "it has another size" in writer.error()
        assert ring.stats().cursor == 8 + (3 if fits else 0)


# ---- what may change, and what may not -----------------------------------------------------------


@promise(
    "abi.md",
    "A build reads the layout version that it was made for, and no other one.",
    "Neither older nor newer versions are read.",
    "A client that finds another version stops.",
    "It changes nothing, removes nothing, and says both numbers.",
    "Rings of several versions live beside each other on one host, under different names.",
)
@pytest.mark.parametrize(
    "version", [native.VERSION - 1, native.VERSION + 1], ids=["older", "newer"]
)
def test_another_version_is_refused(name, stranger, version):
    with make(name):
        set_version(name, version)
        before = header(name).read_bytes()
        there = segments_of(name)
        reader = stranger("consume", name, "x", "lossless", "next")
        both = rf"version {version}\b.*\b{native.VERSION}\b"
        assert re.search(both, reader.error())
        with pytest.raises(gpuring.RingIncompatible, match=both):
            gpuring.attach(name)
        assert header(name).read_bytes() == before
        assert segments_of(name) == there
        with make(f"{name}-b") as ring:
            assert stranger("produce", ring.name, 9, 3).end() == "done"
            assert ring.stats().cursor == 8 + 3


@promise(
    "abi.md",
    "A ring of another version whose file nobody has locked (bytes 0 to 259) may be removed by its "
    "user.",
)
def test_a_dead_ring_of_another_version_makes_way(name, stranger):
    creator = stranger("create", name, 4, WORDS, paused=True)
    creator.said("created")
    set_version(name, native.VERSION + 1)
    with pytest.raises(gpuring.RingExists):
        make(name)
    creator.kill()
    make(name).close()
    assert segments_of(name) == []


def set_version(name: str, version: int) -> None:
    with header(name).open("r+b") as file:
        file.seek(FIELDS["head", "version"].offset)
        file.write(struct.pack("<I", version))


UNNAMED = {
    table: [
        at
        for at in range(4096 if table == "head" else SIZES[table])
        if not any(
            field.offset <= at < field.offset + field.nbytes
            for (of, _), field in FIELDS.items()
            if of == table
        )
    ]
    for table in ("head", "sub", "peer")
}
"""The bytes of an element that no field has."""


@promise(
    "abi.md",
    "Bytes of `head` that this page does not name may get a use within a version.",
    "Then clients that leave them alone stay right.",
    "Write 0 to all bytes without a name when you create a ring.",
    "Do not touch them afterwards, and do not refuse a ring in which they are not 0.",
)
def test_bytes_without_a_name_are_left_alone(name, stranger):
    # A field that takes bytes from `reserved[]`, or gives some back, changes these numbers.
    assert {table: len(at) for table, at in UNNAMED.items()} == {
        "head": 4096 - sum(f.nbytes for (of, _), f in FIELDS.items() if of == "head"),
        "sub": 16, "peer": 48,
    }  # fmt: skip
    with make(name, max_peers=3, max_subscriptions=2) as ring:
        places = [
            begin + row * SIZES[table] + at
            for table, begin, rows in (
                ("head", 0, 1), ("sub", 4096, 2), ("peer", 4096 + 2 * SIZES["sub"], 3),
            )
            for row in range(rows)
            for at in UNNAMED[table]
        ]  # fmt: skip
        data = header(name).read_bytes()
        assert {data[at] for at in places} == {0}
        with header(name).open("r+b") as file:
            for at in places:
                file.seek(at)
                file.write(b"\xff")
        reader = stranger("consume", name, "x", "lossless", "next")
        reader.number()
        with gpuring.attach(name) as other, other.consumer("y") as consumer:
            writer = stranger("produce", name, 9, 20)
            assert [each.k for each in drain(consumer)] == [*range(20)]
        assert writer.end() == "done"
        assert reader.end() == "ended"
        assert len(reader.frames) == 20
        data = header(name).read_bytes()
        assert {data[at] for at in places} == {0xFF}
        assert ring.stats().peers == ()
