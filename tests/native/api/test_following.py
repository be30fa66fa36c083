"""Restarts: a producer or a consumer in C goes on in the next ring of the name."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import gpuring
from tests.helpers.processes import has_timer, poll, watches_names
from tests.helpers.rings import put, segments_of, small_ring, waiters
from tests.native.api.puppet import FOREVER, NEXT, S

FIELD = ("array", "|u1", 4, ",")


def follows(c, name):
    """Joins the puppet as a consumer that goes on over restarts."""
    c.ok("attach", name, 0)
    c.ok("consume", "-", NEXT, "r")


def writes(c, byte):
    c.ok("claim", 0, 0, 0)
    c.ok("publish", 0, 1, byte)


def waits(c):
    assert c.refused("acquire", 0, 0, 0)[0] == "TIMEOUT"


def reads(c, byte, *, restarted=False):
    got = c.ok("acquire", 0, FOREVER, 0)
    assert (got["first"], got["restarted"]) == (str(byte), str(int(restarted)))
    c.ok("release", 0, 1)


@contextlib.contextmanager
def at_its_end(c, name):
    """The puppet as a consumer that has a descriptor, and whose stream has ended."""
    with small_ring(name) as ring:
        follows(c, name)
        ring.producer().close()
        assert c("poll", 0, 0) == "GPURING_OK 1"
        waits(c)
        yield


def test_a_producer_waits_for_a_consumer_that_goes_on_after_the_end(name, puppet):
    """Such a consumer does not count among those who have seen the end."""
    c = puppet()
    with small_ring(name) as ring:
        follows(c, name)
        ring.producer().close()
        waits(c)
        with ring.producer() as producer:
            put(producer, ring.slots)
            with pytest.raises(gpuring.RingFull) as full:
                producer.claim(0)
    assert "seen the end of the stream" not in str(full.value)


@pytest.mark.parametrize("dies", [False, True], ids=["closed", "killed"])
def test_a_consumer_goes_on_in_the_next_ring(name, puppet, dies):
    c, camera = puppet(), puppet()
    camera.ok("create", name, 4, 0o600, *FIELD)
    camera.ok("produce", "-", "-")
    c.ok("attach", name, 0)
    c.ok("consume", "rec", NEXT, "r")
    writes(camera, 1)
    reads(c, 1)
    if dies:
        camera.kill()
    else:
        camera.ok("close", 0)
        camera.ok("detach")
        status, text = c.refused("acquire", 0, S // 100, 0)
        assert status == "TIMEOUT"
        assert text.endswith("no other ring has its name yet. Call again to go on waiting")
    c.tell("acquire", 0, FOREVER, 0)
    poll(lambda: watches_names(c.pid))
    with small_ring(name) as ring, ring.producer() as producer:
        put(producer, 1, 7)
        got = dict(word.split("=") for word in c.hear().split(" ") if "=" in word)
        assert (got["first"], got["restarted"]) == ("7", "1")
        c.ok("release", 0, 1)
        put(producer, 1, 8)
        assert c.ok("acquire", 0, FOREVER, 0)["restarted"] == "0"
        (subscription,) = ring.stats().subscriptions
        assert subscription.name == "rec"
        c.ok("close", 0)
        assert ring.stats().subscriptions == ()
    c.ok("detach")
    c.end()


def test_a_frame_that_is_held_stays_valid_in_the_ring_before(name, puppet):
    """This holds also if its number is that of a frame in the next ring."""
    c = puppet()
    with small_ring(name) as old, old.producer() as producer:
        follows(c, name)
        put(producer, 2, 1)
        for _ in range(2):
            assert c.ok("acquire", 0, 0, 0)["first"] == "1"
        with small_ring(name, replace=True) as ring, ring.producer() as other:
            put(other, 2, 2)
            for k in range(2):
                got = c.ok("acquire", 0, FOREVER, 0)
                assert (got["seq"], got["first"], got["restarted"]) == (str(4 + k), "2", str(1 - k))
            assert len(old.stats().subscriptions) == 1
            c.ok("release", 0, 1)
            assert len(old.stats().subscriptions) == 1
            c.ok("release", 0, 1)
            assert old.stats().subscriptions == ()  # it has left that ring with its last frame
            for _ in range(2):
                c.ok("release", 0, 1)
            put(other, 1, 3)
            assert c.ok("acquire", 0, 0, 0)["first"] == "3"
            assert c.refused("detach")[0] == "INVALID"  # the handle that it came from
            c.ok("close", 0)
            c.ok("detach")
            assert ring.stats().subscriptions == ()
    c.end()


def test_a_producer_goes_on_in_the_next_ring(name, puppet):
    with small_ring(name):
        c = puppet(name, ("produce", "camera", "r"))
        writes(c, 1)
    status, text = c.refused("claim", 0, 0, 0)
    assert status == "FULL"
    assert "no other ring has its name yet" in text
    c.tell("claim", 0, FOREVER, 0)
    poll(lambda: watches_names(c.pid))
    with small_ring(name) as ring, ring.consumer(start="oldest") as frames:
        assert "restarted=1" in c.hear()
        c.ok("publish", 0, 1, 5)
        assert frames.acquire(5).array[0] == 5
        assert [peer.label for peer in ring.stats().producers] == ["camera"]
        c.leaves()


def test_a_consumer_goes_on_any_number_of_times(name, puppet):
    c = puppet()
    for k in range(4):
        with small_ring(name) as ring, ring.producer() as producer:
            if k == 0:
                follows(c, name)
            put(producer, 1, k)
            reads(c, k, restarted=k > 0)
    c.leaves()


def test_the_ring_that_it_was_told_of_is_valid_until_the_first_slot_after_a_restart(name, puppet):
    """Two rings come and go without a frame.  The puppet joins each of them."""
    c = puppet()
    for slots in (4, 5, 6, 7, 8):
        with small_ring(name, slots=slots) as ring, ring.producer() as producer:
            if slots == 4:
                follows(c, name)
            elif slots == 5:
                put(producer, 1, 5)
                reads(c, 5, restarted=True)
                assert c.ok("told", 0)["slots"] == "5"
            elif slots < 8:
                c.refused("acquire", 0, S // 100, 0)
                assert len(ring.stats().subscriptions) == 1
                assert c.ok("told")["slots"] == "5"
                assert c.ok("told", 0)["slots"] == "5"
            else:
                put(producer, 1, 8)
                assert c.ok("acquire", 0, FOREVER, 0)["restarted"] == "1"
                assert c.ok("told", 0)["slots"] == "8"
                maps = Path(f"/proc/{c.pid}/maps").read_text()
                assert maps.count(f"/gpuring.{name}") == 2 * 2  # of both rings that it has
    c.leaves()


def test_the_producer_of_a_creator_stays(name, puppet):
    c = puppet()
    c.ok("create", name, 4, 0o600, *FIELD)
    c.ok("produce", "-", "r")
    with small_ring(name, replace=True):
        assert c.refused("claim", 0, 0, 0)[0] == "CLOSED"
    c.leaves()


def test_a_consumer_in_python_goes_on_where_c_has_replaced_the_ring(name, puppet):
    c = puppet()
    with small_ring(name) as ring, ring.producer() as producer:
        frames = ring.consumer("x", reattach=True)
        put(producer, 1, 1)
        frames.acquire(5).release()
        c("replaces", 2)
        c.ok("create", name, 4, 0o600, *FIELD)
        c.ok("produce", "-", "-")
        writes(c, 6)
        with frames.acquire(20) as slot:
            assert (slot.array[0], slot.restarted) == (6, True)
        frames.close()
    c.leaves()


def test_what_is_lost_on_the_way_is_counted_once(name, puppet):
    with small_ring(name, slots=4) as ring:
        c = puppet(name, ("consume", "-", NEXT, "rl"))
        with ring.producer() as producer:
            put(producer, 1)
            c.ok("acquire", 0, 0, 0)
            c.ok("release", 0, 1)
    with small_ring(name, slots=4) as ring, ring.producer() as producer:
        put(producer, 9)
        first = int(c.ok("acquire", 0, S, 0)["lost"])
        assert first == 9 - 3  # it begins with the oldest frame that is there
        c.ok("close", 0)
    c.ok("detach")


def test_one_that_comes_between_two_producers_waits_for_the_next_one(name, puppet):
    with small_ring(name) as ring:
        ring.producer().close()
        c = puppet(name, ("consume", "-", NEXT, ""))
        assert c.refused("acquire", 0, S // 100, 0)[0] == "TIMEOUT"
        assert c("poll", 0, 0) == "GPURING_OK 1"
        waits(c)
        assert c("poll", 0, 0) == "GPURING_OK 0"
        c.tell("poll", 0, 20_000)
        with ring.producer() as producer:
            assert c.hear() == "GPURING_OK 1"
            put(producer, 1, 4)
            reads(c, 4)
        assert c.refused("acquire", 0, FOREVER, 0)[0] == "END_OF_STREAM"
        c.leaves()


def test_a_descriptor_tells_of_the_next_ring(name, puppet):
    c = puppet()
    with small_ring(name) as ring:
        follows(c, name)
        assert c("poll", 0, 0) == "GPURING_OK 0"
        with ring.producer() as producer:
            put(producer, 1, 1)
        assert c("poll", 0, 20_000) == "GPURING_OK 1"
        reads(c, 1)
        waits(c)
    c.tell("poll", 0, 20_000)
    with small_ring(name) as ring, ring.producer() as producer:
        assert c.hear() == "GPURING_OK 1"
        put(producer, 1, 2)
        reads(c, 2, restarted=True)
        waits(c)
        assert c("poll", 0, 0) == "GPURING_OK 0"
        c.tell("poll", 0, 20_000)
        put(producer, 1, 3)
        assert c.hear() == "GPURING_OK 1"
        c.leaves()


def test_a_descriptor_hears_no_names_between_ends_though_a_child_has_it(name, puppet):
    c = puppet()
    with at_its_end(c, name):
        waits(c)  # its timer makes it look again soon
        assert c("poll", 0, 20_000) == "GPURING_OK 1"
        assert c("child") == "ok"
    with small_ring(name) as ring, ring.producer():
        waits(c)
        with small_ring(f"{name}-other"):
            assert c("poll", 0, 0) == "GPURING_OK 0"
        c.leaves()


def test_a_child_that_closes_what_it_has_inherited_leaves_the_descriptor_alone(name, puppet):
    c = puppet()
    with at_its_end(c, name):
        assert has_timer(c.pid)
        assert c("child", 0) == "ok"
        assert has_timer(c.pid)
        c.leaves()


def test_select_waits_an_end_out(name, puppet):
    c = puppet()
    with small_ring(name) as ring:
        follows(c, name)
        with ring.producer() as producer:
            put(producer, 1, 1)
        assert c("select", FOREVER, 0) == "GPURING_OK 1"
        reads(c, 1)
    assert c.refused("select", S // 50, 0)[0] == "TIMEOUT"
    c.tell("select", FOREVER, 0)
    with small_ring(name) as ring, ring.producer() as producer:
        put(producer, 1, 2)
        assert c.hear() == "GPURING_OK 1"
        assert c.ok("acquire", 0, 0, 0)["restarted"] == "1"
        c.leaves()


def test_an_end_that_comes_during_a_select_is_waited_out(name, puppet):
    c = puppet()
    with small_ring(name) as ring:
        follows(c, name)
        producer = ring.producer()
        c.tell("select", FOREVER, 0)
        poll(lambda: waiters(ring) == 1)
        producer.close()
    with small_ring(name) as ring, ring.producer() as producer:
        put(producer, 1, 2)
        assert c.hear() == "GPURING_OK 1"
        assert len(ring.stats().subscriptions) == 1  # the descriptor was readable because of that
        assert c.ok("acquire", 0, 0, 0)["restarted"] == "1"
        c.leaves()


def test_others_see_that_a_select_waits_for_an_end_to_be_over(name, puppet):
    c = puppet()
    with small_ring(name) as ring:
        follows(c, name)
        with ring.producer() as producer:
            put(producer, 1, 1)
        reads(c, 1)
        c.tell("select", FOREVER, 0)
        poll(lambda: ring.stats().peers[0].waiting)
    with small_ring(name) as ring, ring.producer() as producer:
        put(producer, 1, 2)
        assert c.hear() == "GPURING_OK 1"
        c.leaves()


def test_a_durable_consumer_keeps_its_place_over_its_own_death(name, puppet):
    with small_ring(name, slots=8) as ring, ring.producer() as producer:
        c = puppet(name)
        assert c.refused("consume", "-", NEXT, "u")[0] == "INVALID"  # it needs a name
        assert c.refused("consume", "x", NEXT, "-", 5)[0] == "INVALID"
        c.ok("consume", "rec", NEXT, "u", 3600 * S)
        (one,) = ring.stats().subscriptions
        assert (one.durable, one.patience_s) == (True, 3600)
        put(producer, 3)
        c.ok("acquire", 0, 0, 0)
        c.ok("release", 0, 1)
        c.kill()
        put(producer, 1)
        other = puppet()
        other.ok("attach", name, 0)
        other.ok("consume", "rec", NEXT, "u")
        got = other.ok("acquire", 0, S, 0)
        assert (got["seq"], got["lost"]) == ("9", "0")
        while (slot := producer.try_claim()) is not None:
            slot.publish()
        with pytest.raises(gpuring.RingFull):  # it is waited for
            producer.claim(0)
    assert f"gpuring.{name}" in segments_of(name)
    with small_ring(name) as ring:
        assert [each.name for each in ring.stats().subscriptions] == ["rec"]
        other.ok("close", 0)
        ring.unsubscribe("rec")


def test_spin_is_that_of_the_environment(name, monkeypatch, puppet):
    monkeypatch.setenv("GPURING_SPIN", "soon")
    with small_ring(name) as ring:
        c = puppet(name)
        status, text = c.refused("produce", "-", "-")
        assert status == "INVALID"
        assert "GPURING_SPIN='soon'" in text
        assert ring.stats().peers == ()
