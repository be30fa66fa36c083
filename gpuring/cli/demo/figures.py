"""The figures of a run as JSON, with a card of the machine that they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..measure.card import machine_card
from ..measure.figures import Distribution
from .records import Outcome, Report
from .table import KINDS
from .verdict import Verdict


def write(path: Path, outcome: Outcome, verdict: Verdict, why: dict[str, str]) -> None:
    """Writes everything; `why` are the reasons for memory and synchroniser."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(collect(outcome, verdict, why), indent=2) + "\n")


def collect(outcome: Outcome, verdict: Verdict, why: dict[str, str]) -> dict[str, Any]:
    """All figures.  Latencies are from publish to acquired, on the host's clock."""
    clip, producer = outcome.clip, outcome.producer
    return {
        "machine": machine_card(),
        "clip": {
            "file": clip.path.name,
            "width": clip.width,
            "height": clip.height,
            "frames_per_s": clip.rate,
            "codec": clip.codec,
        },
        "ring": {
            "memory": outcome.memory,
            "memory_why": why["memory"],
            "sync": outcome.sync,
            "sync_why": why["sync"],
            "gate": outcome.gate,
            "slots": outcome.slots,
            "frame_nbytes": int(np.prod(clip.shape)),
        },
        "producer": {
            "frames": producer.frames,
            "frames_per_s": round(producer.frames_per_s, 2),
            "paced_at_frames_per_s": outcome.fps,
            "first_seq": int(producer.seq[0]) if producer.frames else None,
            "last_seq": int(producer.seq[-1]) if producer.frames else None,
            "voids": int((np.diff(producer.seq) - 1).sum()),
        },
        "consumers": [_consumer(report, outcome) for report in outcome.consumers],
        "verdict": {
            "passed": verdict.passed,
            "checks": [
                {"who": check.who, "passed": check.passed, "detail": check.detail}
                for check in verdict.checks
            ],
        },
    }


def _consumer(report: Report, outcome: Outcome) -> dict[str, Any]:
    subscription, policy = KINDS[report.name]
    values = Distribution.of(report.latency_ns / 1e3) if report.frames else None
    return {
        "name": report.name,
        "subscription": subscription,
        "policy": policy,
        "frames": report.frames,
        "frames_per_s": round(report.frames_per_s, 2),
        "lost": int(report.lost.sum()),
        "max_lag": outcome.max_lag[subscription],
        "latency_us": {
            "max" if mark == 100 else f"p{mark:g}": values and round(values.p(mark), 2)
            for mark in (50, 90, 99, 99.9, 100)
        },
    }
