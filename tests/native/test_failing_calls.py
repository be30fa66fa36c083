"""Every system call of create, attach, join, serve and connect fails in turn.  The error is of a
documented kind, nothing is left, and the next try works."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuring
from gpuring.registry import survey
from tests.helpers.compiled import CC, needs_compiler
from tests.helpers.processes import Pipe, open_files
from tests.helpers.rings import segments_of

SOURCE = Path(__file__).with_name("failing_calls.c")
OPTIONS: dict[str, Any] = {"slots": 2, "shape": 4, "dtype": "u1", "device": "host"}
TERMS: dict[str, Any] = {"request": ((4,), "u1"), "response": ((4,), "u1"), "device": "host"}

KINDS = {  # the kind of calls, and how they fail
    "EMFILE": (1, errno.EMFILE),
    "ENFILE": (1, errno.ENFILE),
    "ENOSPC": (2, errno.ENOSPC),
    "ENOMEM": (4, errno.ENOMEM),
    "EINTR": (8, errno.EINTR),
}
DOCUMENTED = (gpuring.RingError, OSError, MemoryError)

Op = Callable[[str, list[Any]], Any]


def create(name: str, **more: Any) -> gpuring.Ring:
    return gpuring.create(name, **OPTIONS, **more)


def serve(name: str, **more: Any) -> gpuring.Server:
    return gpuring.serve(name, **TERMS, **more)


def nothing(_name: str) -> list[Any]:
    return []


def a_ring(name: str) -> list[Any]:
    return [create(name)]


def an_attached_ring(name: str) -> list[Any]:
    return [create(name), gpuring.attach(name)]


def a_service(name: str) -> list[Any]:
    return [serve(name)]


OPS: dict[str, tuple[Callable[[str], list[Any]], Op]] = {
    "create": (nothing, lambda name, _: create(name)),
    "replace": (a_ring, lambda name, _: create(name, replace=True)),
    "attach": (a_ring, lambda name, _: gpuring.attach(name)),
    "join a producer": (an_attached_ring, lambda _, there: there[1].producer()),
    "join a consumer": (an_attached_ring, lambda _, there: there[1].consumer("x")),
    "serve": (nothing, lambda name, _: serve(name)),
    "serve with others": (a_service, lambda name, _: serve(name)),
    "connect": (a_service, lambda name, _: gpuring.connect(name)),
}


class Traces:
    """Everything in a process that a failed call could leave behind."""

    def __init__(self, name: str) -> None:
        gc.collect()
        self.names = segments_of(name)
        # Pidfds come and go with the watchdog's looks.
        self.descriptors = sorted(link for link in open_files().values() if "[pidfd]" not in link)
        self.threads = len(list(Path("/proc/self/task").iterdir()))
        maps = Path("/proc/self/maps").read_text().splitlines()
        self.mappings = sorted(line.split()[-1] for line in maps if "/dev/shm/" in line)

    def since(self, before: Traces) -> list[str]:
        found = []
        for what in ("names", "descriptors", "threads", "mappings"):
            now, then = getattr(self, what), getattr(before, what)
            if now != then:
                found.append(f"{what}: {now} instead of {then}")
        return found


def each_call_in_turn(_pipe: Pipe, name: str, library: str, what: str) -> dict[str, list[str]]:
    """Lets each call fail in turn.  Returns which calls these were, for each kind."""
    failing = ctypes.CDLL(library)
    failing.failing_disarm.restype = ctypes.c_char_p
    return {kind: each_call_of(kind, name, failing, what) for kind in KINDS}


def each_call_of(kind: str, name: str, failing: ctypes.CDLL, what: str) -> list[str]:
    prepare, op = OPS[what]
    there = prepare(name)
    op(name, there).close()  # imports, threads and caches are there afterwards
    for each in reversed(there):
        each.close()
    gc.freeze()  # otherwise each collection goes through all modules
    failed = []
    for k in range(1, 1000):
        there = prepare(name)
        made, error = None, ""
        before = Traces(name)
        failing.failing_arm(*KINDS[kind], k)
        try:
            made = op(name, there)
        except DOCUMENTED as caught:
            error = f"{type(caught).__name__}: {caught}"
        finally:
            call = failing.failing_disarm().decode()
        if made is None:
            left = Traces(name).since(before)
            assert not left, f"{what}, {kind} at call {k}, {call}: {error}: left: {left}"
            assert call, f"{what}: {error}"
            op(name, there).close()  # the next try works
        else:
            made.close()
        if what == "replace" and made is None:
            there.clear()  # the second try has replaced it
        for each in reversed(there):
            each.close()
        assert segments_of(name) == [], f"{what}, {kind} at call {k}, {call}: {error}"
        if not call:
            return failed
        failed.append(f"{call} -> {error or 'it goes on'}")
    raise AssertionError("the calls do not end")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("failing") / "failing.so"
    command = [str(CC), "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", path, SOURCE, "-ldl"], check=True, timeout=60)
    return str(path)


REACHED = {  # calls that a test of each kind must have met
    ("create", "EMFILE"): 4, ("create", "ENOSPC"): 6, ("create", "ENOMEM"): 8,
    ("attach", "EMFILE"): 4, ("attach", "ENOMEM"): 5, ("connect", "EMFILE"): 8,
}  # fmt: skip


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("what", OPS)
def test_a_call_that_fails_leaves_nothing(name, children, monkeypatch, library, what):
    monkeypatch.setenv("LD_PRELOAD", library)
    child = children(each_call_in_turn, name, library, what, method="spawn")
    child.patience_s = 200
    for kind, failed in child.result().items():
        print(f"{kind}:", *failed, sep="\n")
        assert len(failed) >= REACHED.get((what, kind), 0), kind
        if kind == "EINTR":
            assert all("it goes on" in each for each in failed)


# ---- limits of the process -----------------------------------------------------------------------


def with_few_descriptors(_pipe: Pipe, name: str, what: str) -> int:
    """Tries limits of descriptors until the call works.  Returns how many of them were too low."""
    prepare, op = OPS[what]
    refused = 0
    there = prepare(name)
    op(name, there).close()
    gc.freeze()
    if what == "replace":
        there += prepare(name)
    for limit in range(3, 200):
        before = Traces(name)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 4096))
        made, error = None, ""
        try:
            made = op(name, there)
        except DOCUMENTED as caught:
            error = f"{type(caught).__name__}: {caught}"
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        if made is not None:
            made.close()
            break
        refused += 1
        left = Traces(name).since(before)
        assert not left, f"{what} with {limit} descriptors: {error}: left: {left}"
    for each in reversed(there):
        with contextlib.suppress(gpuring.RingError):
            each.close()
    assert segments_of(name) == []
    return refused


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("what", OPS)
def test_with_few_descriptors_left(name, children, what):
    refused = children(with_few_descriptors, name, what).result()
    assert refused == 0 if what.startswith("join") else refused > 2


def limited(_pipe: Pipe, name: str, limit: str, nbytes: int, slots_nbytes: int) -> list[str]:
    """The errors of create and of attach under a limit."""
    options = OPTIONS | {"shape": slots_nbytes}
    told = []
    with contextlib.ExitStack() as stack:
        if limit == "AS":
            ring = stack.enter_context(gpuring.create(f"{name}-a", **options))
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            nbytes += used
        before = Traces(name)
        resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (nbytes, resource.RLIM_INFINITY))
        calls = [lambda: gpuring.create(name, **options)]
        if limit == "AS":
            calls.append(lambda: gpuring.attach(ring.name))
        for call in calls:
            try:
                call().close()
            except gpuring.RingError as error:
                told.append(str(error))
        resource.setrlimit(
            getattr(resource, f"RLIMIT_{limit}"), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )
        assert not Traces(name).since(before)
        assert survey.ls() is not None
        gpuring.create(name, **options).close()
    return told


def test_a_limit_on_the_size_of_files_is_told_as_such(name, children):
    for nbytes, limit, what in ((1 << 20, "1.0 MiB", "the slots"), (4096, "4.0 KiB", "the header")):
        shape = 2 << 20 if what == "the slots" else 16
        (told,) = children(limited, name, "FSIZE", nbytes, shape).result()
        assert what in told
        assert "RLIMIT_FSIZE" in told
        assert limit in told
        assert "/dev/shm" not in told


def test_a_limit_on_address_space_is_told_as_such(name, children):
    for told in children(limited, name, "AS", 4 << 20, 32 << 20).result():
        assert "RLIMIT_AS" in told
        assert "free" not in told
