"""Processes in namespaces of their own, as in containers that share a /dev/shm and nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuring
from gpuring import native
from gpuring.native import Header
from gpuring.registry import segment
from tests.helpers.processes import Child, Pipe

_NEW_MOUNTS, _NEW_IPC, _NEW_USERS = 0x20000, 0x08000000, 0x10000000
_NEW_PIDS, _NEW_NET, _NEW_TIME = 0x20000000, 0x40000000, 0x80
_NEW = _NEW_MOUNTS | _NEW_IPC | _NEW_PIDS | _NEW_NET
_BIND, _PRIVATE, _RECURSIVE = 0x1000, 1 << 18, 0x4000
_PR_SET_PDEATHSIG = 1


def _libc(name: str, *args: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    as_kind = None if kind is None else kind.encode()
    _libc("mount", source.encode(), target.encode(), as_kind, ctypes.c_ulong(flags), None)


def contained(
    pipe: Pipe, shm: str, users: bool, target: Callable[..., Any], *args: Any
) -> list[Any]:
    """Runs `target(pipe, *args)` as process 1 of new pid, ipc, net, time and mount namespaces, in
    which /dev/shm is the directory `shm`, and CLOCK_MONOTONIC is far ahead.  With `users` also of a
    new user namespace, whose root is ours.

    The first thing that it sends is None, or why there can be no such process here.  If this
    process is killed, the contained one gets SIGKILL.  Returns a list of what `target` returned.
    """
    try:
        clocks = _NEW_TIME if Path("/proc/self/ns/time").exists() else 0
        _libc("unshare", _NEW | clocks | (_NEW_USERS if users else 0))
        if users:
            Path("/proc/self/setgroups").write_text("deny")
            for which in ("uid", "gid"):
                Path(f"/proc/self/{which}_map").write_text("0 0 1")
        if clocks:
            Path("/proc/self/timens_offsets").write_text(f"monotonic {os.getpid()}000 0\n")
    except OSError as error:
        pipe.send(str(error))
        return []
    read, write = os.pipe()
    inner = os.fork()
    if inner == 0:
        os.close(read)
        _libc("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
        _inside(pipe, shm, write, target, args)
    os.close(write)
    with open(read, "rb") as told:  # noqa: PTH123
        failed = told.read().decode()
    os.waitpid(inner, 0)
    assert not failed, failed
    return []


def _inside(pipe: Pipe, shm: str, told: int, target: Callable[..., Any], args: Any) -> None:
    code = 1
    try:
        try:
            _mount("none", "/", None, _PRIVATE | _RECURSIVE)
            _mount("proc", "/proc", "proc", 0)
            _mount(shm, "/dev/shm", None, _BIND)
        except OSError as error:
            pipe.send(str(error))
        else:
            assert os.getpid() == 1
            pipe.send(None)
            pipe.send(target(pipe, *args))
        code = 0
    except BaseException:
        with contextlib.suppress(OSError):
            os.write(told, traceback.format_exc().encode())
    finally:
        os._exit(code)


# ---- what a test does with them ------------------------------------------------------------------


@contextlib.contextmanager
def shared_memory() -> Iterator[str]:
    """A directory of a tmpfs that containers have as their /dev/shm.  No ring may be left in it."""
    place = Path(f"/dev/shm/test-{os.getpid()}-{secrets.token_hex(4)}")
    place.mkdir()
    yield str(place)
    left = sorted(str(path) for path in place.rglob("gpuring*"))
    shutil.rmtree(place)
    assert not left


class Contained:
    """A process in a container that does what it is asked to (`obey`)."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.kill = child.kill
        child.receive()

    def begin(self, *words: Any) -> None:
        """Asks it to do something, and does not wait for the end."""
        self._child.send(words)

    def __call__(self, *words: Any) -> Any:
        self.begin(*words)
        return self._child.receive()


def start(
    children: Callable[..., Child], shm: str, users: bool, target: Callable[..., Any], *args: Any
) -> Contained:
    """Starts `target(pipe, *args)`, which obeys, in a container of its own.  Skips the test if the
    host allows no containers."""
    child = children(contained, shm, users, target, *args)
    if refused := child.receive():
        pytest.skip(f"no namespaces here: {refused}")
    return Contained(child)


def obey(pipe: Pipe, verbs: dict[str, Callable[..., Any]]) -> None:
    pipe.send()
    while True:
        verb, *args = pipe.receive()
        pipe.send(verbs[verb](*args))


def cleans(pipe: Pipe) -> None:
    obey(pipe, {"clean": gpuring.clean})


def as_on_gpu(
    name: str, *, make: bool, slots: int, slot_nbytes: int, patience_s: float
) -> tuple[Header, int]:
    """Makes or joins a ring that behaves like one on a GPU, and returns it with its slots.  These
    are a memfd that is handed on.  A dead peer is not cleared before its pidfd says that its
    process is gone."""
    if make:
        memory = os.memfd_create("slots")
        os.truncate(memory, slots * slot_nbytes)
        with segment.unnamed(0o600) as file:
            header = Header.create(
                file.fd, slots=slots, max_peers=8, max_subscriptions=4, memory="ipc",
                sync="timeline", gate="stream", slot_nbytes=slot_nbytes, meta_nbytes=0,
                spec=b"{}", epoch=secrets.token_bytes(16),
            )  # fmt: skip
            native.offer(header, memory)
            native.give_name(file.fd, segment.path_of(segment.header_name(name)))
    else:
        with segment.look(segment.header_name(name)) as named, named.open(os.O_RDWR) as file:
            header = Header.attach(file.fd)
        got = native.fetch(header, patience_s)
        native.offer(header, got.fd)
        memory = os.dup(got.fd)
    return header, memory
