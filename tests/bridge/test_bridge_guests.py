"""Programs that connect to an exporter cannot use up its resources, and the others go on."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpuring
from tests.helpers.processes import poll

zmq = pytest.importorskip("zmq")

from gpuring import bridge  # noqa: E402
from gpuring.bridge.engines.contract import EngineError  # noqa: E402
from gpuring.bridge.exporter import connection_limits  # noqa: E402
from gpuring.bridge.exporter.connection_limits import ConnectionLimits  # noqa: E402
from gpuring.bridge.exporter.listener import RouterChannel, listen  # noqa: E402
from gpuring.bridge.exporter.worker import Exporter  # noqa: E402
from gpuring.bridge.network import wire, wire_bytes  # noqa: E402
from tests.bridge.bridge_sides import WAIT_S, asking, importer  # noqa: E402
from tests.bridge.bridges import most_mib  # noqa: E402


@pytest.fixture
def router() -> Iterator[Any]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger, socket.sndhwm = 0, 0
        socket.bind("tcp://127.0.0.1:0")
        yield socket


def begun_at(router: Any, mechanism: bytes = b"NULL") -> socket.socket:
    """A connection that has sent the greeting of ZeroMQ (ZMTP 3.0)."""
    host, _, port = router.last_endpoint.decode().removeprefix("tcp://").rpartition(":")
    peer = socket.create_connection((host, int(port)), timeout=WAIT_S)
    peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32))
    return peer


def connected_to(router: Any) -> socket.socket:
    """A connection past the handshake of ZeroMQ, without keys."""
    peer = begun_at(router)
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    peer.sendall(b"\x04" + bytes([len(ready)]) + ready)
    answered = b""
    while b"READY" not in answered:
        answered += peer.recv(1 << 10)
    return peer


def is_open(peer: socket.socket) -> bool:
    peer.settimeout(0.05)
    try:
        return bool(peer.recv(1 << 16))
    except TimeoutError:
        return True
    except OSError:
        return False


def test_a_message_without_an_end_is_cut_off(router):
    """ZeroMQ would keep all parts until the last one has come."""
    known, more = ConnectionLimits(router), b"\x03" + struct.pack(">Q", 1 << 20) + bytes(1 << 20)
    log, sent = [], 0
    with contextlib.closing(known), connected_to(router) as peer:
        poll(lambda: known.socket.poll(0))
        assert known.admit([]) == []

        def flood() -> None:
            nonlocal sent
            with contextlib.suppress(OSError):
                while sent < 500:
                    peer.sendall(more)
                    sent += 1

        thread = threading.Thread(target=flood)
        thread.start()
        poll(lambda: log.extend(known.look([])) or log, WAIT_S)
        poll(lambda: not router.poll(0) and not is_open(peer), WAIT_S)
        with contextlib.suppress(OSError):  # the kernel may hold back the rest for long
            peer.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert sent < 500
    assert log == ["127.0.0.1 sends a message without an end: it was disconnected"]


def test_who_connects_before_anybody_asks_is_known():
    """Importers connect again and again, also while an exporter starts."""
    with zmq.Context() as context:
        router, _ = listen(context, "127.0.0.1:0", None, SimpleNamespace())
        with (
            router,
            connected_to(router) as peer,
            contextlib.closing(ConnectionLimits(router)) as known,
        ):
            peer.sendall(b"\x00\x01x")
            assert router.poll(1000 * WAIT_S)
            known.admit([])
            assert known.of(router.recv_multipart(copy=False)[0]) is not None


def test_who_gives_up_before_it_is_answered_is_not_told_of_keys(router):
    """All importers do this while the exporter is stopped."""
    with contextlib.closing(ConnectionLimits(router)) as known:
        begun_at(router).close()
        with connected_to(router):  # the first connection is closed by now
            assert known.admit([]) == []
        with begun_at(router, b"CURVE"):
            told = poll(lambda: known.admit([]), WAIT_S)
        assert told == ["somebody cannot connect: both sides need the keys of one pair, or none"]


def test_who_sends_many_whole_messages_stays(router):
    known, whole = ConnectionLimits(router), b"\x02" + struct.pack(">Q", 1 << 20) + bytes(1 << 20)
    with contextlib.closing(known), connected_to(router) as peer:
        poll(lambda: known.socket.poll(0))
        known.admit([])
        for _ in range(3 * connection_limits.MOST_NBYTES >> 20):
            peer.sendall(whole)
            assert router.poll(1000 * WAIT_S)
            assert known.of(router.recv_multipart(copy=False)[0]) is not None
            assert known.look([]) == []
        assert is_open(peer)


def test_connections_without_a_session_end(router, monkeypatch):
    monkeypatch.setattr(connection_limits, "WITHOUT_SESSION_S", 0.0)
    known = ConnectionLimits(router)
    with contextlib.closing(known), connected_to(router) as idle, connected_to(router) as busy:
        busy.sendall(b"\x00\x01x")
        assert router.poll(1000 * WAIT_S)
        poll(lambda: known.socket.poll(0))
        known.admit([])
        in_session = [known.of(router.recv_multipart(copy=False)[0])]
        assert in_session != [None]
        told = poll(lambda: known.look(in_session), WAIT_S)
        assert told == ["127.0.0.1 has asked for nothing for 0 s: it was disconnected"]
        poll(lambda: not is_open(idle))
        assert is_open(busy)


def test_who_asks_as_soon_as_it_has_connected_is_known(name):
    """Otherwise its connection would count as one without a session, and be ended after a while."""
    up = SimpleNamespace(fileno=lambda: ends[0], say=lambda **_: None, log=lambda _: None)
    told = {
        "ring": name,
        "listen": "127.0.0.1:0",
        "key": None,
        "host": "here",
        "device": None,
        "owner": None,
    }
    times = {"timeout_s": 3.0, "patience_s": 60.0, "kept": {}}
    with contextlib.ExitStack() as stack:
        ends = os.pipe()
        for end in ends:
            stack.callback(os.close, end)
        stack.enter_context(gpuring.create(name, slots=4, shape=8, dtype="u1", device="host"))
        one = Exporter({**told, **times}, up)
        stack.callback(one._context.destroy, 0)
        stack.callback(one._connections.close)
        where = one._router.last_endpoint.decode().removeprefix("tcp://")
        stack.enter_context(importer(name, where)).hello()
        assert one._router.poll(1000 * WAIT_S)
        one._hear()  # as in a turn of the loop that began before the connection
        (caller,) = one._callers.values()
        assert caller.channel.connection is not None
        one._drop(caller.link, None)


def test_of_too_many_connections_the_oldest_one_without_a_session_ends(router, monkeypatch):
    monkeypatch.setattr(connection_limits, "MOST", 3)
    known, log = ConnectionLimits(router), []
    with contextlib.closing(known), contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connected_to(router))]
        peers[0].sendall(b"\x00\x01x")
        assert router.poll(1000 * WAIT_S)
        in_session = [known.of(router.recv_multipart(copy=False)[0])]
        assert in_session != [None]
        for _ in range(4):
            peers.append(stack.enter_context(connected_to(router)))
            poll(lambda: known.socket.poll(0))
            log += known.admit(in_session)
        poll(lambda: [is_open(peer) for peer in peers] == [True, False, False, True, True])
    assert log == 2 * ["there are 3 connections: 127.0.0.1 was disconnected"]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("nbytes", "track"), [(1 << 16, False), (4 << 10, False), (4 << 10, True)])
def test_who_reads_nothing_is_sent_no_more_than_so_much_in_all_of_its_sessions(
    router, nbytes, track
):
    """A part of 64 KiB is copied for sending, so its slot can be written again.  pyzmq says of
    shorter parts at once that they were sent."""
    known, part = ConnectionLimits(router), bytes(nbytes)
    where = router.last_endpoint.decode().removeprefix("tcp://")
    with importer("", where, rcvhwm=1, rcvbuf=1 << 16, rcvtimeo=int(1000 * WAIT_S)) as far:
        far.socket.send(b"x")
        route, _ = router.recv_multipart(copy=False)
        guest, sent = known.of(route), 0

        def send(most: int) -> None:
            nonlocal sent
            for session in range(most):
                channel = RouterChannel(router, guest, route.bytes, session)
                channel.data(1, 0, part, track=track)
                sent += 1

        with pytest.raises(EngineError, match="does not read"):
            send((128 << 20) // nbytes)
        assert 32 << 20 < sent * len(part) < 80 << 20  # the kernel has some as well
        for _ in range(sent):
            far.socket.recv_multipart()
        send(100)


# ---- a whole exporter ----------------------------------------------------------------------------


@pytest.mark.slow
def test_an_exporter_without_free_descriptors_refuses_and_goes_on(name, caplog):
    caplog.set_level("INFO", "gpuring.bridge")
    with (
        gpuring.create(name, slots=4, shape=4, dtype="i8", device="host"),
        bridge.export(name, listen="127.0.0.1:0") as out,
        asking(out, name, "h/first") as first,
    ):
        first.heard(wire.Welcome)
        pid = out.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        files = {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}
        free = [fd for fd in range(max(files) + 5) if fd not in files]  # gaps between files, too
        refused = []
        for n in range(4):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[n], limits[1]))
            with asking(out, name, f"h/{n}") as other:
                if other.socket.poll(300):  # it may get no connection at all
                    refused.append(other.next())
            first.say(7, wire.Ping())
            first.heard(wire.Ping)
            assert out.stats().links[0].connected
        assert refused
        assert all("Too many open files" in each.reason for each in refused)
        assert any("was refused: " in line for line in caplog.messages)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        with asking(out, name, "h/last") as last:
            last.heard(wire.Welcome)
        assert (out.pid, out.stats().restarts) == (pid, 0)


def test_a_ring_takes_no_more_importers_than_it_has_subscriptions(name, caplog):
    caplog.set_level("INFO", "gpuring.bridge")
    shape = {"slots": 4, "shape": 4, "dtype": "i8", "device": "host"}
    with (
        gpuring.create(name, max_subscriptions=1, **shape),
        bridge.export(name, listen="127.0.0.1:0") as out,
        asking(out, name, "h/first") as first,
    ):
        first.heard(wire.Welcome)
        with asking(out, name, "h/second") as second:
            refused = second.heard(wire.Welcome, wire.Refuse)
        assert (type(refused), refused.again) == (wire.Refuse, True)
        poll(lambda: any("h/second was refused" in line for line in caplog.messages))
        assert [link.connected for link in out.stats().links] == [True]


def test_a_ring_without_room_for_the_supervisor_serves_nobody(name):
    shape = {"slots": 4, "shape": 4, "dtype": "i8", "device": "host"}
    with (
        gpuring.create(name, max_peers=1, **shape) as ring,
        bridge.export(name, listen="127.0.0.1:0") as out,
        asking(out, name, "h/x") as far,
    ):
        told = far.heard(wire.Bye, wire.Welcome)
        assert ("its peer table" in told.reason, told.again) == (True, True)
        poll(lambda: not ring.stats().peers)


def test_the_supervisor_joins_again_when_an_importer_comes_back_that_has_left(name):
    with (
        gpuring.create(name, slots=4, shape=4, dtype="i8", device="host") as ring,
        bridge.export(name, listen="127.0.0.1:0", timeout=WAIT_S) as out,
        importer(name, out.address) as far,
    ):
        for session in (7, 8):
            answer = None
            while not isinstance(answer, wire.Welcome):  # it is refused while it is given up
                far.hello("lossy", session=session)
                answer = far.heard(wire.Welcome, wire.Refuse)
            (kept,) = ring.stats().subscriptions
            assert len(kept.members) == 2  # the worker and the supervisor
            far.say(session, wire.Bye("it was a test", False))
            poll(lambda: not ring.stats().subscriptions)


def test_who_comes_back_with_another_policy_is_told_at_once_to_ask_again(name):
    with (
        gpuring.create(name, slots=4, shape=4, dtype="i8", device="host"),
        bridge.export(name, listen="127.0.0.1:0", timeout=WAIT_S) as out,
        asking(out, name, "h/x") as far,
    ):
        far.heard(wire.Welcome)
        assert not far.socket.poll(300)  # nothing more is said so soon
        far.hello("latest", session=8, who="h/x")
        refused = far.heard(wire.Refuse)
        assert ("has to be made again" in refused.reason, refused.again) == (True, True)
        far.hello("latest", session=9, who="h/x")
        far.heard(wire.Welcome, wire.Refuse)


def went_on(link: Any, frames: int) -> Any:
    return link if link.frames == frames or not link.connected else None


def test_who_acknowledges_frames_without_reading_them_is_disconnected(name, caplog):
    """ZeroMQ would keep a copy of each."""
    caplog.set_level("INFO", "gpuring.bridge")
    shape = {"slots": 8, "shape": 1 << 18, "dtype": "u1", "device": "host"}
    with (
        gpuring.create(name, **shape) as ring,
        bridge.export(name, listen="127.0.0.1:0") as out,
        importer(name, out.address, rcvhwm=1, rcvbuf=1 << 16) as far,
        ring.producer() as producer,
    ):
        far.hello(who="h/x")
        before = far.heard(wire.Welcome).seq
        far.say(7, wire.Open("zmq", 8))
        sent = acked = 0
        while sent < 400:
            far.say(7, wire.Flow(acked, (sent + 1,)))
            producer.claim(WAIT_S).publish()
            sent += 1
            link = poll(lambda n=sent: went_on(out.stats().links[0], n))
            if not link.connected:
                break
            acked = before + sent
        assert any("h/x is gone: the importer does not read" in line for line in caplog.messages)
        assert sent < 320  # 80 MiB, some of which the kernel has


@pytest.mark.parametrize("greeting", [b"", b"\xff" + bytes(8) + b"\x7f\x01\x05"], ids=["1", "2"])
def test_peers_of_old_versions_are_not_heard(name, greeting):
    """With ZMTP 1.0 and 2.0 a message does not show from which connection it comes."""
    (said,) = wire_bytes.encode(7, wire.Hello(name, "h/old", "0" * 16, "lossy", "", 0))
    frame = b"\x00" + bytes([len(said)]) if greeting else bytes([len(said) + 1]) + b"\x00"
    with (
        gpuring.create(name, slots=4, shape=4, dtype="i8", device="host") as ring,
        bridge.export(name, listen="127.0.0.1:0") as out,
    ):
        host, _, port = out.address.partition(":")
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as old:
            old.sendall(greeting + (b"\x00\x00" if greeting else b"\x01\x00") + frame + said)
            assert old.recv(1 << 10)  # the connection is made
            with asking(out, name, "h/x") as other:
                other.heard(wire.Welcome)
        assert [each.name for each in ring.stats().subscriptions] == ["bridge: h/x"]
        assert out.stats().restarts == 0


@pytest.mark.slow
def test_a_message_of_a_million_parts_costs_little(name):
    """Each part takes two bytes on the network, and an object in ZeroMQ."""
    (hello,) = wire_bytes.encode(7, wire.Hello("other", "h/x", "0" * 16, "lossy", "", 0))
    said = b"\x00" + bytes([len(hello)]) + hello
    with (
        gpuring.create(name, slots=8, shape=4, dtype="i8", device="host"),
        bridge.export(name, listen="127.0.0.1:0") as out,
        connected_to(SimpleNamespace(last_endpoint=f"tcp://{out.address}".encode())) as peer,
    ):
        peer.sendall(said)
        assert b"exports ring" in peer.recv(1 << 10)
        before = most_mib(out.pid)
        peer.sendall(b"\x01\x00" * 1_000_000 + b"\x00\x00" + said)
        assert b"exports ring" in peer.recv(1 << 10)  # the exporter has read all parts
        assert most_mib(out.pid) < before + 100
        assert out.stats().restarts == 0
