"""A /dev/shm that is full, can hold no more files, or cannot be written.  Each case has its
error."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import subprocess

import pytest

import gpuring
from gpuring.cli import main
from gpuring.registry import survey
from tests.helpers import commands
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of
from tests.registry import in_a_child
from tests.registry.strangers import NOBODY, OPTIONS, SHM, as_nobody, outcome

pytest.importorskip("prometheus_client", reason="gpuring[tools] is not installed")
from gpuring.cli.metrics.collector import RingCollector

CLONE_NEWNS = 0x00020000


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)


def in_own_mounts(pipe, how, call, *args):
    """Runs `call(pipe, *args)` where /dev/shm is mounted otherwise, for this process only."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        return "no mounts of its own"
    for command in (["--make-rprivate", "/"], how):
        if (done := run("mount", *command)).returncode:
            return f"no mounts of its own: {done.stderr}"
    return call(pipe, *args)


@pytest.fixture
def mounted(children):
    def run(how, call, *args):
        told = children(in_own_mounts, how.split(), call, *args).result()
        if isinstance(told, str) and told.startswith("no mounts"):
            pytest.skip(told)
        return told

    return run


TINY = "-t tmpfs -o size=4m,nr_inodes=24,mode=1777 tmpfs /dev/shm"


def fill(_pipe, what):
    """Takes all room, or all files, as a stranger may."""
    if what == "room":
        (SHM / "full").write_bytes(b"")
        try:
            with (SHM / "full").open("wb") as file:
                while True:
                    file.write(b"x" * 65536)
        except OSError:
            return
    try:
        for k in range(10_000):
            (SHM / f"full-{k}").touch()
    except OSError:
        return


def create_where_it_is_full(pipe, name, what):
    in_a_child(lambda: as_nobody(pipe, fill, what))
    fds = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    told = []
    for _ in range(2):
        try:
            gpuring.create(name, **OPTIONS)
        except gpuring.RingError as error:
            told.append(str(error))
    assert segments_of(name) == []
    assert len(os.listdir("/proc/self/fd")) == fds  # noqa: PTH208
    assert outcome(gpuring.clean) == "done"
    for path in SHM.glob("full*"):
        path.unlink()
    gpuring.create(name, **OPTIONS).close()
    return told


@promise(
    "trust.md",
    "They can use up the memory of `/dev/shm`, or the number of files that it may have. `create` "
    "then says which of them ran out, and leaves nothing behind.",
)
@pytest.mark.parametrize("what", ["room", "files"])
def test_a_full_directory_is_told_and_nothing_is_left(name, mounted, what):
    told = mounted(TINY, create_where_it_is_full, name, what)
    assert len(told) == 2
    for each in told:
        assert name in each
        assert ("as many files" if what == "files" else "are free") in each


def create_where_nobody_may(pipe, name):
    def told(_pipe):
        with pytest.raises(PermissionError) as refused:
            gpuring.create(name, **OPTIONS)
        assert segments_of(name) == []
        return str(refused.value)

    return as_nobody(pipe, told)


def test_who_may_make_no_files_is_told_what_to_change(name, mounted):
    told = mounted("-t tmpfs -o mode=0755 tmpfs /dev/shm", create_where_nobody_may, name)
    may_not = f"ring {name!r}: this process, of user {NOBODY}, may make no files in /dev/shm"
    assert told == f"{may_not}. As root: chmod 1777 /dev/shm"


def tools_that_may_not_list(_pipe, name):
    def told(*command):
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as errors,
        ):
            code = main(command)
        return code, out.getvalue(), errors.getvalue()

    with gpuring.create(name, **OPTIONS) as ring, ring.producer() as producer:
        ring.subscribe("recorder")
        for _ in range(ring.slots):
            producer.claim(0).publish()
        with pytest.raises(gpuring.RingNotFound, match="/dev/shm may not be listed"):
            gpuring.attach(f"{name}-x")
        whys = (("why",), ("why", name), ("why", f"{name}-x"))
        of_all = [told(*each) for each in (*whys, ("ls",), ("graph",), ("clean",))]
        return of_all, told("inspect", name)


def test_a_directory_that_may_not_be_listed_does_not_look_empty(name, mounted):
    of_all, inspected = mounted(
        "-t tmpfs -o mode=1733 tmpfs /dev/shm", as_nobody, tools_that_may_not_list, name
    )
    assert [code for code, _, _ in of_all] == [3, 3, 3, 1, 1, 1]
    for _, out, errors in of_all:
        assert (out, "/dev/shm: Permission denied" in errors) == ("", True)
    assert (inspected[0], f"ring {name}" in inspected[1]) == (0, True)


def replace_where_there_is_little_room(_pipe, name, alive):
    """The room of a dead ring is free before the new one is made.  A living ring goes on."""
    options = OPTIONS | {"slots": 1, "shape": 2 << 20}
    in_a_child(lambda: gpuring.create(name, **options))
    if not alive:
        gpuring.create(name, **options, replace=True).close()
        return segments_of(name)
    with gpuring.create(name, **options, replace=True) as ring:
        with pytest.raises(gpuring.RingError, match="no space"):
            gpuring.create(name, **options, replace=True)
        assert not ring._header.closed
        gpuring.attach(name).close()
    return segments_of(name)


@pytest.mark.slow
@pytest.mark.parametrize("alive", [False, True])
def test_a_ring_that_is_replaced_where_there_is_little_room(name, mounted, alive):
    assert mounted(TINY, replace_where_there_is_little_room, name, alive) == []


READ_ONLY = "-o remount,ro,bind /dev/shm"
EMPTY = "-t tmpfs -o mode=1777 tmpfs /dev/shm"
"""There are no rings of other programs."""


@contextlib.contextmanager
def nobody_writes():
    """Makes /dev/shm read-only in mounts of this process.  Files that are open may still be
    written."""
    for command in ("--bind /dev/shm /dev/shm", READ_ONLY):
        done = run("mount", *command.split())
        assert done.returncode == 0, done.stderr
    yield
    assert run("umount", "/dev/shm").returncode == 0


def tools(_pipe, name, out):
    with (
        gpuring.create(name, **OPTIONS) as ring,
        ring.producer(),
        ring.consumer("who"),
        nobody_writes(),
    ):
        return os.getpid(), used(name, out)


def used(name, out):
    """The status, output and errors of each tool and each call."""
    told = {}
    for tool in (
        ("ls",), ("ls", "--json"), ("inspect", name), ("top", "--once", "--interval", "0.05"),
        ("doctor", "--no-probe"), ("doctor", "--no-gpu"), ("clean",),
        ("tap", name, "--out", out, "--count", 1),
    ):  # fmt: skip
        done = commands.gpuring(*tool)
        told[" ".join(map(str, tool[:2]))] = (done.returncode, done.stdout, done.stderr)
    told["metrics"] = (0, str(len(list(RingCollector(10).collect()))), "")
    told["attach"] = (1, "", outcome(lambda: gpuring.attach(name)))
    told["create"] = (1, "", outcome(lambda: gpuring.create(f"{name}-x", **OPTIONS)))
    with pytest.raises(gpuring.RingError, match="read-only"):
        gpuring.attach(name)
    with pytest.raises(gpuring.RingError, match="read-only"):
        gpuring.create(f"{name}-x", **OPTIONS)
    return told


@pytest.mark.slow
def test_every_tool_works_where_nobody_can_write(name, mounted, tmp_path):
    pid, told = mounted(EMPTY, tools, name, str(tmp_path))
    for tool, (code, out, errors) in told.items():
        assert "Traceback" not in out + errors, f"{tool}: {errors}"
        if tool.split()[0] in ("ls", "inspect", "top", "clean"):
            assert code == 0, f"{tool}: {errors}"
    assert "open" in told["ls"][1]
    assert f"pid {pid} (alive)" in told[f"inspect {name}"][1]
    assert "who" in told[f"inspect {name}"][1]
    assert "read-only" in told[f"tap {name}"][2]


def both_sides(_pipe, name, address):
    """An importer where nobody can write, and another one that works, both of a running
    exporter."""
    from gpuring import bridge

    far = {"name": f"{name}-far", "device": "host"}
    with (
        bridge.import_(f"{address}/{name}", **far) as into,
        pytest.raises(gpuring.RingError, match="read-only"),
    ):
        into.wait(30)
    with (
        bridge.export(name, listen="127.0.0.1:0") as out,
        bridge.import_(f"{out.address}/{name}", give_up=0.1, **far) as into,
    ):
        with pytest.raises(gpuring.RingError, match=r"the exporter says.*read-only"):
            into.wait(30)
        return out.stats().restarts


@pytest.mark.slow
def test_a_bridge_says_that_nobody_can_write(name, mounted):
    pytest.importorskip("zmq")
    from gpuring import bridge

    with gpuring.create(name, **OPTIONS), bridge.export(name, listen="127.0.0.1:0") as out:
        assert mounted(READ_ONLY, both_sides, name, out.address) == 0
        assert out.stats().restarts == 0


def clean_of_the_dead(_pipe, name):
    in_a_child(lambda: gpuring.create(name, **OPTIONS))
    with nobody_writes():
        done = commands.gpuring("clean")
        assert [one.name for one in survey.ls()] == [name]
    return done.returncode, done.stderr, segments_of(name)


@pytest.mark.slow
def test_clean_says_that_it_may_not_remove(name, mounted):
    code, said, left = mounted(EMPTY, clean_of_the_dead, name)
    assert code == 1
    assert "mounted read-only" in said
    assert "remount,rw" in said
    assert "Traceback" not in said
    assert len(left) == 2


def why_here_and_outside(_pipe, name):
    """Asks for a former ring that this process still uses, here and where its parent is."""
    with gpuring.create(name, **OPTIONS):
        used = gpuring.attach(name)
    with used:
        outside = ["nsenter", "--target", str(os.getppid()), "--mount", *commands.COMMAND]
        return commands.gpuring("why", name).stderr, run(*outside, "why", name).stderr


def test_a_former_ring_of_another_container_is_not_one_of_this_host(name, mounted):
    here, outside = mounted(TINY, why_here_and_outside, name)
    assert f"Ring {name} was closed, removed or replaced" in here
    assert f"No ring or service named '{name}'" in outside
    assert "was closed" not in outside
