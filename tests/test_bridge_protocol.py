"""Each side of a bridge, while the test plays the other one."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support import Child, Pipe, poll

import gpuring

zmq = pytest.importorskip("zmq")

from gpuring import _core, bridge, directory, spec  # noqa: E402
from gpuring.bridge import supervisor, wire  # noqa: E402
from gpuring.bridge.far import Landing  # noqa: E402
from gpuring.bridge.importer import again_at  # noqa: E402

WAIT_S = 30.0
SPEC = spec.make(shape=4, dtype="i8").to_bytes().decode()
NBYTES = 32
EPOCH = "0" * 32


class Near:
    """An exporter that the test plays."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._route, self._session = b"", 0
        self.address = socket.last_endpoint.decode().removeprefix("tcp://")

    def heard(self, kind: type[wire.Message]) -> Any:
        """The next message of a kind.  All others are left out."""
        while True:
            assert self._socket.poll(1000 * WAIT_S), f"no {kind.__name__}"
            self._route, *parts = self._socket.recv_multipart()
            self._session, message = wire.decode(parts)
            if isinstance(message, kind):
                return message
            assert not isinstance(message, wire.Bye), message.reason

    def said_so_far(self) -> list[type[wire.Message]]:
        """What has come, and comes within a tenth of a second."""
        said = []
        while self._socket.poll(100):
            _, *parts = self._socket.recv_multipart()
            said.append(type(wire.decode(parts)[1]))
        return said

    def say(self, *messages: wire.Message, another: bool = False) -> None:
        """With `another` as if they belonged to a session that is not the one of the importer."""
        for message in messages:
            session = self._session ^ another
            self._socket.send_multipart([self._route, *wire.encode(session, message)])

    def welcome(self) -> wire.Hello:
        """Answers the next Hello, and begins a session."""
        hello: wire.Hello = self.heard(wire.Hello)
        self.say(wire.Welcome("h", EPOCH, 0, SPEC, {"zmq": {}}))
        self.heard(wire.Open)
        return hello

    def frame(self, seq: int, to_seq: int) -> tuple[wire.Message, wire.Message]:
        """What it says of a frame whose words are its sequence."""
        return (
            wire.Data(to_seq, 0, np.full(4, seq).tobytes()),
            wire.Frame(seq, to_seq, NBYTES, 1, 0, ()),
        )


@pytest.fixture
def near() -> Iterator[Near]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.bind("tcp://127.0.0.1:0")
        yield Near(socket)


@contextlib.contextmanager
def importing(
    near: Near, name: str, stopped: tuple[wire.Message, ...] = ()
) -> Iterator[gpuring.Consumer]:
    """An importer that is connected, and a reader of its ring.  The importer is stopped while it is
    told of `stopped`, so it hears all of that at once."""
    with bridge.import_(f"{near.address}/x", name=name, device="host", timeout=WAIT_S) as into:
        near.welcome()
        if stopped:
            os.kill(into.pid, signal.SIGSTOP)
            near.say(*stopped)
            os.kill(into.pid, signal.SIGCONT)
        with gpuring.attach(name, timeout=WAIT_S) as ring, ring.consumer(start="oldest") as frames:
            yield frames


def word(frames: gpuring.Consumer) -> int:
    with frames.acquire(timeout=WAIT_S) as slot:
        assert (slot.array == slot.array[0]).all()
        return int(slot.array[0])


def test_an_end_and_a_new_beginning_that_come_together(near: Near, name: str) -> None:
    """The credits before are void, and the far side says from when on they are not."""
    with importing(near, name) as frames:
        near.say(wire.Begin())
        credits = near.heard(wire.Flow).credits
        near.say(*near.frame(1, credits[0]), wire.End(died=False), wire.Begin())
        assert word(frames) == 1
        near.heard(wire.Begin)
        again = near.heard(wire.Flow).credits
        assert min(again) > max(credits)
        near.say(*near.frame(2, again[0]))
        assert word(frames) == 2


def test_a_beginning_before_the_first_end_is_not_answered(near: Near, name: str) -> None:
    """A stream may end while the engine is being opened.  Then both come together, and only what
    follows the end is answered."""
    with importing(near, name, stopped=(wire.Begin(), wire.End(died=False))) as frames:
        poll(lambda: _core.look(frames._peer)[0] == _core.ENDED, WAIT_S)
        assert wire.Begin not in near.said_so_far()
        near.say(wire.Begin())
        near.heard(wire.Begin)
        near.say(*near.frame(1, near.heard(wire.Flow).credits[0]))
        assert word(frames) == 1


@pytest.mark.parametrize("policy", wire.POLICIES[:2])
def test_an_importer_that_was_given_up_gets_no_bytes_of_later_frames(
    name: str, policy: str
) -> None:
    """Most of the bytes wait in the exporter when it ends the session and gives the slots back.
    The importer says nothing, and goes on to take what comes."""
    over, whole, put = threading.Event(), [], 0
    shape, meta = 1 << 17, [("n", "i8")]
    with (
        gpuring.create(name, slots=64, shape=shape, dtype="i8", meta=meta, device="host") as ring,
        bridge.export(name, listen="127.0.0.1:0", timeout=0.1, patience=0) as out,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as socket,
    ):

        def produce() -> None:
            nonlocal put
            with ring.producer() as producer:
                while not over.is_set():
                    with contextlib.suppress(gpuring.RingFull), producer.claim(0.1) as slot:
                        slot.array[...] = slot.meta["n"] = put
                        put += 1

        def all_are_taken() -> bool:
            socket.send_multipart(wire.encode(7, wire.Ping()))  # it is not silent yet
            return bool(out.stats().links[0].lag == 32)

        socket.linger, socket.rcvhwm, socket.rcvbuf = 0, 1, 1 << 16
        socket.connect(f"tcp://{out.address}")
        hello = wire.Hello(name, "h/x", "0" * 16, policy, "", 0, timeout_ms=1000)
        socket.send_multipart(wire.encode(7, hello))
        while not isinstance(wire.decode(socket.recv_multipart())[1], wire.Welcome):
            pass
        socket.send_multipart(wire.encode(7, wire.Open("zmq", 64)))
        socket.send_multipart(wire.encode(7, wire.Flow(0, tuple(range(1, 33)))))
        writing = threading.Thread(target=produce)
        writing.start()
        try:
            poll(all_are_taken, WAIT_S)
            poll(lambda: not out.stats().links, WAIT_S)
            until = put + 80
            poll(lambda: put >= until, WAIT_S)
            while socket.poll(500):
                message = wire.decode(socket.recv_multipart())[1]
                if isinstance(message, wire.Frame):
                    number = np.frombuffer(message.meta, "i8")[0]
                    whole.append(bool((np.frombuffer(message.part, "i8") == number).all()))
        finally:
            over.set()
            writing.join()
    assert all(whole), f"{whole.count(False)} of {len(whole)} frames were torn"
    assert whole


@pytest.mark.parametrize("policy", wire.POLICIES[1:])
def test_lossy_importers_that_take_nothing_leave_half_of_the_slots(name: str, policy: str) -> None:
    """They have many credits, and acknowledge nothing."""
    said: list[int] = []
    with (
        gpuring.create(name, slots=8, shape=4, dtype="i8", device="host") as ring,
        ring.producer() as producer,
        bridge.export(name, listen="127.0.0.1:0", timeout=WAIT_S) as out,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as one,
        context.socket(zmq.DEALER) as other,
    ):
        for socket in (one, other):
            socket.linger = 0
            socket.connect(f"tcp://{out.address}")
            hello = wire.Hello(name, f"h/{len(said)}", "0" * 16, policy, "", 0, timeout_ms=1000)
            socket.send_multipart(wire.encode(7, hello))
            while not isinstance(wire.decode(socket.recv_multipart())[1], wire.Welcome):
                pass
            said.append(0)
        for socket in (one, other):
            socket.send_multipart(wire.encode(7, wire.Open("zmq", 64)))
            socket.send_multipart(wire.encode(7, wire.Flow(0, tuple(range(1, 33)))))
        more = 40  # rounds after both have all that they get
        while more:
            with producer.claim(timeout=0):
                pass
            for k, socket in enumerate((one, other)):
                while socket.poll(10):
                    said[k] += isinstance(wire.decode(socket.recv_multipart())[1], wire.Frame)
            more -= min(said) >= 2
        assert [link.lag for link in out.stats().links] == said == [2, 2]


# ---- what an exporter may not say ----------------------------------------------------------------

FRAME = (NBYTES, 1, 0, ())
"""What follows the two sequences of a Frame."""
Said = Callable[[Near, tuple[int, ...]], list[wire.Message]]
WRONG: list[tuple[str, Said]] = [
    ("data behind the end", lambda near, c: [wire.Data(c[0], NBYTES - 8, bytes(16))]),
    ("data for slot", lambda near, c: [wire.Data(c[-1] + 1, 0, b"x")]),
    ("for slot sequence", lambda near, c: [wire.Frame(1, c[-1] + 1, *FRAME)]),
    ("for slot sequence", lambda near, c: list(near.frame(1, c[1]))),
    ("frame 2 out of turn", lambda near, c: [*near.frame(2, c[0]), *near.frame(2, c[1])]),
    ("not like the slots", lambda near, c: [wire.Frame(9, c[0], NBYTES - 8, *FRAME[1:])]),
]


def test_an_exporter_that_breaks_a_rule_is_hung_up_on(near: Near, name: str) -> None:
    """What was right before may be published, and the next session goes on behind that."""
    with importing(near, name) as frames:
        for why, wrong in WRONG:
            near.say(wire.Begin())
            credits = near.heard(wire.Flow).credits
            near.say(*wrong(near, credits))
            assert why in near.heard(wire.Bye).reason
            there = near.welcome().seq
        near.say(wire.Begin())
        near.say(*near.frame(3, near.heard(wire.Flow).credits[0]))
        assert [word(frames) for _ in range(2 if there else 1)] == ([2, 3] if there else [3])


def test_what_belongs_to_another_session_is_not_heard(near: Near, name: str) -> None:
    with importing(near, name) as frames:
        near.say(wire.Begin())
        credits = near.heard(wire.Flow).credits
        near.say(wire.Bye("of another session", True), another=True)
        near.say(*near.frame(1, credits[0]))
        assert word(frames) == 1
        flow = near.heard(wire.Flow)
        while flow.acked < 1:
            flow = near.heard(wire.Flow)


def test_what_was_published_is_acknowledged_though_there_is_no_new_credit(
    near: Near, name: str
) -> None:
    """The reader keeps all slots, so at last there is none to be claimed."""
    with importing(near, name):
        near.say(wire.Begin())
        flow, seq = near.heard(wire.Flow), 0
        credits = [*flow.credits]
        while credits:
            seq += 1
            near.say(*near.frame(seq, credits.pop(0)))
            while not credits and flow.acked < seq:
                flow = near.heard(wire.Flow)
                credits += flow.credits
        assert (flow.acked, flow.credits) == (seq, ())


def test_an_importer_rests_longer_and_longer_if_each_session_ends_at_once(
    near: Near, name: str
) -> None:
    """An exporter whose engine fails goes on to answer."""
    with bridge.import_(f"{near.address}/x", name=name, device="host", timeout=WAIT_S):
        near.welcome()
        began_s, sessions = time.monotonic(), 0
        while time.monotonic() < began_s + 2:
            sessions += 1
            near.say(wire.Bye("the engine has failed", True))
            near.heard(wire.Bye)
            near.welcome()
    # Each rest is 3/16 of the time since the beginning at least, and not shorter than 37 ms.
    assert sessions < 25


def leave(pipe: Pipe, name: str, *seqs: int) -> None:
    """An importer's ring, which has come so far each time when it is told to go on."""
    origin = {"host": "h", "ring": "x"}
    options = {"slots": 4, "shape": 4, "dtype": "i8", "device": "host"}
    with gpuring.create(name, **options, _origin=origin) as ring:
        for seq in seqs:
            ring._set_link(bytes.fromhex(EPOCH), seq, 2)
            pipe.send(None)
            pipe.receive()


def test_an_importer_that_makes_another_ring_counts_all_sequences_since_the_last_one(
    near: Near, name: str, children: Callable[..., Child]
) -> None:
    """The session in which the ring is made ends before a frame has come.  What the exporter has
    given up by then counts with the first frame of the next session."""
    before = children(leave, name, 5)
    before.receive()
    before.kill()
    with bridge.import_(f"{near.address}/x", name=name, device="host", timeout=WAIT_S):
        hello = near.heard(wire.Hello)
        assert (hello.epoch, hello.seq) == (EPOCH, 5)
        near.say(wire.Welcome("h", EPOCH, 9, SPEC, {"zmq": {}}))
        near.heard(wire.Open)
        near.say(wire.Bye("it was a test", True))
        near.heard(wire.Bye)
        again = near.heard(wire.Hello)
        assert (again.epoch, again.seq) == (EPOCH, 5)
        with gpuring.attach(name, timeout=WAIT_S) as ring:
            link = ring.stats().link
            assert (ring.slots, link.seq, link.lost) == (16, 5, 2)


def test_an_importer_asks_how_far_the_ring_had_come_when_nobody_fills_it_any_more(
    near: Near, name: str, children: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before goes on while the header is looked at first, and is killed then."""
    before = children(leave, name, 5, 6)
    before.receive()

    def look(ring: str) -> Any:
        monkeypatch.undo()
        header = directory.look(ring)
        before.send(None)
        before.receive()
        before.kill()
        return header

    monkeypatch.setattr(directory, "look", look)
    with bridge.import_(f"{near.address}/x", name=name, device="host", timeout=WAIT_S):
        assert near.welcome().seq == 6


# ---- an importer that the test plays -------------------------------------------------------------


class Far:
    """An importer that the test plays, with all of its sessions over one connection."""

    def __init__(self, socket: Any, ring: str, address: str) -> None:
        self._socket, self._ring = socket, ring
        socket.linger = 0
        socket.connect(f"tcp://{address}")

    def say(self, session: int, *messages: wire.Message) -> None:
        for message in messages:
            self._socket.send_multipart(wire.encode(session, message))

    def heard(self, *kinds: type[wire.Message]) -> Any:
        """The next message of these kinds.  All others are left out."""
        while True:
            assert self._socket.poll(1000 * WAIT_S), f"none of {kinds}"
            _, message = wire.decode(self._socket.recv_multipart())
            if isinstance(message, kinds):
                return message

    def begin(self, session: int, *credits: int) -> None:
        self.say(session, wire.Hello(self._ring, "far/x", "0" * 16, "lossless", "", 0))
        self.heard(wire.Welcome)
        self.say(session, wire.Open("zmq", 8), wire.Flow(0, credits))


@pytest.fixture
def exported(name: str) -> Iterator[tuple[Far, gpuring.Ring]]:
    """An exporter's importer, and the near ring."""
    with (
        gpuring.create(name, slots=8, shape=4, dtype="i8", device="host") as ring,
        bridge.export(name, listen="127.0.0.1:0") as out,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as socket,
    ):
        yield Far(socket, name, out.address), ring


def put(producer: gpuring.Producer, frames: int) -> None:
    for _ in range(frames):
        with producer.claim(WAIT_S) as slot:
            slot.array[...] = slot.seq


def test_credits_are_within_the_window_that_engines_may_rely_on(name: str) -> None:
    """The other producer takes three sequences between those of the importer."""
    said: list[wire.Message] = []
    with (
        gpuring.create(name, slots=8, shape=4, dtype="i8", device="host") as ring,
        ring.producer() as other,
    ):
        ring._set_link(b"e" * 16, 0, 0)
        landing = Landing(ring, 1 << 20, most=2)
        landing.join()
        landing.begin("zmq", {"zmq": {}}, said.append)
        landing.step()
        first = credits_of(said)[0]
        for _ in range(3):
            other.claim().publish()
        for seq, told in ((0, [0, 1]), (1, [0, 1]), (5, [0, 1, 5, 6]), (6, [0, 1, 5, 6, 7])):
            assert [each - first for each in credits_of(said)] == told
            landing.take(wire.Frame(seq + 1, first + seq, NBYTES, 1, 0, (), part=bytes(NBYTES)))
            landing.step()
        landing.close()


def credits_of(said: list[wire.Message]) -> list[int]:
    return [each for flow in said if isinstance(flow, wire.Flow) for each in flow.credits]


def test_what_an_importer_says_in_an_earlier_session_is_not_heard(
    exported: tuple[Far, gpuring.Ring],
) -> None:
    far, ring = exported
    with ring.producer() as producer:
        far.begin(1, 8)
        far.begin(2, 8)
        far.say(1, wire.Bye("late", False))
        put(producer, 1)
        assert far.heard(wire.Frame, wire.Bye).to_seq == 8


def test_the_end_comes_after_all_frames_that_are_sent_again(
    exported: tuple[Far, gpuring.Ring],
) -> None:
    """There are fewer credits for them than in the session before."""
    far, ring = exported
    with ring.producer() as producer:
        far.begin(1, 8, 9, 10, 11)
        put(producer, 3)
        first = [far.heard(wire.Frame).seq for _ in range(3)]
    far.heard(wire.End)
    far.begin(2, 8)
    again = []
    while isinstance(said := far.heard(wire.Frame, wire.End), wire.Frame):
        again.append(said.seq)
        far.say(2, wire.Flow(said.seq, (8 + len(again),)))
    assert again == first


def test_nobody_is_waited_for_longer_than_the_patience(name: str) -> None:
    """An importer that asks for it would hold up the producers for as long as it likes."""
    with (
        gpuring.create(name, slots=4, shape=4, dtype="i8", device="host"),
        bridge.export(name, listen="127.0.0.1:0", timeout=0.1, patience=0.1) as out,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as socket,
    ):
        socket.linger = 0
        socket.connect(f"tcp://{out.address}")
        hello = wire.Hello(name, "h/x", "0" * 16, "lossless", "", 0, timeout_ms=10**12)
        socket.send_multipart(wire.encode(7, hello))
        assert socket.poll(1000 * WAIT_S)  # it is served
        poll(lambda: not out.stats().links, WAIT_S)


def test_a_frame_that_has_arrived_is_not_lost_when_the_exporter_did_not_hear_of_it(
    name: str,
) -> None:
    """Its worker dies with it, so another one gets it again, and passes over it."""
    with (
        gpuring.create(name, slots=8, shape=4, dtype="i8", device="host") as ring,
        bridge.export(name, listen="127.0.0.1:0") as out,
        zmq.Context() as context,
        ring.producer() as producer,
    ):

        def session(mark: tuple[str, int], credit: int, frames: int) -> tuple[wire.Frame, str]:
            with context.socket(zmq.DEALER) as socket:
                socket.linger, socket.rcvtimeo = 0, int(1000 * WAIT_S)

                def heard(kind: Any) -> Any:
                    while not isinstance(said := wire.decode(socket.recv_multipart())[1], kind):
                        pass
                    return said

                def say(*messages: wire.Message) -> None:
                    for message in messages:
                        socket.send_multipart(wire.encode(7, message))

                socket.connect(f"tcp://{out.address}")
                say(wire.Hello(name, "h/x", "0" * 16, "latest", *mark))
                epoch = heard(wire.Welcome).epoch
                put(producer, frames)
                say(wire.Open("zmq", 4), wire.Flow(mark[1], (credit,)))
                frame = heard(wire.Frame)
                pid = out.pid
                os.kill(pid, signal.SIGKILL)
                poll(lambda: out.pid not in (0, pid), WAIT_S)
                return frame, epoch

        first, epoch = session(("", 0), 1, 1)
        second, _ = session((epoch, first.seq), 2, 3)
    assert (second.seq - first.seq, second.lost) == (3, 2)


@pytest.mark.parametrize("policy", wire.POLICIES)
def test_what_was_lost_while_there_was_no_exporter_counts_though_its_worker_dies(
    name: str, policy: str
) -> None:
    """It dies before it has sent a frame, so the next one has to know.  What producers abandon
    later is not lost to a lossless importer."""
    with (
        gpuring.create(name, slots=8, shape=4, dtype="i8", device="host") as ring,
        ring.producer() as producer,
        zmq.Context() as context,
        bridge.export(name, listen="127.0.0.1:0") as out,
    ):

        @contextlib.contextmanager
        def welcomed(seq: int) -> Iterator[Far]:
            with context.socket(zmq.DEALER) as socket:
                far = Far(socket, name, out.address)
                far.say(7, wire.Hello(name, "far/x", "0" * 16, policy, ring._epoch.hex(), seq))
                far.heard(wire.Welcome)
                yield far

        def frame_after(seq: int) -> tuple[int, int]:
            with welcomed(seq) as far:
                far.say(7, wire.Open("zmq", 4), wire.Flow(seq, (seq,)))
                frame = far.heard(wire.Frame)
                return frame.seq, frame.lost

        def kill() -> None:
            os.kill(pid := out.pid, signal.SIGKILL)
            poll(lambda: out.pid not in (0, pid), WAIT_S)

        put(producer, 20)
        with welcomed(9):
            kill()
        seq, lost = frame_after(9)
        assert lost == seq - 10 > 0
        if policy == "lossless":
            with welcomed(27) as far:  # it has all that there is
                far.say(7, wire.Open("zmq", 4), wire.Flow(27, (4,)))
                for _ in range(20):
                    producer.claim(WAIT_S).abandon()
                kill()
            put(producer, 1)
            assert frame_after(27) == (48, 0)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("policy", "times"), [("lossless", 2), ("lossy", 1)])
def test_what_only_replaced_rings_had_counts_until_a_frame_of_the_new_one_has_arrived(
    name: str, policy: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the worker dies before it has sent a frame.  The supervisor has counted what was
    lost, and goes on to know it.  Only three frames of the first ring had arrived."""
    monkeypatch.setattr(supervisor, "_QUICK_S", 0.0)  # no rest before another worker
    with (
        contextlib.ExitStack() as stack,
        zmq.Context() as context,
        bridge.export(name, listen="127.0.0.1:0") as out,
    ):

        def replaced(*before: Any) -> tuple[gpuring.Ring, gpuring.Producer]:
            for each in before:
                each.close()
            options = {"slots": 8, "shape": 4, "dtype": "i8", "device": "host"}
            ring = stack.enter_context(gpuring.create(name, **options))
            return ring, stack.enter_context(ring.producer())

        @contextlib.contextmanager
        def welcomed(epoch: str, seq: int) -> Iterator[tuple[Far, wire.Welcome]]:
            with context.socket(zmq.DEALER) as socket:
                far = Far(socket, name, out.address)
                far.say(7, wire.Hello(name, "far/x", "0" * 16, policy, epoch, seq))
                yield far, far.heard(wire.Welcome)

        def kill() -> None:
            os.kill(pid := out.pid, signal.SIGKILL)
            poll(lambda: out.pid not in (0, pid), WAIT_S)

        def frame_after(epoch: str, seq: int) -> tuple[int, int]:
            with welcomed(epoch, seq) as (far, near):
                passed = seq if epoch == near.epoch else near.seq
                far.say(7, wire.Open("zmq", 4), wire.Flow(passed, (9,)))
                frame = far.heard(wire.Frame, wire.Bye)
                return frame.seq, frame.lost

        ring, producer = replaced()
        with welcomed("", 0) as (_, near):
            has = near.epoch, near.seq + 3
            put(producer, 7)
            kill()
        for _ in range(times):
            ring, producer = replaced(producer, ring)
            put(producer, 2)
            with welcomed(*has) as (_, near):
                kill()
        lost = 4 + 2 * (times - 1)
        assert frame_after(*has) == (8, lost)  # the importer was killed, too, before it had a ring
        kill()
        assert frame_after(near.epoch, near.seq) == (8, lost)
        kill()
        assert frame_after(near.epoch, 8) == (9, 0)  # it had the first one, though we did not hear


def test_an_importer_that_has_said_more_than_was_heard_can_be_hung_up_on(name: str) -> None:
    """Most of the bytes for it wait in the exporter, and what it has said after the wrong word."""
    with (
        gpuring.create(name, slots=8, shape=1 << 20, dtype="i8", device="host") as ring,
        bridge.export(name, listen="127.0.0.1:0") as out,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as socket,
        ring.producer() as producer,
    ):
        socket.rcvhwm, socket.rcvbuf = 1, 1 << 16
        far = Far(socket, name, out.address)
        far.begin(1, *range(8, 16))
        put(producer, 8)
        poll(lambda: out.stats().links[0].lag == 8, WAIT_S)
        pid = out.pid
        os.kill(pid, signal.SIGSTOP)  # so that it hears all of it together
        far.say(1, wire.Welcome("h", EPOCH, 0, "", {}), *[wire.Ping()] * 20)
        os.kill(pid, signal.SIGCONT)
        poll(lambda: not out.stats().links[0].connected, WAIT_S)
        assert (out.pid, out.stats().restarts) == (pid, 0)


def attempts(answered_s: float, until_s: float) -> list[float]:
    """When an importer connects whose session ended at 0, if each attempt fails after so long."""
    times, now = [], again_at(0.0, -1000.0, 0.0)
    while now < until_s:
        times.append(now)
        now = again_at(now + answered_s, now, 0.0)
    return times


def test_an_importer_connects_soon_after_the_exporter_is_back():
    """It is seldom gone for long, so the rests grow with the time that it has been gone."""
    times = attempts(0.0, 60.0)
    assert times[0] < 0.07
    for before, after in itertools.pairwise(times):
        assert after - before <= max(0.07, min(0.32 * before, 2.5))
    assert len(times) < 70
    for before, after in itertools.pairwise(attempts(3.0, 60.0)):
        assert after - before - 3.0 < 0.07
