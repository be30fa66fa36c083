"""Rings that a program in C has created.  They are whole for everybody, and gone when it closes
them."""

from __future__ import annotations

import json
import resource
import stat
from pathlib import Path

import numpy as np
import pytest

import gpuring
from gpuring import slot_layout
from gpuring.registry import leftovers
from tests.helpers.rings import put, segments_of, small_ring

IMAGE = ("array", "|u1", 4, 6, ",", ";", "pts", "<i8", ",")


def test_python_reads_in_a_ring_that_c_has_created(name, puppet):
    c = puppet()
    c.ok("create", name, 4, 0o600, *IMAGE)
    with gpuring.attach(name) as ring, ring.consumer() as frames:
        assert ring.spec == slot_layout.make(shape=(4, 6), dtype="u1", meta=[("pts", "<i8")])
        assert (ring.slots, ring.memory, ring.sync) == (4, "host", "host")
        c.ok("produce", "-")
        c.ok("claim", 0, 0, 0)
        c.ok("publish", 0, 1, 7, 99)
        with frames.acquire(5) as slot:
            assert (slot.array == 7).all()
            assert slot.meta["pts"] == 99
        assert c.refused("detach")[0] == "INVALID"
        c.ok("close", 0)
        c.ok("detach")
        assert segments_of(name) == []
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire(5)
        with pytest.raises(gpuring.RingClosed):
            ring.producer()
    c.end()


def test_several_fields_lie_where_python_puts_them(name, puppet):
    c = puppet()
    c.ok(
        "create", name, 2, 0o600, "y", "|u1", 3, 5, ",", 'q"\\', "<f4", 2, ",", "b", "bfloat16", 3,
        ",", "s", '[["a","<f4"],["b","|u1",[2]]]', 4, ",", ";",
        "pts", "<i8", ",", "box", "<f4", 2, 2, ",",
    )  # fmt: skip
    dtype = np.dtype([("a", "<f4"), ("b", "u1", (2,))])
    fields = {"y": ((3, 5), "u1"), 'q"\\': (2, "f4"), "b": (3, "bfloat16"), "s": (4, dtype)}
    with gpuring.attach(name) as ring:
        meta = [("pts", "<i8"), ("box", "<f4", (2, 2))]
        assert ring.spec == slot_layout.make(fields=fields, meta=meta)
    c.ok("detach")


def test_a_name_that_is_taken_is_not_taken_away(name, puppet):
    one, other = puppet(), puppet()
    with small_ring(name):
        status, text = one.refused("create", name, 4, 0o600, *IMAGE)
        assert status == "EXISTS"
        assert f"ring '{name}' exists" in text
        with pytest.raises(gpuring.RingExists, match="or close the one that this process has"):
            small_ring(name)
    one.ok("create", name, 4, 0o600, *IMAGE)
    with pytest.raises(gpuring.RingExists, match=rf"created by pid {one.pid} \(alive\)"):
        gpuring.create(name, slots=2, shape=4, dtype="u1", device="host")
    one.kill()
    with small_ring(name, slots=3) as ring:  # as for any creator that was killed
        assert gpuring.attach(name).slots == ring.slots == 3
    other.ok("create", name, 4, 0o600, *IMAGE)
    with gpuring.create(name, slots=5, shape=4, dtype="u1", device="host", replace=True):
        assert other.refused("produce", "-")[0] == "CLOSED"
        other.ok("detach")  # the name is that of the other ring by now
        assert gpuring.attach(name).slots == 5


def test_which_ring_makes_way(name, puppet):
    """As in Python, rings of the dead make way by default.  With options, no ring does, or any."""
    none, any_ = 1, 2
    one, other = puppet(), puppet()
    one.ok("create", name, 3, 0o600, *IMAGE)
    one.kill()
    other("replaces", none)
    status, text = other.refused("create", name, 4, 0o600, *IMAGE)
    assert (status, f"created by pid {one.pid} (dead)" in text) == ("EXISTS", True)
    other("replaces", 0)
    other.ok("create", name, 4, 0o600, *IMAGE)
    other.ok("detach")
    with small_ring(name, slots=5) as ring, ring.consumer() as frames, ring.producer() as producer:
        put(producer, 1)
        other("replaces", any_)
        other.ok("create", name, 6, 0o600, *IMAGE)
        assert gpuring.attach(name).slots == 6
        frames.acquire(5).release()
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire(5)
    other.ok("detach")
    other("replaces", 7)
    assert other.refused("create", name, 4, 0o600, *IMAGE)[0] == "INVALID"
    other.end()


def test_unlink_takes_the_name_and_nobody_out_of_the_ring(name, puppet):
    c = puppet()
    assert c.refused("unlink", name)[0] == "NOT_FOUND"
    with small_ring(name) as ring, ring.consumer() as frames, ring.producer() as producer:
        c.ok("unlink", name)
        assert segments_of(name) == []
        put(producer, 1)
        frames.acquire(5).release()
    c.end()


def test_the_last_one_takes_the_names_of_a_dead_creators_ring_away(name, puppet):
    one, other = puppet(), puppet()
    one.ok("create", name, 4, 0o600, *IMAGE)
    other.ok("attach", name, 0)
    one.kill()
    assert len(segments_of(name)) == 2
    other.ok("detach")
    assert segments_of(name) == []


def test_durable_subscriptions_go_over_from_c_to_python_and_back(name, puppet):
    c = puppet()
    c("born", "rec", "other")
    c.ok("create", name, 4, 0o600, *IMAGE)
    with gpuring.attach(name) as ring:
        assert {each.name: each.durable for each in ring.stats().subscriptions} == {
            "rec": True,
            "other": True,
        }
    c.ok("subscribe", "third", 0, "l", 5)
    assert c.refused("subscribe", "rec", 0, "l", 0)[0] == "INVALID"  # it is lossless
    c.ok("produce", "-")
    for k in range(3):
        c.ok("claim", 0, 0, 0)
        c.ok("publish", 0, 1, k, k)
    c.kill()
    with gpuring.create(name, slots=4, shape=(4, 6), dtype="u1", device="host") as ring:
        names = [each.name for each in ring.stats().subscriptions]
        assert sorted(names) == ["other", "rec", "third"]
        with ring.producer() as producer:
            put(producer, 1)
            with ring.consumer("rec") as frames:
                assert frames.acquire(5).lost == 3
    c = puppet()
    c.ok("create", name, 4, 0o600, *IMAGE)
    c.ok("produce", "-")
    c.ok("consume", "other", -1, "")
    c.ok("claim", 0, 0, 0)
    c.ok("publish", 0, 1, 9, 9)
    assert c.ok("acquire", 1, 0, 0)["lost"] == "4"
    assert c.ok("unsubscribe", "rec")["found"] == "1"
    assert c.ok("unsubscribe", "rec")["found"] == "0"
    c.ok("close", 0)
    c.ok("close", 1)
    c.ok("detach")
    with small_ring(name):
        pass


def test_a_program_that_ends_without_a_close_has_died(name, puppet):
    c = puppet()
    c.ok("create", name, 4, 0o600, *IMAGE)
    c.ok("produce", "-")
    c.ok("claim", 0, 0, 0)
    c.ok("publish", 0, 1, 1, 1)
    with gpuring.attach(name) as ring, ring.consumer(start="oldest") as frames:
        c.kill()
        frames.acquire(5).release()
        with pytest.raises(gpuring.PeerLost):
            frames.acquire(20)
    assert segments_of(name) == []  # the last one has removed the names


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((0, 0o600, *IMAGE), "slots"),
        ((1025, 0o600, *IMAGE), "slots"),
        ((4, 0o7777, *IMAGE), "permission bits"),
        ((4, 0o600), "at least one field. `fields` and"),
        ((4, 0o600, "a", "|O8", ","), "field 'a': there is no such dtype as '|O8'"),
        ((4, 0o600, *IMAGE, "t", "uint8", ","), "field 't': there is no such dtype as 'uint8'"),
        ((4, 0o600, "a", 'M8[\udcff"]', ","), "UTF-8"),
        ((4, 0o600, "a", "|u1", 3, 0, ","), "field 'a': shape[1] is 0"),
        ((4, 0o600, "a\udcff", "|u1", ","), "UTF-8"),
        ((4, 0o600, "\udcf8\udc90\udc80\udc80", "|u1", ","), "UTF-8"),
        ((4, 0o600, "a", '[["\udcff","|u1"]]', ","), "UTF-8"),
        ((4, 0o600, "a", "|u1", *[1] * 9, ","), "at most 8 dimensions"),
        ((4, 0o600, "a", '[["x","<f4"]]],["b",[2],"<f4"', ","), "more than one structure"),
        ((4, 0o600, *IMAGE, "box", '[["x","<f4"]]],["b","<f4"', ","), "more than one structure"),
        ((4, 0o600, "a", "|u1", ",", "a", "|u1", ","), "field 'a': two fields have one name"),
        ((4, 0o600, "a", "|u1", 2**44, ","), "field 'a': a slot has at most 1 TiB"),
        ((4, 0o600, "a", "[('x','<f4')]", ","), "field 'a': its JSON is not valid"),
    ],
)
def test_what_is_wrong_leaves_nothing(name, puppet, arguments, told):
    c = puppet()
    status, text = c.refused("create", name, *arguments)
    assert status == "INVALID"
    assert told in text
    assert segments_of(name) == []
    c.ok("create", name, 4, 0o600, *IMAGE)
    c.ok("detach")
    c.end()


@pytest.mark.parametrize(
    "dtype", ["f4", "=f4", "|f4", ">f4", "u1", "<u1", ">b1", "<S3", "U2", "V5", "M8[ns]", "c8"]
)
def test_a_dtype_is_stored_as_numpy_writes_it(name, puppet, dtype):
    c = puppet()
    c.ok("create", name, 4, 0o600, "a", dtype, 3, ",", ";", "m", dtype, ",")
    with gpuring.attach(name) as ring:
        text = json.loads(ring._header.spec)
    assert text["fields"] == [["a", [3], np.dtype(dtype).str]]
    assert text["meta"] == [["m", np.dtype(dtype).str]]
    c.ok("detach")
    c.end()


@pytest.mark.parametrize(("more", "what"), [(1, "the slots"), (2, "the header")])
def test_a_process_without_descriptors_is_told_of_which_ring(name, puppet, more, what):
    c = puppet()
    c()  # the command runs
    n = len(list(Path(f"/proc/{c.pid}/fd").iterdir()))
    resource.prlimit(c.pid, resource.RLIMIT_NOFILE, (n + more, n + 100))
    status, text = c.refused("create", name, 4, 0o600, *IMAGE)
    assert (status, text) == ("SYSTEM", f"Too many open files: ring '{name}', {what}")
    assert segments_of(name) == []


def test_the_mode_is_what_was_asked_for(name, puppet):
    c = puppet()
    c.ok("create", name, 4, 0o660, *IMAGE)
    modes = {stat.S_IMODE(Path("/dev/shm", each).stat().st_mode) for each in segments_of(name)}
    assert modes == {0o660}
    c.ok("detach")


# ---- a kill at each step -------------------------------------------------------------------------

CREATES = ["create: slots made", "create: slots named", "create: header made", "create: named"]
CLOSES = ["close: slots removed", "close: locked", "close: removed"]


@pytest.mark.slow
@pytest.mark.deadline(400)
@pytest.mark.parametrize("step", [*CREATES, *CLOSES])
def test_a_kill_at_each_step_leaves_a_whole_ring_or_what_the_next_tidying_takes(
    name, puppets, sanitized, step
):
    c = puppets(sanitized)
    c("stop-at", step)
    if step in CLOSES:
        c.ok("create", name, 4, 0o600, *IMAGE)
        c.tell("detach")
    else:
        c.tell("create", name, 4, 0o600, *IMAGE)
    c.until_stopped()
    there = segments_of(name)
    if step == "close: slots removed":  # before their header is
        assert there == [f"gpuring.{name}"]
    if step == "create: slots named":
        assert leftovers.tidy(lambda each: each == name) == []  # somebody makes them
    c.kill()
    try:
        gpuring.attach(name).close()
    except gpuring.RingNotFound:
        assert step != "create: named"
    if there:
        with small_ring(name) as ring, ring.producer() as producer:
            put(producer, 1)
    assert segments_of(name) == []


@pytest.mark.slow
@pytest.mark.deadline(400)
def test_of_two_that_create_at_once_one_gets_the_name(name, puppets, sanitized):
    one = puppets(sanitized)
    one("stop-at", "create: header made")
    one.tell("create", name, 4, 0o600, *IMAGE)
    one.until_stopped()
    with small_ring(name):
        one.go_on()
        assert one.hear().startswith("GPURING_EXISTS")
        assert len(segments_of(name)) == 2
    one.end()
