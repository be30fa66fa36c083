"""Where the time goes between the death of a producer and the next step of a waiting peer.

    python -m bench.recovery_steps --rounds 10 --parallel 1 6 --json steps.json

A producer is killed while its GPU writes a frame.  A survivor waits for the frame on a stream, and
notes when it comes past each step.  All times are milliseconds since the SIGKILL:

    work      the last sign of the victim's GPU work, a word that its kernel writes all the time
    outside   the process that has started the container is gone (containers only)
    process   the pidfd of the victim is readable: the kernel has removed it with its GPU context
    cleared   the survivor's watchdog has cleared the victim (the last store of the reaper)
    stream    the survivor's stream has come past the frame
    asking    the longest call that asked the stream meanwhile
    released  the survivor has given the frame back, and was told that it is torn
    claimed   its next claim has returned
    launched  its next kernel launch has returned
    synced    that kernel is done
    verb      a verb that makes no call into CUDA has returned

This is done for each kind of memory, between processes of one pid namespace and between containers,
in one trial and in several at the same time.  A trial has one survivor and a victim for each round.

Without a GPU, `--memory host memfd` runs the same program.  The victim then holds a claim that the
survivor waits for.  `memfd` is a ring that is cleared as one on a GPU is, once the pidfd says that
the process is gone.  Containers need root.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import mmap
import os
import random
import secrets
import select
import signal
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gpuring
from bench import options
from gpuring.cli.measure.card import machine_card
from gpuring.cli.options import count, positive
from gpuring.memory.cuda import device_for
from gpuring.native.snapshot import snapshot
from tests.helpers import raw_verbs  # type: ignore[attr-defined]
from tests.helpers.processes import Child, Pipe, poll
from tests.registry.containers import Contained, as_on_gpu, cleans, contained, obey, shared_memory

STEPS = (
    *("work", "outside", "process", "cleared", "stream", "asking"),
    *("released", "claimed", "launched", "synced", "verb"),
)
ON_GPU = ("ipc", "vmm", "pool")
WORDS = 1 << 14
DEADLINE_S = 80
"""No child lives for longer."""
RECOVERY_S = 40.0
LOOK_S = 0.0005

_BEAT = r"""
extern "C" __global__ void beat(volatile unsigned long long *word, unsigned long long limit_ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    for (now = start; now - start < limit_ns;) {
        word[0] += 1;
        __threadfence_system();
        __nanosleep(20000);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    }
}
"""


def beat_of(folder: str, name: str) -> mmap.mmap:
    """A word in a shared file that shows that a victim still works."""
    with Path(folder, f"{name}.beat").open("r+b") as file:
        return mmap.mmap(file.fileno(), mmap.PAGESIZE)


# ---- victims and survivors -----------------------------------------------------------------------


class OnHost:
    """A seat in a ring without a GPU.  The victim holds a claim, and the survivor waits for one."""

    claim: Callable[[], Callable[[], object]]
    """What ends the claim that it makes."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def sit(self, name: str, make: bool) -> None:
        if self.kind == "host":
            spec: Any = {"slots": 1, "shape": 8, "dtype": "u1", "device": "host"}
            ring = gpuring.create(name, **spec) if make else gpuring.attach(name)
            self.header, producer = ring._header, ring.producer()
            self.claim = lambda: producer.claim(RECOVERY_S).abandon
        else:
            self.header, _ = as_on_gpu(
                name, make=make, slots=1, slot_nbytes=64, patience_s=RECOVERY_S
            )
            peer = raw_verbs.join_producer(self.header)
            assert not isinstance(peer, int), peer

            def claim() -> Callable[[], object]:
                index = peer.claim(RECOVERY_S)
                assert index >= 0, index
                return functools.partial(peer.abandon, index, peer.seq)

            self.claim = claim

    def hang(self, name: str) -> None:
        self.sit(name, make=False)
        self.kept = self.claim()
        word = np.frombuffer(beat_of("/dev/shm", name), np.uint64, 1)

        def work() -> None:
            while True:
                word[0] += 1
                time.sleep(0.0001)

        threading.Thread(target=work, daemon=True).start()

    def meet(self) -> bool:
        """Takes the victim's unfinished slot.  Returns whether there is something to wait for."""
        return True

    def go_on(self, at: dict[str, float]) -> None:
        abandon = self.claim()
        at["claimed"] = time.monotonic()
        abandon()
        at["verb"] = time.monotonic()


class OnGpu:
    """A seat in a ring on a GPU.  The victim publishes a frame that its GPU never finishes."""

    def __init__(self, kind: Any) -> None:
        import cupy

        from tests.gpu import kernels

        kernels.warm_up()
        self.kind, self.cupy, self.kernels = kind, cupy, kernels
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.beat = self.cupy.RawKernel(_BEAT, "beat")
        nothing = self.cupy.zeros(1, self.cupy.uint64)
        self.launch_beat(nothing.data.ptr, 0)  # loads it
        self.stream.synchronize()

    def launch_beat(self, word: int, limit_ns: int) -> None:
        with self.stream:
            self.beat((1,), (1,), (np.uint64(word), np.uint64(limit_ns)))

    def sit(self, name: str, make: bool) -> None:
        spec: Any = {"slots": 1, "shape": (WORDS,), "dtype": "u8", "sync": "timeline"}
        ring = (
            gpuring.create(name, device="cuda", memory=self.kind, gate="stream", **spec)
            if make
            else gpuring.attach(name, timeout=RECOVERY_S)
        )
        assert (ring.memory, ring.gate) == (self.kind, "stream")
        self.header, self.producer = ring._header, ring.producer()
        self.consumer = ring.consumer() if make else None

    def hang(self, name: str) -> None:
        self.sit(name, make=False)
        word = np.frombuffer(beat_of("/dev/shm", name), np.uint64)
        self.cupy.cuda.runtime.hostRegister(word.ctypes.data, word.nbytes, 2)  # mapped
        slot = self.producer.claim(RECOVERY_S, stream=self.stream)
        self.launch_beat(word.ctypes.data, 10**9 * DEADLINE_S)
        self.kernels.stamp(slot.array, slot.seq, self.stream)
        slot.publish()
        self.kept = word

    def meet(self) -> bool:
        """Takes the victim's unfinished frame.  Returns whether there is something to wait for."""
        assert self.consumer is not None
        self.slot = self.consumer.acquire(RECOVERY_S, stream=self.stream)
        return not self.is_done()

    def is_done(self) -> bool:
        return bool(self.cupy.cuda.runtime.streamQuery(self.stream.ptr) == 0)

    def go_on(self, at: dict[str, float]) -> None:
        asking_s, until, done = 0.0, time.monotonic() + RECOVERY_S, False
        while not done:
            before = time.monotonic()
            assert before < until, f"the stream does not go on after {RECOVERY_S} s"
            done = self.is_done()
            at["stream"] = time.monotonic()
            asking_s = max(asking_s, at["stream"] - before)
            time.sleep(0 if done else LOOK_S)
        at["asking_s"] = asking_s
        with contextlib.suppress(gpuring.FrameTorn):
            self.slot.release()
            raise AssertionError("the frame is not torn")
        at["released"] = time.monotonic()
        slot = self.producer.claim(RECOVERY_S, stream=self.stream)
        at["claimed"] = time.monotonic()
        self.kernels.stamp(slot.array, slot.seq, self.stream)
        at["launched"] = time.monotonic()
        self.stream.synchronize()
        at["synced"] = time.monotonic()
        slot.abandon()
        at["verb"] = time.monotonic()


def role(pipe: Pipe, kind: str) -> None:
    """A process that becomes a survivor ("make") or a victim ("hang") when it is told to."""
    seat: Any = OnGpu(kind) if kind in ON_GPU else OnHost(kind)

    def go_on() -> dict[str, float]:
        at: dict[str, float] = {}
        seat.go_on(at)
        at["cleared"] = snapshot(seat.header)["deaths"][0]["time_ns"] / 1e9
        return at

    obey(
        pipe,
        {
            "make": lambda name: seat.sit(name, make=True),
            "hang": seat.hang,
            "meet": seat.meet,
            "go_on": go_on,
        },
    )


def limited(pipe: Pipe, target: Callable[..., Any], *args: Any) -> Any:
    """Runs the target with a deadline.  Processes in a container end with the one that has started
    it (PDEATHSIG)."""
    signal.alarm(DEADLINE_S)
    return target(pipe, *args)


# ---- a trial -------------------------------------------------------------------------------------


class Process:
    """A process that obeys, in a container of its own or not."""

    def __init__(self, shm: str | None, target: Callable[..., Any], *args: Any) -> None:
        where = () if shm is None else (contained, shm, False)
        self.contained = shm is not None
        self.child = Child(limited, (*where, target, *args), DEADLINE_S, "forkserver")

    def up(self) -> None:
        if self.contained and (refused := self.child.receive()):
            raise PermissionError(f"no container: {refused}")
        self.tell = Contained(self.child)

    def pids(self) -> list[int]:
        """The pid of the process itself, and of the one that has started its container."""
        pid = self.child.pid
        if not self.contained:
            return [pid]
        (inner,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(inner), pid]

    def ahead_s(self) -> int:
        """How far its CLOCK_MONOTONIC is ahead of ours.  A container has a clock of its own."""
        if not self.contained:
            return 0
        return int(Path(f"/proc/{self.pids()[0]}/timens_offsets").read_text().split()[1])


def observe(victim: Process, survivor: Process, word: Any) -> dict[str, float]:
    """Kills the victim.  Returns the milliseconds of each step that it or the survivor has
    reported."""
    files = {}
    for step, pid in zip(("process", "outside"), victim.pids(), strict=False):
        files[os.pidfd_open(pid)] = step
    pipe, beats = survivor.child.pipe, int(word[0])
    at: dict[str, float] = {}
    try:
        killed = time.monotonic()
        victim.child.process.kill()
        while files or "answered" not in at:
            assert time.monotonic() < killed + DEADLINE_S, f"after {DEADLINE_S} s only {at}"
            waiting = [*files, *([] if "answered" in at else [pipe])]
            ready, _, _ = select.select(waiting, [], [], LOOK_S)
            now = time.monotonic()
            if word[0] != beats:
                beats, at["work"] = int(word[0]), now
            for file in ready:
                at["answered" if file is pipe else files.pop(file)] = now
                if isinstance(file, int):
                    os.close(file)
    finally:
        for file in files:
            os.close(file)
    told = survivor.child.receive()
    asking_s, ahead_s = told.pop("asking_s", None), survivor.ahead_s()
    at |= {step: then - ahead_s for step, then in told.items()}
    found = {step: 1e3 * (at[step] - killed) for step in STEPS if step in at}
    return found | ({} if asking_s is None else {"asking": 1e3 * asking_s})


class Trial:
    """A ring with one survivor, and victims that are up and wait for their turns."""

    def __init__(self, shm: str | None, kind: str, rounds: int) -> None:
        self.folder = shm or "/dev/shm"
        self.name = f"steps-{os.getpid()}-{secrets.token_hex(4)}"
        self.survivor = Process(shm, role, kind)
        self.victims = [Process(shm, role, kind) for _ in range(rounds)]
        self.rounds: list[dict[str, float]] = []
        self.failed = ""
        self.beat = Path(self.folder, f"{self.name}.beat")
        self.beat.write_bytes(bytes(mmap.PAGESIZE))

    def up(self) -> None:
        for process in (self.survivor, *self.victims):
            process.up()
        self.survivor.tell("make", self.name)

    def run(self) -> None:
        word = np.frombuffer(beat_of(self.folder, self.name), np.uint64, 1)
        try:
            for victim in self.victims:
                victim.tell("hang", self.name)
                before = int(word[0])
                poll(lambda before=before: word[0] != before)  # type: ignore[misc]
                assert self.survivor.tell("meet"), "nothing to wait for"
                self.survivor.tell.begin("go_on")
                time.sleep(random.uniform(0.02, 0.06))  # so that it waits, and no tick is near
                self.rounds.append(observe(victim, self.survivor, word))
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"

    def end(self) -> None:
        for process in (self.survivor, *self.victims):
            process.child.end()
        self.beat.unlink()


def measure(kind: str, inside: bool, trials: int, rounds: int) -> dict[str, Any]:
    """Measures `rounds` in all, shared by so many trials at the same time."""
    each = -(-rounds // trials)
    with shared_memory() if inside else contextlib.nullcontext(None) as shm:
        running = [Trial(shm, kind, each) for _ in range(trials)]
        try:
            for trial in running:
                trial.up()
            threads = [threading.Thread(target=trial.run) for trial in running]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for trial in running:
                trial.end()
            clean(shm)
    found = [row for trial in running for row in trial.rounds]
    failed = [trial.failed for trial in running if trial.failed]
    steps = [step for step in STEPS if any(step in row for row in found)]
    values = {step: [row[step] for row in found if step in row] for step in steps}
    return {
        "memory": kind, "containers": inside, "parallel": trials, "rounds": found,
        "p50_ms": {step: statistics.median(ms) for step, ms in values.items()},
        "max_ms": {step: max(ms) for step, ms in values.items()},
        "failed": failed,
    }  # fmt: skip


def clean(shm: str | None) -> None:
    if shm is None:
        gpuring.clean()
        return
    cleaner = Process(shm, cleans)
    try:
        cleaner.up()
        cleaner.tell("clean")
    finally:
        cleaner.child.end()


# ---- the program ---------------------------------------------------------------------------------


def main() -> int:
    parser = options.parser("python -m bench.recovery_steps", __doc__.splitlines()[0])
    add = parser.add_argument
    add("--memory", nargs="+", default=ON_GPU, choices=("host", "memfd", *ON_GPU))
    add("--rounds", type=count, default=10, help="rounds of each combination, in all")
    add("--parallel", type=count, nargs="+", default=[1, 6], help="trials at once")
    add("--no-containers", action="store_true")
    add("--seconds", type=positive, default=80, help="nothing begins after that time")
    add("--json", type=Path, help="write everything to this file")
    args = parser.parse_args()
    if {*args.memory} & {*ON_GPU}:
        device_for(0)  # raises DeviceError
    began, results, left_out = time.monotonic(), [], []
    for inside, kind, trials in itertools.product((False, True), args.memory, args.parallel):
        if inside and (kind == "ipc" or args.no_containers):
            continue  # legacy CUDA IPC does not work between containers
        what = f"{kind}{', containers' if inside else ''}, {trials} at a time"
        if time.monotonic() > began + args.seconds:
            left_out.append(what)
            continue
        try:
            found = measure(kind, inside, trials, args.rounds)
        except (AssertionError, PermissionError) as error:
            left_out.append(f"{what}: {error}")
            continue
        results.append(found)
        figures = (
            f"{step} {ms:.1f} ({found['max_ms'][step]:.1f})" for step, ms in found["p50_ms"].items()
        )
        print(f"{what}, p50 (max) ms:", *figures, *found["failed"], flush=True)
        if args.json:
            whole = {"machine": machine_card(), "steps": STEPS, "results": results}
            args.json.write_text(json.dumps(whole | {"left out": left_out}, indent=1) + "\n")
    if left_out:
        print("left out:", *left_out, sep="\n  ")
    return 0 if results and not any(each["failed"] for each in results) else 1


if __name__ == "__main__":
    options.run(main)
