"""Waiting for a name, or for a restart: asleep until it comes, whoever else makes names."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import threading
from pathlib import Path

import pytest

import gpuring
from gpuring import native
from gpuring.registry import new_names
from tests.helpers.processes import in_thread, poll
from tests.helpers.rings import put

OPTIONS = {"slots": 4, "shape": 4, "dtype": "u1", "device": "host"}
TERMS = {"request": ((4,), "u1"), "response": ((4,), "u1")}
NAMES = 10_000


class Patient(native.Pace):
    look_s = 1000


@pytest.fixture
def looks(monkeypatch):
    """Counts the looks of a wait.  The regular looks are so far apart that they find nothing."""
    monkeypatch.setattr(new_names, "Pace", Patient)
    seen, wait, wait_async = [], new_names.Arrivals.wait, new_names.Arrivals.wait_async

    def counted(self, at_most_s, going=False):
        seen.append(1)
        wait(self, at_most_s, going)

    async def counted_async(self, at_most_s):
        seen.append(1)
        await wait_async(self, at_most_s)

    monkeypatch.setattr(new_names.Arrivals, "wait", counted)
    monkeypatch.setattr(new_names.Arrivals, "wait_async", counted_async)
    return seen


WAYS = {
    "attach": (gpuring.attach, lambda name: gpuring.create(name, **OPTIONS)),
    "connect": (gpuring.connect, lambda name: gpuring.serve(name, **TERMS, device="host")),
    "serve": (gpuring.serve, lambda name: gpuring.serve(name, **TERMS, device="host")),
}


@pytest.mark.parametrize("way", WAYS)
def test_who_waits_for_ever_is_woken_by_the_name(name, looks, way):
    """The kernel wakes it.  Its own looks are a quarter of an hour apart."""
    wait, make = WAYS[way]
    joined = in_thread(lambda: wait(name, timeout=None))
    poll(lambda: len(looks) >= 2)  # it has looked, begun to watch, looked again, and sleeps
    with make(name):
        joined().close()


class Interrupt(Exception):
    pass


def test_a_signal_ends_a_wait_for_a_name(name, looks):
    def handler(*_):
        raise Interrupt

    def interrupt():
        poll(lambda: len(looks) >= 2)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(Interrupt):
            gpuring.attach(name, timeout=None)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def strangers_names(name, first, last):
    for k in range(first, last):
        path = Path(f"/dev/shm/{name}-{k}")
        path.touch()
        path.unlink()


def test_ten_thousand_names_of_others_are_a_few_looks(name, looks):
    joined = in_thread(lambda: gpuring.attach(name, timeout=None))
    poll(lambda: len(looks) >= 2)
    strangers_names(name, 0, NAMES)
    assert len(looks) < NAMES / 50
    with gpuring.create(name, **OPTIONS):
        joined().close()


def refused(_path):
    raise OSError("on purpose")


def test_without_a_watch_there_is_a_look_now_and_then(name, monkeypatch):
    monkeypatch.setattr(new_names, "NameWatch", refused)
    joined = in_thread(lambda: gpuring.attach(name, timeout=None))
    with gpuring.create(name, **OPTIONS):
        joined().close()


def test_the_kernel_refuses_a_watch_by_oserror(name):
    with pytest.raises(OSError, match=name):
        native.NameWatch(f"/dev/shm/{name}")


# ---- restarts --------------------------------------------------------------------------------


def reads(name, seen, joined):
    with gpuring.attach(name) as ring, ring.consumer("all", reattach=True) as frames:
        joined.append(frames)
        with contextlib.suppress(gpuring.RingClosed):
            for slot in frames:
                seen.append(int(slot.array[0]))


def reads_async(name, seen, joined):
    async def main():
        with gpuring.attach(name) as ring, ring.consumer("all", reattach=True) as frames:
            joined.append(frames)
            with contextlib.suppress(gpuring.RingClosed):
                async for slot in frames:
                    seen.append(int(slot.array[0]))

    asyncio.run(main())


@pytest.mark.parametrize("how", [reads, reads_async])
def test_a_loop_sleeps_until_the_stream_goes_on(name, looks, how):
    """The stream goes on in the same ring, then in another one.  At last another thread closes the
    loop."""
    seen: list[int] = []
    joined: list[gpuring.Consumer] = []
    with gpuring.create(name, **OPTIONS) as ring:
        done = in_thread(lambda: how(name, seen, joined))
        poll(lambda: joined)
        for value in (1, 2, 3):
            poll(lambda value=value: len(looks) >= 2 * (value - 1))  # it sleeps at each end
            with ring.producer() as producer:
                put(producer, value=value)
                poll(lambda value=value: seen[-1:] == [value])
    ended = len(looks)
    with gpuring.create(name, **OPTIONS) as ring, ring.producer() as producer:
        put(producer, value=4)
        poll(lambda: seen == [1, 2, 3, 4])
    poll(lambda: len(looks) > ended)
    poll(lambda: joined[0]._at_end is not None)
    joined[0].close()
    assert done() is None


def test_a_producer_that_joins_wakes_who_waits_at_the_end(name):
    with gpuring.create(name, **OPTIONS) as ring, ring.consumer() as frames:
        ring.producer().close()
        notifier, poller = native.Notifier(), select.poll()
        poller.register(notifier.fileno(), select.POLLIN)
        assert not notifier.arm(frames._peer, at_end=True)
        assert poller.poll(0) == []
        with ring.producer():
            assert poller.poll(20_000) != []
            assert notifier.arm(frames._peer, at_end=True)
