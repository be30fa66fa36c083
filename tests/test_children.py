"""The processes that tests start, whichever way they are started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support import Pipe

import gpuring


def variable(pipe: Pipe) -> str | None:
    return os.environ.get("GPURING_TEST")


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_child_has_our_environment(children: Any, monkeypatch: Any, method: str) -> None:
    monkeypatch.delenv("GPURING_TEST", raising=False)
    assert children(variable, method=method).result() is None
    monkeypatch.setenv("GPURING_TEST", "1")  # the server of forks is there by now
    assert children(variable, method=method).result() == "1"


def looks_for_cuda(pipe: Pipe) -> tuple[bool, bool]:
    """Whether its parent and itself had the driver loaded when it began."""
    here, parent = (Path(f"/proc/{who}/maps").read_text() for who in ("self", os.getppid()))
    return "libcuda.so" in parent, "libcuda.so" in here


@pytest.mark.gpu
def test_the_server_that_forks_children_has_not_started_cuda(children: Any, name: str) -> None:
    assert children(looks_for_cuda).result() == (False, False)
    with gpuring.create(name, slots=2, shape=8, dtype="u1", device="cuda"):
        assert children(attaches, name).result() == "cuda"


def attaches(pipe: Pipe, name: str) -> str:
    with gpuring.attach(name) as ring, ring.consumer():
        return "host" if ring.memory == "host" else "cuda"
