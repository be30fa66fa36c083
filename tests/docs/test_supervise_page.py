"""The programs, units and probes of docs/supervise.md, and the pod of docs/containers.md."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gpuring
from gpuring.cli import COMMANDS, metrics
from gpuring.registry import directory, leftovers, segment
from tests import ROOT
from tests.docs.blocks import pasted
from tests.helpers.commands import gpuring as command
from tests.helpers.processes import PATIENCE_S, poll
from tests.helpers.rings import segments_of

yaml = pytest.importorskip("yaml", reason="gpuring[docs] is not installed")

PAGE = (ROOT / "docs" / "supervise.md").read_text()
MONITORING = (ROOT / "docs" / "monitoring.md").read_text()
PROGRAMS = pasted("docs/supervise.md")


def manifest(page):
    """The programs of the page's ConfigMap, and its pod."""
    found = re.search(r"^```yaml\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.M | re.S)
    config, pod = yaml.safe_load_all(found[1])
    return config["data"], pod


@pytest.fixture
def start(name, programs, tmp_path, monkeypatch):
    """Starts a program of a page, with a ring or service of this test."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")

    def start(code, **more):
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.py"
        file.write_text(re.sub(r'"(cam0|classify)"', f'"{name}"', code))
        return programs.start(file.name, stderr=subprocess.PIPE, **more)

    return start


def ended(process):
    """The exit status of a program, and the end of its output."""
    _, trouble = process.communicate(timeout=PATIENCE_S)
    return process.returncode, trouble


POD, _ = manifest("containers.md")


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("page", [PROGRAMS, POD], ids=["supervise.md", "containers.md"])
def test_a_camera_is_restarted_and_everything_ends_by_sigterm(start, name, programs, before, page):
    """The watcher goes on.  This holds also if both programs are process 1 of a container."""
    watch = start(page["watch.py"], before=before)

    def seen_until(wanted):
        while not wanted(pts := int(watch.stdout.readline().split()[1])):
            pass
        return pts

    last = 60
    for is_of_this_camera in (lambda pts: pts >= last, lambda pts: pts < last):
        camera = start(page["camera.py"], before=before)
        seen_until(is_of_this_camera)
        programs.terminate(camera)
        assert ended(camera) == (143, "")
        assert segments_of(name) == []
    programs.terminate(watch)
    assert ended(watch) == (143, "")


HANGUP = "signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))"
SIGNALS = [
    (signal.SIGINT, "", -signal.SIGINT, True),
    (signal.SIGHUP, "", -signal.SIGHUP, False),
    (signal.SIGHUP, HANGUP, 129, True),
    (signal.SIGKILL, "", -signal.SIGKILL, False),
]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("number", "line", "status", "in_order"), SIGNALS)
def test_what_each_signal_does(start, name, number, line, status, in_order):
    assert HANGUP in PAGE
    first, rest = PROGRAMS["camera.py"].split("with (", 1)
    unless_ignored = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)"  # as nohup does
    camera = start(f"{unless_ignored}\n{first}{line}\nwith ({rest}")
    poll(lambda: directory.look(name, PATIENCE_S).producers())
    camera.send_signal(number)
    assert ended(camera)[0] == status
    assert (segments_of(name) == []) == in_order
    assert leftovers.remove_dead(name) != in_order


@pytest.mark.parametrize("page", [PAGE, MONITORING], ids=["supervise.md", "monitoring.md"])
def test_the_units_are_right(tmp_path, page):
    """systemd checks the names and values, and looks for the program."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    (unit,) = re.findall(r"^```ini\n(.*?)^```$", page, re.M | re.S)
    unit = re.sub("(?m)^User=.*$", "User=root", unit)
    unit = unit.replace("/opt/venv/bin/gpuring", f"{sys.executable} -m gpuring")
    unit = unit.replace("/opt/venv/bin/python", sys.executable)
    file = tmp_path / "camera.service"
    file.write_text(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", file],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_metrics_of_a_pod_are_those_of_its_rings():
    """The container for metrics mounts what the others mount, and its command can be typed."""
    (found,) = re.findall(r"^```yaml\n(.*?)^```$", MONITORING, re.M | re.S)
    ((container,), (_, pod)) = yaml.safe_load(found), manifest("supervise.md")
    assert container["volumeMounts"][0] in pod["spec"]["containers"][0]["volumeMounts"]
    (line,) = re.findall(r"^docker run [^`]* my-image gpuring (metrics .*)$", MONITORING, re.M)
    for words in (shlex.split(line), container["command"][1:]):
        parser = argparse.ArgumentParser(exit_on_error=False)
        COMMANDS[words[0]][0].add_arguments(parser)
        asked = parser.parse_args(words[1:])
        assert asked.addr == "0.0.0.0"  # a port of a container is not that of the host
        assert (asked.port or metrics.PORT) == container["ports"][0]["containerPort"]


@pytest.mark.slow(keep=1)
def test_probes_find_the_engine_and_miss_it(start, name, programs, before):
    files, pod = manifest("supervise.md")
    keeper, engine = pod["spec"]["containers"]
    probes = [engine[each]["exec"]["command"] for each in ("readinessProbe", "livenessProbe")]
    commands = [keeper["command"], *probes]
    assert {words[0] for words in commands} == {"gpuring"}
    keep, *asked = ([name if word == "classify" else word for word in words[1:]]
                    for words in commands)  # fmt: skip
    running = [
        start(files[Path(engine["command"][1]).name], before=before),
        programs.start("-m", "gpuring", *keep, before=before, stderr=subprocess.PIPE),
    ]
    header = Path(segment.path_of(segment.header_name(name)))
    poll(lambda: header.exists() and gpuring.health(name).ok)
    assert {command(*probe).returncode for probe in asked} == {0}
    for each, status in zip(running, (1, 3), strict=True):  # no engine, then no service
        programs.terminate(each)
        assert ended(each) == (0, "")
        assert {command(*probe).returncode for probe in asked} == {status}
    assert not header.exists()
