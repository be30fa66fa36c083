"""serve and connect: the two ways into a service."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy.typing as npt

from gpuring import arguments, native
from gpuring.arguments import Octal, between_one_and, integer
from gpuring.deadlines import deadline_of
from gpuring.errors import PeerLost, RingClosed, RingExists, RingIncompatible, RingNotFound
from gpuring.registry import labels, leftovers, segment
from gpuring.ring.creation import create_of
from gpuring.ring.ring import attach_any
from gpuring.service.client import Client
from gpuring.service.mailbox import Options
from gpuring.service.server import Server
from gpuring.service.wire import (
    ANSWER,
    REQUEST,
    SPARE,
    Slots,
    Terms,
    check_service_name,
    describe,
    differences,
    request_of,
    time_namespace,
)
from gpuring.slot_layout import Spec

if TYPE_CHECKING:
    from gpuring.ring.ring import Ring

_MAX_CALLS = native.MAX_SLOTS - SPARE
_Member = TypeVar("_Member", Client, Server)
_POLL_S = 0.01
_PATIENCE_S = 1.0  # for a service that another process is creating


def serve(
    name: str,
    *,
    request: Slots | None = None,
    response: Slots | None = None,
    request_meta: npt.DTypeLike | None = None,
    response_meta: npt.DTypeLike | None = None,
    slots: int = 64,
    device: str | int | None = None,
    answers: Literal["host"] | None = None,
    sync: Literal["auto", "event", "timeline"] = "auto",
    gate: Literal["stream", "host"] | None = None,
    memory: Literal["auto", "ipc", "vmm", "pool", "pinned"] = "auto",
    engine: bool = True,
    redeliver: bool = True,
    mode: int = Octal(0o600),
    replace: bool = False,
    timeout: float | None = 0.0,
    label: str | None = None,
) -> Server:
    """Joins the service `name` as an engine, and creates it if it is not there.

    * `request`, `response`: what a request and an answer hold, (shape, dtype) or
      {name: (shape, dtype)}.  Without them the service must be there, or appear within `timeout`
      seconds (None: whenever it does).
    * `request_meta`, `response_meta`: structured dtypes for metadata, as create()'s `meta=`.
    * `slots`: how many requests fit into the ring.  Requests that engines work on count, too.
    * `device`, `sync`, `gate`, `memory`, `mode`: as for create().
    * `replace`: close and remove a service of this name, even one in use.  Without it only a
      service whose processes are all dead is replaced, or one that cannot be joined any more,
      because its memory is "ipc" and its creator is dead.
    * `answers`: "host" puts answers into host memory even if requests are on a GPU.  Answers of a
      pinned service always are in host memory.  With None answers are where requests are.
    * `engine`: False only keeps the service open, so that engines can come and go
      (docs/services.md).  Such a keeper creates the service, and never joins one that is there: it
      raises RingExists if a service of that name is in use.
    * `redeliver`: whether another engine gets the calls of an engine that dies.  If not, they are
      lost.
    * `label`: the name of this engine in messages and tools, at most 64 bytes of UTF-8.  None is
      the name of the program.  It distinguishes engines in several containers, where each may have
      the pid 1.

    The creator owns the service: when it closes cleanly, the service ends.  Raises RingIncompatible
    if the service has other shapes, dtypes or memory than was asked for, and what create() and
    attach() raise.
    """
    check_service_name(name)
    labels.encode(label)  # a wrong one replaces no service
    if (request is None) != (response is None):
        raise TypeError("give request= and response=, or neither to join a service that is there")
    if answers not in (None, "host"):
        raise ValueError(f'answers must be "host" or None, not {answers!r}')
    engine = arguments.flag(engine, "engine")
    redeliver = arguments.flag(redeliver, "redeliver")
    replace = arguments.flag(replace, "replace")
    if request is None or response is None:
        if not engine or replace:
            raise TypeError("to create a service, give request= and response=")
        try:
            return _join(
                name, deadline_of(timeout), lambda ring: Server(ring, engine=True, label=label)
            )
        except RingNotFound as error:
            raise RingNotFound(f"{error}. With request= and response= it is created") from None
    described = describe("request", request, request_meta, REQUEST)
    terms = Terms(
        describe("response", response, response_meta, ANSWER),
        "host" if "host" in (device, answers) or memory == "pinned" else "cuda",
        redeliver,
        not engine,
        time_namespace(),
    )
    deadline = deadline_of(timeout)
    missed = False
    make_way: bool | None = replace
    while True:
        try:
            ring = create_of(
                described.with_about(terms.about()), name, slots=slots, device=device, sync=sync,
                gate=gate, memory=memory, max_peers=native.MAX_PEERS, max_subscriptions=1,
                mode=mode, replace=make_way,
            )  # fmt: skip
        except RingExists:
            if leftovers.remove_dead(name):
                continue
            if not engine:
                raise
        else:
            return Server(ring, engine=engine, label=label)

        def join(ring: Ring) -> Server:
            _check_terms(ring, described, terms)
            return Server(ring, engine=True, label=label)

        try:
            return _join(name, max(deadline, time.monotonic() + _PATIENCE_S), join)
        except RingNotFound:
            if missed:  # what has this name is no service, and stays there
                raise
            missed = True  # the service ended meanwhile
        except PeerLost:  # its memory is on a GPU and its creator dead: nobody can join it any more
            make_way = None


def _join(name: str, deadline: float, join: Callable[[Ring], _Member]) -> _Member:
    """Attaches to a service and joins it.  It waits for the service until the deadline.  If the
    service is closed between the two steps, it waits for the next one."""
    while True:
        try:
            ring = attach_any(name, deadline)
        except PermissionError as error:
            if (whose := segment.owner(segment.header_name(name))) in (-1, 0, os.geteuid()):
                raise  # its mode does not let us in
            raise PermissionError(
                f"service {name!r} belongs to user {whose}, not to user {os.geteuid()}. All "
                "engines and clients of a service have one user: run this program as that user"
            ) from error
        try:
            return join(ring)
        except RingClosed as error:
            ring.close()
            if time.monotonic() >= deadline:
                raise RingNotFound(f"service {name!r} was closed just now") from error
            time.sleep(_POLL_S)
        except BaseException:
            ring.close()
            raise


def _check_terms(ring: Ring, request: Spec, terms: Terms) -> None:
    theirs = Terms.of(ring)
    for what, given, has in differences(
        ("request", request, request_of(ring)),
        ("response", terms.response, theirs.response),
        ("device or answers", terms.memory, theirs.memory),
        ("redeliver", terms.redeliver, theirs.redeliver),
    ):
        raise RingIncompatible(
            f"service {ring.name!r} exists with another {what}: it has {has}, and you gave "
            f"{given}. Join it without request= and response=, or replace it (replace=True)"
        )


def connect(
    name: str,
    *,
    calls: int = 8,
    parts: int = 0,
    timeout: float | None = 0.0,
    engine_s: float = 5.0,
    label: str | None = None,
) -> Client:
    """Joins the service `name` as a client.  It waits up to `timeout` seconds for it.
    None means for ever.

    * `calls`: how many calls may be in flight, or answered and not released, at the same time.  The
      answers have a ring of their own, of calls × (1 + parts) + 4 slots.
    * `parts`: how many parts of each answer may have come and not been released
      (`PendingCall.parts`).  With 0 engines can only give whole answers.
    * `engine_s`: how many seconds a call waits for an engine when there is none.
    * `label`: the name of this client in messages and tools, as for `serve`.

    Raises RingNotFound, RingIncompatible (the ring is not a service), TooManyPeers, PeerLost (the
    memory of a GPU service cannot be opened any more), and what create() raises.
    """
    check_service_name(name)
    calls = between_one_and(_MAX_CALLS, calls, "calls")
    parts = integer(parts, "parts")
    if not 0 <= parts <= _MAX_CALLS // calls - 1:
        raise ValueError(
            f"parts must be 0 … {_MAX_CALLS // calls - 1} with {calls} calls, not {parts}: "
            f"a ring has {native.MAX_SLOTS} slots"
        )
    engine_s = arguments.number(engine_s, "engine_s", "a number of seconds")
    if not engine_s >= 0:
        raise ValueError(f"engine_s must be >= 0 seconds, not {engine_s!r}")
    labels.encode(label)  # TypeError and ValueError come before a wait
    deadline = deadline_of(timeout)
    options = Options(calls, parts, engine_s, label)
    return _join(name, deadline, lambda ring: Client(ring, Terms.of(ring), options))
