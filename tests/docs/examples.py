"""The examples, and the names of rings that they use."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from pathlib import Path

import pytest

from tests import ROOT

EXAMPLES = ROOT / "examples"
NUMBERS = ("numbers", "squares")
VIDEO = tuple(f"{each}{k}" for each in ("cam", "seen") for k in range(3))
RINGS = {
    "two_scripts": NUMBERS,
    "one_script.py": NUMBERS,
    "sensor_latest.py": ("lidar",),
    "weights_handover.py": ("weights",),
    "video_pipeline.py": VIDEO,
    "inference_frontends.py": ("classify",),
    "upscale_frontends.py": ("upscale",),
    "two_hosts/run.py": ("cam0", "cam1", "seen0", "seen1"),
    "supervised/run.py": ("cam0", "cam1", "cam2", "seen"),
}
"""The names of rings that an example takes.  Two tests at a time cannot have the same ones."""
FRONT_ENDS = ("torch", "uvicorn", "starlette", "PIL")
"""What those with a page in HTTP import."""
ON_HOST = "no GPU here, so this runs on host memory"
PLAIN = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
"""Before a command of root: it makes no namespaces."""


def needs(*modules):
    for module in modules:
        pytest.importorskip(module, reason="gpuring[examples,bridge] is not installed")


def needs_video():
    needs("av", *FRONT_ENDS)


def lock(until, name):
    """Waits until no other test has the name."""
    file = until.enter_context(
        (Path(tempfile.gettempdir()) / f"gpuring-test-{os.getuid()}-{name}").open("w")
    )
    fcntl.flock(file, fcntl.LOCK_EX)


def files_of(name):
    """Returns the files in shared memory of a ring or service of this name."""
    found = Path("/dev/shm").glob(f"gpuring.{name}*")
    return [path for path in found if re.match(rf"gpuring\.{name}(\W|$)", path.name)]


def printed(process, patience_s=200):
    out, _ = process.communicate(timeout=patience_s)
    assert process.returncode == 0, out
    return out.splitlines()
