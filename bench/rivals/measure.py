"""Verifies a rival, then measures it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.rivals.pair import ordered, pair
from bench.rivals.rival import RUN_S, SLOTS, Rival
from bench.rivals.work import LARGE, WORDS, Terms
from gpuring.cli.measure.crew import Crew, RoleFailed, answers
from gpuring.cli.measure.figures import Distribution, Figure, Value

SLOW_NS = 300_000
"""Longer than any hand-over takes to reach the other side, so one that does not wait is wrong."""
VERIFIED_FRAMES = 2 * SLOTS
VERIFIED_ROUNDS = SLOTS // 2
WARM_UP = 2 * SLOTS
CALIBRATION_S = 0.02
WARM_UP_ROUNDS = 20


@dataclass(frozen=True)
class Effort:
    """How much is measured.  The counts follow from the rival's speed and from the time for each
    part."""

    part_s: float
    windows: int = 24
    most_rounds: int = 3000
    bursts: int = 60

    @classmethod
    def of(cls, settings: Any) -> Effort:
        return cls(0.2, 20, 500, 20) if getattr(settings, "quick", False) else cls(0.4)


class WrongData(Exception):
    """Frames arrived with other words than were sent."""


def measure(rival: Rival, settings: Any, crew: Crew) -> Iterator[Figure]:
    """Yields all figures of one rival, or one that says why there are none."""
    missing = [name for module, name in rival.needs if not _installed(module)]
    if missing:
        yield _skipped(rival, settings, Terms(), f"not installed: {', '.join(missing)}")
        return
    terms = Terms()
    try:
        with pair(rival, crew) as players:
            measurement = _Measurement(rival, settings, *players)
            try:
                yield from measurement.everything(terms)
                if rival.memory == "host":
                    terms = Terms(words=1)
                    yield from measurement.everything(terms)
                terms = Terms(nbytes=LARGE)
                yield from measurement.throughput(terms)
            except WrongData as error:
                yield _skipped(rival, settings, terms, f"wrong data: {error}")
    except RoleFailed as error:
        yield _skipped(rival, settings, terms, f"failed: {error.last_line}")


class _Measurement:
    def __init__(self, rival: Rival, settings: Any, a: Any, b: Any) -> None:
        self._rival = rival
        self._settings = settings
        self._effort = Effort.of(settings)
        self._a = a
        self._b = b

    def everything(self, terms: Terms) -> list[Figure]:
        """Raises WrongData if a single frame that the figures stem from was not right."""
        how = self._verify(terms)
        frames_per_s = self._stream()
        round_trip = self._rounds(finish=False)
        one_way = self._rounds(finish=True)
        producer, consumer = self._bursts()
        self._must_be_right("while measuring")
        return [
            self._figure(terms, how, "throughput", "frames/s", "frames/s", frames_per_s),
            self._figure(terms, how, "latency", "round trip", "µs", round_trip),
            self._figure(terms, how, "latency", "one-way", "µs", one_way),
            *(
                self._figure(
                    terms, how, "transitions", "host time per frame", "µs", values, side=side
                )
                for side, values in (("producer", producer), ("consumer", consumer))
            ),
        ]

    def throughput(self, terms: Terms) -> list[Figure]:
        """Returns the throughput alone, measured as in `everything`."""
        how = self._verify(terms)
        frames_per_s = self._stream()
        self._must_be_right("while measuring")
        return [self._figure(terms, how, "throughput", "frames/s", "frames/s", frames_per_s)]

    def _verify(self, terms: Terms) -> str:
        """Checks every word of some frames while GPUs are slowed down.  Then sets the terms of what
        follows."""
        whole = terms.words if terms.words == 1 else terms.nbytes // 8
        slow_ns = SLOW_NS if self._rival.memory == "cuda" else 0
        for slow in ({"stamp_after_ns": slow_ns}, {"check_after_ns": slow_ns}):
            self._set(Terms(terms.nbytes, whole, **slow))
            self._run(VERIFIED_FRAMES, 1)
            self._ask(VERIFIED_ROUNDS, finish=False)
        self._must_be_right("before the clock ran")
        self._set(terms)
        what = "the sequence" if whole == 1 else f"all {whole} words"
        slowed = f" on a GPU slowed by {slow_ns // 1000} µs a frame on either side" * bool(slow_ns)
        return (
            f"{self._using()}: {2 * VERIFIED_FRAMES + 4 * VERIFIED_ROUNDS} frames compared in "
            f"{what}{slowed} before the clock ran, and every frame while it did"
        )

    def _stream(self) -> Any:
        """Returns frames/s of windows of consecutive frames, each until its checks are done."""
        effort = self._effort
        per_s = took_s = 0.0
        for _ in range(3):
            if took_s < CALIBRATION_S / 2:
                frames = max(WARM_UP, int(per_s * CALIBRATION_S))
                _, done = self._run(frames, 2)[1]
                took_s = float(np.diff(done)[0]) / 1e9
                per_s = frames / took_s
        per_window = max(SLOTS // 2, int(per_s * effort.part_s / effort.windows))
        _, done = self._run(per_window, effort.windows + 1)[1]
        return per_window / (np.diff(done) / 1e9)

    def _rounds(self, finish: bool) -> Any:
        """Returns the µs of every round trip, or of every one-way trip with `finish`."""
        (began, ended), _ = self._ask(WARM_UP_ROUNDS, finish)
        each_s = float(np.median(ended - began)) / 1e9
        rounds = int(self._effort.part_s / max(each_s, 1e-6))
        (began, ended), done = self._ask(min(max(rounds, 50), self._effort.most_rounds), finish)
        return ((done if finish else ended) - began) / 1e3

    def _bursts(self) -> tuple[Any, Any]:
        """Returns the µs of each call without a wait: of SLOTS sends, then of SLOTS receives."""
        sends, receives = [], []
        for _ in range(self._effort.bursts):
            sends.append(ordered(self._a, "send", SLOTS))
            receives.append(ordered(self._b, "receive", 1, SLOTS)[0])
        settled = self._effort.bursts // 5
        return np.concatenate(sends[settled:]) / 1e3, np.concatenate(receives[settled:]) / 1e3

    def _run(self, per_window: int, windows: int) -> tuple[Any, Any]:
        self._b.send(("receive", windows, per_window))
        self._a.send(("send", windows * per_window))
        return self._answers()

    def _ask(self, rounds: int, finish: bool) -> tuple[Any, Any]:
        self._b.send(("answer", rounds, finish))
        self._a.send(("ask", rounds))
        return self._answers()

    def _answers(self) -> tuple[Any, Any]:
        asked, answered = answers((self._a, self._b), RUN_S)
        return asked, answered

    def _set(self, terms: Terms) -> None:
        for player in (self._a, self._b):
            ordered(player, "set_terms", terms)

    def _must_be_right(self, when: str) -> None:
        wrong = sum(ordered(player, "wrong") for player in (self._a, self._b))
        if wrong:
            raise WrongData(f"{wrong} words differ from what was sent, {when}")

    def _using(self) -> str:
        needs = [f"{name} {_version(module, name)}" for module, name in self._rival.needs]
        return ", ".join(needs or [f"Python {platform.python_version()}"])

    def _figure(
        self, terms: Terms, how: str, group: str, name: str, unit: str, values: Any, **more: Value
    ) -> Figure:
        setting = _setting(self._rival, self._settings, terms) | more
        found = Distribution.of(values)
        return Figure(group, name, self._rival.name, unit, setting, found, verified=how)


def _setting(rival: Rival, settings: Any, terms: Terms) -> dict[str, Value]:
    setting: dict[str, Value] = {
        "memory": rival.memory,
        "kernel": terms.words == WORDS,
        "slots": SLOTS,
        "nbytes": terms.nbytes,
        "consumers": 1,
        "lossless": True,
    }
    if rival.memory == "cuda":
        setting["mps"] = bool(getattr(settings, "mps", False))
    return setting


def _skipped(rival: Rival, settings: Any, terms: Terms, why: str) -> Figure:
    setting = _setting(rival, settings, terms)
    return Figure("throughput", "frames/s", rival.name, "frames/s", setting, skipped=why)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _version(module: str, distribution: str) -> str:
    # The distributions of CuPy have other names than its module.
    names = importlib.metadata.packages_distributions().get(module, [distribution])
    try:
        return importlib.metadata.version(names[0])
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"
