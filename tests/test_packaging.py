"""A source distribution has what git tracks, builds a wheel, and what is installed has its types.

What is built here is a copy: to build in the checkout would replace extension modules in use.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import ROOT

BUILD_S = 600  # of all extension modules, and the index


def run(*command: object, cwd: Path, status: int = 0) -> str:
    """Returns what a command prints.  Its process group is killed if it does not end in time."""
    started = subprocess.Popen(
        [*map(str, command)], cwd=cwd, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | {"CFLAGS": "-O0"},  # the build is quicker, and nothing here measures speed
    )  # fmt: skip
    try:
        said, _ = started.communicate(timeout=BUILD_S)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    assert started.returncode == status, said
    return said


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    """The files that git knows."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    return [Path(line) for line in run("git", "ls-files", cwd=ROOT).splitlines()]


def test_sources_that_were_not_built_say_so(tmp_path):
    """Python finds them first where it is started in a clone, whatever is installed."""
    shutil.copytree(ROOT / "gpuring", tmp_path / "gpuring", ignore=lambda _, names: {
        name for name in names if not name.endswith(".py") and "." in name
    })  # fmt: skip
    said = run(sys.executable, "-c", "import gpuring", cwd=tmp_path, status=1)
    assert re.search(r"ImportError: .* is not built.*pip install -e \.", said), said
    assert str(tmp_path / "gpuring") in said


def test_the_flags_of_whoever_builds_come_last(tmp_path):
    """The builds below use -O0, with which they take half the time."""
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("no CMake")
    how = ("-B", tmp_path, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release")
    run("cmake", "-S", ROOT / "cmake", *how, cwd=tmp_path)
    lines = re.findall(r"^  FLAGS = (.*)$", (tmp_path / "build.ninja").read_text(), re.MULTILINE)
    assert {re.findall(r"-O\w", flags)[-1] for flags in lines} == {"-O0"}


class Made(NamedTuple):
    """What `.ci/wheels` has made.  The script has run a ring with it."""

    sdist: Path
    wheel: Path


def clone(tracked: list[Path], place: Path) -> Path:
    for path in tracked:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, place / path)
    return place


@pytest.fixture(scope="module")
def made(tracked, tmp_path_factory) -> Made:
    copy, dist = clone(tracked, tmp_path_factory.mktemp("copy")), tmp_path_factory.mktemp("dist")
    run(".ci/wheels", dist, sys.executable, cwd=copy)
    return Made(*dist.glob("*.tar.gz"), *dist.glob("*.whl"))


@pytest.mark.slow
@pytest.mark.deadline(BUILD_S)
def test_a_source_distribution_has_what_git_tracks(made, tracked):
    with tarfile.open(made.sdist) as archive:
        packed = {Path(*Path(name).parts[1:]) for name in archive.getnames()}
    assert not [str(path) for path in tracked if path not in packed]
    assert not [
        path.name for path in packed if path.match("gpuring/native/*.c") or path.suffix == ".so"
    ]


@pytest.mark.slow
@pytest.mark.deadline(BUILD_S)
def test_a_wheel_has_the_licence_and_says_where_it_runs(made):
    assert re.search(r"-manylinux_\d_\d+_\w+\.whl$", made.wheel.name)
    with zipfile.ZipFile(made.wheel) as archive:
        names = archive.namelist()
        (about,) = [name for name in names if name.endswith("/METADATA")]
        metadata = archive.read(about).decode()
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert {"LICENSE", "NOTICE"} <= {Path(name).name for name in names if "/licenses/" in name}
    assert "gpuring/py.typed" in names


@pytest.mark.slow
@pytest.mark.deadline(BUILD_S)
def test_a_wheel_has_stubs_with_docstrings(made):
    with zipfile.ZipFile(made.wheel) as archive:
        assert b"Acquires the next frame" in archive.read("gpuring/ring/consumer.pyi")


@pytest.mark.slow
@pytest.mark.deadline(BUILD_S)
def test_a_wheel_has_no_debug_information(made):
    with zipfile.ZipFile(made.wheel) as archive:
        compiled = [name for name in archive.namelist() if ".so" in Path(name).suffixes]
        assert "gpuring/native/libgpuring.so.0" in compiled
        assert "gpuring/native/peer" in {name.split(".")[0] for name in compiled}
        assert [name for name in compiled if b".debug_info" in archive.read(name)] == []


SCRIPT = """
import gpuring
ring = gpuring.attach("cam0")
reveal_type(ring.consumer().acquire().seq)
parts = gpuring.connect("generate", parts=8).request().call.parts()
for part in parts:
    reveal_type(part)
async def take() -> None:
    async for part in parts:
        reveal_type(part)
gpuring.create("cam1", slots="three", shape=4)
"""


@pytest.mark.slow
@pytest.mark.deadline(BUILD_S)
def test_an_editable_install_is_found_from_anywhere_and_by_type_checkers(tracked, tmp_path):
    """In a folder that has a clone called gpuring, the clone could be taken for a namespace
    package."""
    pytest.importorskip("mypy")
    built = [path for path in ROOT.glob("gpuring/**/*.so*") if path.is_file()]
    if not built:
        pytest.skip("what is tested is not this checkout")
    place = tmp_path / "place"
    copy = clone([*tracked, *(path.relative_to(ROOT) for path in built)], place / "gpuring")
    run(sys.executable, "-m", "venv", "venv", cwd=place)
    python = place / "venv/bin/python"
    as_built = "--config-settings=wheel.cmake=false"
    run(python, "-m", "pip", "install", "--quiet", as_built, "-e", copy, cwd=place)
    run(python, "-c", "import gpuring; gpuring.create", cwd=place)

    user = tmp_path / "user"
    user.mkdir()
    (user / "script.py").write_text(SCRIPT)
    said = run(
        *(sys.executable, "-m", "mypy", "--python-executable", python, "script.py"),
        cwd=user,
        status=1,
    )
    assert 'Revealed type is "int"' in said
    assert said.count('Revealed type is "gpuring.ring.read_slot.ReadSlot"') == 2
    (error,) = re.findall(r"error: .*", said)
    assert error.startswith('error: Argument "slots" to "create" has incompatible type "str"')
