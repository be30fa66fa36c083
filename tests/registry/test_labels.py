"""What a peer is called that was given no label: its program, as `ps` shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import PATIENCE_S
from tests.helpers.rings import small_ring

SHOWS = """
import sys

import gpuring

with gpuring.attach(sys.argv[1]) as ring, ring.producer():
    print(ring.stats().peers[0].label)
"""


@pytest.mark.parametrize(
    ("file", "command", "label"),
    [
        ("camera.py", ["camera.py"], "camera.py"),
        ("camera/__main__.py", ["-m", "camera"], "camera"),
        ("camera.py", ["-m", "camera"], "camera.py"),
        ("caf\udce9.py", ["caf\udce9.py"], "caf?.py"),
        ("camera.py", ["-c", SHOWS], "python"),
        (f"{'é' * 40}.py", [f"{'é' * 40}.py"], "é" * 32),
    ],
)
def test_a_peer_is_called_as_its_program(name, tmp_path, file, command, label):
    program = Path(tmp_path, file)
    program.parent.mkdir(exist_ok=True)
    program.write_text(SHOWS)
    with small_ring(name):
        done = subprocess.run(
            [sys.executable, *command, name],
            cwd=tmp_path, capture_output=True, timeout=PATIENCE_S, check=False,
            env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        )  # fmt: skip
    assert (done.stdout.decode(), done.stderr.decode()) == (f"{label}\n", "")
