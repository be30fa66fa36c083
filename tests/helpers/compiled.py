"""tests/native/programs, compiled with a copy of the C in which lines may be changed.

Most of the C is the same in each copy, so its objects are kept for the next one, also for tests
that run in other processes of pytest-xdist.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import ROOT

NATIVE, INCLUDE = Path("gpuring/native"), Path("gpuring/include")
CORE, HOST, DEVICE, MEMORY, API = (
    NATIVE / each for each in ("core", "host", "device", "memory", "api")
)
PROGRAMS = Path("tests/native/programs")
HARDWARE = ("fake_cuda.c", "fake_calls.c")  # compiled without sanitizers, as a driver is
FAULTS = ["-O1", "-g", "-w", "-DGR_FAULTS"]  # programs with the same flags share objects
CC = shutil.which("gcc") or shutil.which("cc")
BUILD_S = 200  # for all compiler commands together

needs_compiler = pytest.mark.skipif(CC is None, reason="no C compiler: the core is compiled anew")

Edit = tuple[str, str, str]  # a file of the library, a text in it, and what replaces that text


def build(
    place: Path, programs: str | list[str], flags: list[str], *edits: Edit,
    device: bool = False, api: bool = False,
) -> Path:  # fmt: skip
    """Compiles the program whose sources match in tests/native/programs.  Returns its path.

    place: an empty folder that pytest has made.
    device: compiles the device order, too, over the fake driver.  api: compiles the whole library,
    with the real driver if there is one.  A file of the core that a program includes is not
    compiled by itself.
    """
    _need_sanitizers(place, flags)
    _copy(place, edits)
    edited = {name for name, _, _ in edits}
    anew = any(name.endswith(".h") for name in edited)  # every file may include a header
    rooms = [CORE, HOST, DEVICE, MEMORY, API] if api else [CORE, DEVICE] if device else [CORE]
    patterns = [room / "*.c" for room in rooms]
    named = [programs] if isinstance(programs, str) else programs
    patterns += [PROGRAMS / name for name in (*(HARDWARE if device else ()), *named)]
    sources = [path for pattern in patterns for path in sorted(place.glob(str(pattern)))]
    texts = "".join(
        path.read_text() for path in sources if PROGRAMS in path.relative_to(place).parents
    )
    included = re.findall(r'#include ".*/core/(\w+\.c)"', texts)
    objects = _objects(place)

    def compiled(source: Path) -> Path:
        path = source.relative_to(place)
        left_out = ("-Wl,", "-fsanitize") if path.name in HARDWARE else ("-Wl,",)
        of = [flag for flag in flags if not flag.startswith(left_out)]
        made = place / f"{path}.o"
        command = ["-std=gnu11", *of, "-c", path, "-o", made]
        if anew or path.name in edited:
            _compile(place, *command)
            return made
        kept = objects / hashlib.sha256(repr((path, of)).encode()).hexdigest()
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                _compile(place, *command)
                made.rename(kept)
        return kept

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        linked = pool.map(compiled, (each for each in sources if each.name not in included))
        _compile(place, *flags, "-o", "program", *linked, "-ldl")
    return place / "program"


def _objects(place: Path) -> Path:
    """The folder for objects that the builds of this run of pytest share.

    Each process of pytest-xdist has a folder popen-gwN in that of the run.
    """
    of_process = next((each for each in place.parents if each.name.startswith("popen-gw")), None)
    objects = (of_process or place).parent / "objects"
    objects.mkdir(exist_ok=True)
    return objects


def build_alone(place: Path, folder: Path, flags: list[str]) -> Path:
    """Compiles the C files of a folder, which need nothing of ours."""
    _need_sanitizers(place, flags)
    _compile(place, *flags, "-o", "program", *sorted(folder.glob("*.c")))
    return place / "program"


def _need_sanitizers(place: Path, flags: list[str]) -> None:
    if any("-fsanitize" in flag for flag in flags):
        (place / "empty.c").write_text("int main(void) { return 0; }")
        tried = [str(CC), *flags, "empty.c", "-o", "empty"]
        if subprocess.run(tried, cwd=place, check=False, capture_output=True).returncode:
            pytest.skip("no such sanitizer here")


def run(
    program: Path, *options: object, timeout: float, check: bool = False, **more: str
) -> subprocess.CompletedProcess[str]:
    """more: variables that are added to the environment."""
    return subprocess.run(
        [program, *map(str, options)], cwd=program.parent, env=os.environ | more,
        capture_output=True, text=True, timeout=timeout, check=check,
    )  # fmt: skip


def _copy(place: Path, edits: tuple[Edit, ...]) -> None:
    for folder in (CORE, HOST, DEVICE, MEMORY, API, INCLUDE, PROGRAMS):
        shutil.copytree(ROOT / folder, place / folder)
    for name, old, new in edits:
        (path,) = (place / NATIVE).glob(f"*/{name}")
        text = path.read_text()
        assert text.count(old) == 1, f"{name} does not have exactly once: {old}"
        path.write_text(text.replace(old, new))


def _compile(place: Path, *options: object) -> None:
    command = [str(CC), "-pthread", *map(str, options)]
    subprocess.run(command, cwd=place, check=True, timeout=BUILD_S)
