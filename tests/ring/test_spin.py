"""`spin=` and GPURING_SPIN: a wait that spins for ever never sleeps, but can be interrupted, and
ends in time.

A thread that spins uses CPU time, and no other process makes a system call to wake it.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

import gpuring
from gpuring.ring import spinning, waiting
from tests.helpers.processes import Pipe, poll, up
from tests.helpers.rings import bells, put, waiters

SLICES_S = 0.11  # more than two slices of the core
WAITS = ("acquire", "latest", "acquire_many", "claim", "claim_many", "select")


def waiter(ring: gpuring.Ring, verb: str, spin: float | None) -> tuple[Callable, Callable]:
    """(a call that has to wait, what ends its wait)"""
    if verb.startswith("claim"):
        reader, producer = ring.consumer(), ring.producer(spin=spin)
        put(producer, ring.slots)
        call = producer.claim if verb == "claim" else functools.partial(producer.claim_many, 1)
        return call, lambda: reader.acquire(0).release()
    reader, producer = ring.consumer(lossless=False, spin=spin), ring.producer()
    if verb == "select":
        other = ring.consumer()  # it spins adaptively and comes first, but the longest spin counts
        return lambda timeout: gpuring.select([other, reader], timeout), lambda: put(producer)
    call = getattr(reader, verb)
    return functools.partial(call, 1) if verb == "acquire_many" else call, lambda: put(producer)


class Thread(threading.Thread):
    def __init__(self, run: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._run_it, self.answer = run, None
        self.start()

    def run(self) -> None:
        self.answer = self._run_it()

    def cpu_s(self) -> float:
        return time.clock_gettime(time.pthread_getcpuclockid(self.ident))


@pytest.mark.parametrize("verb", WAITS)
def test_who_spins_for_ever_is_never_among_the_sleepers(ring, verb):
    call, go_on = waiter(ring, verb, math.inf)
    thread, before = Thread(lambda: call(None)), bells(ring)
    seen = set()
    poll(lambda: seen.add(waiters(ring)) or thread.cpu_s() > SLICES_S)
    go_on()
    thread.join(20)
    assert thread.answer
    assert seen == {0}
    assert bells(ring) == before, "rung for somebody who does not sleep"


@pytest.mark.parametrize("verb", WAITS)
@pytest.mark.parametrize("spin", [0, 0.1, None])
def test_whose_spin_is_over_sleeps(ring, verb, spin):
    call, go_on = waiter(ring, verb, spin)
    began = time.monotonic()
    thread = Thread(lambda: call(None))
    poll(lambda: waiters(ring) > 0)
    asleep_after_s, spun = time.monotonic() - began, thread.cpu_s()
    time.sleep(SLICES_S)
    asleep = thread.cpu_s() - spun
    go_on()
    thread.join(20)
    assert thread.answer
    assert asleep_after_s >= (spin or 0)
    assert asleep < SLICES_S / 2


def test_a_spin_that_was_asked_for_does_not_adapt(ring):
    """If each wait halved the spin, the last waits would sleep."""
    with ring.consumer(spin=20) as reader, ring.producer() as producer:

        def read() -> bool:
            for _ in range(16):
                reader.acquire(20).release()
            return True

        thread = Thread(read)
        for _ in range(16):
            spun = thread.cpu_s()
            poll(lambda at=spun + 0.002: thread.cpu_s() > at)
            put(producer)
        thread.join(20)
        assert thread.answer
        assert bells(ring) == 0


@pytest.mark.parametrize("verb", WAITS)
def test_a_spin_ends_at_the_time_out(ring, verb):
    call, _ = waiter(ring, verb, math.inf)
    for timeout in (0, 0.001, SLICES_S):
        if verb == "select":
            assert call(timeout) == []
        else:
            with pytest.raises(gpuring.RingTimeout):
                call(timeout)


@pytest.mark.parametrize("verb", WAITS)
def test_ctrl_c_interrupts_a_spin(ring, verb):
    call, go_on = waiter(ring, verb, math.inf)
    main = time.pthread_getcpuclockid(threading.main_thread().ident)
    begun = time.clock_gettime(main)

    def interrupt() -> None:
        poll(lambda: time.clock_gettime(main) - begun > SLICES_S)
        os.kill(os.getpid(), signal.SIGINT)

    thread = Thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        call(None)
    thread.join()
    go_on()
    assert call(0)


def publish_and_die(pipe: Pipe, name: str) -> None:
    producer = gpuring.attach(name).producer()
    put(producer)
    pipe.ask()


def test_who_spins_learns_of_a_death(ring, children):
    with ring.consumer(spin=math.inf) as reader:
        child = up(children(publish_and_die, ring.name))
        reader.acquire(20).release()

        def read_on() -> bool:
            with pytest.raises(gpuring.PeerLost):
                reader.acquire(20)
            return True

        thread = Thread(read_on)
        poll(lambda: thread.cpu_s() > 0.01)
        child.kill()
        thread.join(20)
        assert thread.answer


# ---- in an event loop: a look of a millisecond -------------------------------------------------


def test_a_task_spins_before_it_arms(ring, monkeypatch):
    monkeypatch.setattr(waiting, "SPIN_S", 20)  # long enough for the frame to come
    with ring.consumer(spin=math.inf) as reader, ring.producer() as producer:
        thread = Thread(lambda: asyncio.run(reader.acquire_async(20)))
        poll(lambda: thread.cpu_s() > SLICES_S)
        assert waiters(ring) == 0
        put(producer)
        thread.join(20)
        assert thread.answer
        assert bells(ring) == 0


def test_a_task_that_spins_for_ever_lets_others_run(ring, monkeypatch):
    """The task spins at its first look only."""

    def look(peer, spin_ns):
        spins.append(spin_ns)
        return ready(peer, spin_ns)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with ring.consumer(spin=math.inf) as reader, ring.producer() as producer:
            task = asyncio.create_task(reader.acquire_async(20))
            until = loop.time() + 20
            while not waiters(ring):
                assert loop.time() < until
                await asyncio.sleep(0)
            put(producer)
            (await task).release()

    spins, ready = [], waiting.native.ready
    monkeypatch.setattr(waiting.native, "ready", look)
    asyncio.run(main())
    first, *others = spins
    assert first > 0
    assert set(others) == {0}


# ---- what can be asked for ---------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-1, -1e-9, math.nan, -math.inf, "0.1", True, ()])
def test_wrong_spins(ring, wrong):
    error = ValueError if isinstance(wrong, float | int) and wrong is not True else TypeError
    for join in (ring.producer, ring.consumer):
        with pytest.raises(error, match="spin"):
            join(spin=wrong)
    assert not ring.stats().peers


@pytest.fixture
def environment(monkeypatch):
    """Sets the variable, or removes it, as if this process had been started with that."""

    def change(text: str | None) -> None:
        spinning._of_the_process.cache_clear()
        if text is None:
            monkeypatch.delenv("GPURING_SPIN", raising=False)
        else:
            monkeypatch.setenv("GPURING_SPIN", text)

    yield change
    spinning._of_the_process.cache_clear()


def test_what_the_core_is_told():
    assert spinning.spin_ns(0) == 0
    assert spinning.spin_ns(0.002) == 2_000_000
    assert spinning.spin_ns(math.inf) == spinning.spin_ns(1e300) == spinning.FOR_EVER


@pytest.mark.parametrize(
    ("text", "given", "told"),
    [
        (None, None, spinning.ADAPTIVE),
        ("", None, spinning.ADAPTIVE),
        ("0.002", None, 2_000_000),
        ("inf", None, spinning.FOR_EVER),
        ("inf", 0.5, 500_000_000),
        ("rubbish", 0.5, 500_000_000),
    ],
)
def test_the_environment_speaks_for_a_whole_process(environment, text, given, told):
    environment(text)
    assert spinning.spin_ns(given) == told


@pytest.mark.skipif(not shutil.which("localedef"), reason="needs localedef")
def test_the_environment_says_the_same_in_every_locale(tmp_path):
    """GTK programs use the locale of their user, which may have a decimal comma."""
    made = ["localedef", "-i", "de_DE", "-f", "UTF-8", "--no-archive", tmp_path / "de_DE.UTF-8"]
    if subprocess.run(made, check=False, capture_output=True, timeout=60).returncode:
        pytest.skip("there is no German locale to compile")
    program = (
        "import locale; from gpuring import native; locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8');"
        "assert locale.localeconv()['decimal_point'] == ','; print(native.spin_ns())"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True,
        env=os.environ | {"LOCPATH": str(tmp_path), "GPURING_SPIN": "0.002"},
    )  # fmt: skip
    assert told.stdout == "2000000\n"


@pytest.mark.parametrize("text", ["rubbish", "-1", "nan", "0x1p-3", "0,002"])
def test_joins_ask_the_environment(ring, environment, text):
    environment(text)
    for join in (ring.producer, ring.consumer):
        with pytest.raises(ValueError, match=f"GPURING_SPIN='{text}'"):
            join()
    ring.consumer(spin=0).close()
