"""Names under SIGKILL, and of two processes at once: at every line of Python that changes them."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gpuring
from gpuring.registry import leftovers, locks
from gpuring.registry import segment as segments
from tests.helpers import raw_verbs
from tests.helpers.interrupted import collected
from tests.helpers.layout import FIELDS
from tests.helpers.promise import promise
from tests.helpers.support import Pipe, segments_of
from tests.registry import in_a_child

PACKAGE = Path(gpuring.__file__).parent
CHANGES_NAMES = {
    str(PACKAGE / file)
    for file in (
        "ring/creation.py",
        "ring/ring.py",
        "registry/directory.py",
        "registry/leftovers.py",
        "registry/locks.py",
        "registry/segment.py",
        "registry/sockets.py",
        "memory/host.py",
    )
}
OPTIONS: dict[str, Any] = {"slots": 2, "shape": 4, "dtype": "u1", "device": "host"}

Op = Callable[[str], Any]


class At:
    """Within it, a call at the k-th line (or return) of the code that changes names."""

    def __init__(self, k: int, call: Callable[[], None]) -> None:
        self._left, self._do = k, call
        self._trace = self._call
        """Kept: CPython calls it once more after `settrace(None)` has dropped it."""
        self.where = ""
        """The line; empty: there were fewer."""

    def _call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        counts = frame.f_code.co_filename in CHANGES_NAMES and not collected(frame)
        return self._line if counts else None

    def _line(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            sys.settrace(None)
            self._do()
            sys.settrace(self._trace)
        return self._line

    def __enter__(self) -> At:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


def tidied(name: str) -> None:
    leftovers.tidy(lambda each: each == name)


def created(name: str) -> gpuring.Ring:
    return gpuring.create(name, **OPTIONS)


def replaced(name: str) -> gpuring.Ring:
    return gpuring.create(name, **OPTIONS, replace=True)


def is_whole_or_gone(name: str) -> bool:
    """Whether there is a ring that one can attach to.  Half of one there never is."""
    try:
        gpuring.attach(name).close()
    except gpuring.RingNotFound:
        return False
    return True


# ---- a kill ------------------------------------------------------------------------------------


def killed_in(op: Op, name: str, k: int, told: int) -> object:
    with At(k, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        kept = op(name)
    os.write(told, b"x")  # there were fewer lines
    return kept


def nothing(_name: str) -> None:
    pass


def dead_ring(name: str) -> None:
    in_a_child(lambda: created(name))


KILLED: dict[str, tuple[Callable[[str], Any], Op]] = {
    "create": (nothing, created),
    "replace a living ring": (created, replaced),
    "replace a dead ring": (dead_ring, replaced),
    "close": (nothing, lambda name: created(name).close()),
    "unlink": (created, gpuring.unlink),
    "tidy": (dead_ring, tidied),
}


def kills(_pipe: Pipe, name: str, what: str) -> int:
    """Kills `what` at each line of it, and looks what is left; how many lines there were.

    In a process of its own, which has no other thread when it forks.
    """
    prepare, op = KILLED[what]
    for k in range(1, 10_000):
        mine = prepare(name)
        reading, told = os.pipe()
        in_a_child(lambda k=k, told=told: killed_in(op, name, k, told))
        os.close(told)
        over = os.read(reading, 1)
        os.close(reading)
        is_whole_or_gone(name)
        if k % 2:
            replaced(name).close()  # works at once, whatever is left
        if mine is not None:
            mine.close()
        tidied(name)
        assert segments_of(name) == [], f"{what}, killed at line {k}"
        if over:
            return k
    raise AssertionError("no end")


@pytest.mark.slow
@pytest.mark.deadline(300)
@pytest.mark.parametrize("what", KILLED)
def test_a_kill_at_any_line_leaves_a_whole_ring_or_what_the_next_tidying_takes(
    name, children, what
):
    child = children(kills, name, what)
    child.patience_s = 280
    assert child.result() > 20


# ---- two at once -------------------------------------------------------------------------------


class Other:
    """An operation in another thread, which to all locks is another process."""

    def __init__(self, op: Op, name: str) -> None:
        self._op, self._name = op, name
        self._halt = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.outcome: Any = None

    def _run(self) -> None:
        self.outcome = outcome(self._op, self._name)
        self._halt.set()

    def run(self) -> None:
        """Until its end, or until it waits for a name's lock that the caller has."""
        self._thread.start()
        assert self._halt.wait(20)

    def waits(self) -> None:
        if threading.current_thread() is self._thread:
            self._halt.set()

    def end(self) -> Any:
        if self._thread.ident is not None:
            self._thread.join()
        return self.outcome


def halt_where_a_lock_is_waited_for(monkeypatch: pytest.MonkeyPatch, now: list[Other]) -> None:
    """The last one of `now` lets its caller go on before it waits."""
    lock_name = locks.lock_name

    def told(fd: int, patience_s: float = 0.0) -> bool:
        if lock_name(fd):
            return True
        if patience_s:
            now[-1].waits()
        return bool(patience_s) and lock_name(fd, patience_s)

    monkeypatch.setattr(locks, "lock_name", told)


def outcome(op: Op, name: str) -> Any:
    try:
        return op(name)
    except (gpuring.RingExists, gpuring.RingNotFound) as error:
        return error
    except BaseException as error:
        return AssertionError(f"{type(error).__name__}: {error}")


def attached(name: str) -> gpuring.Ring:
    ring = gpuring.attach(name)
    with contextlib.suppress(gpuring.RingClosed):  # it was replaced since
        ring.member = ring.consumer("x")  # type: ignore[attr-defined]  # a member must be found by who comes later
    return ring


def left(name: str) -> None:
    attached(name).close()


def dies(ring: gpuring.Ring) -> None:
    """To everybody else, its process is gone."""
    path = Path(f"/dev/shm/gpuring.{ring.name}")
    with path.open("r+b") as file:
        file.seek(FIELDS["head", "creator_pid"].offset)
        file.write(struct.pack("<Q", 0))
    ring._header.disown()
    ring._closed = True


OPS: dict[str, Op] = {
    "create": created,
    "replace": replaced,
    "unlink": gpuring.unlink,
    "tidy": tidied,
    "attach": attached,
    "leave": left,
    "close": nothing,  # of the first ring: see below
}


@promise(
    "failure.md",
    "If several processes start at once, one creates the ring and the others get `RingExists`.",
)
@pytest.mark.slow
@pytest.mark.deadline(300)
@pytest.mark.parametrize("guest", [True, False])
def test_of_two_that_start_at_once_one_gets_the_name_of_the_dead(name, monkeypatch, guest):
    """The other one is told so, wherever they meet, and never takes the winner's ring away."""
    now: list[Other] = []
    halt_where_a_lock_is_waited_for(monkeypatch, now)
    for k in range(1, 10_000):
        dead = created(name)
        with gpuring.attach(name) if guest else contextlib.nullcontext():
            dies(dead)
            now.append(Other(created, name))
            with At(k, now[-1].run) as at:
                outcomes = [outcome(created, name)]
            outcomes.append(now[-1].end())
            rings = [each for each in outcomes if isinstance(each, gpuring.Ring)]
            refused = [each for each in outcomes if isinstance(each, gpuring.RingExists)]
            if at.where:
                assert (len(rings), len(refused)) == (1, 1), f"{at.where}: {outcomes}"
            assert not rings[0]._header.closed, at.where
            assert not raw_verbs.is_retired(rings[0]._header), at.where
            with gpuring.attach(name) as found:
                assert found.stats().epoch == rings[0].stats().epoch, at.where
            rings[0].close()
        if not at.where:
            break
        assert segments_of(name) == [], at.where


@contextlib.contextmanager
def first_ring(name: str, state: str) -> Iterator[gpuring.Ring | None]:
    ring = None if state == "no ring" else created(name)
    if ring is not None and state == "a dead ring":
        dies(ring)
    yield ring
    if ring is not None:
        ring.close()


@pytest.mark.slow(keep=1)
@pytest.mark.deadline(300)
@pytest.mark.parametrize("state", ["no ring", "a living ring", "a dead ring"])
@pytest.mark.parametrize("one", OPS)
def test_two_operations_on_one_name_at_once(request, name, monkeypatch, state, one):
    """One stands still at each of its lines while the other runs: whoever has the name in the end
    has it whole, whoever has lost it knows, and nothing is left."""
    if one == "close" and state != "a living ring":
        pytest.skip("nobody closes it")
    step = 1 if request.config.getoption("--stress-seconds") else 3
    now: list[Other] = []
    halt_where_a_lock_is_waited_for(monkeypatch, now)
    others = [each for each in OPS if (one, each) != ("close", "close")]  # of one handle
    for other in others:
        for k in range(1, 10_000, step):
            with first_ring(name, state) as ring:
                ops = dict(OPS) if ring is None else OPS | {"close": lambda _, r=ring: r.close()}
                now.append(Other(ops[other], name))
                with At(k, now[-1].run) as at:
                    outcomes = [outcome(ops[one], name)]
                outcomes.append(now[-1].end())
                where = f"{other} while {one} stood at {at.where}, with {state}"
                for each in outcomes:
                    assert not isinstance(each, AssertionError), f"{where}: {each}"
                ends_in_order(name, [ring, *outcomes], where)
            assert segments_of(name) == [], where
            if not at.where:
                break


def ends_in_order(name: str, found: list[Any], where: str) -> None:
    rings = [each for each in found if isinstance(each, gpuring.Ring)]
    makers = [ring for ring in rings if ring._created and not ring.closed]
    with contextlib.suppress(gpuring.RingNotFound):
        with gpuring.attach(name) as last:
            epoch = last.stats().epoch
        makers = [ring for ring in makers if ring.stats().epoch != epoch]
    for ring in makers:
        assert raw_verbs.is_retired(ring._header), (
            f"{where}: a ring has lost its name and does not know it"
        )
    for ring in rings:
        if not ring._created and not raw_verbs.is_retired(ring._header):
            # Whoever has attached in time is in the ring of that name.
            assert segments.has_name(f"/dev/shm/gpuring.{name}", os.fstat(ring._header.lock_fd)), (
                f"{where}: a member is in a ring without a name"
            )
    for ring in reversed(rings):
        ring.close()
    tidied(name)  # a dead ring that was attached to
