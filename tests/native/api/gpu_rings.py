"""Fixtures and functions for tests of rings on GPUs with programs in C."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuring.memory import kinds
from gpuring.registry import leftovers
from tests.native.api.puppet import Puppet

MEMORY = {"host": 0, "ipc": 1, "vmm": 2, "pool": 3, "pinned": 4, "auto": 255}
SYNC = {"auto": 0, "event": 1, "timeline": 2}
GATE = {"auto": 0, "stream": 1, "host": 2}
SHAPE = ("array", "|u1", 4, 64, ",", ";", "pts", "<i8", ",")
BUSY = 600  # CUDA_ERROR_NOT_READY
PLACES = [
    *((kind, sync) for kind in kinds.ON_GPU for sync in ("timeline", "event")),
    ("pinned", "timeline"),
]
OF_EACH = pytest.mark.parametrize(("kind", "sync"), PLACES, ids=["-".join(at) for at in PLACES])
TIMELINE = pytest.mark.parametrize(("kind", "sync"), [("ipc", "timeline"), ("vmm", "timeline")])

Calls = Callable[[int], list[tuple[str, int]]]


@pytest.fixture
def name(name: str) -> Iterator[str]:
    """A ring name.  Rings of the dead under it are removed after the test."""
    yield name
    leftovers.tidy(lambda each: each == name)


@pytest.fixture
def c(driver: str, linked: Any, puppets: Callable[..., Puppet]) -> Callable[[], Puppet]:
    """Starts programs in C that use GPU 0."""

    def start() -> Puppet:
        program = puppets(linked)
        program.ok("gpu", 0)
        return program

    return start


@pytest.fixture(autouse=True)
def _is_supported(request: pytest.FixtureRequest, driver: str) -> None:
    kind = getattr(request.node, "callspec", None) and request.node.callspec.params.get("kind")
    if driver == "real" and kind in kinds.ON_GPU:
        able, why = kinds.supported(kind, 0)
        if not able:
            pytest.skip(why)


def create(program: Puppet, name: str, kind: str, sync: str = "auto", gate: str = "auto") -> None:
    program.ok("under", MEMORY[kind], 0, 0 if kind == "pinned" else SYNC[sync], GATE[gate])
    program.ok("create", name, 4, 0o600, *SHAPE)


def attach(program: Puppet, name: str) -> None:
    program.ok("under", 0, 0, 0, 0)
    program.ok("attach", name, 20 * 10**9)


def publishes(program: Puppet, byte: int, pts: int) -> None:
    """Publishes a frame on stream 1."""
    program.ok("stream", 0, 1)
    program.ok("claim", 0, 0, 0)
    program.ok("fill", 0, 1, byte)
    program.ok("publish", 0, 1, -1, pts)


def sees(program: Puppet, byte: int) -> None:
    """What stream 2 reads in the newest frame."""
    program.ok("read", 0, 2)
    assert program.ok("seen", 2) == {"status": "0", "all": str(byte)}


def reads(program: Puppet, byte: int) -> None:
    """Reads the next frame on stream 2."""
    assert program.ok("acquire", 0, 20 * 10**9, 0)["meta"] == str(byte)
    sees(program, byte)
    program.ok("release", 0, 1)


FORTY_TWO = "42"


def refuses(program: Puppet, *calls: str) -> None:
    """Makes these calls return 42 from now on."""
    listed = "".join(f"{call}={FORTY_TWO}," for call in calls)
    program.ok("setenv", "FAKE_CUDA_REFUSES", f",{listed}")


MEMORY_OF_A_GPU = "memfd:fake-cuda"


def is_of_a_gpu(descriptor: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return MEMORY_OF_A_GPU in str(descriptor.readlink())
    return False


def held(program: Puppet) -> tuple[int, int]:
    """How many descriptors and mappings of GPU memory a process has."""
    files = sum(map(is_of_a_gpu, Path(f"/proc/{program.pid}/fd").iterdir()))
    return files, Path(f"/proc/{program.pid}/maps").read_text().count(MEMORY_OF_A_GPU)
