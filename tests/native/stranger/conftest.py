from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuring import native
from tests.helpers.compiled import build_alone
from tests.native.stranger import CLIENT, FLAGS, Stranger

Start = Callable[..., Stranger]


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    version = re.search(r"\bVERSION = (\d+)", (CLIENT / "ring.h").read_text())
    assert version
    if version[1] != str(native.VERSION):  # otherwise each test waits for a client that has ended
        pytest.fail(
            f"client/ring.h speaks version {version[1]}, the library {native.VERSION}: "
            "change docs/abi.md, then client/ring.h"
        )
    return build_alone(tmp_path_factory.mktemp("client"), CLIENT, FLAGS)


@pytest.fixture
def stranger(client: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a client with these options.  `paused`: it waits for a `step` with each frame."""
    started: list[Stranger] = []

    def start(*options: object, paused: bool = False, program: Path = client) -> Stranger:
        output = tmp_path / f"stranger-{len(started)}"
        started.append(Stranger(program, output, *options, paused=paused))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        for file in (each.process.stdin, each.process.stderr):
            if file:
                file.close()
