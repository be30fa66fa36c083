from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuring import config
from tests.helpers.compiled import BUILD_S, CC, PROGRAMS, ROOT, build, needs_compiler
from tests.helpers.processes import Child
from tests.native.api.gpu_peer import Peer, obey
from tests.native.api.puppet import Puppet

PUPPET = "puppet*.c"
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


@pytest.fixture(scope="session")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The puppet, linked like a user's program to the library of this package."""
    if CC is None:
        pytest.skip(needs_compiler.kwargs["reason"])
    place = tmp_path_factory.mktemp("api") / "puppet"
    sources = (ROOT / PROGRAMS).glob(PUPPET)
    command = [CC, "-std=c99", *STRICT, "-O1", *sources, "-o", str(place), "-ldl"]
    subprocess.run([*command, *config.cflags(), *config.libs()], check=True, timeout=BUILD_S)
    return place


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The puppet and all of the library, compiled with sanitizers and fault points."""
    flags = ["-O1", "-g", "-w", "-DGR_FAULTS", "-DGR_DEBUG", "-fsanitize=address,undefined"]
    place = tmp_path_factory.mktemp("sanitized")
    return build(place, PUPPET, [*flags, "-fno-sanitize-recover=all"], api=True)


@pytest.fixture(scope="session")
def fake_libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with programs/fake_libcuda as libcuda.so.1."""
    if CC is None:
        pytest.skip(needs_compiler.kwargs["reason"])
    place = tmp_path_factory.mktemp("fake-cuda")
    sources, library = (ROOT / PROGRAMS / "fake_libcuda").glob("*.c"), place / "libcuda.so.1"
    command = [CC, "-std=gnu11", *STRICT[:2], "-Werror", "-O1", "-fPIC", "-shared", "-pthread"]
    subprocess.run([*command, *sources, "-o", library], check=True, timeout=BUILD_S)
    return place


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The driver that processes get which are started from now on."""
    if request.param == "fake":
        place = request.getfixturevalue("fake_libcuda")
        monkeypatch.setenv("LD_LIBRARY_PATH", str(place))
        monkeypatch.setenv("FAKE_CUDA_LOG", str(tmp_path / "calls"))
    return str(request.param)


@pytest.fixture
def calls(driver: str, tmp_path: Path) -> Callable[[int], list[tuple[str, int]]]:
    """A function that returns the calls of a process so far, each with its stream, or 0 if it has
    none."""

    def made(pid: int) -> list[tuple[str, int]]:
        log = tmp_path / "calls"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return [(name, int(stream)) for of, name, stream in lines if int(of) == pid]

    return made


@pytest.fixture
def python(driver: str, children: Callable[..., Child]) -> Callable[[], Peer]:
    """Starts processes in Python (gpu_peer.py)."""
    return lambda: Peer(children(obey, driver == "fake", method="spawn"))


@pytest.fixture
def puppets() -> Iterator[Callable[[Path], Puppet]]:
    """Starts puppets, which end with the test."""
    made: list[Puppet] = []

    def start(program: Path) -> Puppet:
        made.append(Puppet(program))
        return made[-1]

    yield start
    for each in made:
        each.clear()


@pytest.fixture(
    params=[
        "linked",
        pytest.param("sanitized", marks=[pytest.mark.slow, pytest.mark.deadline(400)]),
    ]
)
def puppet(
    request: pytest.FixtureRequest, puppets: Callable[[Path], Puppet]
) -> Callable[..., Puppet]:
    """Starts puppets of one build, which have to end cleanly unless they were killed.  With the
    name of a ring, a puppet attaches to that ring and carries out the commands that follow."""
    program = request.getfixturevalue(request.param)

    def start(name: str = "", *commands: tuple[object, ...]) -> Puppet:
        one = puppets(program)
        for command in (("attach", name, 0), *commands) if name else ():
            one.ok(*command)
        return one

    return start
