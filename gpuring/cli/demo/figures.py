"""The figures of a run as JSON, with a card of the machine that they come from."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

import gpuring

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
        "gpuring": gpuring.__version__,
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
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
    marks = (50, 90, 99, 99.9, 100)
    at = np.percentile(report.latency_ns, marks) / 1e3 if report.frames else [None] * len(marks)
    return {
        "name": report.name,
        "subscription": subscription,
        "policy": policy,
        "frames": report.frames,
        "frames_per_s": round(report.frames_per_s, 2),
        "lost": int(report.lost.sum()),
        "max_lag": outcome.max_lag[subscription],
        "latency_us": {
            "max" if mark == 100 else f"p{mark:g}": None if value is None else round(value, 2)
            for mark, value in zip(marks, at, strict=True)
        },
    }


def machine_card() -> dict[str, Any]:
    """What a reader needs to judge the figures; nothing that names the machine or its user."""
    card: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gpu": None,
    }
    cupy: Any = sys.modules.get("cupy")  # loaded if the ring was on a GPU
    if cupy is not None and cupy.cuda.is_available():
        runtime = cupy.cuda.runtime
        properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
        card["gpu"] = properties["name"].decode()
        card["cupy"] = cupy.__version__
        card["cuda_runtime"] = runtime.runtimeGetVersion()
        card["cuda_driver"] = runtime.driverGetVersion()
    return card


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
