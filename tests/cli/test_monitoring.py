"""examples/monitoring: its alerts and its dashboard use metrics that `gpuring metrics` has.

Prometheus' own promtool checks the rules and runs their tests, where it is installed.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess

import pytest

from tests import ROOT
from tests.docs import metrics
from tests.helpers.processes import poll, up
from tests.helpers.rings import put, small_ring

pytest.importorskip("prometheus_client", reason="gpuring[tools] is not installed")

import gpuring
from gpuring.cli.metrics.collector import RingCollector
from tests.cli.dashboard import DASHBOARD, MONITORING, TARGETS

ALERTS = (MONITORING / "alerts.yml").read_text()
TESTS = (MONITORING / "alerts_test.yml").read_text()
EXPRESSIONS = {
    "alerts": ALERTS,
    "tests": TESTS,
    "dashboard": "\n".join(
        [target["expr"] for target in TARGETS]
        + [variable["query"]["query"] for variable in DASHBOARD["templating"]["list"][1:]]
    ),
    "page": (ROOT / "docs" / "tools.md").read_text(),
}
PAGE = (ROOT / "docs" / "monitoring.md").read_text()
PROMTOOL = shutil.which("promtool")


def given():
    """The names of the metrics that a scrape gives."""
    return {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in RingCollector(64).collect()
    }


@pytest.mark.parametrize("place", EXPRESSIONS)
def test_each_metric_that_is_asked_for_is_given(place):
    asked = set(re.findall(r"\bgpuring_[a-z_]+", EXPRESSIONS[place]))
    assert len(asked) > 3
    assert asked <= given()


def test_the_page_has_a_row_for_each_metric_and_no_other():
    pytest.importorskip("opentelemetry", reason="gpuring[otel] is not installed")
    assert metrics.page() == PAGE, "python -m tests.docs.metrics writes the table"


def test_each_alert_is_tested_and_on_the_page():
    alerts = re.findall(r"- alert: (\w+)", ALERTS)
    assert len(set(alerts)) == len(alerts) > 10
    fires = re.findall(r"alertname: (\w+)\n +exp_alerts:\n", TESTS)
    quiet = re.findall(r"alertname: (\w+)\n +exp_alerts: \[\]\n", TESTS)
    assert set(fires) == set(quiet) == set(alerts)
    assert set(re.findall(r"`(Gpuring\w+)`", PAGE)) == set(alerts)


def promtool(*arguments):
    if PROMTOOL is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    done = subprocess.run(
        [PROMTOOL, *arguments], cwd=MONITORING, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_configuration_and_the_rules():
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "alerts.yml")


def test_the_alerts_fire_where_they_have_to():
    promtool("test", "rules", "alerts_test.yml")


def test_the_dashboard_has_its_panels_beside_each_other():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = set(
            itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
        )
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or (panel["description"] and panel["targets"])
    chosen = {"instance", "ring", "datasource", "__rate_interval", "__range"}
    assert set(re.findall(r"\$(\w+)", EXPRESSIONS["dashboard"])) <= chosen


def stops(pipe, name):
    with gpuring.attach(name) as ring, ring.consumer("page", label="page.py"):
        pipe.ask()


def writes(pipe, name):
    with gpuring.attach(name) as ring, ring.producer(label="camera.py") as producer:
        pipe.send()
        while True:
            put(producer)


def is_touched(name):
    families = {family.name: family for family in RingCollector(64).collect()}
    return name in [each.labels["ring"] for each in families["gpuring_ring_stuck"].samples]


def stuck(name):
    """The labels of what is stuck in this ring, and for how long it has been."""
    families = {family.name: family for family in RingCollector(64).collect()}
    return [
        (sample.labels, sample.value)
        for sample in families["gpuring_stuck_seconds"].samples
        if sample.labels["ring"] == name
    ]


@pytest.mark.slow
def test_what_is_stuck_is_a_metric_with_who_is_to_blame(name, children):
    with small_ring(name) as ring:
        page = up(children(stops, name))
        page.stop()
        up(children(writes, name))
        ((labels, seconds),) = poll(lambda: stuck(name))
        assert seconds > 2
        assert is_touched(name)
        (peer,) = ring.stats().subscriptions[0].members
        assert labels == {
            "stuck": name, "reason": "stopped", "ring": name, "subscription": "page",
            "peer": str(peer), "label": "page.py",
        }  # fmt: skip
        os.kill(page.pid, signal.SIGCONT)
        page.send()  # the page leaves
        poll(lambda: not stuck(name))
        assert not is_touched(name)
