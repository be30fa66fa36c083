"""The programs of tests/core, compiled with a copy of the C in which lines may be changed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE, DEVICE, PROGRAMS = Path("gpuring/core"), Path("gpuring/device"), Path("tests/core")
HARDWARE = ("fake_cuda.c", "fake_calls.c")  # no sanitizer of ours looks into it
CC = shutil.which("gcc") or shutil.which("cc")
BUILD_S = 60

needs_compiler = pytest.mark.skipif(CC is None, reason="no C compiler: the core is compiled anew")

Edit = tuple[str, str, str]  # file of core or device, a place in it, what stands there instead


def copy(place: Path, *edits: Edit) -> None:
    for folder in (CORE, DEVICE, PROGRAMS):
        shutil.copytree(ROOT / folder, place / folder)
    for name, old, new in edits:
        path = place / (CORE if (ROOT / CORE / name).exists() else DEVICE) / name
        text = path.read_text()
        assert text.count(old) == 1, f"{name} does not have it once: {old}"
        path.write_text(text.replace(old, new))


def build(place: Path, program: str, flags: list[str], *edits: Edit) -> Path:
    """Compiles the program whose sources `program` matches in tests/core; where it is then."""
    copy(place, *edits)
    sources = [*(place / PROGRAMS).glob(program), *(place / CORE).glob("*.c")]
    command = [str(CC), "-std=gnu11", "-pthread", *flags, "-o", "program", *map(str, sources)]
    subprocess.run(command, cwd=place, check=True, timeout=BUILD_S)
    return place / "program"


def _sources(programs: list[str]) -> list[Path]:
    patterns = [f"{CORE}/*.c", f"{DEVICE}/*.c"]
    patterns += [f"{PROGRAMS}/{name}" for name in (*HARDWARE, *programs)]
    return [file.relative_to(ROOT) for name in patterns for file in sorted(ROOT.glob(name))]


def build_device(
    place: Path, programs: list[str], flags: list[str], *edits: Edit, base: Path | None = None
) -> Path:
    """The same with device order over the fake driver.

    base: where the same was built without edits; what they do not concern is taken from there.
    """
    copy(place, *edits)
    edited = {name for name, _, _ in edits}
    assert not (base and any(name.endswith(".h") for name in edited)), "every file may use it"
    hardware = [flag for flag in flags if not flag.startswith("-fsanitize")]
    objects = []
    for path in _sources(programs):
        made = Path(f"{path}.o".replace("/", "-"))
        objects.append(made)
        if base and path.name not in edited:
            shutil.copy(base / made, place / made)
            continue
        of = hardware if path.name in HARDWARE else flags
        command = [str(CC), "-std=gnu11", "-pthread", *of, "-c", str(path), "-o", str(made)]
        subprocess.run(command, cwd=place, check=True, timeout=BUILD_S)
    command = [str(CC), "-pthread", *flags, "-o", "program", *map(str, objects), "-ldl"]
    subprocess.run(command, cwd=place, check=True, timeout=BUILD_S)
    return place / "program"
