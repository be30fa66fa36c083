"""The model is clean in each small configuration, and fails wherever one fix is taken away."""

import copy
import random

import pytest

from .actors import Cast
from .configs import CI, host
from .explore import explore
from .mutants import MUTANTS
from .program import Program
from .protocol import Ring
from .steps import apply


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", CI)
def test_clean(name):
    report = CI[name]()
    assert not report.violation, str(report)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    report = MUTANTS[name].explore(name)
    assert report.violation.startswith(MUTANTS[name].caught), report.head()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", [name for name in MUTANTS if not MUTANTS[name].slow])
def test_the_fix_is_what_matters(name):
    report = MUTANTS[name].explore()
    assert not report.violation, str(report)


@pytest.mark.parametrize(
    "cast",
    [
        lambda: host().producer(3).consumer(),
        lambda: host().producer(1).producer(1).consumer(1, lossy=True),
        lambda: host(kills=1).producer(1, mortal=True).consumer().reaper(0),
        lambda: host().producer(1).consumer(1, gives_back=1).consumer(),
    ],
)
def test_reduction_loses_no_outcome(cast):
    """Merging private loads, and fewer kill points, reach the same final memories as every step."""
    full, reduced = explore(cast().world(), reduce=False), explore(cast().world())
    assert full.ends == reduced.ends
    assert full.states > reduced.states


def test_a_local_state_says_all_that_matters():
    """Position and locals stand for the whole history, because no verb hides a value elsewhere."""
    dice = random.Random(2)
    for _ in range(100):
        world = host(subs=2).producer(3).consumer().consumer(u=1, lossy=True).closer().world()
        programs = [Program(actor) for actor in world.actors]
        live = [actor.script(copy.copy(actor.me)) for actor in world.actors]
        at, ops = [p.first for p in programs], [script.send(None) for script in live]
        memory, running = list(world.memory), {*range(len(live))}
        while running:
            k = dice.choice(sorted(running))
            assert programs[k].ops[at[k]] == ops[k]
            enabled, result = apply(memory, ops[k])
            at[k] = programs[k].step(at[k], result) if enabled else at[k]
            try:
                ops[k] = live[k].send(result) if enabled else ops[k]
            except StopIteration:
                running.discard(k)


def test_the_explorer_sees_a_dead_end():
    """A producer that waits for a consumer that never leaves is reported."""
    report = Cast(Ring()).producer(3).consumer(0, leave=False).explore()
    assert report.violation == "P1 waits for ever"
    assert report.trace
