"""The processes that use a ring whose header cannot be read, or has no name any more.

A process that is in a ring has the header mapped.  /proc/PID/maps shows that for one's own
processes, and to root for all processes of the same pid namespace.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuring.printable import printable
from gpuring.registry import segment
from gpuring.registry.processes import is_stopped

_MOST_LETTERS = 60  # of a command line
_PROC = Path("/proc")
_FORMER = re.compile(rb" ([0-9a-f]+:[0-9a-f]+) \d+ +/dev/shm/gpuring\.([\w.-]+) \(deleted\)\n")
"""A header that has lost the name of its ring, in a line of maps, with its device."""
_LOCK = re.compile(rb" OFDLCK +ADVISORY +WRITE +-?\d+ ([0-9a-f]+:[0-9a-f]+):(\d+) 256 256\n")
"""The membership lock of a header, in fdinfo, with the device and the inode of the header."""


def users(names: Iterable[str]) -> dict[str, dict[int, str]]:
    """For each ring: the processes that have its header mapped, with their pids and how they were
    started.  A ring of which none is known is left out."""
    rings = _headers(names)
    found: dict[str, dict[int, str]] = {}
    for pid in _pids() if rings else ():
        for key in rings.keys() & _mapped(pid):
            found.setdefault(rings[key], {})[pid] = _command(pid)
    return found


def of_former_rings() -> dict[str, dict[int, str]]:
    """For each name: the processes that still have a ring mapped which had it.  Where another ring
    has it now, only those that are stopped and not there yet, because all others move there.  Those
    of a container that has a /dev/shm of its own are left out."""
    found: dict[str, dict[int, str]] = {}
    here, _ = _key(Path(segment.SHM).stat())
    there = {*segment.names()}
    for pid in _pids():
        maps = _maps(pid)
        for device, word in {*_FORMER.findall(maps)}:
            name = word.decode(errors="replace")
            moved = b"/dev/shm/gpuring.%s\n" % word in maps
            is_left = name not in there or (is_stopped(pid) and not moved)
            if device == here and is_left and not segment.ANSWERS.fullmatch(name):
                found.setdefault(name, {})[pid] = _command(pid)
    return dict(sorted(found.items()))


def of_locks() -> dict[str, dict[int, str]]:
    """For each ring: who is stopped and has its membership lock, so that nobody can join or leave.
    A process that runs has it for microseconds."""
    rings = _headers(segment.names())
    found: dict[str, dict[int, str]] = {}
    for pid in filter(is_stopped, _pids()):
        for key in rings.keys() & {*_LOCK.findall(_fdinfo(pid))}:
            found.setdefault(rings[key], {})[pid] = _command(pid)
    return dict(sorted(found.items()))


def told(users: dict[int, str]) -> str:
    """Processes, in words."""
    return ", ".join(f"pid {pid} ({command})" for pid, command in users.items())


def _pids() -> list[int]:
    return sorted(int(each.name) for each in _PROC.iterdir() if each.name.isdecimal())


def _headers(names: Iterable[str]) -> dict[tuple[bytes, bytes], str]:
    """The rings of these names, by the device and the inode of their headers."""
    rings = {}
    for name in names:
        with contextlib.suppress(OSError):
            rings[_key(os.lstat(segment.path_of(segment.header_name(name))))] = name
    return rings


def _key(file: os.stat_result) -> tuple[bytes, bytes]:
    """The device and the inode, as a line of maps has them."""
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    return device.encode(), str(file.st_ino).encode()


def _mapped(pid: int) -> Iterator[tuple[bytes, bytes]]:
    for line in filter(None, _maps(pid).split(b"\n")):  # a file's name may have all other bytes
        _, _, _, device, inode, *_ = line.split(maxsplit=5)
        yield device, inode


def _maps(pid: int) -> bytes:
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        return (_PROC / str(pid) / "maps").read_bytes()
    return b""


def _fdinfo(pid: int) -> bytes:
    """What the kernel knows of its descriptors, with the locks that it has by them."""
    texts = []
    with contextlib.suppress(OSError):  # as above
        for each in (_PROC / str(pid) / "fdinfo").iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                texts.append(each.read_bytes())
    return b"".join(texts)


def _command(pid: int) -> str:
    line = b""
    with contextlib.suppress(OSError):
        line = (_PROC / str(pid) / "cmdline").read_bytes()
    words = printable(" ".join(line.decode(errors="replace").split("\0")).strip())
    return words if len(words) <= _MOST_LETTERS else words[: _MOST_LETTERS - 1] + "…"
