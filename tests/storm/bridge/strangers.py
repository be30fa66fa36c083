"""Whatever comes from the network, no worker of a bridge ends by it, and frames go on to arrive.

An honest importer has every frame of an exporter at whose port strangers send rubbish, and others
are importers that do not keep to the rules.  Some importers, one of them with a key, are sent to
ports at which an impostor answers, a relay that damages what the exporter says, or an exporter that
is nearly right.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import select
import socket
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import zmq

import gpuring
from gpuring import bridge, slot_layout
from gpuring.bridge.network import keys, wire, wire_bytes
from tests.storm.harness import Failed, Storm

from .rubbish import damaged, nearly, stream

WAIT_S = 30.0
SHAPE = 16
SPEC = slot_layout.make(shape=SHAPE, dtype="i8").to_bytes().decode()
NBYTES = 8 * SHAPE
WHOLE = 8 << 10
"""A relay damages nothing before that.  An exporter that answers with another ring, or with what
describes none, ends the importer for good, as it should."""


SHARES = (0.0005, 0.005, 0.05)
"""How many of the messages of a session are wrong."""


def _hello(ring: str, who: str, policy: str = "lossy") -> wire.Hello:
    return wire.Hello(ring, who, "0" * 16, policy, "", 0, 1000)


class Strangers(Storm):
    """Rubbish at the ports of a bridge: no worker ends by it, and frames go on to arrive."""

    PAUSE_S = 0.1

    @staticmethod
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--victims", type=int, default=1, help="importers without a key")

    def begin(self) -> None:
        self.over_now = threading.Event()
        self.failed: BaseException | None = None
        self.liars: dict[int, str] = {}
        """The exporters that are nearly right, each for one importer."""
        self.made = contextlib.ExitStack()
        enter = self.made.enter_context
        self.near, self.seen = f"{self.name}-near", -1
        options: dict[str, Any] = {"shape": SHAPE, "dtype": "i8", "device": "host"}
        self.ring = enter(
            gpuring.create(self.near, slots=16, max_peers=120, max_subscriptions=50, **options)
        )
        ours, theirs = bridge.keygen(self.folder)
        self.out = enter(bridge.export(self.near, listen="127.0.0.1:0", patience=1, timeout=1))
        self.locked = enter(bridge.export(self.near, listen="127.0.0.1:0", key=ours, patience=1))
        self.honest = enter(
            bridge.import_(
                f"{self.out.address}/{self.near}", name=f"{self.name}-far", device="host"
            )
        )
        self.known = keys.read(theirs, keys.IMPORT)
        self.victims = []
        for n, key in enumerate((theirs, *self.args.victims * [None])):
            behind = self.locked if key else self.out
            port = enter(socket.create_server(("127.0.0.1", 0)))
            where = f"127.0.0.1:{port.getsockname()[1]}/{self.near}"
            name = f"{self.name}-victim-{n}"
            victim = bridge.import_(where, name=name, device="host", key=key, timeout=0.5)
            self.victims.append(enter(victim))
            self._start(lambda n=n, port=port, behind=behind: self._port(n, port, behind))
            if not key:
                self._start(lambda n=n: self._liar_of_near(n))
        for each in (self._produce, self._read, self._liar, self._liar):
            self._start(each)
        self.ports = [self.out.address, self.locked.address]
        self.until(lambda: self.seen >= 0, "no frame has arrived")

    def _start(self, run: Callable[[], Any]) -> None:
        def guarded() -> None:
            try:
                run()
            except BaseException as error:
                if not self.over_now.is_set():
                    self.failed = error

        threading.Thread(target=guarded, daemon=True).start()

    def _go_on(self) -> bool:
        return not self.over_now.is_set()

    # ---- the honest ones -----------------------------------------------------------------------

    def _produce(self) -> None:
        n = 0
        with self.ring.producer() as producer:
            while self._go_on():
                with contextlib.suppress(gpuring.RingFull), producer.claim(0.2) as slot:
                    slot.array[...] = n
                    n += 1
                self.over_now.wait(0.003)

    def _read(self) -> None:
        name = f"{self.name}-far"
        with gpuring.attach(name, timeout=WAIT_S) as ring, ring.consumer(start="oldest") as frames:
            while self._go_on():
                with contextlib.suppress(gpuring.RingTimeout), frames.acquire(0.5) as slot:
                    n = int(slot.array[0])
                    missing = n - self.seen - 1 if self.seen >= 0 else 0
                    # On a busy machine an importer may have been silent for longer than the
                    # patience.
                    if missing > slot.lost or not (slot.array == n).all():
                        raise Failed(f"frame {n} after {self.seen}, {slot.lost} lost: {slot.array}")
                    self.counts["frames that were lost, and told so"] += slot.lost
                    self.seen = n
                    self.counts["frames that arrived"] += 1

    # ---- who answers an importer ---------------------------------------------------------------

    def _port(self, n: int, port: socket.socket, behind: Any) -> None:
        chance = Random(self.args.seed + n)
        while self._go_on():
            one, _ = port.accept()
            one.settimeout(2)
            with one, contextlib.suppress(OSError):
                what = chance.random()
                if what < 0.2:
                    self.counts["answers of an impostor"] += 1
                    self._send(chance, one, stream(chance, wire.Ping("x")))
                elif what < 0.4 or n not in self.liars:
                    self.counts["connections that were damaged"] += 1
                    hurts_from = 0 if behind is self.locked else WHOLE
                    self._relay(one, behind.address, chance, hurts_from)
                else:
                    self._relay(one, self.liars[n], chance, math.inf)

    def _send(self, chance: Random, one: socket.socket, said: bytes) -> None:
        """Sends the bytes at once, or in pieces."""
        self.counts["bytes of strangers"] += len(said)
        if chance.random() < 0.8:
            one.sendall(said)
        else:
            while said and self._go_on():
                n = chance.choice((1, 1, 3, 50, 5000))
                one.sendall(said[:n])
                said = said[n:]
                time.sleep(chance.random() * 0.005)
        if chance.random() < 0.5:
            one.shutdown(socket.SHUT_WR)
            one.settimeout(0.1)
        while chance.random() < 0.9 and one.recv(1 << 16):
            pass

    def _relay(self, one: socket.socket, to: str, chance: Random, hurts_from: float) -> None:
        """Relays bytes for a while.  Damages what comes back behind so many bytes."""
        host, _, port = to.rpartition(":")
        until, came = time.monotonic() + chance.choice((0.1, 1, 10)) * chance.random(), 0
        with socket.create_connection((host, int(port))) as other:
            while self._go_on() and time.monotonic() < until:
                for each in select.select([one, other], [], [], 0.1)[0]:
                    said = each.recv(1 << 16)
                    if not said:
                        return
                    if each is one:
                        other.sendall(said)
                        continue
                    came += len(said)
                    hurt = came > hurts_from and chance.random() < 0.05
                    one.sendall(damaged(chance, said) if hurt else said)

    # ---- who is nearly right -------------------------------------------------------------------

    def _liar_of_near(self, n: int) -> None:
        """An exporter that lies."""
        chance, epoch = Random(self.args.seed + 5 + n), "e" * 32
        with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
            router.linger = 0
            router.bind("tcp://127.0.0.1:0")
            self.liars[n] = router.last_endpoint.decode().removeprefix("tcp://")
            route, session, seq, credits, is_open, share = b"", 0, 0, [], False, 0.0

            def say(message: wire.Message, right: bool = False) -> None:
                parts: Any = wire_bytes.encode(session, message)
                if not right and chance.random() < share:
                    parts = nearly(chance, session, message)
                    self.counts["wrong messages for an importer"] += 1
                self.counts["messages for an importer"] += 1
                router.send_multipart([route, *parts])

            while self._go_on():
                while router.poll(1 if is_open and credits else 20):
                    who, *parts = router.recv_multipart()
                    try:
                        number, message = wire_bytes.decode(parts)
                    except wire.WireError:
                        raise Failed(f"an importer has said {parts}") from None
                    if isinstance(message, wire.Hello):
                        route, session, credits, is_open = who, number, [], False
                        share = chance.choice(SHARES)
                        seq = message.seq if message.epoch == epoch else 0
                        if chance.random() < 0.01:
                            epoch = f"{chance.getrandbits(128):032x}"
                            seq = 0
                        say(wire.Ping("not yet"))
                        say(wire.Welcome("h", epoch, seq, SPEC, {"zmq": {}}), right=True)
                    elif who != route or number != session:
                        continue
                    elif isinstance(message, wire.Open):
                        is_open = True
                        say(wire.Begin())
                    elif isinstance(message, wire.Flow):
                        credits += message.credits
                    elif isinstance(message, wire.Begin):
                        self.counts["ends and beginnings for an importer"] += 1
                if not is_open:
                    continue
                for _ in range(chance.randrange(1, 20)):
                    what = chance.random()
                    if what < 0.05:
                        say(chance.choice((wire.Ping("x", "y"), wire.Data(9, 0, b"x"))))
                    elif what < 0.06:
                        say(wire.End(False), right=True)
                        say(wire.Begin())
                        credits = []
                    elif what < 0.065:
                        say(wire.Bye("\n\x1b[2J", True))
                    elif credits:
                        seq, to = seq + 1 + (what < 0.2), credits.pop(0)
                        lost = chance.choice((0, 0, 3))
                        frame = wire.Frame(seq, to, NBYTES, 1, lost, (), b"", not credits)
                        frame.part = bytes(NBYTES)
                        if what < 0.5:
                            say(wire.Data(to, 0, bytes(NBYTES // 2)))
                            frame.part = bytes(NBYTES // 2)
                        elif what < 0.6:
                            n = chance.randrange(1, SHAPE)
                            frame.nbytes, frame.shape, frame.part = 8 * n, (n,), bytes(8 * n)
                        say(frame)

    def _liar(self) -> None:
        """An importer."""
        chance = Random(self.args.seed + threading.get_native_id())
        with zmq.Context() as context:
            while self._go_on():
                locked = chance.random() < 0.3
                with context.socket(zmq.DEALER) as dealer:
                    dealer.linger, dealer.sndhwm, dealer.rcvhwm = 0, 0, 0
                    if locked:
                        keys.use(dealer, self.known)
                    dealer.connect(f"tcp://{(self.locked if locked else self.out).address}")
                    self._lie(chance, dealer)

    def _lie(self, chance: Random, dealer: Any) -> None:
        acked, to, welcomed, share = 0, chance.randrange(20), None, chance.choice(SHARES)

        def say(message: wire.Message) -> None:
            parts: Any = wire_bytes.encode(7, message)
            if chance.random() < share:
                parts = nearly(chance, 7, message)
                self.counts["wrong messages for an exporter"] += 1
            self.counts["messages for an exporter"] += 1
            dealer.send_multipart(parts)

        who, policy = f"liar/{chance.randrange(8)}", chance.choice((*wire.POLICIES, "lossy"))
        say(_hello(self.near, who, policy))
        until = time.monotonic() + 1
        while time.monotonic() < until and self._go_on():
            while dealer.poll(2 if welcomed else 100):
                message = wire_bytes.decode(dealer.recv_multipart())[1]
                if isinstance(message, wire.Welcome) and welcomed is None:
                    welcomed, acked = message, message.seq
                    say(wire.Open(chance.choice(("zmq", "zmq", "zmq", "nixl")), 8))
                elif isinstance(message, wire.Frame):
                    acked = message.seq
                elif isinstance(message, (wire.Bye, wire.Refuse)):
                    return
            if welcomed is None:
                continue
            for _ in range(chance.randrange(1, 20)):
                what = chance.random()
                if what < 0.05:
                    say(wire.Ping("x\n\x1b[2J", "y\u202e"))
                elif what < 0.051:
                    say(chance.choice((wire.Begin(), wire.Data(1, 0, b"x"))))
                elif what < 0.052:
                    say(wire.Bye("\n\x1b[2J" * 9, chance.random() < 0.5))
                else:
                    n = chance.randrange(3) if to - acked < 20 else 0
                    say(wire.Flow(acked, tuple(range(to, to + n))))
                    to += n

    # ---- at an exporter's port -----------------------------------------------------------------

    def torment(self) -> None:
        for _ in range(20):
            host, _, port = self.chance.choice(self.ports).rpartition(":")
            hello = _hello(self.near, "stranger/x")
            with contextlib.suppress(OSError), socket.create_connection((host, int(port))) as one:
                one.settimeout(0.2)
                self.counts["connections of strangers"] += 1
                self._send(self.chance, one, stream(self.chance, hello))

    def look(self) -> None:
        if self.failed is not None:
            raise Failed(f"{self.failed!r}") from self.failed
        for each in (self.out, self.locked, self.honest, *self.victims):
            each.wait(0)
            if each._restarts:
                raise Failed(f"a worker has ended: {each._title}")

    def finish(self) -> None:
        until = self.seen + 50
        self.until(lambda: self.seen > until, "no frame arrives any more")
        for each in (self.out, self.locked, self.honest, *self.victims):
            each.stats()
        for each in self.victims:
            self.counts["sessions of importers"] += each.stats().links[0].sessions
        for each in (self.out, self.locked):
            assert each.stats().restarts == 0
        self.end()

    def end(self) -> None:
        self.over_now.set()
        self.made.close()
