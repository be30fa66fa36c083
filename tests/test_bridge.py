"""A bridge: the frames of a ring arrive in a ring of another host, whatever is killed meanwhile.

Both "hosts" are this one, so the two rings have different names.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import PLACES, Child, Pipe, poll

import gpuring
from gpuring import _core
from gpuring.errors import EndOfStream, PeerLost, RingError, RingExists, RingFull

zmq = pytest.importorskip("zmq")

from gpuring import bridge  # noqa: E402
from gpuring.bridge import wire  # noqa: E402
from gpuring.bridge.sides import Export, Import  # noqa: E402

WAIT_S = 30.0
META = [("n", "i8")]


@pytest.fixture
def near(name: str) -> str:
    return f"{name}-near"


@pytest.fixture
def far(name: str) -> str:
    return f"{name}-far"


def ring_of(near: str, slots: int = 8, shape: Any = 64) -> gpuring.Ring:
    return gpuring.create(near, slots=slots, shape=shape, dtype="u2", meta=META, device="host")


@contextlib.contextmanager
def bridged(near: str, far: str, **options: Any) -> Iterator[tuple[Export, Import]]:
    with (
        bridge.export(near, listen="127.0.0.1:0") as out,
        bridge.import_(f"{out.address}/{near}", name=far, device="host", **options) as into,
    ):
        yield out, into


def put(producer: gpuring.Producer, n: int) -> None:
    with producer.claim(timeout=WAIT_S) as slot:
        slot.array[...] = n % 65521
        slot.meta["n"] = n


def put_all(producer: gpuring.Producer, frames: int) -> threading.Thread:
    """Puts frames in another thread."""

    def run() -> None:
        for n in range(frames):
            put(producer, n)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def got(slot: gpuring.ReadSlot) -> int:
    """The number of a frame, whose content is checked."""
    n = int(slot.meta["n"])
    assert (slot.array == n % 65521).all()
    return n


def take(frames: gpuring.Consumer) -> int:
    with frames.acquire(timeout=WAIT_S) as slot:
        return got(slot)


def connected(side: Export | Import) -> bool:
    links = side.stats().links
    return bool(links) and all(link.connected for link in links)


def produce(pipe: Pipe, near: str) -> None:
    """A producer in a process of its own: puts as many frames as it is told to, again and again."""
    with gpuring.attach(near, timeout=WAIT_S) as ring, ring.producer() as producer:
        n = 0
        while frames := pipe.receive():
            for _ in range(frames):
                put(producer, n)
                n += 1
            pipe.send(n)


@dataclass
class Bridged:
    """A near ring with a producer, a bridge, and a reader of the far ring."""

    ring: gpuring.Ring
    out: Export
    into: Import
    producer: gpuring.Producer
    there: gpuring.Ring
    frames: gpuring.Consumer


@contextlib.contextmanager
def both_ends(near: str, far: str, slots: int = 8, shape: Any = 64, **options: Any) -> Any:
    with (
        ring_of(near, slots, shape) as ring,
        bridged(near, far, **options) as (out, into),
        ring.producer() as producer,
        gpuring.attach(far, timeout=WAIT_S) as there,
        there.consumer("reader", start="oldest") as frames,
    ):
        yield Bridged(ring, out, into, producer, there, frames)


# ---- what arrives --------------------------------------------------------------------------------


def test_every_frame_arrives_once_and_in_order_with_its_metadata(near, far):
    with both_ends(near, far) as ends:
        there = ends.there
        assert (there.shape, there.dtype, there.spec.meta) == ((64,), np.dtype("u2"), META)
        thread = put_all(ends.producer, 500)
        assert [take(ends.frames) for _ in range(500)] == [*range(500)]
        thread.join()
        (link,) = poll(lambda: [x for x in ends.out.stats().links if (x.lag, x.frames) == (0, 500)])
        assert (link.policy, link.engine, link.lost) == ("lossless", "zmq", 0)
        link = ends.into.stats().links[0]
        assert (link.nbytes, link.engine.partition(" (")[0]) == (500 * 128, "zmq")
        assert "zmq: " not in link.engine  # its name once is enough


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


def test_large_frames_go_in_parts(near, far):
    with both_ends(near, far, slots=3, shape=(1 << 20) + 77) as ends:
        thread = put_all(ends.producer, 12)
        assert [take(ends.frames) for _ in range(12)] == [*range(12)]
        thread.join()


def faults(pid: int) -> int:
    """How many pages the system has given a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[7])


def test_the_memory_of_messages_is_used_again(near, far):
    """If a worker gave it back to the system, there would be faults for its pages again.  It takes
    more when more messages than ever are on their way, which are 16 at most."""
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


@pytest.mark.parametrize(
    ("nbytes", "messages"),
    [(wire.MAX_PART, [wire.Frame]), (2 * wire.MAX_PART, [wire.Data, wire.Frame])],
)
def test_a_frame_is_announced_with_its_last_bytes(near, nbytes, messages):
    """So the first of many is published while the others are on their way, and a small one is one
    message."""
    with (
        ring_of(near, shape=nbytes // 2) as ring,
        bridge.export(near, listen="127.0.0.1:0") as out,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as socket,
    ):
        socket.linger, socket.rcvtimeo = 0, int(1000 * WAIT_S)
        socket.connect(f"tcp://{out.address}")

        def heard(*kinds: type) -> Any:
            while not isinstance(message := wire.decode(socket.recv_multipart())[1], kinds):
                pass
            return message

        with ring.producer() as producer:
            hello = wire.Hello(near, "h/x", "0" * 16, "lossless", "", 0)
            socket.send_multipart(wire.encode(7, hello))
            heard(wire.Welcome)
            for n in range(4):
                put(producer, n)
            socket.send_multipart(wire.encode(7, wire.Open("zmq", 8)))
            socket.send_multipart(wire.encode(7, wire.Flow(0, (1, 2, 3, 4))))
            said = [heard(wire.Data, wire.Frame) for _ in range(4 * len(messages))]
    assert [type(message) for message in said] == 4 * messages
    for n, frame in enumerate(said[len(messages) - 1 :: len(messages)]):
        assert frame.part == np.full(wire.MAX_PART // 2, n, "u2").tobytes()


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
        assert "'reader'" in link.blocked
        assert [take(ends.frames) for _ in range(held)] == [*range(held)]


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
        told = "its importer is silent, the log of the exporter says so"
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


def test_the_latest_frame_is_taken_whenever_one_can_be_sent(near, far):
    with both_ends(near, far, policy="latest") as ends:
        for n in range(100):
            with ends.producer.claim(timeout=0) as slot:
                slot.array[...] = slot.meta["n"] = n
        seen = [take(ends.frames)]
        while seen[-1] < 99:
            seen.append(take(ends.frames))
        assert seen == sorted(set(seen))


# ---- death and restart ---------------------------------------------------------------------------


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("victims", [("into", "out"), ("into",), ("out",)], ids="+".join)
def test_workers_that_are_killed_cost_nothing(near, far, victims):
    with both_ends(near, far) as ends:
        thread = put_all(ends.producer, 600)
        sides = [getattr(ends, victim) for victim in victims]
        for n in range(600):
            assert take(ends.frames) == n
            if n in (150, 400):
                for pid in [poll(lambda side=side: side.pid) for side in sides]:
                    os.kill(pid, signal.SIGKILL)
        thread.join()
        assert [side.stats().restarts for side in sides] == [2] * len(sides)


def drained(frames: gpuring.Consumer, seq: int) -> int:
    """Takes what is there.  Every near sequence after `seq` came or was counted as lost.  Returns
    the last one."""
    with contextlib.suppress(TimeoutError):
        while True:
            with frames.acquire(timeout=0) as slot:
                got(slot)
                seq += 1 + slot.lost
                assert slot.origin.seq == seq
    return seq


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("victim", ["out", "into"])
def test_what_a_lossy_importer_loses_by_a_death_is_counted(near, far, victim):
    with both_ends(near, far, slots=4, policy="lossy") as ends:
        put(ends.producer, 0)
        with ends.frames.acquire(timeout=WAIT_S) as slot:
            first = seq = slot.origin.seq
        side = getattr(ends, victim)
        for n in range(1, 60):
            put(ends.producer, n)
        os.kill(poll(lambda: side.pid), signal.SIGKILL)
        for n in range(60, 90):
            put(ends.producer, n)
        poll(lambda: side.pid and connected(side))
        n = 90
        while n < 95 or seq < first + 95:
            put(ends.producer, n)
            n += 1
            seq = drained(ends.frames, seq)


def test_an_importer_that_is_given_up_comes_back_and_counts_what_it_missed(near, far):
    with (
        ring_of(near, slots=4) as ring,
        bridge.export(near, listen="127.0.0.1:0", timeout=0.3, patience=0.1) as out,
        bridge.import_(f"{out.address}/{near}", name=far, device="host", timeout=0.3) as into,
        ring.producer() as producer,
        gpuring.attach(far, timeout=WAIT_S) as there,
        there.consumer(start="oldest") as frames,
    ):
        put(producer, 0)
        with frames.acquire(timeout=WAIT_S) as slot:
            first = seq = slot.origin.seq
        os.kill(pid := poll(lambda: into.pid), signal.SIGSTOP)
        for n in range(1, 20):  # the ring has 4 slots: somebody has given the importer up
            put(producer, n)
        os.kill(pid, signal.SIGCONT)
        poll(lambda: connected(into) and out.stats().links)
        n = 20
        while n < 25 or seq < first + 25:
            put(producer, n)
            n += 1
            seq = drained(frames, seq)


@pytest.mark.parametrize(("until", "come"), [(7, [6]), (12, [9, 10, 11])])
def test_an_importer_without_a_frame_begins_where_it_began_though_the_exporter_restarts(
    near, far, until, come
):
    """It gets no frame from before, and those that it misses since then are counted."""
    with ring_of(near, slots=4) as ring, ring.producer() as producer:
        for n in range(6):
            put(producer, n)
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(bridge.export(near, listen="127.0.0.1:0"))
            where = first.address
            into = bridge.import_(f"{where}/{near}", name=far, device="host")
            stack.enter_context(into)
            there = stack.enter_context(gpuring.attach(far, timeout=WAIT_S))
            frames = stack.enter_context(there.consumer(start="oldest"))
            poll(lambda: connected(into))
            first.close()
            for n in range(6, until):
                put(producer, n)
            stack.enter_context(bridge.export(near, listen=where))
            assert [take(frames) for _ in come] == come
            assert there.stats().link.lost == come[0] - 6


def test_the_end_of_the_stream_is_its_end_over_there_and_it_goes_on(near, far):
    with both_ends(near, far) as ends:
        put(ends.producer, 0)
        ends.producer.close()
        assert take(ends.frames) == 0
        with pytest.raises(EndOfStream):
            ends.frames.acquire(timeout=WAIT_S)
        with ends.ring.producer() as producer:
            poll(lambda: _core.look(ends.frames._peer)[0] != _core.ENDED)
            put(producer, 1)
            assert take(ends.frames) == 1


def test_streams_that_end_and_go_on_stay_in_one_session(near, far):
    """At the end the far side gives its claimed slots back, so the near side must not use them."""
    with both_ends(near, far, timeout=WAIT_S) as ends:
        ends.producer.close()
        poll(lambda: _core.look(ends.frames._peer)[0] == _core.ENDED, WAIT_S)
        for n in range(0, 8, 2):
            with ends.ring.producer() as producer:
                put(producer, n)
                put(producer, n + 1)
            poll(lambda: _core.look(ends.frames._peer)[0] != _core.ENDED, WAIT_S)
            assert [take(ends.frames), take(ends.frames)] == [n, n + 1]
            poll(lambda: _core.look(ends.frames._peer)[0] == _core.ENDED, WAIT_S)
        assert [side.stats().links[0].sessions for side in (ends.out, ends.into)] == [1, 1]


def test_a_killed_producer_is_a_lost_one_over_there(near, far, children: Callable[..., Child]):
    with (
        ring_of(near),
        bridged(near, far),
        gpuring.attach(far, timeout=WAIT_S) as there,
        there.consumer(start="oldest", reattach=True) as frames,
    ):
        child = children(produce, near)
        child.send(3)
        child.receive()
        assert [take(frames) for _ in range(3)] == [0, 1, 2]
        child.kill()
        with pytest.raises(PeerLost):
            frames.acquire(timeout=WAIT_S)
        child = children(produce, near)
        child.send(2)
        loop = iter(frames)
        slot = next(loop)
        assert (got(slot), slot.restarted) == (0, True)
        assert got(next(loop)) == 1
        loop.close()


def test_a_ring_that_is_replaced_is_replaced_over_there(near, far):
    with contextlib.ExitStack() as stack:
        first = ring_of(near)
        producer = stack.enter_context(first.producer())
        stack.enter_context(bridged(near, far))
        there = stack.enter_context(gpuring.attach(far, timeout=WAIT_S))
        frames = stack.enter_context(there.consumer(start="oldest", reattach=True))
        put(producer, 0)
        loop = iter(frames)
        assert got(next(loop)) == 0
        first.close()
        again = stack.enter_context(ring_of(near, shape=32))
        producer = stack.enter_context(again.producer())
        for n in range(1, 5):
            put(producer, n)
        slot = next(loop)
        assert (got(slot), slot.restarted, slot.array.shape) == (1, True, (32,))
        assert [got(next(loop)) for _ in range(3)] == [2, 3, 4]
        loop.close()


@pytest.mark.parametrize("policy", wire.POLICIES[:2])
def test_frames_that_only_a_replaced_ring_has_are_lost_and_counted(near, far, policy):
    """It is replaced while the exporter has no worker that could send them."""
    with contextlib.ExitStack() as stack:
        first = ring_of(near)
        producer = stack.enter_context(first.producer())
        out, into = stack.enter_context(bridged(near, far, slots=4, policy=policy))
        there = stack.enter_context(gpuring.attach(far, timeout=WAIT_S))
        frames = stack.enter_context(there.consumer("reader", start="oldest", reattach=True))
        for n in range(7):  # the far ring has room for four of them
            put(producer, n)
        poll(lambda: there.stats().link.seq == 11)
        os.kill(stopped := poll(lambda: into.pid), signal.SIGSTOP)
        os.kill(out.pid, signal.SIGKILL)
        first.close()
        producer = stack.enter_context(stack.enter_context(ring_of(near)).producer())
        os.kill(stopped, signal.SIGCONT)
        put(producer, 7)
        loop = iter(frames)
        assert [got(next(loop)) for _ in range(4)] == [0, 1, 2, 3]
        slot = next(loop)
        assert (got(slot), slot.restarted, slot.lost) == (7, True, 3)
        loop.close()


# ---- more than one bridge ------------------------------------------------------------------------


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


# ---- what is refused -----------------------------------------------------------------------------


def why_over(importer: Import) -> str:
    """Why an importer cannot go on."""
    with importer, pytest.raises(RingError) as refused:
        importer.wait(WAIT_S)
    return str(refused.value)


def test_a_ring_that_is_not_exported_there(near, far, caplog):
    with bridge.export(near, listen="127.0.0.1:0") as out:
        told = why_over(bridge.import_(f"{out.address}/other", name=far, device="host"))
    assert f"exports ring '{near}' here, and not 'other'" in told
    assert "exports ring" in caplog.text  # for those who only attach to the far ring


def test_a_worker_hears_first_what_it_has_to_know(near, monkeypatch):
    """Another thread may ask for something as soon as there is a worker."""
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


def test_a_second_importer_of_one_ring(near, far):
    with both_ends(near, far) as ends, pytest.raises(RingExists, match="is in use"):
        bridge.import_(f"{ends.out.address}/{near}", name=far, device="host")


def test_the_name_is_taken_while_it_connects(near, far):
    with bridge.export(near, listen="127.0.0.1:0") as out:
        importer = bridge.import_(f"{out.address}/{near}", name=far, device="host")
        with ring_of(far), ring_of(near):
            assert "another name with --as" in why_over(importer)


def test_an_exporter_that_is_not_there(far):
    told = why_over(bridge.import_("127.0.0.1:1/x", name=far, device="host", give_up=0.2))
    assert "no connection for 0.2 s: nobody answers there" in told


FORKS = """
import os, signal, sys
from gpuring import bridge
into = bridge.import_("127.0.0.1:1/x", name=sys.argv[1], device="host")
print(into.stats().pid, flush=True)
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""


def test_a_worker_ends_with_its_supervisor_even_if_a_fork_of_that_lives(far):
    command = [sys.executable, "-W", "ignore", "-c", FORKS, far]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as supervisor:
        try:
            pid = int(supervisor.stdout.readline())
            poll(lambda: not Path(f"/proc/{pid}").exists(), WAIT_S)
        finally:
            supervisor.stdin.close()  # the fork ends by that


def test_an_address_that_cannot_be(far):
    with pytest.raises(TypeError, match="not 9760"):
        bridge.import_(9760, name=far)
    with pytest.raises(TypeError, match="not 9760"):
        bridge.export(far, listen=9760)
    for port in (0, 65536):
        with pytest.raises(ValueError, match="is HOST:PORT/RING"):
            bridge.import_(f"127.0.0.1:{port}/x", name=far, device="host")


def test_a_name_that_does_not_resolve_is_told_at_once_and_tried_again(near, far, caplog):
    caplog.set_level("INFO", "gpuring.bridge")
    told = why_over(bridge.import_("me@home:1/x", name=far, device="host", give_up=0.2))
    assert "no connection for 0.2 s: me@home does not resolve: Name or service not known" in told
    with bridge.export(near, listen="me@home:0", insecure=True) as out:
        poll(lambda: "me@home does not resolve" in caplog.messages[-1], WAIT_S)
        assert out.stats().restarts == 0
    assert not any("is dead" in line for line in caplog.messages)


def test_names_of_hosts(near, far):
    with pytest.raises(ValueError, match="home is a name, and other hosts may reach"):
        bridge.export(near, listen="home:0")
    elsewhere = "3221225985"  # as good as a name of 192.0.2.1
    with (
        bridge.export(near, listen=f"{elsewhere}:9760", insecure=True) as out,
        pytest.raises(RingError, match=r"listen at 3221225985:9760 \(192.0.2.1:9760\): this host"),
    ):
        out.wait(WAIT_S)
    host = "LOCALHOST"  # an address is taken for localhost
    with (
        ring_of(near) as ring,
        bridge.export(near, listen=f"{host}:0", insecure=True) as out,
        bridge.import_(f"{host}:{out.address.rpartition(':')[2]}/{near}", name=far, device="host"),
        gpuring.attach(far, timeout=WAIT_S) as there,
        there.consumer(start="oldest") as frames,
        ring.producer() as producer,
    ):
        put(producer, 1)
        assert take(frames) == 1


@pytest.mark.parametrize("policy", wire.POLICIES[:2])
def test_an_exporter_that_ends_sends_nothing_from_slots_that_it_gave_back(near, policy):
    """An importer on a slow link: most of the bytes go after the exporter has waited for them."""
    over, whole = threading.Event(), []

    def produce(ring: gpuring.Ring) -> None:
        with ring.producer() as producer:
            for n in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
                with contextlib.suppress(RingFull), producer.claim(0.1) as slot:
                    slot.array[...] = slot.meta["n"] = n

    with (
        gpuring.create(near, slots=64, shape=1 << 17, dtype="i8", meta=META, device="host") as ring,
        bridge.export(near, listen="127.0.0.1:0") as out,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as socket,
    ):
        socket.linger, socket.rcvhwm, socket.rcvbuf = 0, 1, 1 << 16
        socket.connect(f"tcp://{out.address}")
        hello = wire.Hello(near, "h/x", "0" * 16, policy, "", 0)
        socket.send_multipart(wire.encode(7, hello))
        while not isinstance(wire.decode(socket.recv_multipart())[1], wire.Welcome):
            pass
        socket.send_multipart(wire.encode(7, wire.Open("zmq", 64)))
        socket.send_multipart(wire.encode(7, wire.Flow(0, tuple(range(1, 33)))))
        writing = threading.Thread(target=produce, args=(ring,))
        writing.start()
        poll(lambda: out.stats().links[0].lag == 32, WAIT_S)
        ending = threading.Thread(target=out.close)
        ending.start()
        ending.join(0.45)  # it waits for 0.4 s, and sends what it can for 0.1 s
        while socket.poll(500):
            message = wire.decode(socket.recv_multipart())[1]
            if isinstance(message, wire.Frame):
                frame = np.frombuffer(message.part, "i8")
                whole.append(bool((frame == np.frombuffer(message.meta, "i8")[0]).all()))
        over.set()
        writing.join()
        ending.join()
    assert whole
    assert all(whole)


def test_an_importer_of_another_version(near):
    (hello,) = wire.encode(7, wire.Hello("x", "h/x", "0" * 16, "lossy", "", 0))
    with (
        bridge.export(near, listen="127.0.0.1:0") as out,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as socket,
    ):
        socket.linger = 0
        socket.connect(f"tcp://{out.address}")
        socket.send(hello.partition(b"{")[0] + b'{"version": 2}')
        assert socket.poll(1000 * WAIT_S)
        number, refused = wire.decode(socket.recv_multipart())
    assert (number, refused.again) == (7, False)
    assert "speaks version 2, and this one 1" in refused.reason


def test_a_ring_that_comes_after_its_importer(near, far):
    with bridged(near, far), ring_of(near) as ring, ring.producer() as producer:
        put(producer, 5)  # before the importer has come
        with gpuring.attach(far, timeout=WAIT_S) as there, there.consumer(start="oldest") as frames:
            put(producer, 6)
            assert take(frames) == 6


def test_half_a_pair_of_keys_is_not_left(tmp_path):
    (tmp_path / "bridge-import.key").touch()
    with pytest.raises(FileExistsError):
        bridge.keygen(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["bridge-import.key"]


def test_keys(near, far, tmp_path):
    ours, theirs = bridge.keygen(tmp_path)
    assert [path.stat().st_mode & 0o777 for path in (ours, theirs)] == [0o600, 0o600]
    with pytest.raises(FileExistsError, match="give another folder"):
        bridge.keygen(tmp_path)
    with pytest.raises(ValueError, match="importer of a bridge: take bridge-import"):
        bridge.import_("127.0.0.1:1/x", name=far, key=ours)
    with pytest.raises(ValueError, match="give a key"):
        bridge.export(near, listen="0.0.0.0:9760")
    (tmp_path / "other").mkdir()
    _, strange = bridge.keygen(tmp_path / "other")
    with (  # a whole part is longer than any other when it is encrypted
        ring_of(near, shape=wire.MAX_PART) as ring,
        bridge.export(near, listen="127.0.0.1:0", key=ours) as out,
    ):
        where = {"address": f"{out.address}/{near}", "name": far, "device": "host"}
        for key in (None, strange):
            told = why_over(bridge.import_(**where, key=key, timeout=0.5, give_up=0.5))
            assert "no connection for 0.5 s: the connection was closed at once" in told
        with (
            bridge.import_(**where, key=theirs),
            ring.producer() as producer,
            gpuring.attach(far, timeout=WAIT_S) as there,
            there.consumer(start="oldest") as frames,
        ):
            put(producer, 1)
            assert take(frames) == 1
    ours.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        bridge.export(near, listen="127.0.0.1:0", key=ours)


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
