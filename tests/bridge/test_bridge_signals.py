"""Signals that interrupt a bridge or end its commands, whenever they come; and a forked child."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gpuring
from tests.helpers.commands import exporting, line_with
from tests.helpers.interrupted import PACKAGE, Interrupt, at_each_place
from tests.helpers.processes import Pipe, open_files, poll
from tests.helpers.rings import segments_of

pytest.importorskip("zmq")

from gpuring import bridge
from gpuring.bridge.supervisor import Bridge
from tests.bridge.bridge_sides import WAIT_S, exporter, importer
from tests.bridge.bridges import both_ends, connected, put, ring_of, take


def test_a_signal_that_came_to_another_thread_interrupts_a_wait(near):
    """The kernel may choose any thread when the process was stopped and goes on."""
    handled, told = threading.Event(), []
    main = threading.get_ident()

    def interrupt(*_: object) -> None:
        handled.set()
        raise KeyboardInterrupt

    def waits() -> bool:
        stack = [frame.f_code for frame, _ in traceback.walk_stack(sys._current_frames()[main])]
        return stack[0].co_filename == threading.__file__ and Bridge.wait.__code__ in stack

    def send() -> None:
        poll(waits)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        told.append(handled.wait(WAIT_S))
        out.close()

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with bridge.export(near, listen="127.0.0.1:0") as out:
            sender = threading.Thread(target=send)
            sender.start()
            with pytest.raises(KeyboardInterrupt):
                out.wait()
            sender.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert told == [True]


@pytest.mark.slow
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_more_signals_do_not_interrupt_the_end(near, first):
    with exporting(near) as (run, _):
        run.send_signal(first)
        line_with(run, "ending")

        def sent() -> bool:
            run.send_signal(signal.SIGINT)
            run.send_signal(signal.SIGTERM)
            return run.poll() is not None

        poll(sent, WAIT_S)
        assert run.returncode == 0
        assert run.stderr is not None
        assert "is over" not in run.stderr.read()


class Line(Interrupt):
    """KeyboardInterrupt at the k-th line that is run in the package's Python."""

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line" and not self.where:
            self._left -= 1
            if not self._left:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._call


def ours() -> dict[int, str]:
    """The pipes and rings that this process has open."""
    return {fd: to for fd, to in open_files().items() if to.startswith(("pipe:", "/dev/shm"))}


@contextlib.contextmanager
def exported(name: str) -> Iterator[Bridge]:
    """An exporter with a lossless importer, which the test plays."""
    with ring_of(name) as ring:
        out = bridge.export(name, listen="127.0.0.1:0")
        with importer(name, out.address) as far:
            far.begin(1)
            poll(lambda: ring.stats().subscriptions, WAIT_S)
            yield out
            assert not ring.stats().subscriptions


@contextlib.contextmanager
def imported(name: str) -> Iterator[Bridge]:
    """An importer whose exporter the test plays."""
    with exporter() as near:
        into = bridge.import_(f"{near.address}/x", name=name, device="host")
        near.welcome()
        yield into
        assert not segments_of(name)


@pytest.mark.slow
@pytest.mark.parametrize("side", [exported, imported])
def test_a_close_that_was_interrupted_is_completed_by_the_next_one(name, side):
    """It is interrupted at some of its lines.  All lines (a step of 1) take a minute."""
    before = None
    for interrupt in at_each_place(Line, 6):
        with side(name) as each:
            pid = each.pid
            with interrupt:
                each.close()
            each.close()
            assert not Path(f"/proc/{pid}").exists(), interrupt.where
            assert not each._thread.is_alive(), interrupt.where
        before = before or ours()  # the first round has started threads that stay
        assert ours() == before, interrupt.where


def forks(pipe: Pipe, near: str, far: str) -> tuple[int, bool]:
    """What a forked child gets that ends its parent's bridge, and what has become of the bridge."""
    with both_ends(near, far) as ends:
        sides = ends.out, ends.into
        poll(lambda: all(map(connected, sides)), WAIT_S)
        pids = [side.pid for side in sides]
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            for side in sides:
                side.close()
            told = 0
            for call in (*(each.stats for each in sides), lambda: ends.out.address, ends.into.wait):
                try:
                    call()
                except gpuring.RingError as error:
                    told += "fork()" in str(error)
            os._exit(told)
        _, status = os.waitpid(child, 0)
        put(ends.producer, 5)
        assert take(ends.frames) == 5
        return status >> 8, [side.pid for side in sides] == pids


@pytest.mark.slow
def test_a_forked_child_gets_a_clear_error_and_does_its_parents_bridge_no_harm(near, far, children):
    assert children(forks, near, far).result() == (4, True)
