"""The programs of docs/recording.md, with the recording that it shows."""

from __future__ import annotations

import re
import subprocess

import pytest

import gpuring
from tests import ROOT
from tests.helpers.processes import PATIENCE_S

pytest.importorskip("mcap")

from gpuring.recording.files import Files
from gpuring.recording.message import RecordedRing, copier
from tests.docs.blocks import pasted

PAGE = (ROOT / "docs" / "recording.md").read_text()
PROGRAMS = pasted("docs/recording.md")


def shown(file):
    """The output of a program, as the page gives it."""
    behind = PAGE.partition(f"```python\n# {file}\n")[2]
    found = re.search(r"^```\n\n```\n(.*?)^```$", behind, re.M | re.S)
    assert found
    return found[1]


@pytest.fixture
def recording(name, tmp_path):
    """Six frames of cam0, 40 ms apart, and three of lidar, which are smaller than their slots."""
    files = Files(tmp_path / "run.mcap")
    fields = {"y": ((1080, 1920), "u1"), "uv": ((540, 960, 2), "u1")}
    with (
        gpuring.create(f"{name}-cam0", slots=8, fields=fields, meta=[("pts", "i8")],
                       device="host") as cam0,
        gpuring.create(f"{name}-lidar", slots=8, shape=(1000, 4), dtype="f4",
                       device="host") as lidar,
        cam0.producer() as pictures, cam0.consumer() as seen,
        lidar.producer() as clouds, lidar.consumer() as felt,
    ):  # fmt: skip
        copies = []
        for ring in (cam0, lidar):
            recorded = RecordedRing.of(ring)
            object.__setattr__(recorded, "name", ring.name.rpartition("-")[2])
            copies.append(copier(recorded))
        for k in range(6):
            with pictures.claim(0) as slot:
                slot["y"][...], slot["uv"][...] = slot.seq, 128
                slot.meta["pts"] = 40 * k
            written = [(seen, copies[0])]
            if k % 2 == 0:
                with clouds.claim(0, shape=(25, 4)) as slot:
                    slot.array[...] = 0.5
                written.append((felt, copies[1]))
            for frames, copy in written:
                with frames.acquire(0) as slot:
                    frame = copy(slot)
                    frame._head["unix_ns"] = 1_795_770_000_000_000_000 + 40_000_000 * k
                    files.write(frame)
    files.finish()
    return tmp_path


@pytest.mark.parametrize("file", ["read.py", "decode.py"])
def test_what_a_program_prints(recording, programs, file):
    (recording / file).write_text(PROGRAMS[file])
    process = programs.start(recording / file, stderr=subprocess.PIPE)
    out, trouble = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, trouble) == (0, "")
    first, cut, _ = shown(file).partition("…\n")
    assert out.startswith(first)
    assert bool(cut) or out == first
    if file == "decode.py":
        assert out.count("\n") == 6 * 3 + 3


def test_strangers_need_no_gpuring():
    assert "gpuring" not in PROGRAMS["decode.py"].replace("gpuring.", "")
    assert re.findall(r"^(?:from|import) (\w+)", PROGRAMS["decode.py"], re.M) == [
        "json", "math", "numpy", "mcap",
    ]  # fmt: skip
