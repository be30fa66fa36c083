"""The slots go from process to process."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import struct

import pytest

from gpuring import native
from tests.helpers.promise import promise
from tests.helpers.support import Pipe
from tests.native.offer import (
    PATIENCE_S,
    asks,
    directory,
    of,
    offers,
    opened,
    refused,
    slots,
    still_answers,
    takes_part,
)  # fmt: skip


@promise(
    "failure.md",
    "**Slots that are handed on.** Some kinds of memory are mapped by a descriptor, which each "
    "process that has it hands to those that attach. So such a ring takes new peers after the "
    "death of its creator, as long as a process that has joined it lives.",
)
def test_the_slots_go_from_process_to_process_and_outlive_their_maker(ring, children):
    fd = slots(b"from me!")
    native.offer(ring.creator, fd)
    first = children(takes_part, ring.path)
    assert first.receive() == (b"from me!", 0)
    first.send((0, b"from it!"))
    first.receive()
    assert os.pread(fd, 8, 0) == b"from it!"  # it is the same memory
    os.close(fd)
    ring.creator.disown()  # as its death does
    second = children(takes_part, ring.path)
    assert second.receive() == (b"from it!", 1)
    for child in (first, second):
        child.kill()
    ring._dead += [0, 1]
    ring.reap()


def test_who_asks_first_need_not_offer(ring, children):
    native.offer(ring.creator, fd := slots(b"12345678"))
    mine = ring.process()
    got = native.fetch(mine, 0)  # this process has it
    assert os.pread(got.fd, 8, 0) == b"12345678"
    assert fcntl.fcntl(got.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(fd)
    got.close()
    still_answers(ring, children)


@promise(
    "failure.md",
    "The watchdog of a process hands them on, also while the main thread is inside a CUDA call.",
)
def test_the_offerer_may_be_in_a_call_that_does_not_return(ring, children):
    offers(ring)
    child = children(asks, ring.path, 3)
    child.receive()
    child.send()
    # No Python runs in this process until the child is done.
    ctypes.PyDLL(None).poll(struct.pack("ihh", child.pipe.fileno(), select.POLLIN, 0), 1, -1)
    assert child.result() == [b"12345678"] * 3


def fetches_with(pipe: Pipe, path: str, more: int) -> str:
    """With so many descriptors that are left."""
    header, limit = opened(path), resource.getrlimit(resource.RLIMIT_NOFILE)
    filled = [os.dup(0) for _ in range(20)]
    for fd in filled[-more:] if more else []:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (filled[-1] + 1, limit[1]))
    try:
        native.fetch(header, PATIENCE_S)
    except Exception as error:
        return repr(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    return "got it"


def test_who_has_no_descriptor_left_is_told_so(ring, children):
    native.offer(ring.creator, fd := slots())
    os.close(fd)
    told = [children(fetches_with, ring.path, more).result() for more in range(5)]
    assert told[0] == "OSError(24, 'Too many open files')"
    assert told[-1] == "got it"
    assert set(told) == {told[0], "got it"}


def test_who_offers_the_slots_itself_is_told_so_too(ring):
    native.offer(ring.creator, fd := slots())
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    filled = [os.dup(fd)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (filled[0] + 1, limit[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                filled.append(os.dup(fd))
        with pytest.raises(OSError, match="Too many open files"):
            native.fetch(ring.creator, PATIENCE_S)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for each in (fd, *filled):
            os.close(each)


def test_an_offer_without_descriptors_leaves_nothing(ring):
    fd, limit = slots(), resource.getrlimit(resource.RLIMIT_NOFILE)
    filled = [os.dup(fd)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (filled[0] + 10, limit[1]))
    refusals = 0
    try:
        with contextlib.suppress(OSError):
            while True:
                filled.append(os.dup(fd))
        while filled:
            try:
                native.offer(ring.creator, fd)
                break
            except OSError as error:
                assert error.errno == errno.EMFILE  # noqa: PT017
            assert not directory(ring).exists()
            refusals += 1
            os.close(filled.pop())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for each in (fd, *filled):
            os.close(each)
    assert refusals > 1
    assert of(ring, os.getpid()).exists()


@promise("failure.md", "If no process has the descriptor, `attach` raises `PeerLost`.")
def test_nobody_has_it(ring, children):
    kind, told = children(refused, ring.path, PATIENCE_S).result()
    assert kind == "PeerLost"
    assert f"Not there: pid {os.getpid()}" in told
    assert not directory(ring).exists()


@promise(
    "failure.md",
    "A stopped process hands nothing on. That holds nobody up, because all processes are asked at "
    "the same time.",
    "If none answers in time, it raises `RingTimeout`.",
)
def test_who_has_it_is_stopped(ring, children):
    native.offer(ring.creator, fd := slots(b"12345678"))
    child = children(takes_part, ring.path)
    child.receive()
    child.stop()
    # The creator still answers.
    still_answers(ring, children)
    ring.creator.disown()
    kind, told = children(refused, ring.path, 0.2).result()
    assert kind == "RingTimeout"
    assert f"pid {child.pid}" in told
    os.kill(child.pid, signal.SIGCONT)
    still_answers(ring, children)
    child.kill()
    ring._dead += [0]
    ring.reap()
    os.close(fd)
