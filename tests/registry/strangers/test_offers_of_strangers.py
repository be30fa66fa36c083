"""Descriptors that processes hand on: who gets them, and what another user can put there."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import gpuring
from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.compiled import CC, needs_compiler
from tests.helpers.processes import Pipe, up
from tests.helpers.promise import promise
from tests.helpers.segment import Segment
from tests.native.offer import (
    PATIENCE_S,
    directory,
    of,
    offers,
    opened,
    slots,
    sockets,
    still_answers,
)  # fmt: skip
from tests.registry.strangers import NOBODY, outcome

GROUP = 4242


@pytest.fixture
def ring(segment: Callable[..., Segment]) -> Iterator[Segment]:
    made = segment(2, memory="ipc", sync="timeline", epoch=secrets.token_bytes(16))
    yield made
    made.creator.disown()
    shutil.rmtree(directory(made), ignore_errors=True)


def seen_at(_pipe: Pipe, where: str, at: str) -> dict[str, str]:
    """Returns what a stranger can do with a socket and its directory."""

    def connect() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(at)
            client.settimeout(PATIENCE_S)
            said, fds, _, _ = socket.recv_fds(client, 1000, 10)
            assert said or fds

    return {
        "connect": outcome(connect),
        "list": outcome(lambda: os.listdir(where)),  # noqa: PTH208
        "put": outcome(Path(where, "mine").touch),
        "unlink": outcome(Path(at).unlink),
        "rmdir": outcome(Path(where).rmdir),
        "rename": outcome(lambda: Path(where).rename(f"{where}-mine")),
        "clean": outcome(gpuring.clean),
    }


@promise(
    "trust.md",
    "They cannot connect to the sockets at which slots are handed on, or remove them.",
)
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_who_may_not_write_the_header_gets_no_slots(ring, children, stranger, mode):
    os.fchmod(ring.fd, mode)
    offers(ring)
    before = sockets(ring)
    told = stranger(seen_at, str(directory(ring)), str(of(ring, os.getpid()))).result()
    assert told.pop("clean") == "done"
    assert told.pop("list") == ("done" if mode & 4 else "PermissionError")
    assert set(told.values()) == {"PermissionError"}
    assert sockets(ring) == before
    still_answers(ring, children)


def become_nobody(gid: int = NOBODY, groups: Sequence[int] = ()) -> None:
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def in_groups(_pipe: Pipe, path: str, gid: int, groups: list[int]) -> bool:
    """Whether a process of another user who is in these groups gets the slots."""
    header = opened(path)
    become_nobody(gid, groups)
    try:
        native.fetch(header, PATIENCE_S)
    except gpuring.PeerLost:
        return False
    return True


def test_groups_of_a_process_count_as_they_do_for_the_header(ring, children):
    os.fchown(ring.fd, -1, GROUP)
    os.fchmod(ring.fd, 0o660)
    offers(ring)
    assert not children(in_groups, ring.path, NOBODY, []).result()
    assert not children(in_groups, ring.path, NOBODY, [1, 2, 3]).result()
    assert children(in_groups, ring.path, GROUP, []).result()
    assert children(in_groups, ring.path, NOBODY, [1, GROUP]).result()


def joins(pipe: Pipe, path: str) -> None:
    """Fetches and offers the slots as another user, who may write the header."""
    header = opened(path)
    become_nobody()
    got = native.fetch(header, PATIENCE_S)
    native.offer(header, got.fd)
    peer = raw_verbs.join_producer(header)
    pipe.ask(peer.number)


def test_a_peer_of_another_user_hands_the_slots_on(ring, children):
    os.fchmod(ring.fd, 0o666)
    offers(ring)
    peer = up(children(joins, ring.path))
    assert of(ring, peer.pid).stat().st_uid == NOBODY
    ring.creator.disown()
    still_answers(ring, children)


def pretends(pipe: Pipe, where: str, at: str) -> None:
    """Puts a socket in the place of another process's, and hands out slots of its own."""
    Path(where).mkdir(mode=0o777)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(at)
        server.listen()
        pipe.send()
        client, _ = server.accept()
        with client:
            said = struct.pack("<8s4Q", b"\1offered", 1, 2, 3, 1)
            with contextlib.suppress(BrokenPipeError):  # who asks sees whose it is
                socket.send_fds(client, [said], [slots(b"not mine")])
            pipe.receive()


def fetches(_pipe: Pipe, path: str) -> str:
    return outcome(lambda: native.fetch(opened(path), PATIENCE_S))


@promise(
    "trust.md",
    "Slots that they offer are never taken.",
)
@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_slots_of_a_stranger_are_never_taken(ring, children, stranger, mode):
    os.fchmod(ring.fd, mode)
    me = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[19]
    ours = Path("/proc/self/ns/pid").stat().st_ino
    name = f"{ours:x}-{os.getpid():x}-{int(me):x}"
    server = stranger(pretends, str(directory(ring)), str(directory(ring) / name))
    server.receive()
    assert children(fetches, ring.path).result() == "PeerLost"
    assert gpuring.clean() is not None
    assert sockets(ring) == [name]  # a stranger's socket is not removed
    server.send()


SWAP = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
/* As a peer does it that is quick enough: a link comes in the place of a socket that is made. */
int bind(int fd, const struct sockaddr *at, socklen_t nbytes) {
    int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "bind");
    int result = real(fd, at, nbytes);
    const char *path = ((const struct sockaddr_un *)at)->sun_path, *victim = getenv("VICTIM");
    if (result == 0 && victim && strstr(path, "gpuring+"))
        result = unlink(path) != 0 || symlink(victim, path) != 0;
    return result;
}
"""


def offers_and_fails(_pipe: Pipe, path: str) -> str:
    header = opened(path)
    return outcome(lambda: native.offer(header, slots()))


@needs_compiler
def test_a_link_in_the_place_of_a_socket_changes_no_rights(ring, children, tmp_path, monkeypatch):
    """Root takes part in the ring of another user, who owns the directory."""
    library, victim = tmp_path / "swap.so", tmp_path / "victim"
    (tmp_path / "swap.c").write_text(SWAP)
    build = [str(CC), "-shared", "-fPIC", str(tmp_path / "swap.c"), "-o", str(library), "-ldl"]
    subprocess.run(build, check=True, timeout=60)
    victim.touch(0o600)
    os.fchown(ring.fd, NOBODY, NOBODY)
    os.fchmod(ring.fd, 0o666)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("VICTIM", str(victim))
    assert children(offers_and_fails, ring.path, method="spawn").result() == "PermissionError"
    assert (stat.S_IMODE(victim.stat().st_mode), victim.stat().st_uid) == (0o600, 0)
    assert sockets(ring) == []
