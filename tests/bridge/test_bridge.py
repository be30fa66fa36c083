"""A bridge: the frames of a ring arrive in a ring of another host, once and in order.

Both "hosts" are this one, so the two rings have different names.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuring
from gpuring.errors import RingFull
from gpuring.registry import directory, survey
from tests.helpers import commands
from tests.helpers.places import PLACES
from tests.helpers.processes import poll

pytest.importorskip("zmq")

from gpuring import bridge
from gpuring.bridge import Export
from gpuring.bridge.network import wire
from tests.bridge.bridge_sides import importer
from tests.bridge.bridges import (
    META,
    WAIT_S,
    both_ends,
    bridged,
    connected,
    got,
    put,
    put_all,
    ring_of,
    take,
)

# ---- what arrives --------------------------------------------------------------------------------


def test_every_frame_arrives_once_and_in_order_with_its_metadata(near, far):
    with both_ends(near, far) as ends:
        there = ends.there
        assert (there.shape, there.dtype, there.spec.meta) == ((64,), np.dtype("u2"), META)
        thread = put_all(ends.producer, 500)
        assert [take(ends.frames) for _ in range(500)] == [*range(500)]
        thread.join()
        (link,) = poll(lambda: [x for x in ends.out.stats().links if (x.lag, x.frames) == (0, 500)])
        assert (link.policy, link.lost) == ("lossless", 0)
        link = ends.into.stats().links[0]
        assert (link.nbytes, link.engine.partition(" (")[0]) == (500 * 128, "zmq")
        assert "zmq: " not in link.engine  # its name once is enough


@pytest.mark.slow
def test_frames_of_several_fields(near, far):
    fields = {"y": ((5, 3), "u1"), "uv": ((2, 3, 2), "f4")}
    with (
        gpuring.create(near, slots=4, fields=fields, device="host") as ring,
        bridged(near, far),
        ring.producer() as producer,
        gpuring.attach(far, timeout=WAIT_S) as there,
        there.consumer(start="oldest") as frames,
    ):
        with producer.claim() as slot:
            slot["y"][...], slot["uv"][...] = 7, 0.5
        with frames.acquire(timeout=WAIT_S) as slot:
            assert (slot["y"] == 7).all()
            assert (slot["uv"] == 0.5).all()


def test_smaller_frames_and_void_sequences(near, far):
    with both_ends(near, far, shape=(8, 8)) as ends:
        with ends.producer.claim(shape=(3, 5)) as slot:
            slot.array[...] = np.arange(15).reshape(3, 5)
        ends.producer.claim().abandon()
        put(ends.producer, 7)
        with ends.frames.acquire(timeout=WAIT_S) as slot:
            assert np.array_equal(slot.array, np.arange(15).reshape(3, 5))
        with ends.frames.acquire(timeout=WAIT_S) as slot:
            assert (got(slot), slot.lost, slot.array.shape) == (7, 0, (8, 8))


@pytest.mark.slow
def test_large_frames_go_in_parts(near, far):
    with both_ends(near, far, slots=3, shape=(1 << 20) + 77) as ends:
        thread = put_all(ends.producer, 12)
        assert [take(ends.frames) for _ in range(12)] == [*range(12)]
        thread.join()


def faults(pid: int) -> int:
    """How many page faults without a read from disk a process has had."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[7])


def test_ps_tells_which_bridge_a_worker_is_of(near, far):
    with both_ends(near, far) as ends:
        for side, what in ((ends.out, "export"), (ends.into, "import")):
            pid = poll(lambda side=side: side.pid)
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            first = words[2].decode().splitlines()[0]
            assert first.startswith(f"# gpuring bridge: worker of the {what} of ")
            assert first.endswith(near)


@pytest.mark.slow
def test_the_memory_of_messages_is_used_again(near, far):
    """If a worker gave memory back to the system, there would be page faults again.  A worker takes
    more only when more messages than ever are on their way.  At most 16 are."""
    with both_ends(near, far, shape=wire.MAX_PART // 2) as ends:
        workers = [poll(lambda side=side: side.pid) for side in (ends.out, ends.into)]
        before = []
        thread = put_all(ends.producer, 1100)
        for n in range(1100):
            assert take(ends.frames) == n
            if n == 100:
                before = [faults(pid) for pid in workers]
        thread.join()
        after = [faults(pid) for pid in workers]
    pages = 1000 * wire.MAX_PART // mmap.PAGESIZE
    assert max(now - then for now, then in zip(after, before, strict=True)) < pages / 50


# ---- who waits for whom --------------------------------------------------------------------------


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("nbytes", "messages"),
    [(wire.MAX_PART, [wire.Frame]), (2 * wire.MAX_PART, [wire.Data, wire.Frame])],
)
def test_a_frame_is_announced_with_its_last_bytes(near, nbytes, messages):
    """So the first of many frames is published while the others are on their way.  A small frame is
    one message."""
    with (
        ring_of(near, shape=nbytes // 2) as ring,
        bridge.export(near, listen="127.0.0.1:0") as out,
        importer(near, out.address) as far,
        ring.producer() as producer,
    ):
        far.hello()
        far.heard(wire.Welcome)
        for n in range(4):
            put(producer, n)
        far.say(7, wire.Open("zmq", 8), wire.Flow(0, (1, 2, 3, 4)))
        said = [far.heard(wire.Data, wire.Frame) for _ in range(4 * len(messages))]
    assert [type(message) for message in said] == 4 * messages
    for n, frame in enumerate(said[len(messages) - 1 :: len(messages)]):
        assert frame.part == np.full(wire.MAX_PART // 2, n, "u2").tobytes()


@pytest.mark.slow
def test_a_far_reader_holds_up_the_near_producer_who_is_told_of_the_link(near, far):
    with both_ends(near, far, slots=4) as ends:
        held = 0

        def refused() -> str:
            nonlocal held
            try:
                with ends.producer.claim(timeout=0.05) as slot:
                    slot.array[...] = slot.meta["n"] = held
                held += 1
            except RingFull as full:
                return str(full)
            return ""

        # While frames are on their way the ring may be full for a moment only.
        (link,) = poll(lambda: refused() and [x for x in ends.out.stats().links if x.blocked])
        assert f"/{far}'" in refused()
        assert "On that host subscription 'reader' holds up its ring" in refused()
        assert "`gpuring inspect` there shows its members" in refused()
        assert "import with the policy lossy" in refused()
        assert "'reader'" in link.blocked
        (subscription,) = ends.ring.stats().subscriptions
        assert subscription.far == "reader"
        told = commands.gpuring("inspect", near).stdout
        assert "subscription reader over there holds up bridge: " in " ".join(told.split())
        assert [take(ends.frames) for _ in range(held)] == [*range(held)]
        poll(lambda: not ends.ring.stats().subscriptions[0].far)


@pytest.mark.slow
def test_who_is_held_up_by_a_stopped_importer_is_told_where_to_look(near, far, caplog):
    caplog.set_level("INFO", "gpuring.bridge")
    with (
        ring_of(near, slots=4) as ring,
        bridge.export(near, listen="127.0.0.1:0", timeout=0.3) as out,
        bridge.import_(f"{out.address}/{near}", name=far, device="host", timeout=0.3) as into,
        ring.producer() as producer,
    ):
        poll(lambda: connected(into) and connected(out))
        os.kill(pid := into.pid, signal.SIGSTOP)
        told = "its importer is silent, .* with the command that `gpuring why` tells here"
        for _ in range(4):
            producer.claim(0.05).publish()
        with pytest.raises(RingFull, match=told):
            producer.claim(0.05)
        poll(
            lambda: any(
                "is gone: the importer said nothing for" in line for line in caplog.messages
            )
        )
        assert any("Its frames are kept for 60 s" in line for line in caplog.messages)
        with pytest.raises(RingFull, match=told):
            producer.claim(0.05)
        os.kill(pid, signal.SIGCONT)


def test_a_lossy_importer_never_holds_up_the_producer_and_counts_what_is_lost(near, far):
    with both_ends(near, far, slots=4, policy="lossy") as ends:
        put(ends.producer, 0)
        with ends.frames.acquire(timeout=WAIT_S) as slot:
            seq = slot.origin.seq
        for n in range(1, 201):
            with ends.producer.claim(timeout=0) as slot:  # at once
                slot.array[...] = slot.meta["n"] = n
        n = 0
        while n < 200:
            with ends.frames.acquire(timeout=WAIT_S) as slot:
                n, seq = got(slot), seq + 1 + slot.lost
                assert slot.origin.seq == seq
        assert poll(lambda: ends.out.stats().links[0].lag == 0)


@pytest.mark.slow
def test_the_far_side_shows_how_the_clocks_differ(near, far):
    with both_ends(near, far) as ends:
        link = poll(lambda: [x for x in ends.into.stats().links if x.round_trip_s])[0]
        assert abs(link.ahead_s) <= link.round_trip_s / 2  # both ends have the same clock
        clock = survey.collect(far, directory.look(far)).link.clock
        assert clock.error_ns > 0
        assert "; CLOCK_MONOTONIC there is " in commands.gpuring("inspect", far).stdout
        metrics = commands.gpuring("metrics", "--once").stdout
        labels = f'{{host="{socket.gethostname()}",ring="{far}"}}'
        assert f"gpuring_bridge_round_trip_seconds{labels} 0.0" in metrics
        assert f"gpuring_bridge_clock_ahead_seconds{labels} " in metrics
        assert f"gpuring_bridge_connected{labels} 1.0" in metrics
        assert all(link.round_trip_s is None for link in ends.out.stats().links)


def test_the_latest_frame_is_taken_whenever_one_can_be_sent(near, far):
    with both_ends(near, far, policy="latest") as ends:
        for n in range(100):
            with ends.producer.claim(timeout=0) as slot:
                slot.array[...] = slot.meta["n"] = n
        seen = [take(ends.frames)]
        while seen[-1] < 99:
            seen.append(take(ends.frames))
        assert seen == sorted(set(seen))


# ---- the start -----------------------------------------------------------------------------------


def test_a_worker_hears_first_what_it_has_to_know(near, monkeypatch):
    """Another thread may send a request as soon as there is a worker."""
    asked = []

    def ask(out: Export) -> dict[str, Any]:
        if not asked:
            asked.append(out._say(stats=0))
        return {"kept": {}}

    monkeypatch.setattr(Export, "_known", ask)
    with bridge.export(near, listen="127.0.0.1:0") as out:
        assert out.address
        assert out.stats().restarts == 0
    assert asked


def test_a_program_with_more_than_1024_descriptors(near):
    """select() takes none above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip(f"this process may have only {hard} descriptors")
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while stack.enter_context(Path(os.devnull).open()).fileno() < 1024:
            pass
        with bridge.export(near, listen="127.0.0.1:0") as out:
            assert out.address
            assert out.stats().restarts == 0


@pytest.mark.slow
def test_a_ring_that_comes_after_its_importer(near, far):
    with bridged(near, far), ring_of(near) as ring, ring.producer() as producer:
        put(producer, 5)  # before the importer has come
        with gpuring.attach(far, timeout=WAIT_S) as there, there.consumer(start="oldest") as frames:
            put(producer, 6)
            assert take(frames) == 6


# ---- more than one bridge ------------------------------------------------------------------------


@pytest.mark.slow
def test_two_importers_a_chain_and_the_way_back(near, far):
    second, third = f"{far}2", f"{far}3"
    with (
        ring_of(near) as ring,
        bridged(near, far) as (out, _),
        bridge.import_(f"{out.address}/{near}", name=second, device="host"),
        bridge.export(far, listen="127.0.0.1:0") as back,
        bridge.import_(f"{back.address}/{far}", name=third, device="host"),
        ring.producer() as producer,
        contextlib.ExitStack() as stack,
    ):
        readers = []
        for name in (far, second, third):
            there = stack.enter_context(gpuring.attach(name, timeout=WAIT_S))
            readers.append(stack.enter_context(there.consumer(start="oldest")))
        for n in range(40):
            put(producer, n)
            assert [take(frames) for frames in readers] == [n, n, n]


# ---- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(("here", "there"), [("cuda", "cuda"), ("cuda", "host"), ("host", "cuda")])
def test_frames_go_between_kinds_of_memory(near, far, here, there):
    """Each frame has parts of its own number, and more of them than there is pinned memory for."""
    places = {place.name.partition("-")[0]: place for place in reversed(PLACES)}
    shape = (40 << 20) // 2 + 77
    with (
        places[here].create(near, slots=3, shape=shape, dtype="u2", meta=META) as ring,
        bridge.export(near, listen="127.0.0.1:0") as out,
        bridge.import_(f"{out.address}/{near}", name=far, slots=4, device=there) as into,
        ring.producer() as producer,
        gpuring.attach(far, timeout=WAIT_S) as over_there,
        over_there.consumer(start="oldest") as frames,
    ):
        thread = put_all(producer, 12)
        for n in range(12):
            with frames.acquire(timeout=WAIT_S) as slot:
                assert got(slot) == n
            if n in (3, 7):
                side = into if n == 3 else out
                os.kill(poll(lambda side=side: side.pid), signal.SIGKILL)
        thread.join()


def test_a_far_ring_has_a_dtype_that_numpy_does_not_know(near, far, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # not installed
    with (
        gpuring.create(near, slots=2, shape=4, dtype="bfloat16", device="host"),
        bridged(near, far),
        gpuring.attach(far, timeout=WAIT_S) as there,
    ):
        assert str(there.spec) == "(4,) bfloat16"
