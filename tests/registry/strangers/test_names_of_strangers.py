"""Threat model (docs/trust.md): things that are no ring are passed over or named as what they
are, and nobody maps a stranger's file unasked."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from pathlib import Path

import pytest

import gpuring
from gpuring import native
from gpuring.registry import directory, leftovers, survey
from gpuring.registry import segment as segments
from tests.helpers import commands
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of
from tests.helpers.words import lock
from tests.registry.strangers import KINDS, NOBODY, OPTIONS, SHM, TERMS, outcome, put, valid_header

pytest.importorskip("prometheus_client", reason="gpuring[tools] is not installed")
from gpuring.cli.metrics.collector import RingCollector

READABLE = {"valid"}


@pytest.fixture
def odd(name, stranger):
    """Puts there each kind of thing that a stranger can make, and returns its ring name."""
    places = {kind: f"{name}-{kind}" for kind in KINDS}
    stranger(put, *[(kind, f"gpuring.{ring}") for kind, ring in places.items()]).result()
    return places


@promise(
    "trust.md",
    "A file that is no ring is passed over, or the error says what it is, whatever its name. This "
    "holds for links, loops, directories, fifos, sockets, devices, files with several names, and "
    "empty, huge or damaged files.",
)
@pytest.mark.slow
@pytest.mark.parametrize(
    "tool",
    [("ls",), ("ls", "--json"), ("top", "--once", "--interval", "0.05"), ("doctor", "--no-probe"),
     ("clean", "--dry-run")],
    ids=" ".join,
)  # fmt: skip
def test_every_tool_goes_past_odd_names(name, odd, tool):
    with gpuring.create(name, **OPTIONS):
        before = segments_of(name)
        done = commands.gpuring(*tool)
        leftovers.tidy(lambda each: each.startswith(name))  # as `clean` does for all
        assert "Traceback" not in done.stderr
        assert done.returncode in ((0, 1) if "doctor" in tool else (0,)), done.stderr
        if tool[0] in ("ls", "top"):
            assert name in done.stdout
        assert segments_of(name) == before  # not even root removes files of others
        gpuring.attach(name).close()


@promise(
    "trust.md",
    "A file that is no ring is passed over, or the error says what it is, whatever its name. This "
    "holds for links, loops, directories, fifos, sockets, devices, files with several names, and "
    "empty, huge or damaged files.",
)
@pytest.mark.slow
def test_a_tool_that_is_asked_for_an_odd_name_says_what_it_is(odd, tmp_path):
    said = {
        "directory": "is a directory", "fifo": "is a fifo", "socket": "is a socket",
        "loop": "is a symbolic link", "link": "is a symbolic link", "empty": "has 0 bytes",
        "hard-link": "2 names", "half": "has 5000", "device-link": "is a symbolic link",
    }  # fmt: skip
    for kind, ring in odd.items():
        if kind in READABLE or kind == "private":  # root reads everything
            continue
        with pytest.raises(gpuring.RingIncompatible, match=said.get(kind, ring)):
            directory.look(ring)
    for tool in (("inspect",), ("tap", "--out", tmp_path, "--count", 1, "--timeout", 0.1)):
        for kind in ("loop", "fifo", "valid"):
            done = commands.gpuring(tool[0], odd[kind], *tool[1:])
            assert "Traceback" not in done.stderr
            assert done.returncode == (0 if (tool[0], kind) == ("inspect", "valid") else 1)
            assert odd[kind] in done.stdout + done.stderr


def test_metrics_and_ls_count_what_they_cannot_read(odd):
    found, unreadable = survey.all_rings()
    assert {ring for kind, ring in odd.items() if kind not in READABLE} - {odd["private"]} <= set(
        unreadable
    )
    assert odd["valid"] in [one.name for one in found]
    assert list(RingCollector(10).collect())


@promise(
    "trust.md",
    "Nothing of theirs is closed or removed, not even by root.",
    "They can take a name before you do. Then `create` raises `RingExists`.",
)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_verbs_refuse_an_odd_name_at_once_and_leave_it_alone(odd, kind):
    ring = odd[kind]
    refused = {"RingIncompatible", "PermissionError"}
    assert outcome(lambda: gpuring.attach(ring, timeout=1000)) in refused
    assert outcome(lambda: gpuring.connect(ring, timeout=1000)) in refused
    assert outcome(lambda: gpuring.serve(ring, timeout=1000)) in refused
    assert outcome(lambda: gpuring.create(ring, **OPTIONS)) == "RingExists"
    for replace in (
        lambda: gpuring.create(ring, **OPTIONS, replace=True),
        lambda: gpuring.serve(ring, **TERMS, replace=True),
        lambda: gpuring.unlink(ring),
    ):
        assert outcome(replace) in refused
    assert os.path.lexists(SHM / f"gpuring.{ring}")
    assert not [entry for entry in segments_of(ring) if "+" in entry]


def test_engines_tidy_past_odd_names(name, stranger):
    """Each name looks like a client's ring, or like the slots of one."""
    with gpuring.serve(name, **TERMS) as engine:
        rings = [f"gpuring.{name}.{k:016x}" for k in range(len(KINDS))]
        slots = [f"gpuring.{name}.{k:016x}+{k:032x}" for k in range(100, 100 + len(KINDS))]
        stranger(put, *zip(KINDS, rings, strict=True), *zip(KINDS, slots, strict=True)).result()
        before = segments_of(name)
        engine._tidied = -1e9
        with pytest.raises(gpuring.RingTimeout):
            engine.take(timeout=0)
        with gpuring.serve(name, **TERMS) as second, gpuring.connect(name) as client:
            with client.request(10) as slot:
                slot.array[:] = 3
                call = slot.call
            (taken,) = second.take(timeout=10)
            with taken.answer() as slot:
                slot.array[:] = taken.array + 1
            with call.result(10) as slot:
                assert slot.array.tolist() == [4] * 4
        assert segments_of(name) == before


@promise(
    "trust.md",
    "No process maps a file of theirs without being asked to.",
)
@pytest.mark.slow
def test_slots_of_a_stranger_are_never_mapped_or_removed(name, stranger):
    """Everybody can read the epoch of a ring in the name of its slots."""
    with gpuring.create(name, **OPTIONS):
        (slots,) = [entry for entry in segments_of(name) if "+" in entry]
        for kind in KINDS:
            segments.unlink(f"/{slots}")
            stranger(put, (kind, slots)).result()
            with pytest.raises(gpuring.RingIncompatible, match="slots"):
                gpuring.attach(name, timeout=1000)
            assert slots[len("gpuring.") :] not in gpuring.clean()
            path = SHM / slots
            assert os.path.lexists(path)
            path.rmdir() if kind == "directory" else path.unlink()
            SHM.joinpath(slots).touch()


def test_what_a_stranger_puts_in_the_place_of_our_slots_stays(name, stranger):
    with gpuring.create(name, **OPTIONS) as ring:
        slots = segments.slots_name(name, ring._epoch)[1:]
        segments.unlink(f"/{slots}")
        stranger(put, ("junk", slots)).result()
    assert segments_of(name) == [slots]
    assert leftovers.tidy(lambda each: each == name) == []
    assert segments_of(name) == [slots]


WILD = [b"\xff\xfe", b"\x1b[2J", b"a\nb", b" ", b"+", b"a+b", b"x" * 200, "ä".encode()]


@promise(
    "trust.md",
    "A file that is no ring is passed over, or the error says what it is, whatever its name. This "
    "holds for links, loops, directories, fifos, sockets, devices, files with several names, and "
    "empty, huge or damaged files.",
)
@pytest.mark.slow
def test_names_that_no_ring_can_have_are_passed_over(name, stranger):
    names = [f"gpuring.{name}".encode() + wild for wild in WILD]
    stranger(touch, names).result()
    try:
        assert not [each for each in segments.names() if each.startswith(name)]
        gpuring.clean()
        for tool in (("ls",), ("doctor", "--no-probe")):
            done = commands.gpuring(*tool)
            assert "Traceback" not in done.stderr
            assert "\x1b[2J" not in done.stdout + done.stderr
    finally:
        for each in names:
            os.unlink(b"/dev/shm/" + each)  # noqa: PTH108


def touch(_pipe, names):
    for each in names:
        os.close(os.open(b"/dev/shm/" + each, os.O_CREAT | os.O_WRONLY, 0o666))


MANY = 10_000


@promise(
    "trust.md",
    "The more names they put there, the longer a look takes. With ten thousand names everything "
    "still works.",
)
@pytest.mark.slow
def test_ten_thousand_names(name, stranger):
    stranger(touch, [f"gpuring.{name}.{k:016x}".encode() for k in range(MANY)]).result()
    with gpuring.serve(name, **TERMS) as engine:
        engine._tidied = -1e9
        with pytest.raises(gpuring.RingTimeout):
            engine.take(timeout=0)
        found, unreadable = survey.all_rings()
        assert name in [one.name for one in found]
        assert len([each for each in unreadable if each.startswith(name)]) == MANY
        with pytest.raises(gpuring.RingNotFound) as caught:
            gpuring.attach(f"{name}-none")
        assert len(str(caught.value)) < 2000
        done = commands.gpuring("doctor", "--no-probe")
        assert "Traceback" not in done.stderr
        assert len(done.stdout) < 10_000
    assert len(segments_of(name)) == MANY


# ---- races -------------------------------------------------------------------------------------


def flicker(pipe, entry):
    """Puts one odd thing after another under a name, until it is told to end."""
    path = SHM / entry
    rounds = 0
    pipe.send()
    while not pipe.told():
        for make in KINDS.values():
            with contextlib.suppress(OSError):  # the name is taken, or is not his
                make(path)
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            path.with_name(f"{path.name}-other").unlink(missing_ok=True)
        rounds += 1
    return rounds


@pytest.mark.slow
def test_races_for_a_name_have_an_owner_or_an_error(name, stranger):
    child = stranger(flicker, f"gpuring.{name}")
    child.receive()
    made = 0
    try:
        for _ in range(400):
            assert outcome(lambda: gpuring.attach(name)) in {
                "RingNotFound", "RingIncompatible", "PermissionError",
            }  # fmt: skip
            survey.all_rings()
            leftovers.tidy(lambda each: each == name)
            replace = made % 2 == 1
            try:
                ring = gpuring.create(name, **OPTIONS, replace=replace)
            except (gpuring.RingExists, gpuring.RingIncompatible, PermissionError):
                continue
            with ring, gpuring.attach(name) as other:  # the ring is ours, and whole
                made += 1
                assert other.stats().epoch == ring.stats().epoch
    finally:
        child.send()
    assert child.result() > 0
    assert made > 0


# ---- sizes that change -------------------------------------------------------------------------


def breathe(pipe, entry):
    """A valid header, readable for everybody, whose size keeps changing."""
    data = valid_header()
    fd = os.open(SHM / entry, os.O_CREAT | os.O_RDWR, 0o666)
    os.write(fd, data)
    lock(fd, 257)  # the creator's byte, so that the creator does not look dead
    pipe.send()
    while not pipe.told():
        for k in range(1000):
            os.ftruncate(fd, 0)
            os.pwrite(fd, data[:4096], 0)
            os.ftruncate(fd, len(data))
            for _ in range(k % 100):  # whole for long enough to be read, now and then
                os.fstat(fd)
    return True


def looks(_pipe, name, ring, rounds):
    """Calls everything that looks at rings, without trusting anybody."""
    seen = collections.Counter()
    with gpuring.serve(name, **TERMS) as engine:
        for k in range(rounds):
            engine._delivery.sweep()
            found, _ = survey.all_rings()
            seen["whole" if ring in [one.name for one in found] else "not whole"] += 1
            if k % 10 == 0:
                list(RingCollector(1000).collect())
        for _ in range(rounds // 10):
            outcome(lambda: gpuring.attach(ring))
            outcome(lambda: gpuring.create(ring, **OPTIONS))
            outcome(lambda: gpuring.create(ring, **OPTIONS, replace=True))
    return seen


@promise(
    "trust.md",
    "No process maps a file of theirs without being asked to. `ls`, `inspect`, `top`, `metrics`, "
    "`doctor` and `clean` read copies of headers, and so do engines that clear what the dead have "
    "left. So a file that shrinks meanwhile does no harm.",
)
@pytest.mark.slow
def test_a_file_whose_size_changes_harms_nobody_who_looks(name, stranger, children):
    ring = f"{name}.{1:016x}"  # as if it was a client's
    child = stranger(breathe, f"gpuring.{ring}")
    child.receive()
    try:
        looker = children(looks, name, ring, 1000)
        looker.patience_s = 50
        seen = looker.result()
    finally:
        child.send()
    assert child.result()
    assert min(seen["whole"], seen["not whole"]) > 0


@promise(
    "trust.md",
    "So a file that shrinks meanwhile does no harm.",
)
def test_a_file_that_ends_while_it_is_read(name):
    """The file is cut between the look at its size and the read of a page."""
    read = native.Header.read
    path = SHM / f"gpuring.{name}"
    with gpuring.create(name, **OPTIONS):
        data = path.read_bytes()
    with path.open("w+b") as file:
        file.write(data)
    stop, thread = threading.Event(), None

    def shrink() -> None:
        while not stop.is_set():
            os.truncate(path, 4096)
            os.truncate(path, len(data))

    try:
        thread = threading.Thread(target=shrink)
        thread.start()
        seen = set()
        for _ in range(3000):
            fd = os.open(path, os.O_RDONLY)
            try:
                read(fd)
            except native.Damaged as error:
                seen.add(str(error))
            finally:
                os.close(fd)
        assert seen
    finally:
        stop.set()
        if thread:
            thread.join()
        path.unlink()


@promise(
    "trust.md",
    "The tests in `tests/registry/strangers` act as another user.",
)
def test_the_stranger_is_one(stranger):
    assert stranger(who).result() == (NOBODY, NOBODY)


def who(_pipe):
    assert not os.access(Path("/etc/shadow"), os.R_OK)
    return os.getuid(), os.geteuid()
