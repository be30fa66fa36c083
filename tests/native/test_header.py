"""Damaged and foreign headers are refused with the numbers, and never crash a process.  Also what
may be created."""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import gpuring
from gpuring import native, slot_layout
from gpuring.native import Damaged, File, Header, Retired
from gpuring.native.snapshot import snapshot
from tests.helpers import raw_verbs
from tests.helpers.layout import FIELDS
from tests.helpers.promise import promise

SHM = Path("/dev/shm")


@pytest.fixture(params=[Header.attach, Header.read], ids=["attach", "read"])
def how(request):
    """The two functions that check a header.  They do so in the same way."""
    return request.param


def raw(data: bytes, how) -> Header:
    fd = os.memfd_create("gpuring-test")
    try:
        os.write(fd, data)
        return how(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("nbytes", [0, 1, 63, 192, 4095])
def test_a_file_without_room_for_a_header(segment, nbytes, how):
    with pytest.raises(Damaged, match=rf"{nbytes} bytes.*4096"):
        raw(segment().bytes()[:nbytes], how)


@pytest.mark.parametrize("change", [-4096, -1, 1, 4096])
def test_a_file_of_another_size_than_it_says(segment, change, how):
    data = segment().bytes()
    size = len(data) + change
    with pytest.raises(Damaged, match=rf"need {len(data)} bytes.*names {len(data)}.*has {size}"):
        raw(data[:size].ljust(size, b"\0"), how)


def test_a_foreign_file(how):
    with pytest.raises(Damaged, match="magic number is 0x2020202020202020"):
        raw(b" " * 8192, how)


def test_a_header_that_was_retired(segment, how):
    with pytest.raises(Damaged, match="version 0") as caught:  # it never was one
        raw(bytes(8192), how)
    assert not isinstance(caught.value, Retired)
    ring = segment()
    ring.creator.retire()
    assert raw_verbs.is_retired(ring.creator)
    with pytest.raises(Retired, match="removed"):
        how(ring.fd)


def test_the_bytes_of_the_magic_number_tell_the_byte_order(segment):
    ring = segment()
    assert ring.bytes()[:8] == b"\x01gpuring"
    ring.raw[:8] = b"gniru" + b"pg\x01"
    with pytest.raises(Damaged, match="magic"):
        ring.process()


@pytest.mark.parametrize("version", [0, native.VERSION + 1, 0xFFFFFFFF])
def test_another_version_is_refused_by_both_numbers(segment, version):
    ring = segment()
    ring.poke("head", "version", version)
    with pytest.raises(
        Damaged, match=rf"version {version}, this build reads version {native.VERSION}"
    ):
        ring.process()


OUT_OF_RANGE = [
    ("slots", (0, 1025, 2**32 - 1)),
    ("max_peers", (0, 251, 255, 2**32 - 1)),
    ("max_subscriptions", (0, 251, 255, 2**32 - 1)),
    ("memory", (5, 2**32 - 1)),
    ("sync", (1, 2, 3, 2**32 - 1)),  # a host ring has sync "host" only
    ("gate", (2, 2**32 - 1)),
    ("slot_nbytes", (0, 2**40 + 1, 2**63, 2**64 - 1)),
    ("meta_nbytes", (2**16 + 1, 2**64 - 1)),
    ("spec_nbytes", (0, 2**16 + 1, 2**32 - 1)),
]


@promise(
    "trust.md",
    "Everything that is read from a header at attach is copied and checked against its range and "
    "the real size of the file. Only the checked copy is used.",
)
@pytest.mark.parametrize(("field", "value"), [(f, v) for f, vs in OUT_OF_RANGE for v in vs])
def test_a_count_out_of_its_range_is_refused_by_name(segment, field, value, how):
    ring = segment()
    ring.poke("head", field, value)
    with pytest.raises(Damaged, match=field) as caught:
        how(ring.fd)
    assert re.search(rf"\b{value}\b", str(caught.value))


@pytest.mark.parametrize(
    ("field", "value"),
    [("slots", 1024), ("max_peers", 250), ("max_subscriptions", 250), ("meta_nbytes", 2**16),
     ("spec_nbytes", 2**16), ("nbytes", 0), ("nbytes", 2**63)],
)  # fmt: skip
def test_counts_that_need_another_size_are_refused(segment, field, value, how):
    ring = segment()
    ring.poke("head", field, value)
    with pytest.raises(Damaged, match=rf"need \d+ bytes, it names \d+ and has {len(ring.bytes())}"):
        how(ring.fd)


# ---- a copy to look at -------------------------------------------------------------------------


def test_a_copy_says_what_the_header_says_and_who_lives(segment):
    ring = segment(spec=b'{"spec": 1}', meta_nbytes=100)
    producer, reader = ring.producer(), ring.consumer()
    producer.publish(producer.claim())
    reader.acquire()
    copy, shared = Header.read(ring.fd), ring.process()
    assert copy.is_copy
    assert not shared.is_copy
    assert snapshot(copy) == snapshot(shared)
    for field in ("slots", "epoch", "spec", "meta_stride", "owner", "frontier"):
        assert getattr(copy, field) == getattr(shared, field), field
    for told in (raw_verbs.nbytes, raw_verbs.joins):
        assert told(copy) == told(shared), told
    assert copy.live_peers() == [producer.number, reader.number]
    assert (copy.creator_alive, copy.attached) == (True, True)
    producer.claim()  # the copy keeps its words, but sees deaths
    shared.close_ring()
    assert (copy.frontier, copy.closed) == (5, False)
    reader.die()
    assert copy.live_peers() == [producer.number]


def test_a_copy_can_be_read_without_the_right_to_write(segment):
    ring = segment()
    with File(f"/proc/self/fd/{ring.fd}", os.O_RDONLY) as file:
        assert Header.read(file.fd).live_peers() == []


@pytest.mark.parametrize(
    "verb",
    [
        raw_verbs.join_producer,
        lambda copy: raw_verbs.join_consumer(copy, b"x", True, "next"),
        lambda copy: copy.watch(),
        lambda copy: copy.reap(),
        lambda copy: copy.close_ring(),
        lambda copy: copy.retire(),
        memoryview,
    ],
    ids=["producer", "consumer", "watch", "reap", "close", "retire", "memoryview"],
)
def test_nothing_can_be_done_through_a_copy(segment, verb):
    ring = segment()
    before = ring.bytes()
    with pytest.raises(TypeError, match="attach"):
        verb(Header.read(ring.fd))
    assert ring.bytes() == before


def test_a_copy_counts_as_nobody(segment):
    """The creator frees GPU memory when nobody else has the ring.  A copy does not count as having
    it."""
    ring = segment()
    copy = Header.read(ring.fd)
    assert not ring.creator.attached
    assert not copy.is_copy or copy.attached  # the creator has it


# ---- the description of the slots --------------------------------------------------------------

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["u1", "<f4", "|O", "O", "V0", "S0", "f4,(2", "(1,", "M8[", "3u1", "fields"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["fields", "meta", "names"]), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@promise(
    "trust.md",
    "The description of a slot is JSON.",
)
@settings(max_examples=300, deadline=None)
@given(
    text=st.binary(max_size=64)
    | _json.map(lambda v: json.dumps(v).encode())
    | st.builds(lambda f, m: json.dumps({"fields": f, "meta": m}).encode(), _json, _json)
    | st.builds(
        lambda s, d, m: json.dumps({"fields": [["array", s, d]], "meta": m}).encode(),
        _json, _json, _json,
    )
)  # fmt: skip
@example(b"{}")
@example(b"[" * 5000)
@example(b'{"fields": [], "meta": null}')
@example(b'{"fields": [["array", [2], "|O"]], "meta": null}')
@example(b'{"fields": [["array", [2], [["a", "|O"]]]], "meta": null}')
@example(b'{"fields": [["array", [2], "u1"]], "meta": [["a"]]}')
@example(b'{"fields": [["array", [2], "u1"]], "meta": [[]]}')
@example(b'{"fields": [["array", [2], [[]]]], "meta": null}')
@example(b'{"fields": [["array", [1e400], "u1"]], "meta": null}')
@example(b'{"fields": [["array", [2], "f4,(2"]], "meta": null}')
@example(b'{"fields": [["array", [2], ["u1", 99999999999999999999]]], "meta": null}')
@example(b'{"fields": [["array", [-1], "u1"]], "meta": null}')
@example(b'{"fields": [["array", [true], "u1"]], "meta": null}')
@pytest.mark.slow
def test_any_description_is_read_or_refused_with_valueerror(text):
    with contextlib.suppress(ValueError):
        described = slot_layout.Spec.from_bytes(text)
        assert described.slot_nbytes > 0
        assert not any(field.dtype.hasobject for field in described.fields)


@pytest.mark.parametrize("about", ['"x"', "[1]", '{"lost": "3"}', '{"lost": true}', "{}", "3"])
def test_a_count_of_a_bridge_that_is_damaged_is_none(about):
    text = '{"fields": [["array", [2], "u1"]], "meta": null, "about": %s}'
    assert slot_layout.Spec.from_bytes((text % about).encode()).lost_before is None
    assert slot_layout.Spec.from_bytes((text % '{"lost": 3}').encode()).lost_before == 3


def damage(name: str, at: int, data: bytes) -> None:
    with (SHM / f"gpuring.{name}").open("r+b") as file:
        file.seek(at)
        file.write(data)


def spec_at(name: str) -> tuple[int, bytes]:
    data = (SHM / f"gpuring.{name}").read_bytes()
    at = data.rindex(b'{"fields"')
    return at, data[at:].rstrip(b"\0")


@promise(
    "trust.md",
    "A file that is damaged, or is no ring, gives `RingIncompatible`.",
)
@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"\xff" * len(text),
        lambda text: b"not JSON".ljust(len(text)),
        lambda text: b'{"fields": 7, "meta": 7}'.ljust(len(text)),
        lambda text: text.replace(b'"|u1"', b'"|O" '),
        lambda text: text.replace(b"[16]", b"[99]").replace(b"16", b"99"),  # does not fit the slots
        lambda text: text.replace(b'"<i8"', b'"<i4"'),  # does not fit the metadata
    ],
    ids=["bytes", "no JSON", "wrong shape", "objects", "slot size", "meta size"],
)
def test_a_damaged_description_is_incompatible(name, change):
    with gpuring.create(
        name, slots=2, shape=(1600,), dtype="u1", meta=[("pts", "i8")], device="host"
    ):
        at, text = spec_at(name)
        damage(name, at, change(text))
        with pytest.raises(gpuring.RingIncompatible, match=name):
            gpuring.attach(name)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(flips=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 255)), min_size=1, max_size=4))
def test_any_damage_to_a_ring_attaches_or_is_incompatible(name, flips):
    """Byte numbers below 192 mean the fixed part of the first page, the rest the description."""
    with gpuring.create(
        name, slots=2, fields={"a": ((4, 4), "f4"), "b": (3, "u2")}, meta=[("pts", "i8")],
        device="host", replace=True,
    ):  # fmt: skip
        data = (SHM / f"gpuring.{name}").read_bytes()
        at, text = spec_at(name)
        for where, flip in flips:
            place = where if where < 192 else at + (where - 192) % len(text)
            damage(name, place, bytes([data[place] ^ flip]))
        # Another epoch names slots that do not exist.  That happens also while a ring is being
        # replaced.
        with contextlib.suppress(gpuring.RingIncompatible, gpuring.RingNotFound):
            gpuring.attach(name).close()


def test_an_incompatible_ring_says_why_and_what_to_do(name):
    with gpuring.create(name, slots=2, shape=4, dtype="u1", device="host"):
        damage(name, FIELDS["head", "version"].offset, struct.pack("<I", 99))
        with pytest.raises(
            gpuring.RingIncompatible, match=rf"{name}.*version 99.*version {native.VERSION}.*clean"
        ):
            gpuring.attach(name)


@promise(
    "trust.md",
    "It takes only slots that have the owner, the size and the epoch of the header.",
)
def test_slots_that_are_gone_or_of_another_size(name):
    with gpuring.create(name, slots=2, shape=4, dtype="u1", device="host"):
        (slots,) = SHM.glob(f"gpuring.{name}+*")
        for nbytes in (256, 511, 513, 4096, 0):
            os.truncate(slots, nbytes)
            with pytest.raises(gpuring.RingIncompatible, match=rf"{nbytes} bytes.*2 × 256"):
                gpuring.attach(name)
        slots.unlink()
        with pytest.raises(gpuring.RingNotFound, match="gone"):  # they go when a ring is replaced
            gpuring.attach(name)


@promise(
    "trust.md",
    "It takes only slots that have the owner, the size and the epoch of the header.",
)
@pytest.mark.skipif(os.geteuid() != 0, reason="giving a segment to another user needs root")
@pytest.mark.parametrize("theirs", ["slots", "header"])
def test_slots_that_somebody_else_put_there(name, theirs):
    """Everybody can read the name of a ring's slots, which has the epoch."""
    with gpuring.create(name, slots=2, shape=4, dtype="u1", device="host"):
        (slots,) = SHM.glob(f"gpuring.{name}+*")
        path = slots if theirs == "slots" else SHM / f"gpuring.{name}"
        os.chown(path, 12345, 12345)
        owner = 12345 if theirs == "header" else None
        with pytest.raises(gpuring.RingIncompatible, match=rf"{name}.*12345.*somebody else"):
            gpuring.attach(name, owner=owner)
        os.chown(path, os.geteuid(), os.getegid())


# ---- creating ----------------------------------------------------------------------------------
