"""The programs of docs/containers.md run in containers that share what a pod shares."""

from __future__ import annotations

import contextlib
import functools
import io
import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers.processes import Pipe, poll
from tests.registry.containers import cleans, obey, shared_memory, start

yaml = pytest.importorskip("yaml", reason="gpuring[docs] is not installed")

PAGE = (ROOT / "docs" / "containers.md").read_text()
MANIFEST = re.search(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
assert MANIFEST is not None
PROGRAMS, POD = yaml.safe_load_all(MANIFEST[1])
LINES = 20


def test_both_containers_have_the_rings_and_the_programs():
    volumes = {each["name"]: each for each in POD["spec"]["volumes"]}
    assert volumes["rings"]["emptyDir"]["medium"] == "Memory"
    assert volumes["programs"]["configMap"]["name"] == PROGRAMS["metadata"]["name"]
    run = []
    for each in POD["spec"]["containers"]:
        places = {mount["name"]: mount["mountPath"] for mount in each["volumeMounts"]}
        assert places == {"rings": "/dev/shm", "programs": "/programs"}
        run.append(Path(each["command"][1]))
    assert run == [Path("/programs", name) for name in PROGRAMS["data"]]


class Enough(io.StringIO):
    """Standard output that ends its program after so many lines."""

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count("\n") == LINES:
            raise KeyboardInterrupt
        return written


def runs(pipe: Pipe, program: str) -> None:
    """Runs a program when it is told to, until it has printed enough."""
    out = Enough()

    def run() -> str:
        with contextlib.redirect_stdout(out), contextlib.suppress(KeyboardInterrupt):
            exec(program, {"__name__": "__main__"})
        return out.getvalue()

    obey(pipe, {"run": run})


@pytest.mark.slow
def test_the_programs_of_the_pod_run(children):
    with shared_memory() as shm:
        container = functools.partial(start, children, shm, False)
        camera, watch = (container(runs, program) for program in PROGRAMS["data"].values())
        camera.begin("run")
        lines = [line.split() for line in watch("run").splitlines()]
        for each in (camera, watch):
            each.kill()
        cleaner = container(cleans)
        poll(lambda: "cam0" in cleaner("clean"))
    assert len(lines) == LINES
    first = int(lines[0][0])
    assert [int(seq) for seq, _, _ in lines] == list(range(first, first + LINES))
    for _, pts, mean in lines:
        assert float(mean) == int(pts) % 256
