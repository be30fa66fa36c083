"""A real Prometheus watches a pipeline with a stall in it, and each query of the dashboard finds
something there."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import pytest

from tests.cli.dashboard import TARGETS
from tests.cli.planted import PLANTED
from tests.helpers.commands import running
from tests.helpers.processes import poll
from tests.helpers.rings import put, small_ring

PROMETHEUS = shutil.which("prometheus")
WAIT_S = 30.0
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: gpuring
    static_configs: [{{targets: [{target}]}}]
"""
NEEDS_A_GPU = "gpuring_frames_torn_total"
"""Of which the dashboard shows what is more than 0."""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def prometheus(folder, target):
    """The address of a Prometheus that scrapes `target` every second."""
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(target=target))
    address = f"127.0.0.1:{free_port()}"
    options = f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [PROMETHEUS, *options, f"--web.listen-address={address}"], stdout=log, stderr=log
        ) as server,
    ):
        try:
            yield address
        finally:
            server.kill()


def found(address, query):
    """How many series the answer to a query has.  0 also if there is no answer yet."""
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return len(json.load(answer)["data"]["result"])
    except urllib.error.HTTPError as error:
        if error.code == 503:  # Prometheus is still starting
            return 0
        raise AssertionError(f"{query}: {error.read().decode()}") from None
    except OSError:
        return 0


def asked(name):
    """The queries, as Grafana asks them for the rings of this test."""
    for target in TARGETS:
        query = target["expr"]
        for variable, value in (
            ("$instance", ".+"),
            ("$ring", f"{name}.*"),
            ("$__rate_interval", "10s"),
            ("$__range", "60s"),
        ):
            query = query.replace(variable, value)
        yield query


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian: prometheus)")
def test_each_query_of_the_dashboard_finds_something(name, children, tmp_path):
    with (
        running("metrics", "--port", 0) as metrics,
        PLANTED["a_stopped_reader"](children, name),
        PLANTED["an_engine_that_never_answers"](children, f"{name}-calls"),
        small_ring(f"{name}-full") as full,
        full.producer() as producer,
        full.consumer(lossless=False) as viewer,
        small_ring(f"{name}-lost") as lost,
        lost.producer() as fast,
        lost.consumer(lossless=False) as slow,
        prometheus(tmp_path, line_of(metrics)) as address,
    ):
        full.subscribe("recorder")  # nobody reads it, so the ring is full

        def goes_on(query):
            """Keeps frames moving, some of which are lost or dropped."""
            put(fast, 10)
            slow.acquire(0).release()
            producer.try_claim()
            return found(address, query)

        put(producer, 4)
        viewer.acquire().release()
        for query in asked(name):
            if NEEDS_A_GPU not in query:
                assert poll(lambda query=query: goes_on(query), WAIT_S), query


def line_of(metrics):
    """The host and port at which the command serves."""
    return metrics.stdout.readline().split("http://")[1].split("/")[0]
