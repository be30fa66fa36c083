"""What gpuring.h refuses.  Its words are those of Python."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import gpuring
from gpuring.registry import leftovers, segment
from tests.helpers.processes import up
from tests.helpers.rings import put, small_ring
from tests.native.api.puppet import CONSUMES, NEXT, PRODUCES, S


def words_of(call) -> str:
    with pytest.raises(gpuring.RingError) as caught:
        call()
    return str(caught.value)


def test_a_name_that_no_ring_can_have_and_one_that_none_has(name, puppet):
    c = puppet()
    status, text = c.refused("attach", "a/b", 0)
    assert status == "INVALID"
    with pytest.raises(ValueError, match="cannot name a ring") as caught:
        gpuring.attach("a/b")
    assert text == str(caught.value)
    status, text = c.refused("attach", name, 0)
    assert status == "NOT_FOUND"
    assert f"No ring or service named '{name}'" in text


def test_a_subscription_and_a_label_are_utf_8(name, puppet):
    """A program in Python could not name this subscription, and so could not end it."""
    with small_ring(name) as ring:
        c = puppet(name)
        for refused, call in (
            (c.refused("subscribe", "caf\udce9", 0, "", 0), lambda: ring.subscribe("caf\udce9")),
            (c.refused("produce", "caf\udce9", ""), lambda: ring.producer(label="caf\udce9")),
        ):
            assert refused[0] == "INVALID"
            with pytest.raises(ValueError, match=r"UTF-8.*not 'caf") as told:
                call()
            assert refused[1] == str(told.value).replace("\ufffd" * 3, "\ufffd")
        assert ring.stats().peers == ring.stats().subscriptions == ()
        c.ok("detach")
        c.end()


@pytest.mark.parametrize("timeout", [-2, -5, -(2**63)])
def test_a_negative_timeout_is_none(name, puppet, timeout):
    c = puppet()
    with small_ring(name):
        assert c.refused("attach", name, timeout)[0] == "INVALID"
        c.ok("attach", name, 0)
        c.ok("consume", "-", NEXT, "")
        for verb in (
            ("acquire", 0, timeout, 0),
            ("acquire", 0, timeout, 2),
            ("select", timeout, 0),
        ):
            status, text = c.refused(*verb)
            assert status == "INVALID"
            assert text.startswith(f"a timeout cannot be {timeout} ns")
        c.leaves()


def test_what_is_no_ring(name, puppet):
    c = puppet()
    path = Path(segment.path_of(segment.header_name(name)))
    path.write_bytes(b"x" * 9000)
    status, text = c.refused("attach", name, S)
    assert (status, text) == ("INCOMPATIBLE", words_of(lambda: gpuring.attach(name)))
    path.unlink()
    path.symlink_to("/nothing")
    status, text = c.refused("attach", name, S)
    assert (status, text) == ("INCOMPATIBLE", f"{path} is a symbolic link, and no ring")
    path.unlink()


def test_a_damaged_description(name, puppet):
    c = puppet()
    with small_ring(name) as ring:
        text = ring._header.spec
        path = Path(segment.path_of(segment.header_name(name)))
        whole = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(whole.index(text))
            file.write(text.replace(b'"|u1"', b'"|O1"').replace(b'"<', b'"?'))
        status, told = c.refused("attach", name, 0)
        assert status == "INCOMPATIBLE"
        assert told == words_of(lambda: gpuring.attach(name))
        assert "there is no such dtype" in told


def test_a_full_ring_names_who_is_in_the_way(name, puppet):
    with small_ring(name, slots=2) as ring, ring.consumer("slow", label="recorder") as frames:
        c = puppet(name, PRODUCES)
        for _ in range(2):
            c.ok("claim", 0, 0, 0)
            c.ok("publish", 0, 1, 1)
        status, text = c.refused("claim", 0, S // 100, 0)
        assert status == "FULL"
        assert text.startswith(f"ring '{name}': no free slot within 0.01 s: subscription 'slow'")
        assert f"(its members: peer 0 (recorder, pid {os.getpid()}))" in text
        with frames.acquire(0):
            status, text = c.refused("claim", 0, 0, 0)
            assert f"peer 0 (recorder, pid {os.getpid()}) of subscription 'slow' has held" in text


def test_a_wait_that_can_have_no_end_is_given_up(name, puppet):
    """As in Python, producers do not wait for a reader that has got the end of the stream and asks
    for nothing."""
    with small_ring(name, slots=2) as ring, ring.consumer() as frames:
        ring.producer().close()
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire(0)
        c = puppet(name, PRODUCES)
        for _ in range(2):
            c.ok("claim", 0, 0, 0)
            c.ok("publish", 0, 1, 1)
        status, text = c.refused("claim", 0, -1, 0)
        assert status == "FULL"
        assert "seen the end of the stream" in text


def test_a_producer_that_would_wait_for_itself_is_told(name, puppet):
    with small_ring(name, slots=2):
        c = puppet(name, PRODUCES)
        seq = int(c.ok("claim", 0, 0, 0)["seq"])
        c.ok("claim", 0, 0, 0)
        status, text = c.refused("claim", 0, -1, 0)
        assert status == "INVALID"
        assert f"the same producer has claimed sequence {seq}. Publish or abandon that" in text
        assert c.refused("claim", 0, S // 100, 0)[0] == "FULL"  # that one ends by itself
        c.ok("publish", 0, 1, 1)
        c.ok("claim", 0, -1, 0)


def test_the_end_of_a_stream_and_a_closed_ring(name, puppet):
    with small_ring(name) as ring, ring.producer() as producer:
        c = puppet(name, CONSUMES)
        put(producer, 1)
        producer.close()
        c.ok("acquire", 0, 0, 0)
        c.ok("release", 0, 1)
        status, text = c.refused("acquire", 0, -1, 0)
        assert status == "END_OF_STREAM"
        assert "A new producer starts the stream again" in text
        c.ok("produce", "-")
    status, text = c.refused("claim", 1, -1, 0)
    assert status == "CLOSED"
    assert "To go on in the next ring of that name" in text
    assert c.refused("consume", "-", NEXT, "")[0] == "CLOSED"
    with small_ring(name):
        status, text = c.refused("claim", 1, 0, 0)
        assert "Another ring has that name now" in text


def owns_and_publishes(pipe, name):
    with small_ring(name, producers=2) as ring, ring.producer(label="camera") as producer:
        pipe.ask()
        put(producer, 1)
        pipe.ask()


def test_a_producer_that_is_killed(name, puppet, children):
    camera = up(children(owns_and_publishes, name))
    c = puppet(name, ("consume", "all", NEXT, "s"), PRODUCES)
    camera.ask()
    c.ok("acquire", 0, 20 * S, 0)
    c.ok("release", 0, 1)
    c.tell("acquire", 0, 20 * S, 0)
    camera.kill()
    status, _, text = c.hear().partition(" ")
    assert status == "GPURING_PRODUCER_DIED"
    assert f"producer 0 (camera, pid {camera.pid}) died" in text
    c.ok("close", 1)
    assert c.refused("acquire", 0, 20 * S, 0)[0] == "PEER_LOST"
    c.kill()
    assert leftovers.remove_dead(name)


def test_a_stopped_process_is_named(name, puppet, children):
    camera = up(children(owns_and_publishes, name))
    c = puppet(name, ("consume", "all", NEXT, ""))
    os.kill(camera.pid, signal.SIGSTOP)
    for _ in range(2000):
        _, text = c.refused("acquire", 0, S // 100, 0)
        if "stopped" in text:
            break
    assert f"Producer 0 (camera, pid {camera.pid}) is stopped" in text
    for each in (camera, c):
        each.kill()
    assert leftovers.remove_dead(name)


def test_full_tables_and_terms_that_do_not_agree(name, puppet):
    with small_ring(name, max_peers=2, max_subscriptions=1) as ring:
        c = puppet(name, ("consume", "one", NEXT, ""))
        assert c.refused("consume", "two", NEXT, "")[0] == "TOO_MANY_PEERS"
        status, text = c.refused("consume", "one", NEXT, "l")
        assert status == "INVALID"
        assert "members of a subscription must agree" in text
        c.ok("produce", "-")
        status, text = c.refused("produce", "-")
        assert status == "TOO_MANY_PEERS"
        assert text == words_of(ring.producer)
        for wrong in (("#x", NEXT), ("x" * 65, NEXT), ("x", -3)):
            assert c.refused("consume", *wrong, "")[0] == "INVALID"
        assert c.refused("produce", "x" * 65)[0] == "INVALID"


def test_a_durable_subscription_tells_what_earlier_rings_owed(name, puppet):
    with small_ring(name, subscriptions=["kept"]) as ring, ring.consumer("kept") as reader:
        with ring.producer() as producer:
            put(producer, 2)
        with small_ring(name, replace=True) as now, now.producer() as producer:
            c = puppet(name)
            reader.acquire(5).release()
            reader.close()
            c.ok("consume", "kept", NEXT, "")
            put(producer, 1)
            assert c.ok("acquire", 0, 0, 0)["lost"] == "1"


def test_attach_waits_for_a_ring_that_lives(name, puppet, children):
    c = puppet()
    c.tell("attach", name, -1)
    with small_ring(name):
        assert c.hear() == "GPURING_OK"
        c.ok("detach")
    camera = up(children(owns_and_publishes, name))
    camera.kill()
    status, text = c.refused("attach", name, S // 20)
    assert status == "PEER_LOST"
    assert text == words_of(lambda: gpuring.attach(name, timeout=0.05))
    c.ok("attach", name, 0)  # a ring of the dead
    c.ok("detach")
    c.tell("attach", name, 20 * S)
    with small_ring(name):
        assert c.hear() == "GPURING_OK"


# ---- two at once, at each step of an attach ------------------------------------------------------

STEPS = ["attach: found", "attach: opened", "attach: mapped", "slots: opened"]


@pytest.mark.slow
@pytest.mark.deadline(400)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("does", ["close", "replace", "unlink"])
def test_who_attaches_while_a_name_goes_is_in_the_ring_of_that_name_or_in_none(
    name, puppets, sanitized, step, does
):
    c = puppets(sanitized)
    assert c("stop-at", step) == "ok"
    with small_ring(name) as ring:
        c.tell("attach", name, 0)
        c.until_stopped()
        if does == "replace":
            small_ring(name, replace=True).close()
        else:
            {"close": ring.close, "unlink": lambda: gpuring.unlink(name)}[does]()
        c.go_on()
        status, _, text = c.hear().partition(" ")
        if step == "slots: opened":  # it has the header, and the slots, which stay
            assert status == "GPURING_OK"
            assert c.refused("produce", "-")[0] == "CLOSED" if does != "unlink" else True
        elif step == "attach: mapped" and does == "unlink":
            assert status == "GPURING_NOT_FOUND"
        else:
            assert status == "GPURING_NOT_FOUND", text


@pytest.mark.slow
@pytest.mark.deadline(400)
def test_slots_that_shrink_meanwhile_are_not_mapped(name, puppets, sanitized):
    """A process that touches a mapping beyond the end of its file is killed."""
    c = puppets(sanitized)
    c("stop-at", "slots: opened")
    with small_ring(name) as ring:
        slots = segment.path_of(segment.slots_name(name, ring._epoch))
        nbytes = Path(slots).stat().st_size
        c.tell("attach", name, 0)
        c.until_stopped()
        os.truncate(slots, nbytes - 1)
        c.go_on()
        assert c.hear().endswith(f"its slots {slots} became shorter")
        os.truncate(slots, nbytes)
