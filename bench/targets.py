"""The targets that the figures are compared with.  Each is computed from one run alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gpuring.cli.measure.figures import Figure, Value

SYNCS = ("timeline", "event")
GROUPS = {"host time per frame": "transitions"}
"""The group that is compared if several have figures of a name.  Nobody waits in this one."""
TORCH = "torch queue, fresh"


@dataclass(frozen=True)
class Verdict:
    """One target and what this run says about it."""

    name: str
    goal: str
    value: float | None
    """None means that it was not measured."""
    met: bool | None
    basis: str = ""
    """The two figures that were compared, or why there are none."""

    @property
    def word(self) -> str:
        return {True: "met", False: "NOT met", None: "not measured"}[self.met]


@dataclass(frozen=True)
class Target:
    """A bound on a value that is computed from the figures."""

    name: str
    bound: float
    at_least: bool
    unit: str
    compute: Callable[[list[Figure]], tuple[float, str] | None]

    def judge(self, figures: list[Figure]) -> Verdict:
        goal = f"{'≥' if self.at_least else '≤'} {self.bound:,g}{self.unit}"
        found = self.compute(figures)
        if found is None:
            return Verdict(self.name, goal, None, None)
        value, basis = found
        met = value >= self.bound if self.at_least else value <= self.bound
        return Verdict(self.name, goal, value, met, basis)


def judge(figures: Iterable[Figure]) -> list[Verdict]:
    kept = [figure for figure in figures if figure.values is not None]
    return [target.judge(kept) for target in targets()]


# ---- finding and comparing figures --------------------------------------------------------------


Setting = Mapping[str, Value]


def find(
    figures: Iterable[Figure], name: str, setting: Setting, program: str = "gpuring"
) -> Figure | None:
    """The first figure with values whose setting agrees with `setting`.  A key that the program
    does not have at all (a queue has no sync) does not matter."""
    group = GROUPS.get(name)
    for figure in figures:
        if figure.values is None or (figure.name, figure.program) != (name, program):
            continue
        if group not in (None, figure.group):
            continue
        absent_is_fine = program not in ("gpuring", "core")
        if all(
            figure.setting.get(key, value if absent_is_fine else None) == value
            for key, value in setting.items()
        ):
            return figure
    return None


Pair = tuple[Figure | None, Figure | None]


def _value(figure: Figure, quantile: float = 50) -> float:
    """The value of a figure, in µs if it is a time."""
    assert figure.values is not None
    return figure.values.p(quantile) * {"ns": 1e-3, "ms": 1e3}.get(figure.unit, 1.0)


def _ratio(pairs: Iterable[Pair], *, worst: Callable[..., float]) -> tuple[float, str] | None:
    """The worst ratio of the pairs that are there."""
    ratios = {
        _value(ours) / _value(theirs): f"{_said(ours)} against {theirs.program} {_said(theirs)}"
        for ours, theirs in pairs
        if ours is not None and theirs is not None and _value(theirs)
    }
    return (value := worst(ratios), ratios[value]) if ratios else None


def _said(figure: Figure) -> str:
    assert figure.values is not None
    sync = figure.setting.get("sync", "")
    return f"{figure.values.p50:,.4g} {figure.unit}{f' ({sync})' if sync else ''}"


def _against(
    name: str,
    program: str,
    *settings: Setting,
    theirs: Setting | None = None,
    worst: Callable[..., float],
) -> Callable[[list[Figure]], tuple[float, str] | None]:
    def compute(figures: list[Figure]) -> tuple[float, str] | None:
        return _ratio(
            (
                (
                    find(figures, name, setting),
                    find(figures, name, setting if theirs is None else theirs, program),
                )
                for setting in settings
            ),
            worst=worst,
        )

    return compute


def _plain(
    name: str, quantile: float, setting: Setting
) -> Callable[[list[Figure]], tuple[float, str] | None]:
    """The figure itself, without a comparison."""

    def compute(figures: list[Figure]) -> tuple[float, str] | None:
        figure = find(figures, name, setting)
        if figure is None or figure.values is None or figure.values.given(quantile) is None:
            return None
        return _value(figure, quantile), f"p{quantile:g}"

    return compute


def _slowest_transition(figures: list[Figure]) -> tuple[float, str] | None:
    verbs = [find(figures, verb, {}, "core") for verb in ("claim", "publish", "acquire", "release")]
    if not all(verbs):
        return None
    slowest = max((verb for verb in verbs if verb), key=_value)
    return _value(slowest) * 1e3, slowest.name


def _size_matters(figures: list[Figure]) -> tuple[float, str] | None:
    """How much slower frames of 1 GiB are handed over than those of 4 KiB, in units of the noise of
    the latter.  No kernels run, because kernels take longer on more memory, whoever hands it
    over."""
    worst: tuple[float, str] | None = None
    for figure in figures:
        small = {**figure.setting, "nbytes": 4096}
        if figure.name != "frames/s" or figure.setting.get("nbytes") != 1 << 30:
            continue
        if figure.setting.get("kernel"):
            continue
        base = find(figures, "frames/s", small)
        if base is None or base.values is None or figure.program != "gpuring":
            continue
        noise = max(base.values.p(90) - base.values.p(10), 0.02 * base.values.p50)
        value = (base.values.p50 - _value(figure)) / noise
        if worst is None or value > worst[0]:
            worst = value, f"{_said(base)} at 4 KiB, {_said(figure)} at 1 GiB"
    return worst


def one_more_consumer_us(
    figures: Iterable[Figure], *, loaded: bool, **setting: Value
) -> float | None:
    """The slope of the producer's host cost over lossless subscriptions, in µs each."""
    costs = {
        int(figure.setting["consumers"]): _value(figure)
        for figure in figures
        if figure.name == "producer's host cost"
        and figure.program == "gpuring"
        and figure.values is not None
        and figure.setting.get("loaded") is loaded
        and all(figure.setting.get(key) == value for key, value in setting.items())
    }
    if len(costs) < 2:
        return None
    return float(np.polyfit(list(costs), list(costs.values()), 1)[0])


def _one_more(figures: list[Figure]) -> tuple[float, str] | None:
    slopes: dict[float, str] = {}
    for sync in ("host", *SYNCS):
        for mps in (None,) if sync == "host" else (False, True):
            where: dict[str, Value] = {"sync": sync} if mps is None else {"sync": sync, "mps": mps}
            slope = one_more_consumer_us(figures, loaded=False, **where)
            if slope is not None:
                slopes[slope] = f"{sync}{', MPS' if mps else ''}, nobody running beside it"
    return (max(slopes), slopes[max(slopes)]) if slopes else None


# ---- the targets --------------------------------------------------------------------------------


def targets() -> Iterator[Target]:
    yield from _beside_the_baseline()
    yield from _beside_torch()
    ours: dict[str, Value] = {**_RATE, "kernel": True, "mps": True, "sync": "timeline"}
    yield Target(
        "frames/s, timeline, MPS on, against the event ring in C",
        1.0,
        True,
        " ×",
        _against("frames/s", "floor", ours, theirs={**ours, "sync": "event"}, worst=min),
    )
    yield Target(
        "a frame of 1 GiB costs what one of 4 KiB does (in widths of the noise)",
        1.0,
        False,
        "",
        _size_matters,
    )
    yield Target("one more lossless consumer, producer's host cost", 0.3, False, " µs", _one_more)
    host: dict[str, Value] = {**_RATE, "sync": "host", "kernel": False}
    queue: dict[str, Value] = {"nbytes": 4096, "kernel": False}
    yield Target(
        "frames/s on a host ring, Python to Python",
        500_000,
        True,
        "",
        _plain("frames/s", 50, host),
    )
    yield Target(
        "the same against multiprocessing.Queue",
        5,
        True,
        " ×",
        _against("frames/s", "multiprocessing.Queue", host, theirs=queue, worst=min),
    )
    yield Target("slowest transition in C, uncontended", 100, False, " ns", _slowest_transition)
    yield Target("sleeping consumer woken, p50", 30, False, " µs", _plain("wake-up", 50, {}))
    yield Target("sleeping consumer woken, p99", 80, False, " µs", _plain("wake-up", 99, {}))
    idle = "CPU of a waiting consumer"
    yield Target(
        "idle consumer's CPU, % of a core", 0.5, False, " %",
        _plain(idle, 50, {"sync": "host", "waits_for": "a frame"}),
    )  # fmt: skip


_RATE: dict[str, Value] = {
    "slots": 8, "nbytes": 4096, "consumers": 1, "lossless": True, "members": 1, "producers": 1,
    "batch": 1,
}  # fmt: skip


def _per_sync(**setting: Value) -> list[dict[str, Value]]:
    return [{**setting, "sync": sync, "gate": "stream"} for sync in SYNCS]


def _beside_the_baseline() -> Iterator[Target]:
    name = "host time per frame"
    for mps in (False, True):
        word = "on" if mps else "off"
        for side in ("producer", "consumer"):
            for kernel in (False, True):
                yield Target(
                    f"{name}, {side}, {'with' if kernel else 'no'} kernel, MPS {word}, against "
                    "the baseline in C",
                    1.5,
                    False,
                    " ×",
                    _against(
                        name,
                        "floor",
                        *_per_sync(side=side, kernel=kernel, mps=mps),
                        worst=max,
                    ),
                )
        yield Target(
            f"frames/s, a kernel each side, 8 slots, MPS {word}, against the baseline in C",
            0.8 if mps else 0.9,
            True,
            " ×",
            _against("frames/s", "floor", *_per_sync(**_RATE, kernel=True, mps=mps), worst=min),
        )
        yield Target(
            f"round trip p50, a kernel each side, MPS {word}, against the baseline in C",
            1.3 if mps else 1.1,
            False,
            " ×",
            _against(
                "round trip", "floor", *_per_sync(kernel=True, busy=False, mps=mps), worst=max
            ),
        )


def _beside_torch() -> Iterator[Target]:
    for mps in (False, True):
        word = "on" if mps else "off"
        rate = _per_sync(**_RATE, kernel=True, mps=mps)[0]
        yield Target(
            f"frames/s, MPS {word}, against a torch queue of fresh CUDA tensors",
            10 if mps else 6,
            True,
            " ×",
            _against("frames/s", TORCH, rate, worst=min),
        )
        trip = _per_sync(kernel=True, busy=False, mps=mps)
        for name, settings in (
            ("round trip", trip),
            ("one-way", trip),
            ("host time per frame", _per_sync(side="producer", kernel=True, mps=mps)),
            ("host time per frame", _per_sync(side="consumer", kernel=True, mps=mps)),
        ):
            side = f", {settings[0]['side']}" if "side" in settings[0] else ""
            yield Target(
                f"{name}{side}, MPS {word}, against a torch queue of fresh CUDA tensors",
                1.0,
                False,
                " ×",
                _against(name, TORCH, *settings, worst=max),
            )
