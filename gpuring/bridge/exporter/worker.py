"""The exporter's worker: it listens, and serves each importer from a subscription of its own.

It has one thread, which alone uses everything in this folder but supervisor.py.  This file has its
loop, handles the messages of importers and of the supervisor, and decides when a session begins and
ends.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import zmq

from gpuring.bridge import engines
from gpuring.bridge.engines.contract import EngineError
from gpuring.bridge.exporter.callers import Caller, Callers
from gpuring.bridge.exporter.connection_limits import LOOK_S, ConnectionLimits
from gpuring.bridge.exporter.link import Link, Session
from gpuring.bridge.exporter.links import Links
from gpuring.bridge.exporter.listener import RouterChannel, listen
from gpuring.bridge.exporter.refusals import Refusals
from gpuring.bridge.exporter.ring_lookup import RingLookup
from gpuring.bridge.network import wire, wire_bytes
from gpuring.bridge.stats import LinkStats
from gpuring.bridge.worker import BUSY_S, POLLING_S, Poller, SupervisorPipe
from gpuring.errors import PeerLost, RingError, RingNotFound
from gpuring.ring import inner

_MESSAGES = 64
"""How many messages are heard before frames are sent again."""
_WAITING = 64
"""How many importers may wait for the ring.  All others are refused for now."""
_END_LOOK_S = 0.2
"""How often a stream that has ended is looked at."""
_DRAIN_S = 0.4
"""How long an exporter that ends waits for acknowledgements."""


class Exporter:
    """Serves one ring to any number of importers, in one thread."""

    def __init__(self, options: dict[str, Any], supervisor: SupervisorPipe) -> None:
        self._supervisor = supervisor
        self._ring_name: str = options["ring"]
        self._timeout_s: float = options["timeout_s"]
        self._patience_s: float = options["patience_s"]
        self._host: str = options["host"]
        self._links = Links(options, supervisor)
        self._stop_s, self._again = 0.0, False
        """When to end, if the supervisor has said so, and whether another exporter of the ring
        follows."""
        self._context = zmq.Context()
        self._router, self._door = listen(
            self._context, options["listen"], options["key"], supervisor
        )
        self._connections = ConnectionLimits(self._router)
        self._callers = Callers(self._router, self._connections)
        self._refusals = Refusals(supervisor, self._connections)
        endpoint: Any = self._router.last_endpoint
        supervisor.say(listens=endpoint.decode().removeprefix("tcp://"))
        self._lookup = RingLookup(self._ring_name, supervisor)
        self._poller = Poller(supervisor.fileno(), self._router, self._connections.socket)
        if self._door is not None:
            self._poller.add(self._door.socket)

    # ---- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        more, looks_s = False, 0.0
        while not self._is_over():
            # While an engine would not let us sleep anyway, frames do not wait for what follows.
            if time.monotonic() >= looks_s or not any(link.is_polled for link in self._links):
                self._look(0 if more or self._callers.later else self._rest_s())
                self._tick()
                looks_s = time.monotonic() + POLLING_S
            more = self._hear()
            for link in self._links:
                more |= self._guarded(link, link.step) or False
        for caller in self._callers.values():
            with contextlib.suppress(EngineError):
                caller.post(wire.Bye("the exporter was stopped", True))
        self._connections.close()
        # Queued frames are sent from the near slots, which nobody else may have until then.
        self._context.destroy(linger=100)
        self._callers.clear()
        self._links.leave(stay=self._again)

    def _look(self, timeout_s: float) -> None:
        """Waits until there is something to do, and hears all but the importers."""
        ready = self._poller.wait(self._descriptors(), timeout_s)
        if self._supervisor.fileno() in ready:
            for message in self._supervisor.heard():
                self._heard_from_supervisor(message)
        if self._door is not None and self._door.socket in ready and self._door.answer():
            self._supervisor.log("somebody without the right key was turned away")
        if self._connections.socket in ready:
            self._log(self._connections.admit(self._callers.in_session()))

    def _is_over(self) -> bool:
        if not self._stop_s:
            return False
        pending = any(link.lag for link in self._links if link.session is not None)
        return not pending or time.monotonic() >= self._stop_s

    def _descriptors(self) -> list[int]:
        found = []
        for link in self._links:
            if link.wants_frames:
                found.append(link.consumer.fileno())
            if link.session is not None and link.session.sender is not None:
                found.append(link.session.sender.fileno())
        if self._callers.waiting():
            found.append(self._lookup.fileno())
        return [fd for fd in found if fd >= 0]

    def _rest_s(self) -> float:
        """How long the loop may sleep."""
        rest_s = min(self._timeout_s / 6, LOOK_S)
        for link in self._links:
            sender = link.session.sender if link.session is not None else None
            if sender is not None and sender.busy and sender.fileno() < 0:
                return BUSY_S
            if link.waits_for_gpu:
                rest_s = min(rest_s, 0.001)
            if link.died is not None:
                rest_s = min(rest_s, _END_LOOK_S)
        return min(rest_s, 0.05) if self._stop_s else rest_s

    def _tick(self) -> None:
        now = time.monotonic()
        waiting = self._callers.waiting()
        if self._lookup.look(bool(waiting)):
            for caller in waiting:
                self._serve(caller)
        self._log(self._connections.look(self._callers.in_session()))
        for caller in list(self._callers.values()):
            asked_s = min(1.5 * caller.hello.timeout_ms / 1000, self._patience_s)
            silence_s = max(self._timeout_s, asked_s)
            if now - caller.heard_s > silence_s:
                self._hang_up(caller, f"the importer said nothing for {silence_s:g} s")
            elif now - caller.said_s > self._timeout_s / 6:
                try:
                    caller.post(wire.Ping(caller.why))
                except EngineError as error:
                    self._hang_up(caller, str(error))
        self._links.give_up()
        self._links.follow()
        for link in self._links:
            if link.done:
                self._move(link)

    def _log(self, lines: list[str]) -> None:
        for line in lines:
            self._supervisor.log(line)

    def _heard_from_supervisor(self, message: dict[str, Any]) -> None:
        if "stop" in message:
            self._stop_s, self._again = time.monotonic() + _DRAIN_S, message["again"]
            for link in self._links:
                link.paused = True
        elif "stats" in message:
            self._supervisor.say(
                stats=message["stats"], links=[self._stats(x) for x in self._links]
            )
        elif "joined" in message:
            self._joined(**message)
        elif "left" in message:
            self._links.supervisor_left(message["left"])

    def _stats(self, link: Link) -> dict[str, Any]:
        session = link.session
        stats = LinkStats(
            link.name, link.policy, session is not None, session.engine if session else "",
            **asdict(link.counts), credits=len(session.credits) if session else 0, lag=link.lag,
            blocked=link.blocked,
        )  # fmt: skip
        return asdict(stats)

    # ---- what importers say --------------------------------------------------------------------

    def _hear(self) -> bool:
        """Takes what has come.  Returns whether there may be more."""
        for _ in range(_MESSAGES):
            try:
                said = self._callers.next()
            except zmq.Again:
                return False
            self._heard(*said)
        return True

    def _heard(self, frame: Any, parts: list[Any]) -> None:
        route: bytes = frame.bytes
        caller = self._callers.get(route)
        try:
            connection = self._connections.of(frame)
            number, message = wire_bytes.decode(parts)
        except wire.OtherVersion as error:
            channel = RouterChannel(self._router, connection, route, error.session)
            self._refusals.for_good(channel, f"{error} (of the exporter)")
            return
        except wire.WireError as error:
            if caller is not None:
                self._hang_up(caller, str(error))
            return
        if isinstance(message, wire.Hello):
            # It may have connected since the loop looked.
            self._log(self._connections.admit(self._callers.in_session()))
            channel = RouterChannel(self._router, connection, route, number)
            self._hello(channel, message)
        elif caller is not None and caller.channel.number == number:
            caller.heard_s = time.monotonic()
            if isinstance(message, wire.Bye):
                self._bye(caller, message)
            elif caller.link is not None and caller.welcomed:
                self._guarded(caller.link, partial(caller.link.take, message))

    def _hello(self, channel: RouterChannel, hello: wire.Hello) -> None:
        if hello.ring != self._ring_name:
            reason = f"{self._host} exports ring {self._ring_name!r} here, and not {hello.ring!r}"
            self._refusals.for_good(channel, reason)
            return
        if self._stop_s:
            self._refusals.for_a_moment(channel, "the exporter is being stopped")
            return
        if channel.route in self._callers:  # a connection has one session at a time
            self._hang_up(self._callers[channel.route], None)
        link = self._links.get(hello.importer)
        callers = self._callers.values()
        before = next((c for c in callers if c.hello.importer == hello.importer), None)
        if before is not None and before.hello.run != hello.run:
            reason = (
                f"{hello.importer} is connected already, from another process. If that is another "
                "host of the same name, give one of the two rings another name (`name`, or --as "
                "of the command)"
            )
            self._refusals.for_now(channel, hello.importer, reason)
            return
        if link is not None and link.policy != hello.policy:
            self._drop(link, wire.Bye("its importer was started again", True))
            self._refusals.for_a_moment(channel, "the subscription has to be made again")
            return
        if before is not None:
            self._hang_up(before, None)
        self._serve(Caller(channel, hello, time.monotonic()))

    def _serve(self, caller: Caller) -> None:
        """Gives a caller a link.  It waits until there is a ring for that."""
        channel, importer = caller.channel, caller.hello.importer
        link, waited = self._links.get(importer), channel.route in self._callers
        try:
            if link is None:
                link = self._links.make(caller.hello, waited)
        except (RingNotFound, PeerLost) as error:  # a killed creator may have left its ring
            if not waited and len(self._callers.waiting()) >= _WAITING:
                self._refusals.for_now(channel, importer, str(error))
            elif not waited:
                self._callers[channel.route], caller.why = caller, str(error)
                why = "" if isinstance(error, RingNotFound) else f": {error}"
                self._refusals.log(importer, f"is connected, and waits for the ring{why}")
            return
        except (RingError, OSError) as error:  # as no free peer, or no free descriptor
            self._callers.pop(channel.route, None)
            self._refusals.for_now(channel, importer, str(error))
            return
        self._refusals.forget(link.name)
        spec = link.ring.spec
        channel.frames_nbytes = link.ring.slots * (spec.slot_nbytes + spec.meta_nbytes)
        self._callers[channel.route], caller.link, caller.why = caller, link, ""
        self._links.importer_came(link, waited)
        if link.joined:
            self._welcome(caller, link)

    def _bye(self, caller: Caller, bye: wire.Bye) -> None:
        if bye.again or caller.link is None:
            self._hang_up(caller, bye.reason)
        else:
            self._supervisor.log(f"{caller.link.name} is gone: {bye.reason}")
            self._drop(caller.link, None)

    def _welcome(self, caller: Caller, link: Link) -> None:
        def begin() -> None:
            session = Session(caller.channel.number, caller.post, caller.channel)
            link.begin(session, caller.hello)
            spec = bytes(inner.header(link.ring).spec).decode()
            session.post(wire.Welcome(self._host, link.epoch, link.passed, spec, engines.facts()))

        caller.welcomed = True
        self._guarded(link, begin)
        self._supervisor.log(f"{link.name} is connected ({link.policy})")

    def _guarded(self, link: Link, call: Callable[[], Any]) -> Any:
        """What `call` returns.  If the session fails by it, it is ended."""
        try:
            return call()
        except (EngineError, wire.WireError, OSError) as error:
            for caller in self._callers.of(link):
                self._hang_up(caller, str(error))
            return None

    def _hang_up(self, caller: Caller, reason: str | None) -> None:
        """Ends a session.  Its link is kept for a while."""
        if self._callers.pop(caller.channel.route, None) is None:
            return
        with contextlib.suppress(EngineError):
            caller.post(wire.Bye(reason or "there is a newer session", True))
        self._callers.stop_sending(caller)
        link, kept = caller.link, ""
        if link is not None:
            link.close_session()
            self._links.importer_left(link)
            if link.policy == "lossless":
                kept = f". Its frames are kept for {self._patience_s:g} s"
        if reason is not None:
            self._supervisor.log(f"{caller.hello.importer} is gone: {reason}{kept}")

    # ---- links ---------------------------------------------------------------------------------

    def _joined(self, joined: str, epoch: str, error: str | None, missed: int) -> None:
        """The supervisor has joined a subscription, too, so it outlives this worker.  `missed`
        frames were only in the rings that it had before."""
        name, link = joined, self._links.get(joined)
        if link is None or link.epoch != epoch:
            return
        if error is not None:
            self._supervisor.log(f"{name}: {error}")
            self._drop(link, wire.Bye(error, True))
            return
        link.joined = True
        link.missed(missed)
        for caller in self._callers.of(link):
            if not caller.welcomed:
                self._welcome(caller, link)

    def _drop(self, link: Link, bye: wire.Bye | None) -> None:
        """Gives a link up, and its subscription."""
        for caller in self._callers.of(link):
            if bye is not None:
                with contextlib.suppress(EngineError):
                    caller.post(bye)
            if not self._context.closed:
                self._callers.stop_sending(caller)
            del self._callers[caller.channel.route]
        self._links.drop(link)

    def _move(self, link: Link) -> None:
        """Joins the ring that has taken the place of one whose stream has ended, if there is one.
        The importer learns of it by a new session."""
        ring = self._links.successor_of(link)
        if ring is None:
            return
        for caller in self._callers.of(link):
            with contextlib.suppress(EngineError):
                caller.post(wire.Bye("the near ring was replaced", True))
            del self._callers[caller.channel.route]
        self._links.move(link, ring)
