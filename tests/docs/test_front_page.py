"""What a reader pastes first works: the programs of the front page, and the guide's first ones.

No wait has a time of its own: a program that starts CUDA on a busy machine takes long.
"""

from __future__ import annotations

import re
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import gpuring
from gpuring.memory import frameworks
from tests import ROOT
from tests.docs.blocks import pasted
from tests.helpers.processes import until
from tests.helpers.rings import segments_of

COLUMNS = 88
"""So wide is the code that the site shows on a screen of 1280 pixels."""


ARRAY, TENSOR = "slot.array.mean()", "torch.from_dlpack(slot).float().mean().item()"
"""What the front page says to write where only torch is installed.  The number is printed alone."""
SQUARE_BY_TORCH = "from_dlpack(slot)[...] = from_dlpack(number) ** 2"
SQUARE = "slot.array[...] = number.array**2"
"""What the guide says for CuPy and NumPy."""
FRONT, GUIDE = pasted("README.md"), pasted("docs/guide.md")


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def start(request, name, programs, tmp_path, monkeypatch):
    """Starts a pasted program with this kind of memory and rings of this test."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")

    def start(pasted: dict[str, str], file: str, **more: Any) -> subprocess.Popen[str]:
        code = pasted[file].replace('device = "cuda"', f'device = "{request.param}"')
        if request.param == "cuda" and frameworks.cupy() is None and ARRAY in code:
            code = f"import torch\n{code.replace(ARRAY, TENSOR)}"
        if find_spec("torch") is None:
            code = code.replace(SQUARE_BY_TORCH, SQUARE).replace("from torch import", "# ")
        (tmp_path / file).write_text(re.sub(r'"(cam0|numbers|squares)"', rf'"{name}.\1"', code))
        return programs.start(file, stderr=subprocess.PIPE, **more)

    return start


def test_the_pages_have_the_programs():
    assert set(FRONT) == {"camera.py", "watch.py"}
    assert list(GUIDE)[:2] == ["send.py", "change.py"]
    for code in (*FRONT.values(), GUIDE["send.py"]):
        compile(code, "page", "exec")
    assert SQUARE_BY_TORCH in GUIDE["change.py"]
    assert SQUARE in _guide()
    assert 'device = "cuda"' in FRONT["camera.py"]
    assert 'device = "cuda"' in GUIDE["send.py"]


def test_the_front_page_is_not_cut_off():
    page = (ROOT / "README.md").read_text()
    code = re.findall(r"^```\w+\n(.*?)^```$", page, re.M | re.S)
    assert code
    assert [line for block in code for line in block.splitlines() if len(line) > COLUMNS] == []


def test_the_front_page(start, name):
    """A reader sees the images get brighter.  When the camera is told to end, the loop ends."""
    camera = start(FRONT, "camera.py")
    until(Path("/dev/shm", f"gpuring.{name}.cam0").exists, camera)
    watch = start(FRONT, "watch.py")
    seen = [watch.stdout.readline().split() for _ in range(5)]
    camera.send_signal(signal.SIGINT)
    _, trouble = camera.communicate()
    assert trouble.splitlines()[-1] == "KeyboardInterrupt"
    rest, trouble = watch.communicate()
    assert (watch.returncode, trouble) == (0, "")
    seen += [line.split() for line in rest.splitlines()]
    assert [words for words in seen if len(words) != 3] == []
    first = int(seen[0][0])
    assert [int(seq) for seq, _, _ in seen] == list(range(first, first + len(seen)))
    assert [int(pts) for _, pts, _ in seen] == [int(seq) - 8 for seq, _, _ in seen]
    for _, pts, mean in seen:
        assert float(mean) == pytest.approx(255 * (int(pts) + 1) / 1920)


def test_sigterm_ends_the_front_page_while_it_waits(start, name, programs, before):
    """The camera waits in claim, and its watcher in acquire."""
    camera = start(FRONT, "camera.py", before=before)
    until(Path("/dev/shm", f"gpuring.{name}.cam0").exists, camera)
    with gpuring.attach(f"{name}.cam0") as ring:
        slow = ring.consumer("slow")  # takes nothing, so the camera waits for it
        watch = start(FRONT, "watch.py", before=before)
        until(lambda: sum(peer.waiting for peer in ring.stats().peers) == 2, watch)
        for process in (watch, camera):
            programs.terminate(process)
            _, trouble = process.communicate()
            assert (process.returncode, trouble) == (143, "")
        slow.acquire(10).release()
    assert segments_of(name) == []


def test_nothing_is_left_of_a_camera_that_is_killed_when_its_watcher_has_left(start, name):
    camera = start(FRONT, "camera.py")
    until(Path("/dev/shm", f"gpuring.{name}.cam0").exists, camera)
    watch = start(FRONT, "watch.py")
    watch.stdout.readline()
    camera.kill()
    _, trouble = watch.communicate()
    assert trouble.splitlines()[-1].startswith("gpuring.errors.PeerLost: ")
    assert segments_of(name) == []


@pytest.mark.parametrize("first", ["send.py", "change.py"])
def test_the_first_example_of_the_guide(start, first):
    """The two may start in any order."""
    programs = {file: GUIDE[file] for file in ("send.py", "change.py")}
    processes = {file: start(programs, file) for file in sorted(programs, key=lambda x: x != first)}
    out, trouble = processes["send.py"].communicate()
    assert (processes["send.py"].returncode, trouble) == (0, "")
    shown = re.search(r"^\$ python examples/two_scripts.*?\n(.*?)^```$", _guide(), re.M | re.S)[1]
    assert out == shown
    _, trouble = processes["change.py"].communicate()
    assert (processes["change.py"].returncode, trouble) == (0, "")


def _guide() -> str:
    return (ROOT / "docs" / "guide.md").read_text()
