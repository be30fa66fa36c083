"""Tests with another user of this host, the stranger, who has no right on our rings.  Like
everybody, he may create names in /dev/shm.  docs/trust.md lists what he may
try."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpuring
from tests.helpers import raw_verbs
from tests.helpers.processes import Pipe
from tests.helpers.words import lock

NOBODY = 65534
SHM = Path("/dev/shm")
OPTIONS: dict[str, Any] = {"slots": 2, "shape": 4, "dtype": "u1", "device": "host"}
TERMS: dict[str, Any] = {
    "request": ((4,), "u1"),
    "response": ((4,), "u1"),
    "device": "host",
}


def as_nobody(pipe: Pipe, call: Callable[..., Any], *args: Any) -> Any:
    """Runs `call(pipe, *args)` as the stranger."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.umask(0)
    return call(pipe, *args)


def outcome(call: Callable[[], Any]) -> str:
    """The name of the error, or "done"."""
    try:
        made = call()
    except Exception as error:
        return type(error).__name__
    if isinstance(made, gpuring.Ring | gpuring.Server | gpuring.Client):
        made.close()
    return "done"


# ---- what may have a ring's name ---------------------------------------------------------------


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def _hard_link(path: Path) -> None:
    other = path.with_name(f"{path.name}-other")
    _huge_header(other)
    path.hardlink_to(other)


def valid_header() -> bytes:
    """The bytes of the header of a ring of this process."""
    name = f"strangers-{os.getpid()}"
    with gpuring.create(name, **OPTIONS):
        return (SHM / f"gpuring.{name}").read_bytes()


def _valid(path: Path) -> None:
    path.write_bytes(valid_header())
    path.chmod(0o666)


def _huge_header(path: Path) -> None:
    """Makes a file with a valid first page, which is far larger than that page says."""
    path.write_bytes(valid_header())
    os.truncate(path, 1 << 40)


def _empty(path: Path) -> None:
    path.touch()


def _private(path: Path) -> None:
    _valid(path)
    path.chmod(0)


KINDS: dict[str, Callable[[Path], Any]] = {
    "link": lambda path: path.symlink_to("gpuring.somewhere"),
    "loop": lambda path: path.symlink_to(path.name),
    "device-link": lambda path: path.symlink_to("/dev/zero"),
    "directory": Path.mkdir,
    "fifo": os.mkfifo,
    "socket": _socket,
    "empty": _empty,
    "huge": _huge,
    "huge-header": _huge_header,
    "half": lambda path: path.write_bytes(valid_header()[:5000]),
    "junk": lambda path: path.write_bytes(b"\1" * 9000),
    "valid": _valid,
    "private": _private,
    "hard-link": _hard_link,
}


def put(_pipe: Pipe, *places: tuple[str, str]) -> None:
    """Puts (kind, name in /dev/shm) there."""
    for kind, entry in places:
        KINDS[kind](SHM / entry)


def sweep(prefix: str) -> None:
    for path in SHM.glob(f"{prefix}*"):
        with contextlib.suppress(FileNotFoundError):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


# ---- what the stranger does ------------------------------------------------------------------


def make_and_keep(pipe: Pipe, name: str, mode: int) -> bool:
    with gpuring.create(name, **OPTIONS, mode=mode) as ring:
        pipe.ask()
        return ring._header.closed or raw_verbs.is_retired(ring._header)


def hold_byte(pipe: Pipe, name: str, byte: int, kind: int) -> bool:
    flags = os.O_RDONLY if kind == fcntl.F_RDLCK else os.O_RDWR
    fd = os.open(SHM / f"gpuring.{name}", flags)
    lock(fd, byte, kind)
    pipe.ask()
    return True
