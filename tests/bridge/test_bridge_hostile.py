"""An exporter goes on serving an honest importer, whatever others say to its port."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gpuring
from tests.helpers.processes import poll

zmq = pytest.importorskip("zmq")

from gpuring import bridge  # noqa: E402
from gpuring.bridge.network import keys, wire, wire_bytes  # noqa: E402
from tests.bridge.bridges import WAIT_S, most_mib  # noqa: E402

GROWTH_MIB = 48
"""What attacks may add to the worker's memory.  Each of them sends more."""
HELLO = wire.Hello("other", "h/x", "0" * 16, "lossy", "", 0)


@dataclass
class Served:
    """An exporter with a key, and an honest importer whose frames are checked all the time."""

    exporter: Any
    address: tuple[str, int]
    ring: str
    folder: Path
    seen: list[int]

    def goes_on(self) -> None:
        """Checks that another 50 frames arrive, and that nothing was restarted."""
        until = self.seen[-1] + 50 if self.seen else 50
        poll(lambda: self.seen and self.seen[-1] >= until, WAIT_S)
        assert self.exporter.stats().restarts == 0
        assert self.seen == list(range(self.seen[0], self.seen[0] + len(self.seen)))

    @contextlib.contextmanager
    def client(self, key: str | None = "import") -> Iterator[Any]:
        """A socket like an importer's, with the importers' key, another key, or none."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.linger, dealer.sndhwm = 0, 10
            if key == "import":
                keys.use(dealer, keys.read(self.folder / "bridge-import.key", keys.IMPORT))
            elif key is not None:
                known = keys.read(self.folder / "bridge-import.key", keys.IMPORT)
                public, secret = zmq.curve_keypair()
                keys.use(dealer, known | {"public": public, "secret": secret})
            dealer.connect(f"tcp://{self.exporter.address}")
            yield dealer

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.exporter.pid}/fd").iterdir()))


@pytest.fixture
def served(name: str, tmp_path: Path) -> Iterator[Served]:
    ours, theirs = bridge.keygen(tmp_path)
    near, far, over = f"{name}-near", f"{name}-far", threading.Event()
    with (
        gpuring.create(near, slots=8, shape=64, dtype="i8", device="host") as ring,
        bridge.export(near, listen="127.0.0.1:0", key=ours, patience=3) as out,
        bridge.import_(f"{out.address}/{near}", name=far, device="host", key=theirs),
        gpuring.attach(far, timeout=WAIT_S) as copy,
        copy.consumer() as frames,
        ring.producer() as producer,
    ):
        seen: list[int] = []

        def produce() -> None:
            n = 0
            while not over.is_set():
                with contextlib.suppress(gpuring.RingFull), producer.claim(1) as slot:
                    slot.array[...] = n
                    n += 1
                over.wait(0.002)

        def read() -> None:
            while not over.is_set():
                with contextlib.suppress(gpuring.RingTimeout), frames.acquire(1) as slot:
                    seen.append(int(slot.array[0]))

        threads = [threading.Thread(target=each) for each in (produce, read)]
        for thread in threads:
            thread.start()
        host, _, port = out.address.rpartition(":")
        try:
            served = Served(out, (host, int(port)), near, tmp_path, seen)
            served.goes_on()
            yield served
        finally:
            over.set()
            for thread in threads:
                thread.join(WAIT_S)


def says_nothing(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(served.address))
        served.goes_on()


def sends_rubbish(served: Served) -> None:
    chance = random.Random(1)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(15) + b"\x00" + bytes(31)
    for n in range(30):
        with socket.create_connection(served.address) as peer, contextlib.suppress(OSError):
            peer.settimeout(0.2)  # the exporter may hang up, or stop reading
            peer.sendall(greeting[: chance.randrange(65)] if n % 2 else b"")
            peer.sendall(chance.randbytes(100_000))


def connects_a_thousand_times(served: Served) -> None:
    for _ in range(1000):
        socket.create_connection(served.address).close()


def has_no_key(served: Served) -> None:
    with served.client(None) as dealer:
        _is_not_answered(dealer)


def has_a_wrong_key(served: Served) -> None:
    with served.client("wrong") as dealer:
        _is_not_answered(dealer)


def _is_not_answered(dealer: Any) -> None:
    for _ in range(20):
        with contextlib.suppress(zmq.Again):
            dealer.send_multipart(wire_bytes.encode(7, HELLO), zmq.NOBLOCK)
    assert not dealer.poll(500)


def names_another_ring(served: Served) -> None:
    with served.client() as dealer:
        for _ in range(100):
            dealer.send_multipart(wire_bytes.encode(7, HELLO))
            _, answer = wire_bytes.decode(_answer(dealer))
            assert isinstance(answer, wire.Refuse)
            assert "'other'" in answer.reason


def sends_rubbish_with_the_right_key(served: Served) -> None:
    chance = random.Random(2)
    with served.client() as dealer:
        for n in range(300):
            size = 1_000_000 if n % 3 == 0 else chance.randrange(1000)
            dealer.send_multipart([chance.randbytes(size)] * chance.randrange(1, 4))
        _still_answers(dealer)


def talks_in_sessions_that_are_not_its_own(served: Served) -> None:
    """Sends messages without a Hello, so it has no session."""
    with served.client() as dealer:
        for number in range(200):
            for message in (wire.Flow(1 << 40, (9, 10)), wire.Ping("me"), wire.Bye("", False)):
                dealer.send_multipart(wire_bytes.encode(number, message))
        _still_answers(dealer)


def is_an_importer_that_breaks_the_rules(served: Served) -> None:
    """Each time its session is ended, and the importer gets the reason."""
    flow = wire.Flow(0, tuple(range(1, 1001)))
    rude: list[list[wire.Message]] = [
        [wire.Flow(0, (1,))],
        [wire.Open("no such engine", 4)],
        [wire.Open("nixl", 4, b"\xff" * 1000)],
        [wire.Open("zmq", 4), wire.Open("zmq", 4)],
        [wire.Open("zmq", 4), flow],
        [wire.Open("zmq", 1024), flow, wire.Flow(0, (1,))],
        [wire.Open("zmq", 4), wire.Flow(1 << 40, ())],
        [wire.Data(1, 0, b"x")],
        [wire.Frame(1, 1, 1, 0, 0, ())],
        [wire.Welcome("h", "0" * 32, 0, "", {})],
    ]
    for number, messages in enumerate(rude):
        with served.client() as dealer:
            hello = wire.Hello(served.ring, f"rude/{number}", "0" * 16, "lossy", "", 0)
            dealer.send_multipart(wire_bytes.encode(number, hello))
            while not isinstance(wire_bytes.decode(_answer(dealer))[1], wire.Welcome):
                pass
            for message in messages:
                dealer.send_multipart(wire_bytes.encode(number, message))
            while not isinstance(bye := wire_bytes.decode(_answer(dealer))[1], wire.Bye):
                pass
            assert "said nothing" not in bye.reason, (
                messages
            )  # the rule, not the time, has ended it


def replays_the_hello_of_another(served: Served) -> None:
    """Everybody with the key can use the name of any importer.  An importer that is connected keeps
    its place."""
    link = next(each for each in served.exporter.stats().links if each.connected)
    with served.client() as dealer:
        for number in range(20):
            policy = ("lossless", "lossy")[number % 2]
            hello = wire.Hello(served.ring, link.name, "f" * 16, policy, "", 0)
            dealer.send_multipart(wire_bytes.encode(number, hello))
            _, answer = wire_bytes.decode(_answer(dealer))
            assert isinstance(answer, wire.Refuse)
            assert "connected already" in answer.reason


def is_many_importers_over_one_connection(served: Served) -> None:
    """Each Hello ends the session before, so none of them holds up the producer."""
    with served.client() as dealer:
        for number in range(3):
            hello = wire.Hello(served.ring, f"many/{number}", "0" * 16, "lossless", "", 0)
            dealer.send_multipart(wire_bytes.encode(number, hello))
            while not isinstance(wire_bytes.decode(_answer(dealer))[1], wire.Welcome):
                pass


def _answer(dealer: Any) -> list[bytes]:
    assert dealer.poll(1000 * WAIT_S)
    return list(dealer.recv_multipart())


def _still_answers(dealer: Any) -> None:
    """Waits for an answer.  The exporter has read everything that was sent before."""
    dealer.send_multipart(wire_bytes.encode(7, HELLO))
    while not isinstance(wire_bytes.decode(_answer(dealer))[1], wire.Refuse):
        pass


ATTACKS: list[Callable[[Served], None]] = [
    says_nothing,
    sends_rubbish,
    connects_a_thousand_times,
    has_no_key,
    has_a_wrong_key,
    names_another_ring,
    sends_rubbish_with_the_right_key,
    talks_in_sessions_that_are_not_its_own,
    is_an_importer_that_breaks_the_rules,
    replays_the_hello_of_another,
    is_many_importers_over_one_connection,
]


@pytest.mark.slow
def test_an_exporter_goes_on_serving(served):
    """All attacks are in one test, because each start of a bridge takes seconds on a busy
    machine."""
    files, memory_mib = served.files(), most_mib(served.exporter.pid)
    for attack in ATTACKS:
        print(attack.__name__)  # shown if the attack succeeds
        attack(served)
        served.goes_on()
    poll(lambda: served.files() <= files + 1, WAIT_S)
    assert most_mib(served.exporter.pid) < memory_mib + GROWTH_MIB
