"""A forked child: a clear error from every call, and no harm to its parent, living or dead."""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import gpuring
from gpuring import native
from gpuring.registry import segment
from tests.helpers.holdings import HOLDINGS, Has
from tests.helpers.processes import Pipe, poll
from tests.helpers.promise import promise

OPTIONS = {"slots": 2, "shape": 4, "dtype": "u1"}


def forks(pipe: Pipe, name: str) -> tuple[list[str], list[int]]:
    """Returns what a forked child gets from every call, and checks that its parent can go on."""
    ring = gpuring.create(name, **OPTIONS, device="host")
    producer, frames = ring.producer(), ring.consumer()
    read, write = os.pipe()
    slot = producer.claim()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        errors = []
        for call in (
            ring.producer, ring.consumer, ring.stats, lambda: producer.claim(0),
            lambda: frames.acquire(0), slot.publish,
        ):  # fmt: skip
            try:
                call()
                errors.append(f"{call}: no error")
            except gpuring.RingError as error:
                errors.append(str(error))
            except BaseException as error:
                errors.append(repr(error))
        with gpuring.attach(name) as mine, mine.consumer() as late:
            try:
                late.acquire(timeout=0)
                errors.append("there was no frame yet")
            except gpuring.RingTimeout:
                pass
        ring.close()
        os.write(write, "\n".join(errors).encode())
        sys.stdout.flush()
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
    with os.fdopen(read) as answers:
        errors = answers.read().splitlines()
    slot.publish()
    seqs = [frames.acquire(timeout=0).seq]
    gpuring.attach(name).close()
    ring.close()
    return errors, seqs


@promise("limits.md", "After `fork()` every call of a handle raises in the child, except `close`.")
def test_a_forked_child_gets_a_clear_error_and_does_the_parent_no_harm(name, children):
    errors, seqs = children(forks, name).result()
    assert len(errors) == 6
    for error in errors:
        assert "fork()" in error, errors
        assert "spawn" in error
    assert seqs == [2]


def forks_and_dies(pipe: Pipe, name: str) -> None:
    ring = gpuring.attach(name)
    frames = ring.consumer()
    if os.fork() == 0:
        signal.alarm(60)
        pipe.send(os.getpid())
        signal.pause()  # the test kills it
    pipe.send([frames.acquire().seq])
    signal.pause()


def test_a_forked_child_does_not_keep_its_dead_parent_alive(name, children):
    """The child inherits the descriptor that holds the parent's locks."""
    with gpuring.create(name, **OPTIONS, device="host") as ring, ring.producer() as producer:
        child = children(forks_and_dies, name)
        poll(lambda: ring.stats().subscriptions)
        producer.claim().publish()
        said = [child.receive(), child.receive()]
        assert [2] in said
        producer.claim().publish()
        child.kill()
        assert producer.claim(timeout=20).seq == 4
        (grandchild,) = [pid for pid in said if isinstance(pid, int)]
        with contextlib.suppress(ProcessLookupError):
            os.kill(grandchild, signal.SIGKILL)


# ---- what a forked child does to what its parent has -------------------------------------------


def closes(stack: contextlib.ExitStack, has: Has, closers: list[Any]) -> None:
    for each in closers:
        each.close()


def leaves_its_blocks(stack: contextlib.ExitStack, has: Has, closers: list[Any]) -> None:
    with contextlib.suppress(gpuring.RingError):
        stack.close()


def fails(stack: contextlib.ExitStack, has: Has, closers: list[Any]) -> None:
    with contextlib.suppress(ZeroDivisionError), stack:
        raise ZeroDivisionError


def drops(stack: contextlib.ExitStack, has: Has, closers: list[Any]) -> None:
    stack.pop_all()
    closers.clear()
    has.close()
    gc.collect()


def exits(stack: contextlib.ExitStack, has: Has, closers: list[Any]) -> None:
    multiprocessing.util._exit_function()
    atexit._run_exitfuncs()


def everything(ring: gpuring.Ring) -> list[Any]:
    """All that processes share of the rings of this name."""
    paths = sorted(Path("/dev/shm").glob(f"gpuring.{ring.name}*"))
    return [(path.name, path.read_bytes()) for path in paths] + ring._header.live_peers()


WAYS = [closes, leaves_its_blocks, fails, drops, exits]


def forks_a_child(name: str, kind: Any, way: Any) -> tuple[int, bool]:
    """How the child has ended, and whether the rings are as before."""
    with (
        gpuring.create(name, **OPTIONS, device="host") as ring,
        contextlib.ExitStack() as stack,
    ):
        has = kind(ring, name, (lambda each: each) if way is drops else stack.enter_context)
        closers = next(has)
        before = everything(ring)
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            sys.unraisablehook = lambda error: os._exit(3)
            way(stack, has, closers)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        same = everything(ring) == before
        assert next(has, None) is None
    return os.waitstatus_to_exitcode(status), same


def forks_children(pipe: Pipe, name: str, kind: Any) -> dict[str, tuple[int, bool]]:
    return {way.__name__: forks_a_child(name, kind, way) for way in WAYS}


@pytest.mark.parametrize("kind", HOLDINGS)
def test_however_a_forked_child_ends_its_parent_has_what_it_had(name, children, kind):
    ended = children(forks_children, name, kind).result()
    assert ended == {way.__name__: (0, True) for way in WAYS}


def forks_in_the_middle(pipe: Pipe, name: str) -> None:
    """Forks while it has the lock of a name, as another thread may have that tidies up."""
    with gpuring.create(name, **OPTIONS, device="host"):
        with segment.look(segment.header_name(name)) as named, named.open(os.O_RDWR) as file:
            assert native.lock(file.fd, native.NAME_BYTE)
            runs, running = os.pipe()
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                os.write(running, b".")
                signal.pause()
        try:
            os.close(running)
            assert os.read(runs, 1) == b"."  # before it runs it has the lock
            gpuring.attach(name).close()
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_a_forked_child_keeps_no_lock_of_a_name(name, children):
    children(forks_in_the_middle, name).result()
