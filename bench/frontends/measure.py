"""Verifies a way of passing photos, measures it, and kills a worker and an engine of it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.frontends import example, roles, ways
from bench.frontends.transport import Setting
from gpuring.cli.bench.crew import Crew, Part, RoleFailed

START_S = 90.0
"""How long processes may take to import, and to have a GPU context, a model and a codec."""
CONNECT_S = 20.0
Record = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    seconds: float
    http: bool
    deaths: bool


class Case:
    """One way with MPS off or on: its processes, which import before anybody is measured."""

    def __init__(
        self, stack: contextlib.ExitStack, way: str, setting: Setting, mps: bool,
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.way, self.setting, self.mps = way, setting, mps
        self._lane = lane = stack.enter_context(ways()[way].lane(setting))  # kept: locks go with it
        crew = stack.enter_context(Crew(environment))

        def start(role: Callable[..., Any], *numbers: int) -> Part:
            given = (way, lane, setting, *numbers)
            return crew.start(role, *given, inherit=True, patience_s=START_S)

        self.keeper = start(roles.keeper)
        self.workers = [start(roles.worker, n) for n in range(setting.workers)]
        self.engines = [start(roles.engine, n) for n in range(setting.engines)]

    @property
    def everybody(self) -> list[Part]:
        return [self.keeper, *self.workers, *self.engines]

    def is_imported(self) -> None:
        """Waits."""
        for part in self.everybody:
            part.receive()

    def begin(self, jpegs: Sequence[bytes]) -> str:
        """Lets them use the GPU.  Returns the codec's name when all are ready."""
        self.keeper.send()
        self.keeper.receive()
        for part in self.engines:
            part.send()
        for part in self.workers:
            part.send(list(jpegs))
        codecs = {part.receive()[1] for part in self.workers}
        for part in self.engines:
            part.receive()
        return " and ".join(sorted(codecs))

    def files(self, seconds: float, calls: int, stages: bool = False) -> list[Record]:
        """What each worker found."""
        self.order(seconds, calls, stages)
        return [part.receive() for part in self.workers]

    def order(self, *given: Any) -> None:
        for part in self.workers:
            part.send(("files", *given))

    def clock(self, on: bool) -> Record:
        """The stages of engines since the last time, and turns their clocks on or off."""
        merged: Record = {}
        for part in self.engines:
            part.send((roles.STAGES, on))
        for part in self.engines:
            for stage, seconds in part.receive().items():
                merged.setdefault(stage, []).extend(seconds)
        return merged

    def end(self, without: Sequence[Part] = ()) -> None:
        """Those who do not end by themselves are killed with their crew."""
        for part in (*self.workers, *self.engines, self.keeper):
            if part not in without:
                with contextlib.suppress(RoleFailed, OSError):
                    part.send((roles.END,))
                    part.result()


def missing(way: str) -> list[str]:
    return [name for name in ways()[way].needs if importlib.util.find_spec(name) is None]


def measured(case: Case, jpegs: Sequence[bytes], answers: Any, plan: Plan) -> Record:
    """All figures of one case, or why there are none."""
    record: Record = {"way": case.way, "mps": case.mps}
    before_mib = gpu_mib()
    try:
        record["codec"] = case.begin(jpegs)
        _connect(case, answers)
        record["files"] = _files(case, answers, plan.seconds)
        used_mib = gpu_mib()
        record["gpu_mib"] = None if used_mib is None else used_mib - (before_mib or 0)
        record["stages_ms"] = _stages(case, answers, plan.seconds / 3)
        if plan.http and not case.mps:
            record["http"] = _http(case, jpegs, answers, plan.seconds)
        dead = []
        if plan.deaths and not case.mps:  # a killed client of MPS takes the others with it
            dead = [case.workers[0], case.engines[0]]
            record["deaths"] = _deaths(case, answers, 3 * case.setting.patience_s, *dead)
        case.end(without=dead)
    except Exception as failed:  # the other ways go on
        why = str(failed).strip().splitlines() or [""]
        record["failed"] = f"{type(failed).__name__}: {why[-1]}"
    return record


def _connect(case: Case, answers: Any) -> None:
    """Until each worker has had every photo enlarged, and nothing failed."""
    until = time.monotonic() + CONNECT_S
    while True:
        found = case.files(0.3, case.setting.calls)
        if _wrong(found, answers):
            raise RoleFailed("wrong answers before the clock ran")
        if all(all(each["answers"]) and not each["failed"] for each in found):
            return
        if time.monotonic() > until:
            raise RoleFailed(f"not every worker gets answers: {[each['failed'] for each in found]}")


def _files(case: Case, answers: Any, seconds: float) -> Record:
    cpu_s, begun = cpu_seconds(case.everybody), time.monotonic()
    found = case.files(seconds, case.setting.calls)
    cpu_s = cpu_seconds(case.everybody) - cpu_s
    if not any(each["ended"] for each in found):
        raise RoleFailed(f"no answers: {[each['failed'] for each in found]}")
    ended = np.concatenate([each["ended"] for each in found])
    took_ms = 1000 * np.concatenate([each["took"] for each in found])
    return {
        "requests_per_s": len(took_ms) / (ended.max() - begun),
        **_percentiles(took_ms),
        "cpu_ms": 1000 * cpu_s / len(took_ms),
        **_checked(found, answers),
    }


def _stages(case: Case, answers: Any, seconds: float) -> dict[str, float]:
    """The median of each stage, of one request at a time in all."""
    case.clock(on=True)
    case.workers[0].send(("files", seconds, 1, True))
    found = case.workers[0].receive()
    stages = found["stages"] | case.clock(on=False)
    medians = {stage: 1000 * float(np.median(each)) for stage, each in stages.items()}
    whole = 1000 * float(np.median(found["took"]))
    return medians | {"all": whole}


def _http(case: Case, jpegs: Sequence[bytes], answers: Any, seconds: float) -> Record:
    """Over HTTP, with as many connections as requests could be in flight."""
    load_of = example("upscale_load").Load
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        for part in case.workers:
            part.send(("http", listening))
        pids = {part.pid for part in case.workers}
        connections = case.setting.workers * case.setting.calls
        warm, load = (load_of(address, jpegs, answers) for _ in range(2))
        asyncio.run(warm.run(0, lambda: pids, connections))
        cpu_s, begun = cpu_seconds(case.everybody), time.monotonic()
        asyncio.run(load.run(seconds, connections=connections))
        took_s = time.monotonic() - begun
        cpu_s = cpu_seconds(case.everybody) - cpu_s
        for part in case.workers:
            part.send()
        for part in case.workers:
            part.receive()
    return {
        "requests_per_s": len(load.took_ms) / took_s,
        **_percentiles(load.took_ms),
        "cpu_ms": 1000 * cpu_s / len(load.took_ms),
        "wrong": load.wrong,
        "failed": {"refused": load.refused} if load.refused else {},
    }


def _deaths(case: Case, answers: Any, seconds: float, *victims: Part) -> Record:
    """After a third of it a worker and an engine are killed.  What the other workers saw."""
    begun = time.monotonic()
    case.order(seconds, case.setting.calls, False)
    time.sleep(seconds / 3)
    died = time.monotonic()
    for victim in victims:
        victim.kill()
    case.workers, case.engines = case.workers[1:], case.engines[1:]
    found = []
    with contextlib.suppress(RoleFailed):  # a worker that hangs says nothing
        for part in case.workers:
            found.append(part.receive())
    ended = np.sort(np.concatenate([each["ended"] for each in found] or [[]]))
    last = begun + seconds * 2 / 3
    gaps = np.diff([died, *ended[ended > died], max(begun + seconds, died)])
    return {
        "requests_per_s_before": float((ended < died).sum() / (died - begun)),
        "requests_per_s_at_the_end": float((ended > last).sum() / (seconds / 3)),
        "longest_silence_ms": 1000 * float(gaps.max()),
        "workers_that_hang": len(case.workers) - len(found),
        **_checked(found, answers),
    }


def _checked(found: Sequence[Record], answers: Any) -> Record:
    failed: dict[str, int] = {}
    for each in found:
        for name, count in each["failed"].items():
            failed[name] = failed.get(name, 0) + count
    unchecked = sum(each["unchecked"] for each in found)
    return {"wrong": _wrong(found, answers), "unchecked": unchecked, "failed": failed}


def _wrong(found: Sequence[Record], answers: Any) -> int:
    """Different answers that were wrong.  A worker keeps one of those that are equal."""
    return sum(
        not answers.is_right(n, answer)
        for each in found
        for n, kept in enumerate(each["answers"])
        for answer in kept
    )


def _percentiles(took_ms: Any) -> Record:
    p50, p99 = np.percentile(took_ms, [50, 99])
    return {"requests": len(took_ms), "p50_ms": float(p50), "p99_ms": float(p99)}


def cpu_seconds(parts: Sequence[Part]) -> float:
    """What these processes have computed so far."""
    ticks = 0
    for part in parts:
        fields = Path(f"/proc/{part.pid}/stat").read_text().rsplit(")")[-1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def gpu_mib() -> int | None:
    """What all processes together use of the first GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return int(done.stdout.split()[0])
