"""The rivals of the benchmark: those in host memory really run, and wrong figures of any are
refused."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench import rivals
from bench.rivals.indices import SlabInlet, SlabOutlet, ZmqIndices, make_events
from bench.rivals.measure import Effort, measure
from bench.rivals.pair import ordered, pair
from bench.rivals.rival import Inlet, Outlet, Rival
from bench.rivals.work import HostWork, Terms
from gpuring.cli.measure.crew import Crew, RoleFailed
from gpuring.cli.measure.figures import Figure, select

RIVALS = {rival.name: rival for rival in rivals.RIVALS}
HOST = [rival.name for rival in rivals.RIVALS if rival.memory == "host"]
GPU = [rival.name for rival in rivals.RIVALS if rival.memory == "cuda"]
QUICK = SimpleNamespace(quick=True, mps=False)


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as crew:
        yield crew


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Effort, "of", classmethod(lambda cls, _: cls(0.02, 20, 50, 5)))


def installed(rival: Rival) -> Rival:
    for module, _ in rival.needs:
        pytest.importorskip(module)
    return rival


def measured(rival: Rival, crew: Crew) -> list[Figure]:
    """The figures of a rival.  The test is skipped if the rival stood still, as iceoryx2 did three
    times: for 20 s its reader, which asks without a pause, got nothing."""
    figures = list(measure(rival, QUICK, crew))
    for figure in figures:
        if figure.skipped.startswith(("failed: TimeoutError", "failed: no answer within")):
            pytest.skip(f"{rival.name} stood still: {figure.skipped}")
    return figures


class Forgetful(HostWork):
    """A rival that stamps one frame in ten with the words of the frame before."""

    def stamp(self, place: Any, seq: int) -> None:
        super().stamp(place, seq - (seq % 10 == 0))


class LastWord(HostWork):
    """A rival that does not write the last word of a frame."""

    def stamp(self, place: Any, seq: int) -> None:
        if self.terms.words > 1:
            place[: self.terms.words - 1].fill(seq)
            place[self.terms.words - 1] = 0
        else:
            super().stamp(place, seq)


class Absent(HostWork):
    def __init__(self) -> None:
        raise OSError("no such device")


class DiesInlet(Inlet):
    """A consumer that is killed at the third frame."""

    def __init__(self, lane: Any, work: Any) -> None:
        self._lane = lane

    def receive(self, seq: int) -> None:
        self._lane.get()
        if seq == 3:
            os.kill(os.getpid(), signal.SIGKILL)


class HastyInlet(SlabInlet):
    """Waits only for events that were never recorded, so it does not wait at all."""

    def connect(self, theirs: Any) -> None:
        super().connect(theirs)
        self._written = make_events(self._runtime)


class HastyOutlet(SlabOutlet):
    """Does not wait either, so it overwrites what may not have been read yet."""

    def connect(self, theirs: Any) -> None:
        super().connect(theirs)
        self._read = make_events(self._runtime)


def hasty_inlet(directory: str, work: Any) -> Inlet:
    return HastyInlet(ZmqIndices(directory, binds=False), work)


def hasty_outlet(directory: str, work: Any) -> Outlet:
    return HastyOutlet(ZmqIndices(directory, binds=True), work)


@pytest.mark.slow
@pytest.mark.parametrize("name", HOST)
def test_a_rival_in_host_memory_is_measured(name, crew):
    figures = measured(installed(RIVALS[name]), crew)
    assert [figure.skipped for figure in figures if figure.skipped] == []
    small = {"memory": "host", "slots": 8, "consumers": 1, "lossless": True, "nbytes": 4096}
    for kernel in (True, False):
        (rate,) = select(figures, "throughput", "frames/s", name, kernel=kernel, **small)
        assert rate.values is not None
        assert rate.values.n >= 20
        (trip,) = select(figures, "latency", "round trip", name, kernel=kernel, **small)
        assert trip.values is not None
        assert trip.values.n >= 50
        (one_way,) = select(figures, "latency", "one-way", name, kernel=kernel, **small)
        assert one_way.values is not None
        assert one_way.values.p(0) > 0
        assert one_way.values.p(0) < trip.values.p(100)  # holds on a busy machine, too
        for side in ("producer", "consumer"):
            assert select(
                figures, "transitions", "host time per frame", name, kernel=kernel, side=side
            )
    assert select(figures, "throughput", "frames/s", name, nbytes=6 << 20)
    assert all("frames compared" in figure.verified for figure in figures)
    assert figures == [Figure.from_json(figure.as_json()) for figure in figures]


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU)
def test_a_rival_on_the_gpu_is_measured_or_found_wrong(name, crew):
    figures = list(measure(installed(RIVALS[name]), QUICK, crew))
    skipped = [figure.skipped for figure in figures if figure.skipped]
    assert all(why.startswith("wrong data: ") for why in skipped), skipped
    assert skipped or len(figures) == 6


@pytest.mark.gpu
@pytest.mark.parametrize("end", [{"inlet": hasty_inlet}, {"outlet": hasty_outlet}], ids=list)
def test_an_end_that_does_not_wait_is_found_wrong(end, crew):
    (figure,) = measure(replace(installed(RIVALS["pyzmq + events"]), **end), QUICK, crew)
    assert figure.skipped.startswith("wrong data: ")


@pytest.mark.slow
@pytest.mark.parametrize("work", [Forgetful, LastWord])
@pytest.mark.parametrize("name", HOST)
def test_wrong_data_gives_no_figure(name, work, crew):
    figures = measured(replace(installed(RIVALS[name]), work=work), crew)
    assert len(figures) == 1
    assert figures[0].values is None
    assert figures[0].skipped.startswith("wrong data: ")
    assert "before the clock ran" in figures[0].skipped


def test_words_that_go_wrong_while_measuring_are_found(crew):
    with pair(RIVALS["multiprocessing.Queue"], crew) as (a, b):
        ordered(a, "set_terms", Terms(words=512))
        ordered(b, "set_terms", Terms(words=511))
        for _ in range(2):
            ordered(a, "send", 1)
            ordered(b, "receive", 1, 1)
        assert ordered(b, "wrong") == 0
        ordered(b, "set_terms", Terms(words=512))
        ordered(a, "set_terms", Terms(words=1))
        ordered(a, "send", 1)
        ordered(b, "receive", 1, 1)
        assert ordered(b, "wrong") >= 500
        assert ordered(b, "wrong") == 0


def test_what_is_not_installed_is_named(crew):
    rival = replace(RIVALS["iceoryx2"], needs=(("no_such_package.inner", "no-such-package"),))
    (figure,) = measure(rival, QUICK, crew)
    assert (figure.program, figure.values) == ("iceoryx2", None)
    assert figure.skipped == "not installed: no-such-package"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multiprocessing.Queue", "iceoryx2"])
def test_a_rival_that_cannot_start_says_why(name, crew):
    (figure,) = measure(replace(installed(RIVALS[name]), work=Absent), QUICK, crew)
    assert figure.skipped == "failed: OSError: no such device"


@pytest.mark.slow
def test_a_player_that_dies_ends_the_peer_at_once(crew):
    rival = replace(RIVALS["multiprocessing.Queue"], inlet=DiesInlet)
    (figure,) = measure(rival, QUICK, crew)
    assert figure.skipped.startswith("failed: ")
    assert figure.skipped.endswith("died: killed by signal 9")


@pytest.mark.slow
def test_no_player_is_left(crew):
    seen: list[int] = []

    def disobeyed() -> None:
        with pair(RIVALS["multiprocessing.Queue"], crew) as players:
            seen.extend(player.pid for player in players)
            ordered(players[0], "no such order")

    with pytest.raises(RoleFailed, match="no such order"):
        disobeyed()
    assert len(seen) == 2
    for pid in seen:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_every_peer_is_named_once_and_runs_or_says_why(crew, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with_mps = list(rivals.run(SimpleNamespace(quick=True, mps=True), crew))
    assert [figure.program for figure in with_mps] == [
        "torch queue, fresh",
        "torch queue, reused",
        "cuda.core IPC",
        "pyzmq + events",
        "iceoryx2 + events",
        "pinned host copy",
    ]
    assert all(figure.skipped.startswith("not installed: ") for figure in with_mps)
    assert all(figure.setting["mps"] is True for figure in with_mps)


def test_the_whole_of_a_large_frame_is_compared():
    work = HostWork()
    work.terms = Terms(nbytes=6 << 20, words=(6 << 20) // 8)
    frame = np.empty(work.terms.words, np.uint64)
    work.stamp(frame, 7)
    frame[-1] = 8
    work.check(frame, 7)
    assert work.wrong() == 1
