"""What may be created: names, modes and sizes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import gpuring

SHM = Path("/dev/shm")


@pytest.mark.parametrize(
    "wrong", ["", "a/b", "/a", ".a", "-a", "a b", "a\n", "ä", "a+b", "a\0b", "x" * 129, ".."]
)
def test_names_that_no_ring_can_have(wrong):
    for call in (gpuring.attach, gpuring.unlink):
        with pytest.raises(ValueError, match="name"):
            call(wrong)
    with pytest.raises(ValueError, match="name"):
        gpuring.create(wrong, slots=1, shape=1, dtype="u1", device="host")


@pytest.mark.parametrize("wrong", [None, 1, b"a", Path("a")])
def test_names_are_str(wrong):
    for call in (gpuring.attach, gpuring.unlink):
        with pytest.raises(TypeError, match="str"):
            call(wrong)


def test_the_longest_name(name):
    longest = (name + "_.-").ljust(128, "9")
    gpuring.create(longest, slots=1, shape=1, dtype="u1", device="host").close()


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o640])
def test_the_mode_is_what_was_asked_whatever_the_umask(name, umask, mode):
    options = {} if mode == 0o600 else {"mode": mode}  # 0600 is the default
    before = os.umask(umask)
    try:
        ring = gpuring.create(name, slots=1, shape=1, dtype="u1", device="host", **options)
    finally:
        os.umask(before)
    with ring:
        modes = [path.stat().st_mode & 0o7777 for path in SHM.glob(f"gpuring.{name}*")]
        assert modes == [mode, mode]


@pytest.mark.parametrize("wrong", ["600", None, 1 << 40, -1])
def test_a_mode_that_is_none_leaves_nothing_behind(name, wrong):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        gpuring.create(name, slots=1, shape=1, dtype="u1", device="host", mode=wrong)


def test_no_space_is_told_in_numbers_and_leaves_nothing_behind(name):
    stat = os.statvfs(SHM)
    too_much = stat.f_blocks * stat.f_frsize + 2**20
    amount = r"\d+\.\d [KMG]iB"
    with pytest.raises(gpuring.RingError, match=rf"{name}.*{amount} are needed, {amount} are free"):
        gpuring.create(name, slots=1, shape=too_much, dtype="u1", device="host")
    assert not list(SHM.glob(f"gpuring.{name}*"))


@pytest.mark.parametrize("shape", [(2**41,), (2**61,), (2**62, 2), (2**70,)])
def test_slots_that_no_memory_has_room_for_leave_nothing_behind(name, shape):
    with pytest.raises((gpuring.RingError, ValueError)):
        gpuring.create(name, slots=4, shape=shape, dtype="u1", device="host")
    assert not list(SHM.glob(f"gpuring.{name}*"))
