"""An engine as users run it: it takes calls of one service, or of several by priority."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gpuring import arguments
from gpuring.deadlines import deadline_of, left_s
from gpuring.errors import EndOfStream, RingError, RingTimeout
from gpuring.native.signals import set_handler
from gpuring.ring import inner, waiting
from gpuring.service._engine import Taker, batch_size, fill_seconds
from gpuring.service.metrics import Measures, Metrics
from gpuring.service.work import Work

if TYPE_CHECKING:
    from gpuring.ring.ring import Ring
    from gpuring.service.call import Batch
    from gpuring.service.wire import Terms

    Function = TypeVar("Function", bound=Callable[..., Any])
    Ended = Literal["closed", "stopped", "SIGTERM"]
    """Why `run` has returned."""

_SLICE_S = 0.25
"""A wait looks so often whether it was told to stop, and clears what dead clients left."""
_GPU_S = 0.001
"""With the host gate: how long a call that is there may wait for the GPU."""


class Engine(Taker):
    """What takes calls.  `Server` derives from it."""

    _ring: Ring
    _terms: Terms
    _measures: Measures | None
    _work: Work | None = None
    _stopping: Literal["", "stopped", "SIGTERM"] = ""
    """Why `run` shall return."""

    @property
    def name(self) -> str:
        """The name of the service."""
        return self._ring.name

    def metrics(self) -> Metrics:
        """What this engine has measured: how long calls waited, the sizes of batches, and how long
        they took, also for each client.  It measures from the first time on that this is called or
        `run` begins, so call it once before the first call is taken.  Any thread may call it.

        Only the engine knows these figures, so they are in no header, and `gpuring metrics` does
        not have them.  `gpuring.service.prometheus` serves them from the engine's own process.
        """
        if self._measures is None:
            self._measures = Measures()
        return self._measures.read()

    def batch(
        self,
        max_batch: int,
        max_wait_s: float | Literal["learn"] = "learn",
        *,
        warm_up: bool | Callable[[], object] = False,
    ) -> Callable[[Function], Function]:
        """Decorates the function that answers calls.  `run` calls it with each batch.

            @server.batch(max_batch=32)
            def classify(images):           # (n, …): the requests of n calls, 1 <= n <= 32
                return model(images)        # (n, …): their answers

        The function gets one array of CuPy (a tensor of torch without CuPy) or, on the host, of
        NumPy, in which each row is a request.  If requests have several fields, it gets each as a
        keyword argument, and returns a dict of arrays.  If it has a parameter `calls`, it gets the
        Batch there: `calls[k].meta` is the metadata of row k.  A call that it answers or fails
        itself takes no other answer.

        The array shows the slots themselves if the requests lie in a row.  Otherwise they are
        copied into memory that is kept.  It is valid until the function returns, and on the host it
        is read-only.  The result may be an array of any library that `WriteSlot.copy_from` takes,
        or a list of n arrays.

        If the function raises an exception, or returns something of another shape or dtype, the
        calls of the batch fail with the text, the exception is logged, and the engine goes on.
        SystemExit and Ctrl-C end `run`.  Requests of different shapes come in different batches.

        * `max_batch`, `max_wait_s`: as for `take`, but `max_wait_s` is not None.
        * `warm_up`: True calls the function with zeros of the largest batch (and no calls) when
          `run` begins, before the first call is taken.  A function is called instead, without
          arguments.  Until then the service is not ready.

        Raises TypeError, ValueError.
        """
        if callable(max_batch):
            raise TypeError("write @server.batch(max_batch=…), with the size of a batch")
        most, wait_s = batch_size(max_batch, self._ring.slots), max_wait_s
        if wait_s != "learn" and fill_seconds(wait_s) > threading.TIMEOUT_MAX:
            raise ValueError(
                f'max_wait_s must be a number of seconds or "learn" here, not {max_wait_s!r}: an '
                "engine that waited without end for a full batch could not be stopped"
            )
        if not callable(warm_up):
            arguments.flag(warm_up, "warm_up", "True, False or a function")

        def decorated(function: Function) -> Function:
            self._work = Work(function, self._ring, self._terms.response, most, wait_s, warm_up)
            return function

        return decorated

    def run(self) -> Ended:
        """Takes calls and answers them with the function of `batch`, until it is stopped.

        It returns "closed" when the service was closed, "SIGTERM" after that signal, and "stopped"
        after `stop`.  It then finishes the batch that it has, and takes no other one: another
        engine gets the calls that are left.  It sees SIGTERM only if it runs in the main thread.
        When it returns, SIGTERM does what it did before.  Ctrl-C raises KeyboardInterrupt.

        Raises RingError if there is no such function, what the warm-up raises, DeviceError, and
        RingClosed if this server was closed.
        """
        return run([self])

    def stop(self) -> None:
        """Makes `run` return when it has answered the batch that it has.  Any thread may call it,
        and so may the function itself.  If `run` has not begun, it returns at once when it does."""
        self._stopping = self._stopping or "stopped"


def take(
    servers: Iterable[Engine],
    max_batch: int = 1,
    max_wait_s: float | Literal["learn"] | None = "learn",
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
    return _first(
        _several(servers),
        timeout,
        lambda server, patience_s: server.take(max_batch, max_wait_s, patience_s, stream=stream),
    )


def run(servers: Iterable[Engine]) -> Ended:
    """Runs one engine for several services, as `Server.run` does for one.

        @urgent.batch(max_batch=4)
        @normal.batch(max_batch=32)
        def classify(images): …

        gpuring.run([urgent, normal])

    * `servers`: as for `take`.  Each has a function of its own, or the same one.  `stop` of any of
      them ends the run.

    Returns and raises what Server.run does.  "closed" says that all of them were closed.
    """
    engines = _several(servers)
    works = {engine: _work_of(engine) for engine in engines}
    with _until_stopped(engines) as stopped:
        for engine, work in works.items():
            engine.metrics()  # from now on it measures
            work.warm_up()
        while True:
            if why := stopped():
                return why
            try:
                calls = _first(engines, _SLICE_S, _take_to_work)
            except RingTimeout:
                continue
            except EndOfStream:
                return "closed"
            works[calls.server].do(calls)


def _work_of(engine: Engine) -> Work:
    if engine._work is None:
        raise RingError(
            f"service {engine.name!r}: run() needs a function: decorate it with @server.batch(…)"
        )
    return engine._work


def _take_to_work(engine: Engine, timeout: float | None) -> Batch:
    work = _work_of(engine)
    return engine.take(work.max_batch, work.max_wait_s, timeout)


@contextlib.contextmanager
def _until_stopped(
    engines: list[Engine],
) -> Iterator[Callable[[], Literal["", "stopped", "SIGTERM"]]]:
    """Gives a function that says how the engines were told to stop, and "" if they were not."""

    def stop(*_: object) -> None:
        for engine in engines:
            engine._stopping = "SIGTERM"

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        if in_main:
            signal.signal(signal.SIGTERM, stop)
        yield lambda: next((engine._stopping for engine in engines if engine._stopping), "")
    finally:
        if in_main:  # None: a handler that Python cannot set again
            set_handler(signal.SIGTERM, signal.SIG_DFL if before is None else before)
        for engine in engines:
            engine._stopping = ""


def _first(
    servers: list[Engine], timeout: float | None, attempt: Callable[[Engine, float | None], Batch]
) -> Batch:
    """Calls of the first of the servers that has some.  `attempt` takes them, with a time-out."""
    deadline = deadline_of(timeout)
    while len(servers) > 1:
        for server in servers:  # they are all waited for, also while the first is always ready
            inner.peer(server._requests).ask()
        ready = waiting.select(
            [server._requests for server in servers], min(_SLICE_S, left_s(deadline))
        )
        for server in servers:
            if ready and server._requests not in ready:
                continue
            try:
                return attempt(server, _GPU_S if ready else 0)
            except RingTimeout:
                continue
            except EndOfStream:
                servers = [each for each in servers if each is not server]
                if not servers:
                    raise
        if not left_s(deadline):
            names = ", ".join(repr(server.name) for server in servers)
            raise RingTimeout(f"services {names}: no call within {float(timeout or 0):g} s")
    return attempt(servers[0], left_s(deadline))


def _several(servers: Iterable[Engine]) -> list[Engine]:
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
