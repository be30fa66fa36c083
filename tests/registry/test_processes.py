"""What /proc says of a process whose name has odd bytes.  A process may choose any name."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from gpuring.registry.processes import pid_inside, state
from tests.helpers.processes import Pipe, up

_PR_SET_NAME = 15
_CUT = "Bildverarbeitü".encode()[:-1]


def called(pipe: Pipe, comm: bytes) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, comm, 0, 0, 0)
    pipe.ask()


@pytest.mark.parametrize("comm", [_CUT, b"a\x0cNSpid:\t1", b"a\rNSpid:\t1", b"a) T "])
def test_any_name_of_a_process_can_be_read(children, comm):
    child = up(children(called, comm))
    assert state(child.pid) in {"R", "S"}
    assert pid_inside(Path(f"/proc/{child.pid}/status").read_bytes()) == child.pid
