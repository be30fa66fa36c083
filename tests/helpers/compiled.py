"""The programs of tests/core, compiled with a copy of the C in which lines may be changed.

Most of the C is the same in each copy, so its objects are kept for the next one.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

CORE, DEVICE, PROGRAMS = (
    Path("gpuring/native/core"),
    Path("gpuring/native/device"),
    Path("tests/core"),
)
HARDWARE = ("fake_cuda.c", "fake_calls.c")  # no sanitizer of ours looks into it
CC = shutil.which("gcc") or shutil.which("cc")
BUILD_S = 200  # of all commands together

needs_compiler = pytest.mark.skipif(CC is None, reason="no C compiler: the core is compiled anew")

Edit = tuple[str, str, str]  # file of core or device, a place in it, what stands there instead


def build(place: Path, program: str, flags: list[str], *edits: Edit) -> Path:
    """Compiles the program whose sources `program` matches in tests/core; where it is then.

    place: an empty folder that pytest has made.  Beside it lie the objects that builds share.
    """
    return _build(place, [PROGRAMS / program, CORE / "*.c"], flags, edits)


def build_device(place: Path, programs: list[str], flags: list[str], *edits: Edit) -> Path:
    """The same with device order over the fake driver."""
    patterns = [CORE / "*.c", DEVICE / "*.c"]
    patterns += [PROGRAMS / name for name in (*HARDWARE, *programs)]
    return _build(place, patterns, flags, edits)


def _build(place: Path, patterns: list[Path], flags: list[str], edits: tuple[Edit, ...]) -> Path:
    _copy(place, edits)
    edited = {name for name, _, _ in edits}
    anew = any(name.endswith(".h") for name in edited)  # every file may use it
    sources = [path for pattern in patterns for path in sorted(place.glob(str(pattern)))]
    objects = []
    for path in (source.relative_to(place) for source in sources):
        of = [flag for flag in flags if path.name not in HARDWARE or "-fsanitize" not in flag]
        made = kept = place / f"{path}.o"
        if not anew and path.name not in edited:
            kept = place.parent / "objects" / hashlib.sha256(repr((path, of)).encode()).hexdigest()
        if not kept.exists():
            _run(place, "-std=gnu11", *of, "-c", path, "-o", made)
            kept.parent.mkdir(exist_ok=True)
            made.rename(kept)
        objects.append(kept)
    _run(place, *flags, "-o", "program", *objects, "-ldl")
    return place / "program"


def _copy(place: Path, edits: tuple[Edit, ...]) -> None:
    for folder in (CORE, DEVICE, PROGRAMS):
        shutil.copytree(ROOT / folder, place / folder)
    for name, old, new in edits:
        path = place / (CORE if (ROOT / CORE / name).exists() else DEVICE) / name
        text = path.read_text()
        assert text.count(old) == 1, f"{name} does not have it once: {old}"
        path.write_text(text.replace(old, new))


def _run(place: Path, *options: object) -> None:
    command = [str(CC), "-pthread", *map(str, options)]
    subprocess.run(command, cwd=place, check=True, timeout=BUILD_S)
