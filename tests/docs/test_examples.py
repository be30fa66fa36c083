"""The examples run as they are, and the guide shows them as they are."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests import ROOT
from tests.docs.examples import (
    EXAMPLES,
    FRONT_ENDS,
    ON_HOST,
    PLAIN,
    needs,
    needs_video,
    printed,
)
from tests.helpers.commands import python
from tests.helpers.promise import promise


def _check(lines, on_host):
    if on_host:
        assert lines.pop(0) == ON_HOST
    for n, line in enumerate(lines):
        sent, squares = line.split(" came back as ")
        assert int(sent) == n
        assert [float(x) for x in squares.strip("[]").split()] == [n * n] * 8
    assert len(lines) == 4


@pytest.mark.parametrize("first", ["send.py", "change.py"])
def test_two_scripts(start, first):
    """They may start in any order."""
    second = {"send.py": "change.py", "change.py": "send.py"}[first]
    processes = {name: start("two_scripts", name) for name in (first, second)}
    _check(printed(processes["send.py"]), start.on_host)
    assert printed(processes["change.py"]) == []


def test_one_script(start):
    _check(printed(start("one_script.py")), start.on_host)


@pytest.mark.slow
def test_sensor_latest(start, tmp_path):
    """The example checks its log and its plans itself.  This test checks that its figures add
    up."""
    h5py = pytest.importorskip("h5py", reason="gpuring[examples] is not installed")
    needs("torch")
    lines = printed(start("sensor_latest.py", args=["1"]))
    if start.on_host:
        assert lines.pop(0) == f"{ON_HOST} with torch on the CPU"
    rate = re.match(r"lidar +(\d+) scans/s of 2048 points, late by p50 ", lines.pop(0))[1]
    text = "\n".join(lines)  # planner and logger print in any order
    plans, lost = re.search(
        r"planner +(\d+) plans, (\d+) scans lost, age .* ms$", text, re.M
    ).groups()
    assert int(plans) + int(lost) == 1000
    most = 2 + 100 * 1000 / int(rate)  # a slow machine may take longer than a second
    assert 0 < int(plans) <= most, "a planner at 100 Hz passes over most scans"
    assert re.search(r"logger +1000 scans in scans.h5, age", text)
    assert "every one, in order, bit for bit as the lidar measured it" in text
    with h5py.File(tmp_path / "scans.h5") as log:
        assert len(log["points"]) == len(log["meta"]) == 1000


@promise(
    "services.md",
    "[The token stream](examples/token_stream.md) has prompts in one service, and images in "
    "another one.",
)
@pytest.mark.slow
def test_token_stream(start):
    """Each front end checks its tokens itself.  This test checks that no front end that lives has
    missed any."""
    text = "\n".join(printed(start("token_stream.py", args=["30"])))
    told = r"front end (\d)  30 prompts, .*, (\d+) in all, each right; \d+ streams asked for again"
    assert sorted(re.findall(told, text)) == [("0", "3000"), ("1", "300"), ("3", "3000")]
    assert re.search(r"engine +took over: [1-9]\d* streams to their end", text)


STOPPED = """
import os, signal, sys
sys.path.append(sys.argv[1])
import token_stream

def start(name, *args, begin=token_stream.start):
    process = begin(name, *args)
    if name == "front end 3":
        os.kill(process.pid, signal.SIGSTOP)
    return process

token_stream.start, token_stream.PATIENCE_S = start, 4
token_stream.main(5)
"""


@pytest.mark.slow
def test_a_front_end_of_the_token_stream_that_is_stopped_is_given_up():
    done = python(STOPPED, EXAMPLES)
    assert done.returncode == 1, done.stderr
    assert "front end 3 has asked nothing for 8 s: killed\n" in done.stderr
    assert sorted(re.findall(r"front end (\d)  5 prompts, ", done.stdout)) == ["0", "1"]


@pytest.mark.slow
def test_weights_handover(start):
    """The example compares checksums itself.  This test checks that all end with the same weights,
    also the late one."""
    pytest.importorskip("torch", reason="gpuring[examples] is not installed")
    lines = printed(start("weights_handover.py", args=["150"]))
    if start.on_host:
        assert lines.pop(0) == "no GPU here, so this runs on host memory with torch on the CPU"
    text = "\n".join(lines)
    (loss,) = re.findall(r"trainer +made 30 versions, loss ([\d.]+)", text)
    assert float(loss) < 0.5, "the model has learned nothing"
    samplers = re.findall(r"sampler (\d) +used (\d+) versions, (\d+) … 30, loss (\d\.\d{4})", text)
    assert sorted(number for number, *_ in samplers) == ["0", "1", "2"]
    assert {loss for *_, loss in samplers} == {loss}
    used, first = next((int(used), int(first)) for n, used, first, _ in samplers if n == "2")
    assert first > 1, "the third sampler came late"
    assert used <= 31 - first


ANY_NAME = ("supervised/detector.py", "supervised/recorder.py")
"""Those for which any word is a right argument."""


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "name", sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py"))
)
def test_help_and_wrong_arguments(start, name):
    if name in ("crew.py", "inference_load.py", "upscale_load.py", "video_page.py"):  # parts
        needs_video()
    else:
        assert printed(start(name, args=["--help"], alone=False))[0].startswith("usage: ")
    for wrong in ("--nonsense", "x")[: 1 if name in ANY_NAME else 2]:
        process = start(name, args=[wrong], alone=False, stderr=subprocess.PIPE)
        _, said = process.communicate(timeout=60)
        assert process.returncode != 0
        assert said.startswith("usage: ")
        assert "Traceback" not in said


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "name",
    [
        *("inference_frontends", "sensor_latest", "upscale_frontends"),
        *("video_page", "video_pipeline", "weights_handover"),
    ],
)
def test_without_its_packages_an_example_says_what_to_install(name, tmp_path):
    """It says so also where they are installed.  --help needs none of them."""
    path = str(EXAMPLES / f"{name}.py")
    for arguments in ([], ["--help"]):
        program = (
            "import runpy, sys; sys.modules.update(dict.fromkeys(('h5py', 'torch', 'uvicorn')));"
            f"sys.argv = {[path, *arguments]}; runpy.run_path({path!r}, run_name='__main__')"
        )
        done = python(program, cwd=tmp_path, env=os.environ | {"PYTHONPATH": f"{ROOT}:{EXAMPLES}"})
        if arguments and name != "video_page":  # this one is a part of another example
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith("usage: ")
        else:
            assert (done.returncode, done.stdout) == (1, "")
            (line,) = done.stderr.splitlines()
            assert line.endswith(": pip install 'gpuring[examples]'")
    assert list(tmp_path.iterdir()) == []


def test_the_guide_shows_the_examples_as_they_are():
    """The guide's first blocks leave out the command line and what is for machines without a
    GPU."""
    guide = (ROOT / "docs" / "guide.md").read_text()
    for name in ("two_scripts/send.py", "two_scripts/change.py", "one_script.py"):
        block = re.search(rf"```python\n# examples/{name}\n(.*?)```", guide, re.DOTALL)
        assert block, f"the guide does not show {name}"
        lines = (line.strip() for line in (EXAMPLES / name).read_text().splitlines())
        for line in filter(None, map(str.strip, block[1].splitlines())):
            assert line in lines, f"{name} has no line {line!r}, or in another place"


@promise(
    "services.md",
    "The [inference front ends](examples/inference_frontends.md) have HTTP in front of the "
    "clients, and torch in the engines.",
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("inference_frontends.py", r"^ring +\d+ .*^queues +\d+ .*^ratio "),
        ("upscale_frontends.py", r"^load +[1-9]\d* requests/s, p50 "),
    ],
)
def test_front_ends_and_engines_that_are_killed(start, name, told):
    """The example checks every answer itself.  This test checks that there were some, and that two
    processes were killed."""
    needs(*FRONT_ENDS)
    lines = printed(start(name, args=["2"]))
    if start.on_host:
        assert lines.pop(0) == "no GPU here, so this runs on host memory with torch on the CPU"
        if name == "upscale_frontends.py":
            assert lines.pop(0) == "codec     Pillow, photos of 320 × 180"
    text = "\n".join(lines)
    assert re.search(told, text, re.M | re.S)
    worker, engine = re.search(r"^killed +worker (\d+) and engine (\d+)[,;] ", text, re.M).groups()
    assert worker != engine
    meanwhile = int(re.search(r"(\d+) requests meanwhile", text)[1])
    answers = int(re.search(r"^in all +(\d+) answers, 0 of them wrong, 0 refusals", text, re.M)[1])
    assert answers > meanwhile > 0


@pytest.mark.slow
def test_two_hosts(start):
    """The detector checks each image.  The second run may make no namespaces."""
    needs("zmq")
    if not start.on_host:
        pytest.skip("it runs in host memory")
    for before, names in (([], ("cam", "seen")), (PLAIN if os.geteuid() == 0 else [], ("seen",))):
        head, ready, *told = printed(start("two_hosts/run.py", args=["40"], before=before))
        assert head.startswith(("two hosts: ", "one host with two names for each ring ("))
        assert ready == "detector ready"
        right = re.compile(r"(\w+)\d  40 images, each right and in order, ")
        assert [right.match(line)[1] for line in told] in [[name] * 2 for name in names]


@pytest.mark.slow
def test_supervised_programs_lose_no_picture(start):
    """They are stopped and killed meanwhile.  The program exits with 1 if a picture is missing."""
    if not start.on_host:
        pytest.skip("it runs in host memory")
    lines = printed(start("supervised/run.py", args=["10", "--port", "0"]))
    for name in ("cam0", "cam1", "cam2"):
        (line,) = (line for line in lines if line.startswith(f"{name}  "))
        sent, kept = re.match(r"\w+  (\d+) pictures sent, (\d+) of them recorded", line).groups()
        assert int(sent) >= int(kept) > 0


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        ("run.py", ["0"], "argument images: must be at least 1, not 0"),
        ("detector.py", ["0", "cam"], "argument images: must be at least 1, not 0"),
        ("camera.py", ["many", "cam"], "argument images: invalid count value: 'many'"),
        ("camera.py", ["1", "../cam"], "camera.py: '../cam' cannot name a ring"),
        ("detector.py", ["1", "../cam"], "detector.py: '../cam' cannot name a ring"),
    ],
)
def test_two_hosts_refuses_arguments_with_a_reason(name, args, told):
    done = python(EXAMPLES / "two_hosts" / name, *args, cwd=ROOT)
    assert done.returncode in (1, 2)
    assert told in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


PAGES = {
    "crew.py": "examples/index.md",
    "inference_load.py": "examples/inference_frontends.md",
    "one_script.py": "guide.md",
    "two_scripts/change.py": "guide.md",
    "two_scripts/send.py": "guide.md",
    "service.py": "services.md",
    **{f"two_hosts/{name}.py": "examples/two_hosts.md" for name in ("camera", "detector", "run")},
    **{
        f"supervised/{name}.py": "examples/supervised.md"
        for name in ("camera", "detector", "recorder", "page", "run")
    },
    "upscale_load.py": "examples/upscale_frontends.md",
    "video_page.py": "examples/video_pipeline.md",
}
"""Of those that have none of their own in docs/examples."""


@pytest.mark.parametrize(
    "name", sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py"))
)
def test_every_example_is_short_and_has_a_page(name):
    path = EXAMPLES / name
    if path.stem != "inference_load":  # it is no example, but measures one
        assert len(path.read_text().splitlines()) < 220
    page = ROOT / "docs" / PAGES.get(name, f"examples/{path.stem}.md")
    assert f"examples/{name}" in page.read_text()
