"""The name of a ring between the steps of the C library: deaths and forks there, and two processes
that change one name at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import gpuring
from gpuring import native
from gpuring.registry import segment as segments
from tests.helpers import raw_verbs
from tests.helpers.durable import make, replaced, told
from tests.helpers.promise import promise
from tests.helpers.rings import is_whole_or_gone, segments_of, small_ring, tidied
from tests.native.api.puppet import Halted, Puppet

__all__ = ["replaced"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.deadline(400)]

FIELD = ("array", "|u1", 4, ",")
DEAD, NONE, ANY = 0, 1, 2


def creates(puppet: Puppet, name: str, replace: int) -> tuple[object, ...]:
    puppet("replaces", replace)
    return ("create", name, 2, 0o600, *FIELD)


# ---- a kill --------------------------------------------------------------------------------------


def dead_ring(start: Callable[[], Puppet], name: str) -> None:
    maker = start()
    maker.ok(*creates(maker, name, NONE))
    maker.kill()


@pytest.mark.parametrize("what", ["create", "take", "replace", "unlink", "tidy", "leave"])
def test_a_kill_at_any_step_leaves_a_whole_ring_or_what_the_next_tidying_takes(
    name, puppets, sanitized, what
):
    def start() -> Puppet:
        return puppets(sanitized)

    for k in range(1, 100):
        one = start()
        if what in ("take", "tidy", "replace"):
            dead_ring(start, name)
        mine = small_ring(name) if what == "unlink" else None
        if what == "leave":
            maker = start()
            maker.ok(*creates(maker, name, NONE))
            one.ok("attach", name, 0)
            maker.kill()
        command = {
            "create": creates(one, name, DEAD),
            "take": creates(one, name, DEAD),
            "replace": creates(one, name, ANY),
            "unlink": ("unlink", name),
            "tidy": ("tidy", name),
            "leave": ("detach",),
        }[what]
        halted = Halted(one, k, *command)
        one.kill()
        is_whole_or_gone(name)
        if k % 2:
            small_ring(name, replace=True).close()  # a new start works at once, whatever is left
        if mine is not None:
            mine.close()
        tidied(name)
        assert segments_of(name) == [], f"{what}, killed at step {k}"
        if halted.was_over:
            assert k > 3
            return
    raise AssertionError("the steps do not end")


# ---- a fork --------------------------------------------------------------------------------------


def forked(one: Puppet) -> bool:
    """Whether the command had the step at which the process was to fork."""
    return one("fork-in", 0) == "0"


@pytest.mark.parametrize("what", ["create", "take", "replace"])
def test_a_child_that_another_thread_forks_at_any_step_keeps_no_lock(
    name, replaced, puppets, sanitized, what
):
    for k in range(1, 100):
        one = puppets(sanitized)
        one("fork-in", k)
        if what == "take":  # the subscription stays, and so the header is not tidied away
            with make(name, subscriptions=["rec"], replace=True):
                pass
        elif what == "replace":
            child, _ = replaced(1, replace=False)
        one.ok(*creates(one, name, ANY if what == "replace" else DEAD))
        over = not forked(one)
        there = segments_of(name)
        assert len(there) == (3 if what == "replace" else 2)
        for each in there:
            assert native.is_left(f"/dev/shm/{each}"), f"{each}, after a fork at step {k}"
        one.ok("detach")
        one.kill()
        if what == "replace":
            child.kill()
        tidied(name)
        if over:
            assert k > 3
            return
    raise AssertionError("the steps do not end")


def test_a_child_that_is_forked_while_somebody_settles_keeps_no_lock(
    name, replaced, puppets, sanitized
):
    """Otherwise nobody could settle as long as the child lives, and nobody would learn what was
    lost."""
    for k in range(1, 100):
        child, ring = replaced(1)
        one = puppets(sanitized)
        one.ok("attach", name, 0)
        one("fork-in", k)
        one.ok("consume", "rec", -1, "")  # nothing is owed yet: the earlier member lives
        over = not forked(one)
        one.ok("close", 0)
        child.kill()
        assert [told(ring), told(ring)] == [2, 0], f"after a fork at step {k}"
        one.kill()
        if over:
            assert k > 3
            return
    raise AssertionError("the steps do not end")


# ---- two at once ---------------------------------------------------------------------------------

OPS: dict[str, Callable[[Puppet, str], tuple[object, ...]]] = {
    "create": lambda puppet, name: creates(puppet, name, DEAD),
    "replace": lambda puppet, name: creates(puppet, name, ANY),
    "unlink": lambda _, name: ("unlink", name),
    "tidy": lambda _, name: ("tidy", name),
    "attach": lambda _, name: ("attach", name, 0),
    "close": lambda _, __: ("detach",),  # by the process of the first ring
}
EXPECTED = ("GPURING_OK", "GPURING_EXISTS", "GPURING_NOT_FOUND")


def prepared(puppet: Puppet, name: str, state: str) -> None:
    """Makes the first ring, in the process that is going to close it, if one does."""
    if state != "no ring":
        puppet.ok(*creates(puppet, name, ANY))
    if state == "a dead ring":
        puppet.kill()


@pytest.mark.parametrize("state", ["no ring", "a living ring", "a dead ring"])
@pytest.mark.parametrize("one", OPS)
def test_two_operations_on_one_name_at_once(name, puppets, sanitized, state, one):
    """One operation stops at each of its steps while the other runs.  The ring that has the name in
    the end is whole.  The one that has lost it knows that.  Nothing else is left."""
    if one == "close" and state != "a living ring":
        pytest.skip("only a living ring is closed")
    for other in [each for each in OPS if each not in ("close", "attach")]:
        for k in range(1, 100):
            first, mover, guest = (puppets(sanitized) for _ in range(3))
            prepared(first, name, state)
            actor = first if one == "close" else mover
            halted = Halted(actor, k, *OPS[one](actor, name))
            made = {actor: one in ("create", "replace"), guest: other in ("create", "replace")}
            guest("stop-at", "lock: waits")
            guest.tell(*OPS[other](guest, name))
            waits = guest.stops()
            outcomes = [halted.end()]
            if waits:
                guest.go_on()
            outcomes.append(guest.hear())
            where = f"{other} while {one} stood at {k}, with {state}: {outcomes}"
            for outcome in outcomes:
                assert outcome.startswith(EXPECTED), where
            ends_in_order(name, makers_of(first, state, one) + made_in(outcomes, made), where)
            for each in (guest, mover, first):
                each.kill()
            tidied(name)
            assert segments_of(name) == [], where
            if halted.was_over:
                break


def makers_of(first: Puppet, state: str, one: str) -> list[Puppet]:
    return [first] if state == "a living ring" and one != "close" else []


def made_in(outcomes: list[str], made: dict[Puppet, bool]) -> list[Puppet]:
    """The processes that have created a ring."""
    told = zip(made.items(), outcomes, strict=True)
    return [each for (each, creates), outcome in told if creates and outcome == "GPURING_OK"]


def ends_in_order(name: str, makers: list[Puppet], where: str) -> None:
    owner = 0
    with contextlib.suppress(gpuring.RingNotFound), gpuring.attach(name) as last:
        owner = last.stats().creator_pid
    for each in makers:
        assert each.pid == owner or each("knows") == "1", f"{where}: a ring has lost its name"
    with contextlib.suppress(gpuring.RingNotFound), gpuring.attach(name) as last:
        assert not raw_verbs.is_retired(last._header), where
        assert os.path.samestat(
            Path(f"/dev/shm/gpuring.{name}").stat(), os.fstat(last._header.lock_fd)
        ), where


@promise(
    "failure.md",
    "If several processes start at once, one creates the ring and the others get `RingExists`.",
)
@pytest.mark.parametrize("guest", [True, False])
def test_of_two_that_start_at_once_one_gets_the_name_of_the_dead(name, puppets, sanitized, guest):
    """The other one gets an error, wherever they meet, and never removes the winner's ring."""
    for k in range(1, 100):
        dead_ring(lambda: puppets(sanitized), name)
        one, other = puppets(sanitized), puppets(sanitized)
        with gpuring.attach(name) if guest else contextlib.nullcontext():
            halted = Halted(one, k, *creates(one, name, DEAD))
            over = halted.was_over
            other("stop-at", "lock: waits")
            other.tell(*creates(other, name, DEAD))
            waits = other.stops()
            outcomes = [halted.end()]
            if waits:
                other.go_on()
            outcomes.append(other.hear())
            other("stop-at", "")
            assert sorted(each.split()[0] for each in outcomes) == [
                "GPURING_EXISTS",
                "GPURING_OK",
            ], f"at step {k}: {outcomes}"
            with gpuring.attach(name) as found:
                winner = one if outcomes[0] == "GPURING_OK" else other
                assert found.stats().creator_pid == winner.pid
                assert found.stats().creator_alive
            winner.ok("detach")
        for each in (one, other):
            each.kill()
        tidied(name)
        assert segments_of(name) == [], f"at step {k}"
        if over:
            return


def test_a_tidier_does_not_take_the_slots_of_a_ring_that_is_born_meanwhile(
    name, puppets, sanitized
):
    """Slots have a name before their ring has one.  The tidier looks at their lock first, and then
    for the ring."""
    maker, tidier = puppets(sanitized), puppets(sanitized)
    maker("stop-at", "create: header made")
    maker.tell(*creates(maker, name, DEAD))
    maker.until_stopped()
    tidier("stop-at", "tidy: strays found")
    tidier.tell("tidy", name)
    tidier.until_stopped()
    maker.go_on()
    assert maker.hear() == "GPURING_OK"
    tidier.go_on()
    assert tidier.hear() == "GPURING_OK removed=0"
    assert len(segments_of(name)) == 2
    gpuring.attach(name).close()
    maker.ok("detach")


def test_a_tidier_leaves_a_ring_that_somebody_has_attached_to_meanwhile(name, puppets, sanitized):
    """The other process attaches between the tidier's look for the dead and its lock."""
    dead_ring(lambda: puppets(sanitized), name)
    tidier = puppets(sanitized)
    tidier("stop-at", "tidy: looked")
    tidier.tell("tidy", name)
    tidier.until_stopped()
    with gpuring.attach(name):
        tidier.go_on()
        assert tidier.hear() == "GPURING_OK removed=0"
        assert len(segments_of(name)) == 2


def test_slots_lose_their_name_before_their_header_does(name, puppets, sanitized):
    """So what a kill leaves between the two is found under the header's name."""
    for command, left in (("unlink", 1), ("create", 2)):
        one = puppets(sanitized)
        with small_ring(name):
            one("stop-at", "take: slots removed")
            one.tell(*(("unlink", name) if command == "unlink" else creates(one, name, ANY)))
            one.until_stopped()
            there = segments_of(name)
            assert f"gpuring.{name}" in there
            assert len([each for each in there if "+" not in each or "header" in each]) == left
            one.kill()
        tidied(name)


def test_the_name_that_is_taken_over_is_never_free(name, puppets, sanitized):
    """Otherwise the second of two cameras that start at once could take it, without the
    subscriptions."""
    for k in range(1, 100):
        one = puppets(sanitized)
        with make(name, subscriptions=["rec"], replace=True):
            pass
        halted = Halted(one, k, *creates(one, name, DEAD))
        assert Path(f"/dev/shm/gpuring.{name}").exists(), f"at step {k}"
        halted.end()
        with gpuring.attach(name) as ring:
            assert [each.name for each in ring.stats().subscriptions] == ["rec"]
        one.kill()
        if halted.was_over:
            break
    tidied(name)


def test_a_create_whose_spare_name_is_removed_says_so(name, puppets, sanitized):
    """A foreign cleaner of /dev/shm may do so.  gpuring's own leave alone what somebody is
    making."""
    one = puppets(sanitized)
    with small_ring(name):
        one("stop-at", "take: slots removed")
        one.tell(*creates(one, name, ANY))
        one.until_stopped()
        (spare,) = segments.asides(name)
        Path(segments.path_of(spare)).unlink()
        one.go_on()
        answer = one.hear()
        assert answer.startswith("GPURING_FAILED")
        assert "was removed while" in answer


# ---- what is owed, whoever is killed -------------------------------------------------------------

SETTLES = ["begins", "counted", "forgotten", "settled", "removed", "done"]


@pytest.mark.parametrize("step", SETTLES)
@pytest.mark.parametrize("again", [False, True], ids=["", "replaced again"])
def test_what_is_owed_is_counted_once_whoever_is_killed(
    name, replaced, puppets, sanitized, step, again
):
    child, ring = replaced(1)
    child.kill()
    one = puppets(sanitized)
    one.ok("attach", name, 0)
    one("stop-at", f"settle: {step}")
    one.tell("consume", "rec", -1, "")
    one.until_stopped()
    one.kill()
    with make(name, replace=True) if again else contextlib.nullcontext(ring) as ring:
        assert [told(ring), told(ring)] == [2, 0]
        assert len(segments_of(name)) == 2


@pytest.mark.parametrize("again", [False, True], ids=["", "again"])
@pytest.mark.parametrize("lives", [False, True], ids=["nobody reads", "a member lives"])
@pytest.mark.parametrize("step", ["take: slots removed", "take: given over"])
def test_what_is_owed_is_counted_once_if_who_replaces_the_ring_is_killed(
    name, replaced, puppets, sanitized, step, lives, again
):
    child, _ = replaced(1, replace=again)
    if not lives:
        child.kill()
    one = puppets(sanitized)
    one("stop-at", step)
    one.tell(*creates(one, name, ANY))
    one.until_stopped()
    one.kill()
    with make(name, replace=None) as ring:
        if lives:
            assert told(ring) == 0
            child.kill()
        assert [told(ring), told(ring)] == [2, 0]
        tidied(name)
        assert len(segments_of(name)) == 2
