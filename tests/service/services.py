"""What the tests of services share: terms, content that can be checked, engines and clients."""

from __future__ import annotations

import contextlib
import fcntl
import struct
import threading
from typing import Any

import numpy as np
import pytest

import gpuring
from tests.helpers.arrays import array_of, assign, to_host
from tests.helpers.places import Place
from tests.helpers.processes import PATIENCE_S, Pipe, open_files, poll, up

WORDS = 64
META = [("k", "i8")]
RESPONSE_META = [("k", "i8"), ("client", "u8")]
TERMS: dict[str, Any] = {
    "request": ((WORDS,), "i8"),
    "response": ((WORDS,), "i8"),
    "request_meta": META,
    "response_meta": RESPONSE_META,
}
_RAMP = np.arange(WORDS, dtype="i8")


def serve(name: str, place: Place | None = None, **options: Any) -> gpuring.Server:
    """Creates the service, or joins it."""
    where = dict(place.options) if place else {"device": "host"}
    return gpuring.serve(name, **(TERMS | where | options))


def content(client: int, k: int) -> np.ndarray:
    """What request k of a client holds.  Every word differs from those of other clients and
    calls."""
    return _RAMP * (k % 1000 + 1) + (client >> 24)


def whole(value: int) -> np.ndarray:
    """A request or an answer that is full of a value."""
    return np.full(WORDS, value)


def answer_of(request: Any) -> Any:
    return 3 * request + 1


def send(client: gpuring.Client, k: int, place: Place | None = None, **options: Any) -> Any:
    """Sends request k.  Returns its PendingCall."""
    with client.request(options.pop("timeout", 10), **options) as slot:
        assign(array_of(slot), content(client.id, k))
        slot.meta["k"] = k
        return slot.call


def answer(call: gpuring.Call) -> None:
    """Answers as an engine should.  On a GPU the current stream computes the answer."""
    with call.answer() as slot:
        assign(array_of(slot), answer_of(array_of(call.slot)))
        slot.meta["k"], slot.meta["client"] = call.meta["k"], call.client


def serve_once(server, n=2, timeout=0):
    with contextlib.suppress(gpuring.RingTimeout), server.take(n, timeout=timeout) as calls:
        for call in calls:
            answer(call)


def check(client: gpuring.Client, k: int, slot: Any, place: Place | None = None) -> None:
    """Checks that this is the whole answer to request k of this client."""
    got = to_host(array_of(slot))
    assert (slot.meta["k"], slot.meta["client"]) == (k, client.id)
    assert (got == answer_of(content(client.id, k))).all()


def finish_in(former: gpuring.Client, k: int, call: gpuring.Call) -> None:
    """Checks the answer to request k, which the client has sent in a former service."""
    with call.result(PATIENCE_S) as slot:
        check(former, k, slot)


def ask(client: gpuring.Client, k: int, place: Place | None = None, **options: Any) -> None:
    """Sends a request, and checks the answer."""
    with send(client, k, place, **options).result(20) as slot:
        check(client, k, slot, place)


def ask_here(server, client, k, place=None):
    call = send(client, k, place)
    with server.take(timeout=10) as (taken,):
        answer(taken)
    finish(client, k, call, place)


def outlives_its_creator(name, children, place=None, *, joins):
    """Checks a service whose creator, an engine, is killed.  `joins`: whether others can join it
    then."""
    creator = up(children(engine, name, place))
    with serve(name, place) as other, gpuring.connect(name, timeout=10) as client:
        creator.kill()
        for k in range(5):
            ask_here(other, client, k, place)
        if not joins:
            with pytest.raises(gpuring.PeerLost):
                gpuring.connect(name)
            return
        with gpuring.connect(name) as late:
            ask_here(other, late, 1, place)
        newcomer = up(children(engine, name, place))
        for k in range(5):
            ask(client, k, place)
        newcomer.send()
        assert newcomer.result()["answered"] == 5


# ---- processes ---------------------------------------------------------------------------------


def engine(pipe: Pipe, name: str, place: Place | None = None, options: Any = None) -> Any:
    """Answers until it is told to stop, or the service ends.  Returns its counts."""
    with serve(name, place, **(options or {})) as server:
        pipe.send("up")
        with contextlib.suppress(gpuring.EndOfStream):
            while not pipe.told():
                with (
                    contextlib.suppress(gpuring.RingTimeout),
                    server.take(8, timeout=0.05) as calls,
                ):
                    for call in calls:
                        answer(call)
        return vars(server.counts)


def holder(pipe: Pipe, name: str, calls: int, options: Any = None) -> None:
    """An engine that takes calls and keeps them."""
    server = serve(name, **(options or {}))
    pipe.send("up")
    batch = server.take(calls, max_wait_s=20)
    pipe.ask([int(call.meta["k"]) for call in batch])
    del batch


def asker(pipe: Pipe, name: str, place: Place | None, calls: int, depth: int) -> int:
    """Has `depth` calls in flight, and checks all answers."""
    flying: list[tuple[int, gpuring.PendingCall]] = []
    with gpuring.connect(name, calls=depth, timeout=10) as client:
        pipe.send("up")
        for k in range(calls):
            flying.append((k, send(client, k, place)))
            if len(flying) == depth:
                finish(client, *flying.pop(0 if k % 3 else -1), place)
        for k, call in flying:
            finish(client, k, call, place)
        assert client.in_flight == 0
        return client.id


def passes_over(server: gpuring.Server) -> int:
    """Has the engine look once more.  Returns how many cancelled calls it has passed over."""
    with contextlib.suppress(gpuring.RingTimeout):
        server.take(timeout=0.05)
    return server.counts.cancelled


def finish(client: gpuring.Client, k: int, call: Any, place: Place | None = None) -> None:
    with call.result(20) as slot:
        check(client, k, slot, place)


def sender(pipe: Pipe, name: str, calls: int) -> None:
    """A client that sends and then does nothing."""
    client = gpuring.connect(name, calls=calls, timeout=10)
    pending = [send(client, k) for k in range(calls)]
    pipe.ask(client.id)
    del pending


# ---- threads ------------------------------------------------------------------------------------


def is_held(lock):
    """Whether another thread has the lock."""
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True


def receives(client):
    """Whether another thread receives for all threads."""
    return is_held(client._calls.turn)


def in_thread(function, *args):
    """Runs it in a thread; join() gives its result or raises what it raised."""
    outcome = []

    def run():
        try:
            outcome.append((function(*args), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join():
        thread.join(60)
        assert not thread.is_alive()
        value, error = outcome[0]
        if error is not None:
            raise error
        return value

    return join


@contextlib.contextmanager
def running(*servers):
    """Runs the engine in a thread until the block ends.  The engine often looks whether it is to
    end."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gpuring.service.engine._SLICE_S", 0.01)
        ended = in_thread(gpuring.run, servers)
        try:
            yield
        finally:
            servers[0].stop()
            ended()


@contextlib.contextmanager
def another_thread_receives(client):
    """A thread has the turn to receive in the block, and does not get on, as if it had no
    processor."""
    began, go_on = threading.Event(), threading.Event()

    def receive():
        with client._mailbox.calls.turn:
            began.set()
            go_on.wait(PATIENCE_S)

    join = in_thread(receive)
    try:
        assert began.wait(PATIENCE_S)
        yield
    finally:
        go_on.set()
        join()


def is_taken_for_dead(client):
    """Waits until the client's peer in the ring of requests was cleared, because it lost its lock
    through every descriptor that this process has of the header."""
    peer, header = client._requests.peer, f"/dev/shm/gpuring.{client.ring.name}"
    unlock = struct.pack("hhqqi4x", fcntl.F_UNLCK, 0, peer, 1, 0)
    for fd, file in open_files().items():
        if file == header:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, unlock)
    poll(lambda: peer not in [each.number for each in client.ring.stats().peers])
