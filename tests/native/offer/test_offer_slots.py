"""The slots go from process to process."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import struct
from pathlib import Path

import pytest

from gpuring import native
from tests.helpers.processes import Pipe, few_descriptors, up
from tests.helpers.promise import promise
from tests.native.offer import (
    PATIENCE_S,
    asks,
    directory,
    offers,
    opened,
    refused,
    slots,
    still_answers,
    takes_part,
)  # fmt: skip


@promise(
    "failure.md",
    'With `"vmm"` and `"pool"` each process that has the memory hands it on by a descriptor '
    "([how](abi.md#handing-descriptors-on)).",
    "can attach as long as a process that has joined lives, and find the frames. After that "
    "`attach` raises `PeerLost`, and the memory is free.",
)
def test_the_slots_go_from_process_to_process_and_outlive_their_maker(ring, children):
    fd = slots(b"from me!")
    native.offer(ring.creator, fd)
    first = children(takes_part, ring.path)
    assert first.receive() == (b"from me!", 0)
    first.ask((0, b"from it!"))
    assert os.pread(fd, 8, 0) == b"from it!"  # it is the same memory
    os.close(fd)
    ring.creator.disown()  # as a death does
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
    "Its watchdog does that, also while the main thread is inside a CUDA call.",
)
def test_the_offerer_may_be_in_a_call_that_does_not_return(ring, children):
    offers(ring)
    child = up(children(asks, ring.path, 3))
    child.send()
    # No Python runs in this process until the child is done.
    ctypes.PyDLL(None).poll(struct.pack("ihh", child.pipe.fileno(), select.POLLIN, 0), 1, -1)
    assert child.result() == [b"12345678"] * 3


def fetches_with(_pipe: Pipe, path: str, more: int) -> str:
    header = opened(path)
    try:
        with few_descriptors(more):
            native.fetch(header, PATIENCE_S)
    except Exception as error:
        return repr(error)
    return "got it"


def test_who_has_no_descriptor_left_is_told_so(ring, children):
    native.offer(ring.creator, fd := slots())
    os.close(fd)
    told = [children(fetches_with, ring.path, more).result() for more in range(5)]
    assert told[0] == "OSError(24, 'Too many open files')"
    assert told[-1] == "got it"
    assert set(told) == {told[0], "got it"}


def offers_without_descriptors(_pipe: Pipe, path: str) -> None:
    header = opened(path)
    native.offer(header, fd := slots())
    with few_descriptors(0), pytest.raises(OSError, match="Too many open files"):
        native.fetch(header, PATIENCE_S)
    os.close(fd)


def test_who_offers_the_slots_itself_is_told_so_too(ring, children):
    children(offers_without_descriptors, ring.path).result()


def offers_with_more_and_more(_pipe: Pipe, path: str, there: Path) -> tuple[int, bool]:
    """How many attempts had too few descriptors, and whether one of them has left something."""
    header, fd = opened(path), slots()
    for more in range(20):
        try:
            with few_descriptors(more):
                native.offer(header, fd)
            return more, False
        except OSError as error:
            assert error.errno == errno.EMFILE  # noqa: PT017
        if there.exists():
            break
    return more, True


def test_an_offer_without_descriptors_leaves_nothing(ring, children):
    refusals, left = children(offers_with_more_and_more, ring.path, directory(ring)).result()
    assert refusals > 1
    assert not left


@promise(
    "failure.md",
    "can attach as long as a process that has joined lives, and find the frames. After that "
    "`attach` raises `PeerLost`, and the memory is free.",
)
def test_slots_that_no_process_has_any_more_are_refused(ring, children):
    kind, told = children(refused, ring.path, PATIENCE_S).result()
    assert kind == "PeerLost"
    assert f"Not there: pid {os.getpid()}" in told
    assert not directory(ring).exists()


@promise(
    "failure.md",
    "A stopped process hands nothing on, but that holds nobody up, because all are asked at the "
    "same time.",
    "If none answers in time, `attach` raises `RingTimeout`.",
)
def test_a_stopped_process_hands_nothing_on_and_holds_nobody_up(ring, children):
    native.offer(ring.creator, fd := slots(b"12345678"))
    child = up(children(takes_part, ring.path))
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
