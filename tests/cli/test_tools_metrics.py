"""gpuring metrics: what it serves for Prometheus."""

from __future__ import annotations

import os
import re
import signal
import urllib.request

import pytest

from tests.cli.processes import creator_with_two_readers
from tests.helpers.commands import DEADLINE_S, running
from tests.helpers.processes import up
from tests.helpers.rings import damage, small_ring

pytest.importorskip("rich", reason="gpuring[tools] is not installed")
parser = pytest.importorskip("prometheus_client.parser", reason="gpuring[tools] is not installed")


def parsed(text, ring=None):
    """{(sample, label, …): value} of one ring, or of the samples without a ring."""
    return {
        (s.name, *(value for key, value in sorted(s.labels.items()) if key != "ring")): s.value
        for family in parser.text_string_to_metric_families(text)
        for s in family.samples
        if s.labels.get("ring") == ring
    }


def test_metrics_once_says_what_the_ring_says(name, children, command):
    child = children(creator_with_two_readers, name)
    viewer, ring = child.receive()
    lags = {sub.name: sub.lag for sub in ring.subscriptions}
    done = command("metrics", "--once")
    child.finish()
    assert (done.returncode, done.stderr) == (0, "")
    seen = parsed(done.stdout, name)
    expected = {
        ("gpuring_ring_slots",): 4,
        ("gpuring_ring_slot_bytes",): 256,
        ("gpuring_ring_closed",): 0,
        ("gpuring_ring_creator_alive",): 1,
        ("gpuring_sequences_claimed_total",): 6,
        ("gpuring_peer_deaths_total",): 0,
        ("gpuring_frames_dropped_total",): 0,
        ("gpuring_peers", "producer", "alive"): 1,
        ("gpuring_peers", "consumer", "alive"): 2,
        ("gpuring_peers", "consumer", "dead"): 0,
        ("gpuring_subscription_lag_frames", "lossless", "slow"): lags["slow"],
        ("gpuring_subscription_lost_frames_total", "lossy", "viewer"): 2,
        ("gpuring_subscription_members", "lossy", "viewer"): 1,
        ("gpuring_frames_acquired_total", str(viewer), "viewer"): 1,
        ("gpuring_peer_slots_held", str(viewer)): 1,
    }
    assert {key: seen.get(key) for key in expected} == expected
    assert seen["gpuring_peer_oldest_hold_seconds", str(viewer)] > 0
    published = [value for key, value in seen.items() if key[0] == "gpuring_frames_published_total"]
    assert published == [6]
    assert parsed(done.stdout)[("gpuring_rings",)] >= 1


def test_counters_end_in_total_and_nothing_else_does(name, children, command):
    child = up(children(creator_with_two_readers, name))
    text = command("metrics", "--once").stdout
    child.finish()
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in ("counter", "gauge"), family.name
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample.name


def test_labels_are_bounded(name, command):
    with small_ring(name, 2) as ring:
        with ring.consumer() as unnamed:
            seen = parsed(command("metrics", "--once").stdout, name)
            assert ("gpuring_subscription_lag_frames", "lossless", f"#{unnamed.peer}") in seen
        pids = {str(os.getpid())}
        assert not pids & {label for key in seen for label in key}
        with small_ring(f"0{name}", 2):  # the first by name
            text = command("metrics", "--once", "--max-rings", 1).stdout
        assert parsed(text)[("gpuring_rings",)] >= 2
        assert parsed(text, name) == {}


@pytest.mark.slow
def test_metrics_over_http(name, command):
    with running("metrics", "--port", 0) as server:
        url = re.search(r"http://127\.0\.0\.1:\d+/metrics", server.stdout.readline())[0]

        def scrape():
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain")
                return answer.read().decode()

        assert parsed(scrape(), name) == {}
        with small_ring(name, 2) as ring, ring.producer() as producer:
            producer.claim().publish()
            assert parsed(scrape(), name)[("gpuring_sequences_claimed_total",)] == 1
        path = damage(name)
        try:
            assert parsed(scrape())[("gpuring_rings_unreadable",)] >= 1
        finally:
            path.unlink()
        taken = command("metrics", "--port", url.split(":")[2].split("/")[0])
        assert taken.returncode == 1
        assert re.fullmatch(r"gpuring metrics: cannot listen on .* --port .*\n", taken.stderr)
        server.send_signal(signal.SIGTERM)
        assert server.wait(DEADLINE_S) == 0
