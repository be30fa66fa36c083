"""The importer's worker: it connects to an exporter, and fills the far ring with what comes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from typing import Any

import zmq
import zmq.utils.monitor

from gpuring.bridge import engines, keys, multipart, wire
from gpuring.bridge.connection import Connection
from gpuring.bridge.engine import EngineError
from gpuring.bridge.far import Landing
from gpuring.bridge.names import Lookup, is_name
from gpuring.bridge.worker import BUSY_S, POLLING_S, Fatal, Up, Watch
from gpuring.errors import RingClosed, RingNotFound
from gpuring.ring.ring import attach

_MESSAGES = 64
"""How many messages are heard before frames are published and slots are claimed."""
_REST_S, _MAX_REST_S = 0.05, 2.0
"""How long it waits before it connects again: at least, and at the longest."""
_LATEST = 2
"""How many frames are on their way with the policy "latest": one that is sent, and the next."""
_DRAIN_S = 0.3


class Importer:
    """Fills one ring, in one thread."""

    def __init__(self, told: dict[str, Any], up: Up) -> None:
        self._up, self._told = up, told
        self._timeout_s: float = told["timeout_s"]
        self._known = None if told["key"] is None else keys.read(told["key"], keys.IMPORT)
        self._context = zmq.Context()
        self._watch = Watch(up.fileno())
        if told["engine"] not in ("auto", *engines.facts()):
            why = engines.why_not(told["engine"])
            raise Fatal(f"engine {told['engine']!r} cannot be used on this machine: {why}")
        self._connection: Connection | None = None
        self._host, self._port = told["address"].rsplit(":", 1)
        self._lookup: Lookup | None = None
        """Asks for the addresses of the exporter, if it is given by a name."""
        self._tries = 0
        """How often it has connected.  It tries one address of a name after the other."""
        self._landing: Landing | None = None
        self._ended: bool = told["ended"]
        """Whether the stream has ended.  We are no producer then."""
        self._asked = False
        """Whether the supervisor was asked to leave or to join as a producer, and is not done."""
        self._mark: tuple[str, int] = tuple(told["mark"])
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

    # ---- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        if self._told["ring"]:
            self._land()
        more, looks_s = False, 0.0
        while not self._stopped:
            ready: set[Any] = set()
            # While an engine would not let us sleep anyway, frames do not wait for the others.
            if time.monotonic() >= looks_s or not self._is_polled:
                ready = self._watch.wait(self._descriptors(), 0 if more else self._rest_s())
                looks_s = time.monotonic() + POLLING_S
            if self._connection is None and time.monotonic() >= self._connect_s:
                try:
                    self._begin(ready)
                except EngineError as error:  # it may be refused before Hello is sent
                    self._lose(str(error))
            if self._up.fileno() in ready:
                for message in self._up.heard():
                    self._heard_from_supervisor(message)
            more = False
            if self._connection is not None:
                try:
                    more = self._go_on(self._connection)
                except (EngineError, wire.WireError) as error:
                    self._lose(str(error))
            self._give_up()
        if self._connection is not None:
            with contextlib.suppress(EngineError):
                self._connection.post(wire.Bye("the importer was stopped", self._again))
            self._watch.remove(self._connection.socket)
            self._watch.remove(self._connection.monitor)
            self._connection.socket.disable_monitor()
            self._connection.socket.close(int(1000 * _DRAIN_S))
        if self._landing is not None:
            self._landing.close()
        self._context.destroy()

    def _descriptors(self) -> list[int]:
        landing, found = self._landing, []
        if self._lookup is not None:
            found.append(self._lookup.fileno())
        if landing is not None:
            if landing.wants_slots and landing.producer is not None:
                found.append(landing.producer.fileno())
            if landing.session is not None:
                found.append(landing.session.receiver.fileno())
        return [fd for fd in found if fd >= 0]

    @property
    def _is_polled(self) -> bool:
        """Whether the engine has frames that come, and a descriptor that is readable as long as
        that is so."""
        session = self._landing.session if self._landing is not None else None
        return session is not None and session.receiver.busy and session.receiver.fileno() >= 0

    def _rest_s(self) -> float:
        """How long the loop may sleep."""
        if self._connection is None and self._lookup is None:
            return max(0.0, self._connect_s - time.monotonic())
        landing = self._landing
        if landing is not None and landing.session is not None:
            receiver = landing.session.receiver
            if receiver.busy and receiver.fileno() < 0:
                return BUSY_S
            if landing.waits_for_gpu:
                return 0.001
        return self._timeout_s / 6

    def _go_on(self, connection: Connection) -> bool:
        """What there is to do while there is a connection.  Returns whether there may be more."""
        more = self._hear(connection)
        if self._connection is not connection:
            return False
        if why := connection.why_lost():
            raise EngineError(why)
        self._check_silence(connection)
        landing = self._landing
        if landing is not None and landing.session is not None:
            try:
                landing.step()
            except RingClosed as error:
                raise Fatal(f"{error}. Was it replaced by another program?") from None
            while not self._asked and (turn := landing.turn()) is not None:
                self._turn(landing, turn)
        unsaid_s = time.monotonic() - connection.said_s
        if connection.is_answered and unsaid_s > self._timeout_s / 6:
            blocked = (landing.blocked, landing.blocked_by) if landing is not None else ()
            connection.post(wire.Ping(*blocked))
        return more

    def _give_up(self) -> None:
        limit_s, connection = self._told["give_up_s"], self._connection
        if limit_s is None or (connection is not None and connection.near is not None):
            return
        if time.monotonic() - self._open_s > limit_s:
            why = self._why or "there was no answer yet"
            raise Fatal(f"no session for {limit_s:g} s: {why}")

    def _heard_from_supervisor(self, message: dict[str, Any]) -> None:
        if "stop" in message:
            self._stopped, self._again = True, message["again"]
        elif "stats" in message:
            self._up.say(stats=message["stats"], links=[self._stats()])
        elif "ring" in message:
            self._ended = self._asked = False
            self._land()
            self._open()
        elif "left" in message:
            if message["left"]:  # the last producer was killed over there, so it is here
                os.kill(os.getpid(), signal.SIGKILL)
            assert self._landing is not None
            self._landing.leave()
            self._asked = False
        elif "begun" in message:
            self._ended = self._asked = False
            if self._landing is not None:
                self._landing.join()
                self._landing.answer()

    def _stats(self) -> dict[str, Any]:
        landing, connection = self._landing, self._connection
        counts = landing.counts if landing is not None else None
        return {
            "name": self._told["name"], "policy": self._told["policy"],
            "connected": connection is not None and connection.is_open, "engine": self._engine,
            "frames": counts.frames if counts else 0, "nbytes": counts.nbytes if counts else 0,
            "lost": counts.lost if counts else 0, "sessions": self._sessions,
            "credits": landing.in_flight if landing else 0, "lag": 0,
            "blocked": landing.blocked if landing else "",
        }  # fmt: skip

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
        self._watch.add(connection.socket)
        self._watch.add(connection.monitor)
        told = self._told
        epoch, seq = self._landing.mark if self._landing is not None else self._mark
        who = told["near"], told["name"], told["run"], told["policy"]
        connection.post(wire.Hello(*who, epoch, seq, max(1, int(1000 * self._timeout_s))))

    def _lose(self, why: str) -> None:
        """The session is over.  It connects again after a while."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(EngineError):
                connection.post(wire.Bye(why, True))
            self._watch.remove(connection.socket)
            self._watch.remove(connection.monitor)
            connection.close()
            if self._landing is not None and connection.was_of_use(self._landing.mark):
                self._open_s = time.monotonic()
        if self._landing is not None:
            self._landing.close_session()
        if why != self._why or (connection is not None and connection.is_open):
            self._up.log(f"not connected to {self._told['address']}: {why}")
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
            number, message = wire.decode([part.buffer for part in parts])
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
            self._up.log(f"connected to {self._told['address']}, and waits: {why}")
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
                    raise Fatal(f"{self._told['address']} refuses: {reason}")
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
                if self._landing is not None and self._landing.mark[0] == message.epoch:
                    self._open()
                else:
                    ring = {"epoch": message.epoch, "seq": message.seq, "spec": message.spec}
                    self._up.say(do="ring", host=message.host, **ring)
            case _:
                if self._landing is None or self._landing.session is None:
                    raise wire.WireError(f"a {type(message).__name__} before its time")
                self._landing.take(message)

    # ---- the far ring --------------------------------------------------------------------------

    def _land(self) -> None:
        """Attaches to the far ring, which the supervisor has made."""
        if self._landing is not None:
            self._landing.close()
        told = self._told
        device = None if told["device"] == "host" else told["device"]
        try:
            ring = attach(told["as"], timeout=5, device=device)
        except RingNotFound:
            raise Fatal(f"ring {told['as']!r} was removed by another program") from None
        if not ring._link()[0]:
            raise Fatal(f"ring {told['as']!r} is another program's now")
        most = _LATEST if told["policy"] == "latest" else None
        self._landing = Landing(ring, told["in_flight"], most)
        if not self._ended:
            self._landing.join()

    def _open(self) -> None:
        """Opens the engine, when there are both a connection and the right ring."""
        connection, landing = self._connection, self._landing
        if connection is None or connection.near is None or connection.is_open or landing is None:
            return
        if landing.mark[0] != connection.near.epoch:
            return
        try:
            engine = landing.begin(self._told["engine"], connection.near.engines, connection.post)
        except EngineError as error:
            self._lose(str(error))
            return
        connection.open(landing.mark)
        if engine != self._engine or self._why:
            self._up.log(f"connected to {self._told['address']}, engine {engine}")
        self._engine, self._why = engine, ""
        self._sessions += 1

    def _turn(self, landing: Landing, turn: wire.End | wire.Begin) -> None:
        """The stream has ended or begun again over there, so it does so here."""
        if isinstance(turn, wire.Begin) != self._ended:  # it is so already
            if not self._ended:
                landing.answer()
            return
        self._asked = True
        if isinstance(turn, wire.Begin):
            self._up.say(do="begin")
            return
        self._ended = True
        how = (
            ": its last producer was killed, and so is the worker here, on purpose"
            if turn.died
            else ""
        )
        self._up.log(f"the stream has ended{how}")
        self._up.say(do="end", died=turn.died)


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
