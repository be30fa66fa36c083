from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuring import config
from tests.helpers.compiled import BUILD_S, CC, PROGRAMS, ROOT, build, needs_compiler
from tests.native.api.puppet import Puppet

PUPPET = ["puppet.c", "puppet_gpu.c"]
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


@pytest.fixture(scope="session")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The puppet, linked to the library of this package as a user's program is."""
    if CC is None:
        pytest.skip(needs_compiler.kwargs["reason"])
    place = tmp_path_factory.mktemp("api") / "puppet"
    sources = [str(ROOT / PROGRAMS / each) for each in PUPPET]
    command = [CC, "-std=c99", *STRICT, "-O1", *sources, "-o", str(place), "-ldl"]
    subprocess.run([*command, *config.cflags(), *config.libs()], check=True, timeout=BUILD_S)
    return place


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The puppet and all of the library, compiled with sanitizers and fault points."""
    flags = ["-O1", "-g", "-w", "-DGR_FAULTS", "-DGR_DEBUG", "-fsanitize=address,undefined"]
    place = tmp_path_factory.mktemp("sanitized")
    return build(place, PUPPET, [*flags, "-fno-sanitize-recover=all"], api=True)


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
) -> Callable[[], Puppet]:
    """Starts puppets of one build, which have to end in order if nobody has killed them."""
    program = request.getfixturevalue(request.param)
    return lambda: puppets(program)
