"""What a client's threads and event loops may do with its lock and its turns (service/calls.py).

`watching` replaces both, and sees every function that Python calls while the lock is held.  Tests
with several threads and loops, and the one that kills engines and clients, run under it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from services import answer, finish, in_thread, receives, send, serve
from support import poll

import gpuring
from gpuring import _core
from gpuring.service import calls, client
from gpuring.service.pending import Answer, AnswerReader, RequestWriter
from gpuring.slot import ReadSlot, WriteSlot

SENDING, RECEIVING, LOCKED = range(3)
"""The order in which a thread may take them."""

HARMLESS = {"get_ident", "len", "get", "pop", "clear", "values"}
LOOKS = {"_is_done", "_has_answer", "has_room", "<lambda>"}


VERBS = {
    RequestWriter: ("claim", "claim_many"),
    AnswerReader: ("acquire", "acquire_many"),
    WriteSlot: ("publish", "abandon"),
    ReadSlot: ("release",),
}


class Watch:
    """What one process does with the locks of its clients."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.sections = 0
        self._local = threading.local()

    @property
    def held(self) -> list[int]:
        """By this thread."""
        return self._local.__dict__.setdefault("held", [])

    def take(self, rank: int) -> None:
        if self.held and self.held[-1] >= rank:
            self.wrong.append(f"{rank} is taken, and {self.held} were")

    def profile(self, frame: Any, event: str, arg: Any) -> None:
        code = frame.f_code
        if event not in ("call", "c_call") or code in OURS or LOCKED not in self.held:
            return
        if event == "call":
            if code.co_filename == calls.__file__ or code.co_name in LOOKS:
                return
            self.wrong.append(f"{code.co_name} of {code.co_filename} under the lock")
        elif arg.__name__ not in HARMLESS:
            self.wrong.append(f"{arg!r} under the lock, by {code.co_name}")


class Watched:
    """A reentrant lock."""

    def __init__(self, watch: Watch, rank: int) -> None:
        self._watch, self._rank = watch, rank
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._watch.take(self._rank)
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._watch.held.append(self._rank)
            self._watch.sections += self._rank == LOCKED
        return taken

    def release(self) -> None:
        self._watch.held.remove(self._rank)
        self._lock.release()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


OURS = {each.__code__ for each in (Watched.acquire, Watched.release, Watched.__exit__, Watch.take)}
OURS.add(Watch.held.fget.__code__)


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Clients that are made meanwhile are watched, in the threads that begin meanwhile."""
    watch = Watch()

    def seen(verb: Any) -> Any:
        """A function that the profiler sees: what is compiled it does not."""

        def call(*args: Any, **options: Any) -> Any:
            return verb(*args, **options)

        call.__code__ = call.__code__.replace(co_name=verb.__name__)
        return call

    class Notifier(_core.Notifier):
        def arm(self, peer: Any) -> bool:
            return super().arm(peer)

    gc_was_on = gc.isenabled()
    gc.collect()
    gc.disable()  # so that what dies under the lock was dropped there
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(calls, "Lock", lambda: Watched(watch, LOCKED))
        patched.setattr(client, "Turn", lambda: Watched(watch, SENDING))
        patched.setattr(calls, "Turn", lambda: Watched(watch, RECEIVING))
        patched.setattr(_core, "Notifier", Notifier)
        patched.setattr(_core, "select", seen(_core.select))
        for kind, verbs in VERBS.items():
            for verb in verbs:
                patched.setattr(kind, verb, seen(getattr(kind, verb)))
        before = sys.getprofile()
        threading.setprofile(watch.profile)
        sys.setprofile(watch.profile)
        try:
            yield watch
        finally:
            sys.setprofile(before)
            threading.setprofile(None)
            if gc_was_on:
                gc.enable()


@pytest.fixture
def watched():
    with watching() as watch:
        yield watch
    assert watch.wrong == []
    assert watch.sections > 5


# ---- the watch sees what is wrong ----------------------------------------------------------------


def sleeps(client):
    with client._calls.lock:
        time.sleep(0)


def acquires(client):
    with pytest.raises(gpuring.RingTimeout), client._calls.lock:
        client._mailbox._answers.acquire(0.001)


def claims(client):
    with client._calls.lock:
        WriteSlot.abandon(client._requests.claim(0))


def selects(client):
    with client._calls.lock:
        _core.select([client._mailbox._answers._peer], 0)


def releases(client):
    with pytest.raises(gpuring.RingError), client._calls.lock:
        ReadSlot.release(client._mailbox._answers._slots[0])


def arms(client):
    bell = _core.Notifier()
    with client._calls.lock:
        bell.arm(client._mailbox.peer)
    bell.disarm()


def nests(client):
    with client._calls.lock:
        client._calls.all()


def sends(client):
    with client._calls.lock, client._sending:
        pass


def sends_while_it_receives(client):
    with client._calls.turn, client._sending:
        pass


def destroys(client):
    class Dying:
        def __del__(self):
            gone.append(self.__class__.__name__)

    gone = []
    with client._calls.lock:
        Dying()
    assert gone


def wakes(client):
    sleeper = calls.Thread()
    with client._calls.lock:
        calls.wake([sleeper])


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (sleeps, "sleep"),
        (acquires, "acquire"),
        (claims, "claim"),
        (selects, "select"),
        (releases, "release"),
        (arms, "arm"),
        (wakes, "release"),  # of what the thread sleeps at
        (destroys, "__del__"),
        (nests, "2 is taken, and [2] were"),
        (sends, "0 is taken, and [2] were"),
        (sends_while_it_receives, "0 is taken, and [1] were"),
    ],
)
def test_the_watch_sees(name, wrong, what):
    with serve(name), watching() as watch, gpuring.connect(name) as client:
        client.request(10).abandon()
        assert watch.wrong == []
        wrong(client)
        assert any(what in each for each in watch.wrong), watch.wrong


# ---- what nothing else does under the watch ------------------------------------------------------


def test_what_ends_calls_while_others_wait_for_them(name, watched):
    """A failure, a time-out, a cancelled call, a second answer, and the client's own end."""

    async def waits(call):
        with pytest.raises(gpuring.RingClosed):
            await call.result_async()

    def loop(call):
        asyncio.run(waits(call))

    with serve(name) as server:
        client = gpuring.connect(name)
        pending = [send(client, k) for k in range(6)]
        failing = in_thread(pending[0].result, 20)
        poll(lambda: receives(client))
        rest = [in_thread(loop, pending[n]) for n in (1, 2)]
        taken = server.take(6, timeout=10)
        taken[0].fail("why")
        with pytest.raises(gpuring.CallFailed):
            failing()
        with pytest.raises(gpuring.RingTimeout):
            pending[3].result(0)
        answer(taken[3])
        pending[4].cancel()
        answer(taken[4])
        answer(taken[5])
        finish(client, 5, pending[5])
        assert client.late == 2
        poll(lambda: pending[1]._sleepers and pending[2]._sleepers)
        client.close()
        for join in rest:
            join()


def test_several_threads_may_cancel_an_answered_call(name, watched, monkeypatch):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        answer(server.take(timeout=10)[0])
        assert call.wait(10)
        release, released = Answer.release, []

        def slowly(slot):
            released.append(slot)
            in_thread(call.cancel)()  # another thread comes just now
            release(slot)

        monkeypatch.setattr(Answer, "release", slowly)
        call.cancel()
        assert len(released) == 1
        assert client.in_flight == 0
