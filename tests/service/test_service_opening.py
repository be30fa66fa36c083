"""Ways to join a service that is being restarted, or whose name something else has."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import gpuring
from gpuring import native
from gpuring.registry import leftovers
from gpuring.service import _engine, delivery
from tests.helpers.layout import FIELDS
from tests.helpers.processes import up
from tests.helpers.promise import promise
from tests.service.services import TERMS, ask_here, in_thread, serve

BOTH = pytest.mark.parametrize("join", [gpuring.connect, gpuring.serve], ids=["connect", "serve"])

# ---- restarts -----------------------------------------------------------------------------------


@pytest.fixture
def restarting(name):
    """A service that is closed and made again, all the time."""
    over = threading.Event()

    def restart():
        while not over.is_set():
            with serve(name, engine=False):
                pass

    join = in_thread(restart)
    yield name
    over.set()
    join()


@promise(
    "services.md", "`connect(timeout=)` and `serve(timeout=)` wait through restarts of the service."
)
@BOTH
def test_who_joins_waits_for_a_service_that_is_being_restarted(restarting, join):
    for _ in range(50):
        join(restarting, timeout=20).close()


@BOTH
def test_one_that_is_closed_just_when_it_is_joined_is_waited_for(name, monkeypatch, join):
    first, created = serve(name), []
    attach_any = gpuring.service.opening.attach_any

    def closing(*args, **options):
        ring = attach_any(*args, **options)
        if not created:
            first.close()
            created.append(serve(name))
        return ring

    monkeypatch.setattr("gpuring.service.opening.attach_any", closing)
    with join(name, timeout=10) as joined, created[0] as server:
        with gpuring.connect(name) as client:
            ask_here(server, client, 0)
        assert not joined.closed


def test_nobody_waits_longer_than_he_said(name, monkeypatch):
    server = serve(name)
    attach_any = gpuring.service.opening.attach_any

    def closing(*args, **options):
        ring = attach_any(*args, **options)
        server.close()
        return ring

    monkeypatch.setattr("gpuring.service.opening.attach_any", closing)
    with pytest.raises(gpuring.RingNotFound, match="was closed just now"):
        gpuring.connect(name, timeout=0)


def creates_and_waits(pipe, name):
    with serve(name):
        pipe.ask()


@promise(
    "services.md",
    "A service ends when its creator closes it, when another one takes its name (`serve(…, "
    "replace=True)`), or on a GPU when it is started again after its creator died.",
    "those inside go on; nobody new can open its memory, and the next `serve` that describes the "
    "service starts a new one",
)
def test_a_service_on_a_gpu_whose_creator_died_makes_way(name, children):
    """The header says that the memory is on a GPU.  No look at the ring gets further than that."""
    creator = up(children(creates_and_waits, name))
    with gpuring.attach(name) as ring, ring.producer():
        creator.kill()
        with Path(f"/dev/shm/gpuring.{name}").open("r+b") as file:
            ipc, timeline = native.MEMORY_KINDS.index("ipc"), native.SYNC_KINDS.index("timeline")
            for field, value in (("memory", ipc), ("sync", timeline)):
                file.seek(FIELDS["head", field].offset)
                file.write(struct.pack("<I", value))
        with pytest.raises(gpuring.PeerLost, match=f"pid {creator.pid}"):
            gpuring.serve(name)
        with serve(name) as server, gpuring.connect(name) as client:
            ask_here(server, client, 0)
            assert ring._header.closed


# ---- names, and who else may have them ----------------------------------------------------------


@promise("services.md", "No call of a running service waits for a name in `/dev/shm`.")
def test_no_call_of_a_running_service_makes_or_removes_a_name(name, monkeypatch):
    """It could have to wait for the lock of the name."""

    def refuse(*args, **options):
        raise AssertionError("by a call of a running service")

    with serve(name) as server, gpuring.connect(name) as client:
        gone = gpuring.connect(name)
        for k in range(3):
            with gone.request() as slot:
                slot.array[...] = k
        taken = server.take(3, timeout=10)
        gone.close()
        with monkeypatch.context() as patched:
            for verb in ("take_name", "remove_own", "make_way", "remove_dead", "remove_left"):
                patched.setattr(native, verb, refuse)
            slots = [call.answer() for call in taken]  # all at once, to nobody
            for slot in slots:
                slot.publish()
            for k in range(3):
                ask_here(server, client, k)
        assert server.counts.undelivered == 3


@promise("services.md", "It leaves alone what it cannot remove.")
@pytest.mark.parametrize("error", [OSError, ValueError, gpuring.RingError, PermissionError])
def test_an_engine_survives_whatever_stands_in_the_way_of_tidying(name, monkeypatch, error):
    def refuse(_):
        raise error("on purpose")

    with serve(name) as server, gpuring.connect(name) as client:
        monkeypatch.setattr(_engine, "TIDY_S", 0)
        monkeypatch.setattr(leftovers, "tidy", refuse)
        for k in range(3):
            ask_here(server, client, k)
        monkeypatch.undo()


def odd_names(service):
    """Puts things there that anybody may put where a client's ring could be."""
    for kind in range(4):
        path = Path(f"/dev/shm/gpuring.{service}.{kind:016x}")
        if kind == 0:
            path.mkdir()
        elif kind == 1:
            path.symlink_to(path)
        elif kind == 2:
            os.mkfifo(path)
        else:
            path.write_bytes(b"no ring")
        yield path


def test_an_engine_survives_odd_names(name, monkeypatch):
    with serve(name) as server, gpuring.connect(name) as client:
        monkeypatch.setattr(_engine, "TIDY_S", 0)
        odd = list(odd_names(name))
        try:
            for k in range(3):
                ask_here(server, client, k)
            with serve(name) as other:
                ask_here(other, client, 4)
        finally:
            for path in odd:
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                else:
                    path.unlink(missing_ok=True)


@promise(
    "services.md",
    "Between calls, an engine removes what dead clients left, for a millisecond at a time.",
)
@pytest.mark.parametrize("in_the_way", [None, 1])
def test_tidying_stops_after_a_look_and_goes_on_the_next_time(name, monkeypatch, in_the_way):
    """It goes on also behind files that it cannot read."""
    theirs = [f"{name}.{k:016x}" for k in range(3)]
    seen = []

    def tidy(wanted):
        for each in [f"{name}.not-a-client", *theirs]:
            if wanted(each):
                seen.append(each)
                if in_the_way is not None and each == theirs[in_the_way]:
                    raise OSError("on purpose")

    with serve(name) as server:
        monkeypatch.setattr(_engine, "TIDY_S", 0)
        monkeypatch.setattr(delivery, "_LOOK_S", 0)
        monkeypatch.setattr(leftovers, "tidy", tidy)
        for _ in range(8):
            with pytest.raises(gpuring.RingTimeout):
                server.take(timeout=0)
        assert seen == [*theirs, *theirs][: len(seen)]
        assert len(seen) >= 6
        monkeypatch.undo()


# ---- clocks -------------------------------------------------------------------------------------


JOIN = """
import sys, gpuring
for join in gpuring.connect, gpuring.serve:
    try:
        join(sys.argv[1], timeout=1).close()
    except gpuring.RingIncompatible as error:
        print(error)
"""


def elsewhere(name, *unshare):
    """Joins in each way, in a process that `unshare` starts.  Returns why it could not."""
    path = os.pathsep.join(sys.path)
    ran = subprocess.run(
        [*unshare, sys.executable, "-c", JOIN, name],
        check=False, capture_output=True, text=True, timeout=60,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def why_not():
    """Why this host gives no other time namespace, or None."""
    if not shutil.which("unshare"):
        return "there is no unshare(1)"
    tried = subprocess.run(
        ["unshare", "-T", "--monotonic", "-1", "true"], check=False, capture_output=True, text=True
    )
    return f"unshare -T: {tried.stderr.strip()}" if tried.returncode else None


@promise(
    "services.md",
    "All its processes must have the same clock. A process in another time namespace is refused "
    "with `RingIncompatible`.",
)
def test_a_process_whose_clock_is_another_one_is_refused(name):
    if reason := why_not():
        pytest.skip(reason)
    with serve(name):
        refused = elsewhere(name, "unshare", "-T", "--monotonic", "-1000").splitlines()
        assert ["time namespace" in said for said in refused] == [True, True]
        assert elsewhere(name) == ""


def test_where_nobody_knows_its_clock_nobody_is_refused(name, monkeypatch):
    monkeypatch.setattr("gpuring.service.opening.time_namespace", lambda: None)
    with serve(name) as server, gpuring.connect(name) as client:
        assert client._mailbox.terms.clock is None
        ask_here(server, client, 0)
    monkeypatch.undo()
    monkeypatch.setattr("gpuring.service.wire.time_namespace", lambda: None)
    with gpuring.serve(name, **TERMS, device="host") as server, gpuring.connect(name) as client:
        assert client._mailbox.terms.clock is not None
        ask_here(server, client, 0)


@pytest.mark.parametrize(("kind", "maker"), [("Server", "serve"), ("Client", "connect")])
def test_who_makes_the_object_itself_is_told_what_makes_it(kind, maker):
    with pytest.raises(TypeError, match=rf"^a {kind} comes from gpuring\.{maker}\(\)$"):
        getattr(gpuring, kind)("scale")
