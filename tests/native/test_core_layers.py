"""The C library is built in layers: no file needs one that needs it, and the core no other folder.

What a file needs is what its object leaves undefined, as `nm` says.
"""

from __future__ import annotations

import shutil
import subprocess
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.helpers.compiled import (
    API,
    BUILD_S,
    CC,
    CORE,
    DEVICE,
    HOST,
    MEMORY,
    ROOT,
    needs_compiler,
)

pytestmark = [needs_compiler, pytest.mark.deadline(BUILD_S)]


def needs_of(place: Path, sources: list[Path]) -> dict[str, set[str]]:
    """For each of these files, which others it calls or takes data from."""
    defined: dict[str, str] = {}
    undefined: dict[str, set[str]] = {}
    for source in sources:
        made = place / f"{source.stem}.o"
        subprocess.run(
            [str(CC), "-std=gnu11", "-O0", "-c", source, "-o", made], check=True, timeout=60
        )
        symbols = subprocess.run(["nm", made], check=True, capture_output=True, text=True).stdout
        for *_, kind, name in map(str.split, symbols.splitlines()):
            if kind == "U":
                undefined.setdefault(source.name, set()).add(name)
            elif kind.isupper():
                defined[name] = source.name
    return {
        source.name: {defined[name] for name in undefined.get(source.name, ()) if name in defined}
        for source in sources
    }


@pytest.fixture(scope="module")
def needs(tmp_path_factory):
    if not shutil.which("nm"):
        pytest.skip("no nm")
    rooms = (CORE, HOST, DEVICE, MEMORY, API)
    sources = [each for room in rooms for each in (ROOT / room).glob("*.c")]
    return needs_of(tmp_path_factory.mktemp("layers"), sources)


@pytest.mark.slow
def test_no_file_needs_one_that_needs_it(needs):
    list(TopologicalSorter(needs).static_order())
    assert sum(map(len, needs.values())) > 50


@pytest.mark.slow
def test_no_room_needs_one_above_it(needs):
    """The core needs no other one, and neither host/ nor device/ needs the other."""
    core, host, device, memory, api = (
        {path.name for path in (ROOT / room).glob("*.c")}
        for room in (CORE, HOST, DEVICE, MEMORY, API)
    )
    over = memory | api
    aboves = ((core, host | device | over), (host, device | over), (device, host | over))
    for room, above in (*aboves, (memory, api)):
        assert not {name: needs[name] & above for name in room if needs[name] & above}
    assert any(needs[name] & host for name in api)
    assert any(needs[name] & core for name in device)


def test_a_circle_is_found(tmp_path):
    (tmp_path / "a.c").write_text("void b(void); void a(void) { b(); }")
    (tmp_path / "b.c").write_text("void a(void); void b(void) { a(); }")
    needs = needs_of(tmp_path, [tmp_path / "a.c", tmp_path / "b.c"])
    assert needs == {"a.c": {"b.c"}, "b.c": {"a.c"}}
    with pytest.raises(CycleError):
        TopologicalSorter(needs).prepare()
