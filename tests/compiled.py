"""The programs of tests/core, compiled with a copy of the C core in which lines may be changed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE, PROGRAMS = Path("gpuring/core"), Path("tests/core")
CC = shutil.which("gcc") or shutil.which("cc")
BUILD_S = 60

needs_compiler = pytest.mark.skipif(CC is None, reason="no C compiler: the core is compiled anew")

Edit = tuple[str, str, str]  # file of the core, a place in it, what stands there instead


def build(place: Path, program: str, flags: list[str], *edits: Edit) -> Path:
    """Compiles the program whose sources `program` matches in tests/core; where it is then."""
    for folder in (CORE, PROGRAMS):
        shutil.copytree(ROOT / folder, place / folder)
    for name, old, new in edits:
        path = place / CORE / name
        text = path.read_text()
        assert text.count(old) == 1, f"{name} does not have it once: {old}"
        path.write_text(text.replace(old, new))
    sources = [*(place / PROGRAMS).glob(program), *(place / CORE).glob("*.c")]
    command = [str(CC), "-std=gnu11", "-pthread", *flags, "-o", "program", *map(str, sources)]
    subprocess.run(command, cwd=place, check=True, timeout=BUILD_S)
    return place / "program"
