"""Pipelines over a driver without a GPU, and over a real one with the marker `gpu`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuring.memory import kinds
from gpuring.registry import leftovers
from tests.gstreamer.conftest import need_elements
from tests.helpers.compiled import BUILD_S, CC, PROGRAMS, ROOT, needs_compiler

HERE = Path(__file__).parent
PARTS = {
    "libcuda.so.1": [HERE / "fake_graphics.c", *(ROOT / PROGRAMS / "fake_libcuda").glob("*.c")],
    "libnvcuvid.so.1": [HERE / "fake_nvcuvid.c"],
}
STRICT = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1"]


@pytest.fixture(scope="session")
def fake_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the libraries of a driver without a GPU."""
    if CC is None:
        pytest.skip(needs_compiler.kwargs["reason"])
    place = tmp_path_factory.mktemp("fake-gpu")
    for library, sources in PARTS.items():
        made = ["-fPIC", "-shared", "-pthread", *sources, "-o", place / library]
        subprocess.run([CC, *STRICT, *made], check=True, timeout=BUILD_S)
    return place


@pytest.fixture(scope="session")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which GStreamer notes what each plugin has.  That depends on the driver."""
    return tmp_path_factory.mktemp("registries")


@pytest.fixture
def calls_log(tmp_path: Path) -> Path:
    """The file with all calls of the driver without a GPU."""
    return tmp_path / "calls"


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, calls_log: Path) -> str:
    """The driver of processes that are started from now on."""
    if request.param == "fake":
        place = request.getfixturevalue("fake_gpu")
        before = os.environ.get("LD_LIBRARY_PATH", "")
        monkeypatch.setenv("LD_LIBRARY_PATH", f"{place}:{before}")
        monkeypatch.setenv("FAKE_CUDA_LOG", str(calls_log))
    return str(request.param)


@pytest.fixture
def environment(driver: str, plugins: dict[str, str], registries: Path) -> dict[str, str]:
    found = plugins | {"GST_REGISTRY": str(registries / driver)}
    need_elements(found, "cudaupload")  # of the plugin nvcodec of gst-plugins-bad
    return found


@pytest.fixture
def name(name: str) -> Iterator[str]:
    """A ring name.  Rings of the dead under it are removed after the test."""
    yield name
    leftovers.tidy(lambda each: each.startswith(name))


@pytest.fixture(params=kinds.ON_GPU)
def memory(request: pytest.FixtureRequest, driver: str) -> Any:
    if driver == "real":
        able, why = kinds.supported(request.param, 0)
        if not able:
            pytest.skip(why)
    return request.param
