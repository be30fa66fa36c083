"""The C library is built in layers: no file needs one that stands below it in the list at the head
of its folder, and the core needs no other folder.

What a file needs is what its object leaves undefined, as `nm` says.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.compiled import (
    API,
    CC,
    CORE,
    DEVICE,
    HOST,
    MEMORY,
    ROOT,
    needs_compiler,
)

pytestmark = needs_compiler


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


HEADS = {
    CORE: "ring.h", HOST: "error.h", DEVICE: "state.h", MEMORY: "gpu.h", API: "opaque.h",
}  # fmt: skip


def listed(room: str) -> list[str]:
    """The files of a folder in the order of its list, without their suffixes."""
    head = (ROOT / room / HEADS[room]).read_text().partition("*/")[0]
    lines = re.findall(r"^ \*   ([\w., ]+?)  ", head, re.M)
    return [name.removesuffix(".h") for line in lines for name in line.split(", ")]


@pytest.mark.parametrize("room", HEADS)
def test_the_head_of_a_folder_lists_its_files(room):
    names = listed(room)
    assert sorted(names) == sorted({path.stem for path in (ROOT / room).glob("*.[ch]")})


def below(needs: dict[str, set[str]], order: list[str]) -> set[tuple[str, str]]:
    """Each of these files with one that it needs and that stands below it."""
    above = {f"{name}.c": set(order[:k]) for k, name in enumerate(order)}
    return {
        (name, needed)
        for name in needs.keys() & above.keys()
        for needed in needs[name] & above.keys()
        if needed.removesuffix(".c") not in above[name]
    }


@pytest.mark.slow
@pytest.mark.parametrize("room", HEADS)
def test_no_file_needs_one_that_stands_below_it(needs, room):
    assert not below(
        {path.name: needs[path.name] for path in (ROOT / room).glob("*.c")}, listed(room)
    )


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


def test_a_wrong_order_is_found(tmp_path):
    (tmp_path / "a.c").write_text("void b(void); void a(void) { b(); }")
    (tmp_path / "b.c").write_text("void b(void) {}")
    needs = needs_of(tmp_path, [tmp_path / "a.c", tmp_path / "b.c"])
    assert not below(needs, ["b", "a"])
    assert below(needs, ["a", "b"]) == {("a.c", "b.c")}
