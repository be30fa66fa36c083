"""Threat model (docs/trust.md): who may not open a ring's files, who may read and who may write
them."""

from __future__ import annotations

import fcntl
import os
import signal
import time

import pytest

import gpuring
from gpuring import native
from gpuring.registry import directory, leftovers
from gpuring.registry import segment as segments
from tests.helpers import commands
from tests.helpers.processes import up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of
from tests.helpers.words import LOCK_BYTE
from tests.registry.strangers import NOBODY, OPTIONS, SHM, TERMS, hold_byte, make_and_keep, outcome


def seen(name: str) -> os.stat_result:
    return (SHM / f"gpuring.{name}").stat()


# ---- without any right -------------------------------------------------------------------------


def lock_the_directory(pipe):
    fd = os.open(SHM, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    pipe.ask()
    return True


@promise(
    "trust.md",
    "There is no lock that they can take and that others wait for, because names change under a "
    "lock on the ring's own file.",
)
def test_a_lock_on_the_directory_stalls_nobody(name, stranger):
    """Such a lock used to cost create 4 s, close 2 s and a call of a service 10 s.  Forty of each
    end before the deadline of this test only if nobody waits."""
    child = stranger(lock_the_directory)
    child.receive()
    with gpuring.serve(name, **TERMS) as engine:
        for _ in range(40):
            gpuring.create(f"{name}-x", **OPTIONS).close()
            gpuring.create(f"{name}-x", **OPTIONS, replace=True).close()
            engine._tidied = -1e9
            with gpuring.connect(name) as client:
                with client.request(10) as slot:
                    call = slot.call
                (taken,) = engine.take(timeout=10)
                with taken.answer():
                    pass
                call.result(10).release()
            assert not leftovers.remove_dead(name)
    child.send()
    assert child.result()


def tries(_pipe, name, entries):
    """Tries everything for which the stranger has no right."""
    told = {}
    for entry in entries:
        path = SHM / entry
        place = os.open(path, os.O_PATH)
        told.update(
            {
                f"read {entry}": outcome(lambda p=path: os.open(p, os.O_RDONLY)),
                f"write {entry}": outcome(lambda p=path: os.open(p, os.O_WRONLY)),
                f"by /proc {entry}": outcome(
                    lambda p=place: os.open(f"/proc/self/fd/{p}", os.O_RDONLY)
                ),
                f"lock {entry}": outcome(lambda p=place: native.lock(p, native.NAME_BYTE)),
                f"truncate {entry}": outcome(lambda p=path: os.truncate(p, 0)),
                f"unlink {entry}": outcome(lambda p=path: p.unlink()),
                f"rename {entry}": outcome(lambda p=path: p.rename(f"{p}-mine")),
                f"link {entry}": outcome(lambda p=path: os.link(p, f"{p}-mine")),
            }
        )
    told["attach"] = outcome(lambda: gpuring.attach(name, owner=0))
    told["replace"] = outcome(lambda: gpuring.create(name, **OPTIONS, replace=True))
    told["gpuring.unlink"] = outcome(lambda: gpuring.unlink(name))
    told["create"] = outcome(lambda: gpuring.create(name, **OPTIONS))
    told["clean"] = outcome(gpuring.clean)
    return told


@promise(
    "trust.md",
    "The owner and the mode of the ring's files decide who can be a peer.",
    "**Another user who may not open the ring's files** (mode 0600, the default) can do nothing to "
    "the ring.",
    "They cannot read, write, lock or truncate the files. They cannot remove or rename them "
    "either, because `/dev/shm` is sticky. `attach`, `create(replace=True)` and `unlink` refuse "
    "them before anything is changed, and `clean` passes over the ring.",
    "There is no lock that they can take and that others wait for, because names change under a "
    "lock on the ring's own file.",
)
def test_who_may_not_open_it_can_do_nothing_to_a_ring(name, stranger):
    with gpuring.create(name, **OPTIONS) as ring:
        before, entries = seen(name), segments_of(name)
        told = stranger(tries, name, entries).result()
        assert told.pop("create") == "RingExists"
        assert told.pop("clean") == "done"
        links = {told.pop(f"link {entry}") for entry in entries}
        if open("/proc/sys/fs/protected_hardlinks").read().strip() == "1":  # noqa: PTH123, SIM115
            assert links == {"PermissionError"}
        locks = {told.pop(f"lock {entry}") for entry in entries}
        assert locks == {"OSError"}  # an O_PATH descriptor cannot be locked
        assert set(told.values()) == {"PermissionError"}, told
        assert segments_of(name) == entries
        assert (seen(name).st_ino, seen(name).st_size) == (before.st_ino, before.st_size)
        assert not ring._header.closed
        gpuring.attach(name).close()


def told_at_each_way_in(_pipe, name):
    def told(call):
        with pytest.raises(PermissionError) as refused:
            call().close()
        return str(refused.value)

    return (
        told(lambda: gpuring.attach(name)),
        told(lambda: gpuring.attach(name, owner=0)),
        told(lambda: gpuring.serve(name, **TERMS)),
        told(lambda: gpuring.connect(name)),
        told(lambda: directory.look(name)),
    )


def test_who_may_not_open_a_ring_is_told_whose_it_is_and_what_its_mode_is(name, stranger):
    with gpuring.create(name, **OPTIONS):
        *to_join, to_look = stranger(told_at_each_way_in, name).result()
    whose = f"/dev/shm/gpuring.{name} belongs to user 0 (mode 0600). This process, of user {NOBODY}"
    assert to_look.startswith(f"{whose}, may not read it")
    for told in to_join:
        assert told.startswith(f"{whose}, may not read and write it")
        assert "`mode`" in told


@promise(
    "failure.md",
    "Nobody can replace a ring of another user.",
)
@promise(
    "trust.md",
    "`attach` takes only rings of your own user and of root, unless `owner=` says otherwise.",
    "Nothing of theirs is closed or removed, not even by root.",
)
@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_root_too_leaves_rings_of_others_alone(name, stranger, monkeypatch, mode):
    monkeypatch.setattr(segments, "unnamed", None)  # create looks before it makes anything
    child = stranger(make_and_keep, name, mode)
    child.receive()
    entries = segments_of(name)
    with pytest.raises(PermissionError, match=f"`owner` {NOBODY}"):
        gpuring.attach(name)
    gpuring.attach(name, owner=NOBODY).close()
    assert name in [one.name for one in gpuring.ls()]  # looking is allowed
    with pytest.raises(PermissionError, match=rf"{name}.*user {NOBODY}"):
        gpuring.create(name, **OPTIONS, replace=True)
    with pytest.raises(PermissionError, match=rf"{name}.*user {NOBODY}"):
        gpuring.unlink(name)
    assert segments_of(name) == entries
    child.send()
    assert child.result() is False
    assert segments_of(name) == []


def serve_and_keep(pipe, name):
    with gpuring.serve(name, **TERMS, mode=0o666):
        pipe.ask()


def test_a_service_of_another_user_asks_for_no_argument_that_connect_lacks(name, stranger):
    child = stranger(serve_and_keep, name)
    child.receive()
    with pytest.raises(PermissionError, match=f"belongs to user {NOBODY}, not") as refused:
        gpuring.connect(name)
    assert "`" not in str(refused.value)
    child.finish()


def opens(pipe, name):
    return outcome(lambda: gpuring.attach(name))


@pytest.mark.parametrize(
    ("mode", "opened"), [((), "PermissionError"), (("--mode", "0666"), "done")]
)
def test_who_may_open_the_far_ring_of_a_bridge(name, stranger, mode, opened):
    pytest.importorskip("zmq")
    far = f"{name}-far"
    with gpuring.create(name, **OPTIONS), commands.exporting(name) as (_, address):
        options = ("--as", far, "--device", "host", *mode)
        with commands.running("bridge", "import", f"{address}/{name}", *options):
            gpuring.attach(far, timeout=60).close()
            assert stranger(opens, far).result() == opened


def make_and_die(pipe, name):
    kept = gpuring.create(name, **OPTIONS)
    os.kill(os.getpid(), signal.SIGKILL)
    kept.close()


@promise(
    "failure.md",
    "Nobody can replace a ring of another user.",
)
@promise(
    "trust.md",
    "Nothing of theirs is closed or removed, not even by root.",
)
def test_root_too_leaves_dead_rings_of_others_alone(name, stranger):
    child = stranger(make_and_die, name)
    child.process.join(20)
    entries = segments_of(name)
    assert len(entries) == 2
    assert name not in gpuring.clean()
    assert not leftovers.remove_dead(name)
    with pytest.raises(gpuring.RingExists, match=rf"{name}.*user {NOBODY} \(mode 0600\)"):
        gpuring.create(name, **OPTIONS)
    assert segments_of(name) == entries


# ---- with the right to write (mode 0666) -------------------------------------------------------


@promise(
    "trust.md",
    "They cannot replace or remove a ring of another user.",
)
def test_who_may_write_cannot_replace_a_ring_that_is_anothers(name, stranger):
    """The owner is checked before the ring is closed."""
    with gpuring.create(name, **OPTIONS, mode=0o666) as ring, ring.consumer() as reader:
        told = stranger(replaces, name).result()
        assert told == ["PermissionError", "PermissionError"]
        with gpuring.attach(name) as other, other.producer() as producer:
            producer.claim(0).publish()
            assert reader.acquire(10).seq == 2
        assert not ring._header.closed


def replaces(_pipe, name):
    return [
        outcome(lambda: gpuring.create(name, **OPTIONS, replace=True)),
        outcome(lambda: gpuring.unlink(name)),
    ]


@promise(
    "trust.md",
    "They can also take locks that others wait for. Then joins time out after 5 s, `close` takes 2 "
    "s longer, and the dead look alive.",
)
@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o644, 0o666])
def test_who_may_read_can_hold_up_a_close_for_seconds_and_no_tidying(name, stranger, mode):
    ring = gpuring.create(name, **OPTIONS, mode=mode)
    kind = fcntl.F_WRLCK if mode == 0o666 else fcntl.F_RDLCK
    child = stranger(hold_byte, name, native.NAME_BYTE, kind)
    child.receive()
    assert not leftovers.remove_dead(name)  # the ring lives, and this does not wait
    begun = time.monotonic()
    ring.close()
    assert time.monotonic() - begun >= 2  # after that it goes on without the lock
    assert segments_of(name) == []
    child.send()
    assert child.result()


@promise(
    "trust.md",
    "They can also take locks that others wait for. Then joins time out after 5 s, `close` takes 2 "
    "s longer, and the dead look alive.",
)
@pytest.mark.slow
def test_who_may_read_can_hold_up_joins(name, stranger):
    with gpuring.create(name, **OPTIONS, mode=0o644) as ring:
        child = stranger(hold_byte, name, LOCK_BYTE, fcntl.F_RDLCK)
        child.receive()
        with pytest.raises(gpuring.RingTimeout, match="membership lock"):
            ring.producer()
        child.send()
        assert child.result()
        ring.producer().close()


def link_to(_pipe, entry, other):
    os.link(SHM / entry, SHM / other)


def test_a_second_name_of_a_ring_is_no_ring_and_does_not_close_it(name, stranger):
    with gpuring.create(name, **OPTIONS, mode=0o666) as ring:
        stranger(link_to, f"gpuring.{name}", f"gpuring.{name}-b").result()
        for each in (name, f"{name}-b"):
            with pytest.raises(gpuring.RingIncompatible, match="2 names"):
                gpuring.attach(each)
        gpuring.create(f"{name}-b", **OPTIONS, replace=True).close()
        assert not ring._header.closed
        gpuring.attach(name).close()


def cut(pipe, name):
    with gpuring.create(name, **OPTIONS, mode=0o666):
        pipe.ask()
        for entry in segments_of(name):
            os.truncate(SHM / entry, 0)
        pipe.ask()


def trusts(pipe, name):
    """Attaches to another user's ring, because it was told to."""
    with gpuring.attach(name, owner=NOBODY) as ring, ring.consumer() as reader:
        pipe.ask()
        reader.acquire(10)


@promise(
    "trust.md",
    "**The owner of a ring that you attach to** with `owner=` can do all of this to you, at any "
    "time.",
)
@pytest.mark.slow
def test_who_attaches_to_a_strangers_ring_can_be_ended_by_him(name, stranger, children):
    maker = stranger(cut, name)
    maker.receive()
    victim = up(children(trusts, name))
    maker.send()
    maker.receive()
    victim.send()
    victim.process.join(20)
    assert victim.process.exitcode == -signal.SIGBUS
