"""The importer's worker: it connects to an exporter, and fills the far ring with what comes.

It has one thread, which alone uses everything in this folder but supervisor.py.  This file has its
loop, handles the messages of the exporter and of the supervisor, and decides when to connect again.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import asdict
from typing import Any

import zmq
import zmq.utils.monitor

from gpuring import native
from gpuring.bridge import engines
from gpuring.bridge.engines.contract import EngineError
from gpuring.bridge.importer.connection import Connection
from gpuring.bridge.importer.near_clock import ASK_NS
from gpuring.bridge.importer.ring_writer import RingWriter
from gpuring.bridge.network import keys, multipart, wire, wire_bytes
from gpuring.bridge.network.addresses import Lookup, NoAddress, is_name
from gpuring.bridge.stats import Counts, LinkStats
from gpuring.bridge.worker import BUSY_S, POLLING_S, Fatal, Poller, SupervisorPipe
from gpuring.errors import RingClosed, RingNotFound
from gpuring.registry.stats import Clock
from gpuring.ring import inner
from gpuring.ring.attaching import attach

_MESSAGES = 64
"""How many messages are heard before frames are published and slots are claimed."""
_REST_S, _MAX_REST_S = 0.05, 2.0
"""How long it waits before it connects again: at least, and at the longest."""
_LATEST = 2
"""How many frames are on their way with the policy "latest": one that is sent, and the next."""
_DRAIN_S = 0.3


class Importer:
    """Fills one ring, in one thread."""

    def __init__(self, options: dict[str, Any], supervisor: SupervisorPipe) -> None:
        self._supervisor, self._options = supervisor, options
        self._timeout_s: float = options["timeout_s"]
        self._known = None if options["key"] is None else keys.read(options["key"], keys.IMPORT)
        self._context = zmq.Context()
        self._poller = Poller(supervisor.fileno())
        if options["engine"] not in ("auto", *engines.facts()):
            why = engines.why_not(options["engine"])
            raise Fatal(f"engine {options['engine']!r} cannot be used on this machine: {why}")
        self._connection: Connection | None = None
        self._host, self._port = options["address"].rsplit(":", 1)
        self._lookup: Lookup | None = None
        """Asks for the addresses of the exporter, if it is given by a name."""
        self._tries = 0
        """How often it has connected.  It tries one address of a name after the other."""
        self._writer: RingWriter | None = None
        self._ended: bool = options["ended"]
        """Whether the stream has ended.  We are no producer then."""
        self._asked = False
        """Whether the supervisor was asked to leave or to join as a producer, and is not done."""
        self._mark: tuple[str, int] = tuple(options["mark"])
        """(epoch, sequence) of the near ring up to which there is nothing to send, as long as there
        is no far ring."""
        self._connect_s = 0.0
        """When it connects, or when it has done so last."""
        self._open_s = time.monotonic()
        """When there was a session last that was of use.  At first, when it was started."""
        self._why = ""
        self._stopped = self._again = False
        """Whether it was told to stop, and whether another importer of this name follows."""
        self._engine = ""
        self._sessions = 0
        self._clock: Clock | None = None
        """What the far ring's header says of the near host's clock."""

    # ---- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        if self._options["ring"]:
            self._attach()
        more, looks_s = False, 0.0
        while not self._stopped:
            ready: set[Any] = set()
            # While an engine would not let us sleep anyway, frames do not wait for the others.
            if time.monotonic() >= looks_s or not self._is_polled:
                ready = self._poller.wait(self._descriptors(), 0 if more else self._rest_s())
                looks_s = time.monotonic() + POLLING_S
            if self._connection is None and time.monotonic() >= self._connect_s:
                try:
                    self._begin(ready)
                except (EngineError, NoAddress) as error:  # it may be refused before Hello is sent
                    self._lose(str(error))
            if self._supervisor.fileno() in ready:
                for message in self._supervisor.heard():
                    self._heard_from_supervisor(message)
            more = False
            if self._connection is not None:
                try:
                    more = self._go_on(self._connection)
                except (EngineError, wire.WireError) as error:
                    self._lose(str(error))
            self._give_up()
        self._hang_up(wire.Bye("the importer was stopped", self._again))
        if self._writer is not None:
            self._writer.close()
        self._context.destroy()

    def _hang_up(self, bye: wire.Bye) -> None:
        """For good.  The context says it before it is destroyed."""
        if self._connection is not None:
            with contextlib.suppress(EngineError):
                self._connection.post(bye)
            self._connection.close(int(1000 * _DRAIN_S))

    def _descriptors(self) -> list[int]:
        writer, found = self._writer, []
        if self._lookup is not None:
            found.append(self._lookup.fileno())
        if writer is not None:
            if writer.wants_slots and writer.producer is not None:
                found.append(writer.producer.fileno())
            if writer.session is not None:
                found.append(writer.session.receiver.fileno())
        return [fd for fd in found if fd >= 0]

    @property
    def _is_polled(self) -> bool:
        """Whether the engine has frames that come, and a descriptor that is readable as long as
        that is so."""
        session = self._writer.session if self._writer is not None else None
        return session is not None and session.receiver.busy and session.receiver.fileno() >= 0

    def _rest_s(self) -> float:
        """How long the loop may sleep."""
        if self._connection is None and self._lookup is None:
            return max(0.0, self._connect_s - time.monotonic())
        writer = self._writer
        if writer is not None and writer.session is not None:
            receiver = writer.session.receiver
            if receiver.busy and receiver.fileno() < 0:
                return BUSY_S
            if writer.waits_for_gpu:
                return 0.001
        return min(self._timeout_s / 6, ASK_NS / 1e9)

    def _go_on(self, connection: Connection) -> bool:
        """What there is to do while there is a connection.  Returns whether there may be more."""
        more = self._hear(connection)
        if self._connection is not connection:
            return False
        if why := connection.why_lost():
            raise EngineError(why)
        self._check_silence(connection)
        writer = self._writer
        if writer is not None and writer.session is not None:
            try:
                writer.step()
            except RingClosed as error:
                raise Fatal(f"{error}. Was it replaced by another program?") from None
            while not self._asked and (turn := writer.turn()) is not None:
                self._turn(writer, turn)
        unsaid_s = time.monotonic() - connection.said_s
        if connection.is_answered and unsaid_s > self._timeout_s / 6:
            blocked = (writer.blocked, writer.blocked_by) if writer is not None else ()
            connection.post(wire.Ping(*blocked))
        connection.ask_time()
        return more

    def _give_up(self) -> None:
        limit_s, connection = self._options["give_up_s"], self._connection
        if limit_s is None or (connection is not None and connection.near is not None):
            return
        if time.monotonic() - self._open_s > limit_s:
            why = self._why or "there was no answer yet"
            raise Fatal(f"no session for {limit_s:g} s: {why}")

    def _heard_from_supervisor(self, message: dict[str, Any]) -> None:
        if "stop" in message:
            self._stopped, self._again = True, message["again"]
        elif "stats" in message:
            self._supervisor.say(stats=message["stats"], links=[self._stats()])
        elif "ring" in message:
            # It is there already if it was asked for again, in a new session.
            if self._writer is None or self._writer.mark[0] != message["ring"]:
                self._ended = self._asked = False
                self._attach()
            self._open()
        elif "left" in message:
            if message["left"]:  # the last producer was killed over there, so it is here
                why = "the near producer was killed, and so is the importer's worker, on purpose"
                self._hang_up(wire.Bye(why, True))
                self._context.destroy()
                os.kill(os.getpid(), signal.SIGKILL)
            assert self._writer is not None
            self._writer.leave()
            self._asked = False
        elif "begun" in message:
            self._ended = self._asked = False
            if self._writer is not None:
                self._writer.join()
                self._writer.answer()

    def _stats(self) -> dict[str, Any]:
        writer, connection, clock = self._writer, self._connection, self._clock
        counts = Counts() if writer is None else writer.counts
        stats = LinkStats(
            self._options["name"], self._options["policy"],
            connection is not None and connection.is_open, self._engine,
            **(asdict(counts) | {"sessions": self._sessions}),
            credits=writer.in_flight if writer else 0, lag=0,
            blocked=writer.blocked if writer else "",
            round_trip_s=2 * clock.error_ns / 1e9 if clock else None,
            ahead_s=clock.ahead_ns / 1e9 if clock else None,
        )  # fmt: skip
        return asdict(stats)

    # ---- the connection ------------------------------------------------------------------------

    def _begin(self, ready: set[Any]) -> None:
        """Connects, as soon as there is an address."""
        if self._lookup is not None:
            if self._lookup.fileno() in ready:
                lookup, self._lookup = self._lookup, None
                found = lookup.answer()
                self._connect(found[self._tries % len(found)])
        elif is_name(self._host):
            self._lookup = Lookup(self._host)
        else:
            self._connect(self._host)

    def _connect(self, host: str) -> None:
        self._tries += 1
        connection = Connection(self._context, f"{host}:{self._port}", self._known)
        self._connection = connection
        self._poller.add(connection.socket)
        self._poller.add(connection.monitor)
        options = self._options
        epoch, seq = self._writer.mark if self._writer is not None else self._mark
        who = options["near"], options["name"], options["run"], options["policy"]
        connection.post(wire.Hello(*who, epoch, seq, max(1, int(1000 * self._timeout_s))))

    def _lose(self, why: str) -> None:
        """The session is over.  It connects again after a while."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(EngineError):
                connection.post(wire.Bye(why, True))
            self._poller.remove(connection.socket)
            self._poller.remove(connection.monitor)
            connection.close()
            if self._writer is not None and connection.was_of_use(self._writer.mark):
                self._open_s = time.monotonic()
        if self._writer is not None:
            self._writer.close_session()
        if why != self._why or (connection is not None and connection.is_open):
            self._supervisor.log(f"not connected to {self._options['address']}: {why}")
        self._why = why
        self._connect_s = again_at(time.monotonic(), self._connect_s, self._open_s)

    def _hear(self, connection: Connection) -> bool:
        """Takes what has come.  Returns whether there may be more."""
        for _ in range(_MESSAGES):
            try:
                parts = multipart.receive(connection.socket)
            except zmq.Again:
                return False
            self._check_silence(connection)
            number, message = wire_bytes.decode([part.buffer for part in parts])
            if number != connection.number:
                continue
            connection.heard_s, connection.is_answered = time.monotonic(), True
            self._heard(connection, message)
            if self._connection is not connection:
                return False
        return True

    def _waits(self, why: str) -> None:
        """The exporter is there, and its ring is not."""
        if why != self._why:
            self._supervisor.log(f"connected to {self._options['address']}, and waits: {why}")
        self._why = why

    def _check_silence(self, connection: Connection) -> None:
        """Raises EngineError after a long silence, before anything else is heard.  The exporter may
        have given up frames meanwhile that were in front of what comes now, and their slots may
        have been written again before they were sent."""
        if time.monotonic() - connection.heard_s > self._timeout_s:
            raise EngineError(connection.why_silent(self._timeout_s))

    def _heard(self, connection: Connection, message: wire.Message) -> None:
        match message:
            case wire.Refuse(reason, again):
                if not again:
                    raise Fatal(f"{self._options['address']} refuses: {reason}")
                self._lose(f"the exporter says: {reason}")
            case wire.Bye(reason):
                self._lose(reason)
            case wire.Ping(blocked):
                if blocked and connection.near is None:
                    self._waits(f"the exporter says: {blocked}")
            case wire.Welcome():
                if connection.near is not None:
                    raise wire.WireError("two answers to one question")
                connection.near = message
                if self._writer is not None and self._writer.mark[0] == message.epoch:
                    self._open()
                else:
                    ring = {"epoch": message.epoch, "seq": message.seq, "spec": message.spec}
                    self._supervisor.say(do="ring", host=message.host, **ring)
            case _:
                if self._writer is None or self._writer.session is None:
                    raise wire.WireError(f"a {type(message).__name__} before its time")
                if isinstance(message, wire.Time):
                    self._heard_time(connection, self._writer, message)
                    return
                self._writer.take(message)

    def _heard_time(self, connection: Connection, writer: RingWriter, said: wire.Time) -> None:
        clock = connection.clock.heard(said, native.now_ns())
        if clock is not None and clock != self._clock:
            self._clock = clock
            inner.set_clock(writer.ring, clock.ahead_ns, clock.error_ns, clock.time_ns)

    # ---- the far ring --------------------------------------------------------------------------

    def _attach(self) -> None:
        """Attaches to the far ring, which the supervisor has made."""
        if self._writer is not None:
            self._writer.close()
        options = self._options
        device = None if options["device"] == "host" else options["device"]
        try:
            ring = attach(options["as"], timeout=5, device=device)
        except RingNotFound:
            raise Fatal(f"ring {options['as']!r} was removed by another program") from None
        if not inner.link(ring)[0]:
            raise Fatal(f"ring {options['as']!r} is another program's now")
        most = _LATEST if options["policy"] == "latest" else None
        self._writer = RingWriter(ring, options["in_flight"], most)
        if not self._ended:
            self._writer.join()

    def _open(self) -> None:
        """Opens the engine, when there are both a connection and the right ring."""
        connection, writer = self._connection, self._writer
        if connection is None or connection.near is None or connection.is_open or writer is None:
            return
        if writer.mark[0] != connection.near.epoch:
            return
        try:
            engine = writer.begin(self._options["engine"], connection.near.engines, connection.post)
        except EngineError as error:
            self._lose(str(error))
            return
        connection.open(writer.mark)
        if engine != self._engine or self._why:
            self._supervisor.log(f"connected to {self._options['address']}, engine {engine}")
        self._engine, self._why = engine, ""
        self._sessions += 1

    def _turn(self, writer: RingWriter, turn: wire.End | wire.Begin) -> None:
        """The stream has ended or begun again over there, so it does so here."""
        if isinstance(turn, wire.Begin) != self._ended:  # it is so already
            return
        self._asked = True
        if isinstance(turn, wire.Begin):
            self._supervisor.say(do="begin")
            return
        self._ended = True
        how = (
            ": its last producer was killed, and so is the worker here, on purpose"
            if turn.died
            else ""
        )
        self._supervisor.log(f"the stream has ended{how}")
        self._supervisor.say(do="end", died=turn.died)


def again_at(now_s: float, began_s: float, open_s: float) -> float:
    """When to connect again, after an attempt that has `began` and failed by `now`.  The last
    session that was of use was there until `open_s`.

    The rest is a quarter of the time since then.  So it adds no more than that to what the other
    side needs to come back.
    """
    some = random.uniform(0.75, 1.25)
    rest_s = min((now_s - open_s) / 4, _MAX_REST_S)
    # An attempt that nobody answers takes long, and is a rest of its own.
    return max(now_s + some * _REST_S, began_s + some * rest_s)
