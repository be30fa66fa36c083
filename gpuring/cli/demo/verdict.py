"""Whether the ring did what it promises: every frame, once, in order, with the bits of the film.

`reference` decodes the clip again, in the parent, and computes with NumPy what each consumer should
have found.  `check` compares; it works on plain records, so that a test can falsify one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuring.printable import counted

from .arithmetic import EDGE_COLUMNS, FRAME_COLUMNS, MOTION, EdgeMeasure, FrameMeasure, luma
from .arrays import NumPy
from .clip import Clip
from .records import Ints, Report, Words

WORKERS = 2


@dataclass(frozen=True)
class Reference:
    """What an independent decode gives, one entry a frame of the clip."""

    pts: Ints
    frames: Words
    """FRAME_COLUMNS of each; the first frame has no motion."""
    edges: Words
    """EDGE_COLUMNS of each."""
    wrap_motion: int
    """Motion from the last frame to the first, where the clip starts again."""

    def expected(self, at: Ints, columns: Sequence[str]) -> Words:
        """What a consumer that computes `columns` finds in the published frames number `at`."""
        index = at % len(self.pts)
        if tuple(columns) == EDGE_COLUMNS:
            return self.edges[index]
        values = self.frames[index]
        if tuple(columns) == FRAME_COLUMNS:
            values[(index == 0) & (at > 0), MOTION] = self.wrap_motion
            return values
        return values[:, [FRAME_COLUMNS.index(column) for column in columns]]


@dataclass(frozen=True)
class Check:
    who: str
    passed: bool
    detail: str
    """What was found; for a failure, every kind of fault with its first sequences."""


@dataclass(frozen=True)
class Verdict:
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def reference(clip: Clip) -> Reference:
    """Decodes `clip` and computes with NumPy what the consumers should have found."""
    kind = NumPy()
    measure, edge_measure = FrameMeasure(clip.shape, kind), EdgeMeasure(clip.shape, kind)
    pts: list[int] = []
    frames: list[Words] = []
    edges: list[Future[tuple[NDArray[np.uint8], Words]]] = []
    first = last = np.zeros(clip.shape[:2], np.uint8)
    with ThreadPoolExecutor(WORKERS) as pool:  # NumPy computes without the GIL
        for stamp, image in clip.frames():
            last = luma(image, kind)
            first = last if not pts else first
            pts.append(stamp)
            frames.append(measure(image, last))
            edges.append(pool.submit(edge_measure, image, last))
            if len(edges) > 4 * WORKERS:  # no more decoded frames in memory than that
                edges[-4 * WORKERS].result()
    return Reference(
        pts=np.array(pts, np.int64),
        frames=np.array(frames).astype(np.uint64),
        edges=np.array([future.result()[1] for future in edges]).astype(np.uint64),
        wrap_motion=int(np.abs(first.astype(np.int64) - last).sum()),
    )


def check(
    truth: Reference,
    loops: int,
    producer: Report,
    analyser: Report,
    edges: Sequence[Report],
    viewer: Report,
) -> Verdict:
    """Holds the four reports to the reference.  Never raises for what a report contains."""
    number = {int(seq): at for at, seq in enumerate(producer.seq)}
    return Verdict(
        (
            _producer(truth, loops, producer),
            _analyser(truth, number, analyser),
            _edges(truth, number, edges),
            _viewer(truth, number, viewer),
        )
    )


def _producer(truth: Reference, loops: int, producer: Report) -> Check:
    want = np.tile(truth.pts, loops)
    faults = []
    if len(want) == 0:
        faults.append("the clip has no frames")
    if producer.frames != len(want):
        faults.append(f"{producer.frames} frames published, the clip has {len(want)}")
    elif not np.array_equal(producer.pts, want):
        faults.append(f"pts differ from the clip's at {_some(producer.seq[producer.pts != want])}")
    if np.any(np.diff(producer.seq) <= 0):
        faults.append("sequences do not rise")
    span = f"sequences {producer.seq[0]} to {producer.seq[-1]}" if producer.frames else "none"
    if voids := int((np.diff(producer.seq) - 1).sum()):
        span += f" ({voids} void: a slow reader kept the slot)"
    return _line("producer", faults, f"{producer.frames} frames published, {span}")


def _analyser(truth: Reference, number: dict[int, int], analyser: Report) -> Check:
    faults = _books(number, analyser.seq)
    if np.any(np.diff(analyser.seq) <= 0):
        late = analyser.seq[1:][np.diff(analyser.seq) <= 0]
        faults.append(f"out of order at {_some(late)}")
    faults += _content(truth, number, analyser, FRAME_COLUMNS)
    return _line(
        "analyser",
        faults,
        f"{analyser.frames} of {len(number)} frames, each once, in order; colour sums, motion and "
        "checksums equal",
    )


def _edges(truth: Reference, number: dict[int, int], edges: Sequence[Report]) -> Check:
    faults = _books(number, np.concatenate([worker.seq for worker in edges]))
    for worker in edges:
        if np.any(np.diff(worker.seq) <= 0):
            faults.append(f"{worker.name}: sequences do not rise")
        faults += _content(truth, number, worker, EDGE_COLUMNS)
    shares = " + ".join(str(worker.frames) for worker in edges)
    total = sum(worker.frames for worker in edges)
    return _line(
        "edges",
        faults,
        f"{total} of {len(number)} frames, each once among the workers ({shares}); edge maps equal",
    )


def _viewer(truth: Reference, number: dict[int, int], viewer: Report) -> Check:
    faults = []
    if viewer.frames == 0:
        faults.append("no frame at all")
    unknown = [seq for seq in viewer.seq.tolist() if seq not in number]
    if unknown:
        faults.append(f"frames that were never published: {_some(unknown)}")
    steps = np.diff(viewer.seq)
    if np.any(steps <= 0):
        faults.append(f"not newer than the one before: {_some(viewer.seq[1:][steps <= 0])}")
    unsaid = (viewer.lost[1:] != steps - 1) & (steps > 0)
    if np.any(unsaid):
        faults.append(f"lost frames miscounted before {_some(viewer.seq[1:][unsaid])}")
    faults += _content(truth, number, viewer, ("checksum",))
    return _line(
        "viewer",
        faults,
        f"{counted(viewer.frames, 'frame')}, each newer than the last, "
        f"{counted(int(viewer.lost.sum()), 'sequence')} lost and counted; checksums equal",
    )


def _books(number: dict[int, int], seqs: Ints) -> list[str]:
    """Faults of frames that were to be seen exactly once each."""
    seen = Counter(seqs.tolist())
    faults = []
    if missing := [seq for seq in number if seq not in seen]:
        faults.append(f"missing: {_some(missing)}")
    if twice := sorted(seq for seq, times in seen.items() if times > 1):
        faults.append(f"seen more than once: {_some(twice)}")
    if unknown := sorted(seq for seq in seen if seq not in number):
        faults.append(f"never published: {_some(unknown)}")
    return faults


def _content(
    truth: Reference, number: dict[int, int], report: Report, columns: Sequence[str]
) -> list[str]:
    """Faults of the pts and the results of those frames that were published."""
    known = np.array([seq in number for seq in report.seq.tolist()], bool)
    if not known.any() or len(truth.pts) == 0:
        return []
    if report.values.shape != (report.frames, len(columns)):
        return [f"{report.name}: results have the shape {report.values.shape}"]
    seqs = report.seq[known]
    at = np.array([number[seq] for seq in seqs.tolist()], np.int64)
    faults = []
    wrong = report.pts[known] != truth.pts[at % len(truth.pts)]
    if wrong.any():
        faults.append(f"{report.name}: wrong pts at {_some(seqs[wrong])}")
    differs = report.values[known] != truth.expected(at, columns)
    for column, name in enumerate(columns):
        if differs[:, column].any():
            faults.append(f"{report.name}: wrong {name} at {_some(seqs[differs[:, column]])}")
    return faults


def _line(who: str, faults: list[str], fine: str) -> Check:
    return Check(who, not faults, "; ".join(faults) or fine)


def _some(seqs: Sequence[int] | Ints) -> str:
    shown = ", ".join(str(seq) for seq in list(seqs)[:5])
    return f"sequence {shown}" + (f" and {len(seqs) - 5} more" if len(seqs) > 5 else "")
