"""An engine as users run it: it takes calls of one service, or of several by priority."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gpuring import arguments, waiting
from gpuring.errors import EndOfStream, RingTimeout

if TYPE_CHECKING:
    from gpuring.consumer import Consumer
    from gpuring.service.call import Batch

_SLICE_S = 0.25  # a wait at several services lets each clear what dead clients left so often
_GPU_S = 0.001  # with the host gate: how long a service that is ready may wait for the GPU


class Engine:
    """What takes calls.  `Server` derives from it."""

    if TYPE_CHECKING:  # of Server
        _requests: Consumer

        @property
        def name(self) -> str: ...

        def take(
            self,
            max_batch: int = ...,
            max_wait_s: float | None = ...,
            timeout: float | None = ...,
            *,
            stream: Any = ...,
        ) -> Batch: ...


def take(
    servers: Iterable[Engine],
    max_batch: int = 1,
    max_wait_s: float | None = 0.0,
    timeout: float | None = None,
    *,
    stream: Any = None,
) -> Batch:
    """Takes calls of the first of several services that has some, as `Server.take` does.

        with gpuring.take([urgent, normal], max_batch=32) as calls:
            for call in calls: …

    It waits for all of them at once.  All calls of a batch are of one service, and `calls.server`
    says of which.  As long as an earlier service has calls, those of the later ones wait.  Services
    that were closed are left out, as long as there is another one.

    * `servers`: engines of different services, the most urgent one first.
    * `max_batch`, `max_wait_s`, `timeout`, `stream`: as for Server.take.  During `max_wait_s` only
      calls of the same service are taken.

    Raises what Server.take raises, and EndOfStream when all of the services were closed.
    """
    waited = several(servers)
    deadline = time.monotonic() + arguments.seconds(timeout, "timeout")
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        ready = waiting.select([server._requests for server in waited], min(_SLICE_S, left_s))
        for server in waited:
            if ready and server._requests not in ready:
                continue
            try:
                return server.take(max_batch, max_wait_s, _GPU_S if ready else 0, stream=stream)
            except RingTimeout:
                continue
            except EndOfStream:
                if len(waited) == 1:
                    raise
                waited = [each for each in waited if each is not server]
        if time.monotonic() >= deadline:
            names = ", ".join(repr(server.name) for server in waited)
            raise RingTimeout(f"services {names}: no call within {timeout:g} s")


def several(servers: Iterable[Engine]) -> list[Engine]:
    """The servers that an engine takes calls of, checked.  Raises TypeError, ValueError."""
    if isinstance(servers, Engine) or not isinstance(servers, Iterable):
        raise TypeError(f"give several servers: [server], not {servers!r}")
    checked = list(dict.fromkeys(servers))
    for each in checked:
        if not isinstance(each, Engine):
            raise TypeError(f"calls are taken from what serve() returned, not from {each!r}")
    if not checked:
        raise ValueError("give at least one server to take calls of")
    return checked
