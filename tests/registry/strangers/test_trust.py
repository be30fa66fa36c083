"""What the rights to a ring's files allow: to read them, to write them, to own them."""

from __future__ import annotations

import fcntl
import os
import signal

import pytest

import gpuring
from tests.helpers.processes import poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of
from tests.registry.strangers import OPTIONS, SHM, hold_byte, make_and_keep, outcome

CREATOR_BYTE = 257


def reads(_pipe, name):
    slots = next(entry for entry in segments_of(name) if "+" in entry)
    told = [outcome(lambda o=owner: gpuring.attach(name, owner=o)) for owner in (None, 0)]
    return told, (SHM / slots).read_bytes(), (SHM / f"gpuring.{name}").read_bytes()


@promise(
    "trust.md",
    "**A user who may read the files but not write them** (mode 0644) cannot join, because a peer "
    "has to write. They can see every frame and all metadata.",
)
def test_who_may_only_read_cannot_join_and_sees_everything(name, stranger):
    options = OPTIONS | {"meta": [("pts", "i8")], "mode": 0o644}
    with gpuring.create(name, **options) as ring, ring.producer() as producer:
        with producer.claim(0) as slot:
            slot.array[:] = (3, 1, 4, 1)
            slot.meta["pts"] = 0x1122334455667788
        attached, slots, header = stranger(reads, name).result()
        assert attached == ["PermissionError"] * 2
        assert bytes((3, 1, 4, 1)) in slots
        assert (0x1122334455667788).to_bytes(8, "little") in header


@promise(
    "trust.md",
    "They can also take locks that others wait for. Then joins time out after 5 s, `close` takes 2 "
    "s longer, and the dead look alive.",
)
@pytest.mark.slow
def test_to_who_may_read_locks_the_dead_look_alive(name, stranger, children):
    creator = up(children(make_and_keep, name, 0o644))
    creator.kill()
    liar = stranger(hold_byte, name, CREATOR_BYTE, fcntl.F_RDLCK)
    liar.receive()
    gpuring.clean()
    (seen,) = [ring for ring in gpuring.ls() if ring.name == name]
    assert seen.creator_alive
    liar.send()
    assert liar.result()
    gpuring.clean()
    assert segments_of(name) == []


def attaches(_pipe, name):
    """Attaches to root's ring without owner=."""
    with gpuring.attach(name) as ring, ring.producer() as producer:
        producer.claim(0).publish()


@promise(
    "trust.md",
    "`attach` takes only rings of your own user and of root, unless `owner=` says otherwise.",
    "Rings of root need no `owner=`, because root could harm you without a ring as well.",
)
def test_roots_rings_are_attached_to_unasked(name, stranger):
    with gpuring.create(name, **OPTIONS, mode=0o666) as ring, ring.consumer() as frames:
        stranger(attaches, name).result()
        frames.acquire(0).release()


def cuts(_pipe, name):
    os.truncate(SHM / f"gpuring.{name}", 0)


def sleeps(pipe, name):
    with gpuring.attach(name, timeout=10) as ring, ring.consumer() as frames:
        pipe.send()
        frames.acquire(60)


@promise(
    "trust.md",
    "They can truncate the files. That ends each process that has them mapped (SIGBUS), even while "
    "the process sleeps, because its watchdog reads the header.",
    "**Another process of the same user** can do all of this to every ring of the user, and can "
    "kill every process of the user. Rings do not protect against that.",
)
@pytest.mark.slow
@pytest.mark.parametrize("who", ["another user", "the same user"])
def test_who_may_write_can_end_its_peers_while_they_sleep(name, stranger, children, who):
    """The watchdog still reads the header, so no other thread of this process may have it
    mapped."""
    creator = up(children(writable, name))
    victim = up(children(sleeps, name))
    if who == "another user":
        stranger(cuts, name).result()
    else:
        cuts(None, name)
    for child in (creator, victim):
        child.process.join(20)
        assert child.process.exitcode == -signal.SIGBUS
    for entry in segments_of(name):
        (SHM / entry).unlink()


def writable(pipe, name):
    with gpuring.create(name, **OPTIONS, mode=0o666) as ring, ring.producer():
        pipe.send()
        poll(lambda: False, 60)
