"""Verifies a way of passing photos, measures it, and kills one of its workers and engines."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.cpu import cpu_s
from bench.frontends import example, light, roles, ways
from bench.frontends.transport import Setting
from gpuring.cli.measure.crew import Crew, Part, RoleFailed

START_S = 45.0
"""How long processes may take to import, and to make a GPU context, a model and a codec."""
CONNECT_S = 20.0
HANG_S = 3.0
"""A worker that is so late hangs, because of the death of another process."""
Record = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    seconds: float
    http: bool
    frames: bool
    deaths: bool


class Case:
    """The processes of one way, with MPS off or on."""

    def __init__(
        self, stack: contextlib.ExitStack, way: str, setting: Setting, mps: bool,
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.way, self.setting, self.mps = way, setting, mps
        self._lane = lane = stack.enter_context(ways()[way].lane(setting))  # kept: it owns locks
        crew = stack.enter_context(Crew(environment, setting.method))

        def start(role: Callable[..., Any], *numbers: int) -> Part:
            given = (way, lane, setting, *numbers)
            return crew.start(role, *given, inherit=True, patience_s=START_S)

        self.keeper = start(roles.keeper)
        self.workers = [start(roles.worker, n) for n in range(setting.workers)]
        self.engines = [start(roles.engine, n) for n in range(setting.engines)]

    @property
    def everybody(self) -> list[Part]:
        return [self.keeper, *self.workers, *self.engines]

    def begin(self, jpegs: Sequence[bytes]) -> str:
        """Returns the codec's name when all are ready."""
        self.keeper.receive()
        for part in self.workers:
            part.send(list(jpegs))
        codecs = {part.receive()[1] for part in self.workers}
        for part in self.engines:
            part.receive()
        return " and ".join(sorted(codecs))

    def files(self, work: str, seconds: float, calls: int, stages: bool = False) -> list[Record]:
        """Lets each worker work for so long.  Returns what each of them has found."""
        self.order(work, seconds, calls, stages)
        return [part.receive() for part in self.workers]

    def order(self, *given: Any) -> None:
        for part in self.workers:
            part.send(given)

    def clock(self, on: bool, work: str) -> Record:
        """Turns the clocks of engines on or off, and tells engines which model to run.  Returns
        their stages since the last call."""
        merged: Record = {}
        for part in self.engines:
            part.send((roles.STAGES, on, work))
        for part in self.engines:
            for stage, seconds in part.receive().items():
                merged.setdefault(stage, []).extend(seconds)
        return merged

    def end(self) -> None:
        """Asks the processes to end.  Those that do not are killed with their crew."""
        for parts in (self.workers, self.engines, [self.keeper]):
            for part in parts:
                part.send((roles.END,))
            for part in parts:
                part.result()


def missing(way: str) -> list[str]:
    return [name for name in ways()[way].needs if importlib.util.find_spec(name) is None]


def measured(case: Case, jpegs: Sequence[bytes], answers: Any, plan: Plan) -> Record:
    """All figures of one case, or why there are none, and when each part was done, in seconds."""
    record: Record = {"way": case.way, "mps": case.mps, "done_s": {}}
    begun = time.monotonic()

    def done(part: str) -> None:
        record["done_s"][part] = round(time.monotonic() - begun, 1)

    before_mib = gpu_mib()
    try:
        record["codec"] = case.begin(jpegs)
        done("start")
        _measure_work(case, roles.PHOTOS, answers, plan.seconds, record)
        used_mib = gpu_mib()
        record["gpu_mib"] = None if used_mib is None else used_mib - (before_mib or 0)
        done(roles.PHOTOS)
        if plan.frames:
            sums = light.Sums(case.setting, len(jpegs))
            _measure_work(case, roles.FRAMES, sums, plan.seconds, record)
            case.clock(False, roles.PHOTOS)
            done(roles.FRAMES)
        if plan.http and not case.mps:
            record["http"] = _http(case, jpegs, answers, plan.seconds)
            done("http")
        if plan.deaths and not case.mps:  # a killed client of MPS takes the others with it
            record["deaths"] = _deaths(case, answers, 3 * case.setting.patience_s)
            done("deaths")
        else:
            case.end()
    except Exception as failed:  # the other ways go on
        why = str(failed).strip().splitlines() or [""]
        record["failed"] = f"{type(failed).__name__}: {why[-1]}"
    return record


def _measure_work(case: Case, work: str, answers: Any, seconds: float, record: Record) -> None:
    case.clock(False, work)
    _connect(case, work, answers)
    record[work] = _files(case, work, answers, seconds)
    record[work] |= _stages(case, work, seconds / 3)


def _connect(case: Case, work: str, answers: Any) -> None:
    """Waits until each worker has got every photo enlarged, without a failure."""
    until = time.monotonic() + CONNECT_S
    while True:
        found = case.files(work, 0.3, case.setting.calls)
        if _wrong(found, answers):
            raise RoleFailed("wrong answers before the clock ran")
        if all(all(each["answers"]) and not each["failed"] for each in found):
            return
        if time.monotonic() > until:
            raise RoleFailed(f"not every worker gets answers: {[each['failed'] for each in found]}")


def _files(case: Case, work: str, answers: Any, seconds: float) -> Record:
    cpu_s, begun = cpu_seconds(case.everybody), time.monotonic()
    found = case.files(work, seconds, case.setting.calls)
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


def _stages(case: Case, work: str, seconds: float) -> Record:
    """The median of each stage, and of its time of a CPU, with one request at a time in all."""
    case.clock(True, work)
    case.workers[0].send((work, seconds, 1, True))
    found = case.workers[0].receive()
    stages = found["stages"] | case.clock(False, work)
    medians = {stage: 1000 * np.median(each, axis=0) for stage, each in stages.items()}
    return {
        "stages_ms": {stage: float(wall) for stage, (wall, _) in medians.items()}
        | {"all": 1000 * float(np.median(found["took"]))},
        "stages_cpu_ms": {stage: float(cpu) for stage, (_, cpu) in medians.items()},
    }


def _http(case: Case, jpegs: Sequence[bytes], answers: Any, seconds: float) -> Record:
    """Measures HTTP, with as many connections as there may be requests in flight."""
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


def _deaths(case: Case, answers: Any, seconds: float) -> Record:
    """Kills a worker and an engine after a third of the time.  Returns what the other workers saw.

    The processes are not asked to end afterwards, because with some ways a death leaves processes
    that cannot.
    """
    victims = case.workers[0], case.engines[0]
    begun = time.monotonic()
    case.order(roles.PHOTOS, seconds, case.setting.calls, False)
    time.sleep(seconds / 3)
    died = time.monotonic()
    for victim in victims:
        victim.kill()
    case.workers, case.engines = case.workers[1:], case.engines[1:]
    late = begun + seconds + case.setting.patience_s + HANG_S
    found = []
    for part in case.workers:
        while not part.told() and time.monotonic() < late:
            time.sleep(0.01)
        if part.told():  # a worker that hangs says nothing
            with contextlib.suppress(RoleFailed):
                found.append(part.receive())
        else:
            part.kill()
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
    p50, p95, p99 = map(float, np.percentile(took_ms, [50, 95, 99]))
    return {"requests": len(took_ms), "p50_ms": p50, "p95_ms": p95, "p99_ms": p99}


def cpu_seconds(parts: Sequence[Part]) -> float:
    """The CPU time of these processes so far."""
    return sum(cpu_s(part.pid) for part in parts)


def gpu_mib() -> int | None:
    """The memory of the first GPU that all processes together use."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return int(done.stdout.split()[0])
