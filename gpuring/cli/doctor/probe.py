"""Two processes and a real ring: does what one writes arrive at the other, and whole?

Each role runs in a spawned process with a deadline, and is killed when it misses the deadline.  No
process is killed on purpose on a GPU, because under MPS that could end other programs, too.  What a
death does is tried on a host ring.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import gpuring
from gpuring.cli.measure.crew import Crew, Pipe, RoleFailed
from gpuring.cli.text import of_memory, seconds
from gpuring.memory import cuda, gpus
from gpuring.native.gpu import Stream
from gpuring.registry import directory

from .finding import Finding

HOST_PATIENCE_S = 20.0
GPU_PATIENCE_S = 60.0
"""A CUDA context takes a second, several on a machine with many GPUs."""
FRAMES = 64
SLOTS = 4
NBYTES = 1 << 16
_BACKLOG_NBYTES = 256 << 20
_BACKLOG = 8
"""Memsets of so many bytes keep a stream busy for a while, so that waits are waits.  No kernel:
those need a compiler, which rings do not."""

Options = dict[str, Any]


# ---- roles -------------------------------------------------------------------------------------


def write(pipe: Pipe, name: str, options: Options, ordinal: int, patience_s: float) -> int:
    """Owns the ring and publishes FRAMES frames; on how many its GPU was still at work then.

    ordinal: the GPU of this role's own work.
    """
    pending = 0
    with (
        _stream(ordinal if options["device"] != "host" else None) as stream,
        gpuring.create(
            name, slots=SLOTS, shape=NBYTES, dtype="u1", meta=[("k", "i8")], **options
        ) as ring,
        ring.producer() as producer,
    ):
        pipe.send(of_memory(ring.memory, ring.sync, ring.gate))
        pipe.receive()
        for k in range(FRAMES):
            with producer.claim(patience_s, **_on(stream)) as slot:
                if stream is None:
                    slot.array[...] = _byte(k)
                else:
                    stream.keep_busy()
                    stream.fill(_address(slot), _byte(k))
                slot.meta["k"] = k
            pending += any(peer.pending for peer in ring.stats().producers)
        pipe.send()
        pipe.receive()  # the reader is done
    return pending


def read(pipe: Pipe, name: str, options: Options, ordinal: int, patience_s: float) -> list[str]:
    """Reads FRAMES frames; what was wrong with them.  Of a pinned ring on GPU `ordinal`."""
    wrong = []
    pinned = options.get("memory") == "pinned"
    with (
        _stream(ordinal if pinned or options["device"] != "host" else None) as stream,
        gpuring.attach(name, device=ordinal if pinned else None) as ring,
        ring.consumer() as frames,
    ):
        pipe.send(next(p.unregistered for p in ring.stats().peers if p.number == frames.peer))
        for k in range(FRAMES):
            with frames.acquire(patience_s, **_on(stream)) as slot:
                copy = np.array(slot.array) if stream is None else stream.read(_address(slot))
                bad = int(np.count_nonzero(copy != _byte(k)))
                if bad or slot.meta["k"] != k:
                    wrong.append(f"frame {k}: {bad} bytes, metadata {slot.meta['k']}")
    return wrong


def hold(pipe: Pipe, name: str) -> None:
    """Takes a frame and keeps it, until it is killed."""
    with gpuring.attach(name) as ring, ring.consumer("victim", start="oldest") as frames:
        frames.acquire(HOST_PATIENCE_S)
        pipe.send()
        pipe.receive()


def survive(pipe: Pipe, name: str, patience_s: float) -> float:
    """Goes round a ring whose reader is killed on the way; how long that took."""
    with (
        gpuring.create(name, slots=SLOTS, shape=8, dtype="u1", device="host") as ring,
        ring.producer() as producer,
    ):
        producer.claim(0).publish()
        pipe.send()
        pipe.receive()  # the reader is dead
        begun = time.monotonic()
        for _ in range(2 * SLOTS):
            producer.claim(patience_s).publish()
        return time.monotonic() - begun


def _byte(k: int) -> int:
    return (k * 37 + 1) & 255


def _on(stream: _Stream | None) -> Options:
    return {} if stream is None else {"stream": stream.handle}


def _address(slot: Any) -> int:
    """Where the GPU finds the slot.  One that is not registered with CUDA is in host memory."""
    interface = getattr(slot, "__cuda_array_interface__", None) or slot.__array_interface__
    return int(interface["data"][0])


class _Stream:
    """A stream of the current GPU, and memory for what is done on it."""

    def __init__(self, ordinal: int) -> None:
        self._gpu = gpus.gpu(ordinal)
        self._stream = Stream(self._gpu)
        self.handle = self._stream.handle
        make = functools.partial(cuda.plain, _BACKLOG_NBYTES, ordinal)
        self._scratch = cuda.uninterrupted(ordinal, make)

    def fill(self, ptr: int, value: int) -> None:
        self._gpu.fill(ptr, value, NBYTES, self.handle)

    def read(self, ptr: int) -> Any:
        """What is at an address, by way of memory of the GPU."""
        copy = np.empty(NBYTES, "u1")
        self._gpu.copy(self._scratch.ptr, ptr, NBYTES, self.handle)
        self._gpu.copy(copy.ctypes.data, self._scratch.ptr, NBYTES, self.handle)
        self._gpu.synchronize(self.handle)
        return copy

    def keep_busy(self) -> None:
        """Gives it work to do before it comes to the frame."""
        for k in range(_BACKLOG):
            self._gpu.fill(self._scratch.ptr, k, _BACKLOG_NBYTES, self.handle)


@contextlib.contextmanager
def _stream(ordinal: int | None) -> Iterator[_Stream | None]:
    """A stream of the GPU, which is the current one, if there is to be one."""
    if ordinal is None:
        yield None
        return
    cuda.device_for(ordinal)
    with gpus.current(ordinal):
        yield _Stream(ordinal)


# ---- probes ------------------------------------------------------------------------------------


def on_host() -> Iterator[Finding]:
    """A host ring between two processes, and the death of one of them."""
    with _ring() as name, Crew() as crew:
        yield _frames(crew, "probe: host", name, {"device": "host"}, 0, 0, HOST_PATIENCE_S)
    with _ring() as name, Crew() as crew:
        yield _death(crew, name, HOST_PATIENCE_S)


def on_gpu(ordinal: int, *, vmm: bool, timeline: bool) -> Iterator[Finding]:
    """Memory, event and timeline between two processes on one GPU."""
    device = f"cuda:{ordinal}"
    probes: list[tuple[str, Options]] = [
        ("probe: memory", {"sync": "event", "gate": "host"}),
        ("probe: event", {"sync": "event", "gate": "stream"}),
    ]
    if vmm:
        probes.insert(1, ("probe: vmm", {"sync": "event", "gate": "host", "memory": "vmm"}))
    if timeline:
        probes.append(("probe: timeline", {"sync": "timeline", "gate": "stream"}))
        probes.append(("probe: pinned", {"memory": "pinned", "device": "host"}))
    with Crew() as crew:  # their CUDA contexts serve all probes
        for what, options in probes:
            with _ring() as name:
                placed = {"device": device, **options}
                found = _frames(crew, what, name, placed, ordinal, ordinal, GPU_PATIENCE_S)
            yield found
            if found.level == "fail" and what == "probe: memory":
                skipped = "skipped: memory cannot be shared"
                yield from (Finding("warn", later, skipped, found.fix) for later, _ in probes[1:])
                break
    if not vmm:
        yield Finding("skip", "probe: vmm", "this GPU cannot share memory by file descriptors")
    if not timeline:
        for what in ("probe: timeline", "probe: pinned"):
            yield Finding("skip", what, "this GPU has no timeline words")


def between_gpus(pairs: list[tuple[int, int]]) -> Iterator[Finding]:
    """Frames from the first GPU of each pair to the second, which has peer access to it."""
    with Crew() as crew:
        for owner, other in pairs:
            with _ring() as name:
                placed = {"device": f"cuda:{owner}"}
                what = f"probe: {owner} to {other}"
                yield _frames(crew, what, name, placed, owner, other, GPU_PATIENCE_S)


def _frames(
    crew: Crew,
    what: str,
    name: str,
    options: Options,
    ordinal: int,
    readers: int,
    patience_s: float,
) -> Finding:
    """Frames of a writer on GPU `ordinal` for a reader on GPU `readers`."""
    stage = "create"
    try:
        rest = (patience_s,)
        with crew.start(write, name, options, ordinal, *rest, patience_s=patience_s) as writer:
            how = writer.receive()
            stage = "attach"
            with crew.start(read, name, options, readers, *rest, patience_s=patience_s) as reader:
                unregistered = reader.receive()
                stage = "hand over frames"
                begun = time.monotonic()
                writer.send()
                writer.receive()
                wrong = reader.result()
                took = time.monotonic() - begun
            writer.send()
            pending = writer.result()
    except RoleFailed as error:
        return Finding("fail", what, f"cannot {stage}: {error.last_line}", _fix(stage, options))
    if wrong:
        found = f"{len(wrong)} of {FRAMES} frames arrived damaged ({wrong[0]})"
        fix = "please report it with what `gpuring doctor --json` says; take gate='host' until then"
        return Finding("fail", what, found, fix)
    found = f"{FRAMES} frames crossed whole between two processes in {seconds(took)} {how}"
    if unregistered:
        found += f"; but each upload is waited for, because CUDA does not lock them: {unregistered}"
        return Finding("warn", what, found, _MORE_LOCKED)
    if options["device"] != "host":
        found += f"; {pending} of them were handed over while the GPU was still writing"
    return Finding("ok", what, found)


def _death(crew: Crew, name: str, patience_s: float) -> Finding:
    what = "probe: death"
    try:
        with crew.start(survive, name, patience_s / 2, patience_s=patience_s) as survivor:
            survivor.receive()
            with crew.start(hold, name, patience_s=patience_s) as victim:
                victim.receive()
                victim.kill()
            survivor.send()
            took = survivor.result()
    except RoleFailed as error:
        fix = "see the findings on pidfd and the pid namespace above"
        return Finding("fail", what, f"a dead reader was not cleared: {error.last_line}", fix)
    return Finding("ok", what, f"a producer went on {seconds(took)} after its reader was killed")


_MORE_LOCKED = (
    "let processes lock more memory: ulimit -l unlimited, LimitMEMLOCK=infinity of systemd, docker "
    "run --ulimit memlock=-1; or take a ring on the GPU"
)


def _fix(stage: str, options: Options) -> str:
    if options["device"] == "host":
        return "see the findings on /dev/shm and ulimit above"
    return {
        "create": "end other programs on this GPU (nvidia-smi lists them), or take device='host'",
        "attach": "both processes must have the same /dev/shm and pid namespace (docker run "
        "--ipc=host --pid=host; with memory='vmm' the same /dev/shm is enough), and the GPU must "
        "have CUDA IPC (no vGPU, WSL2 or Jetson)",
        "hand over frames": "take gate='host'; if that fails, too, device='host'",
    }[stage]


@contextlib.contextmanager
def _ring() -> Iterator[str]:
    """A name for a ring that is gone afterwards, whatever became of its owner."""
    name = f"doctor-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        yield name
    finally:
        directory.remove(name)
