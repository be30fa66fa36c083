"""`gpuring metrics --otlp`: what a receiver of OTLP gets, and what the command says if it gets
nothing."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.cli.processes import creator_with_two_readers
from tests.helpers.commands import DEADLINE_S, environment, gpuring, line_with, running
from tests.helpers.processes import up

parser = pytest.importorskip("prometheus_client.parser", reason="gpuring[otel] is not installed")
service = pytest.importorskip(
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
    reason="gpuring[otel] is not installed",
)


BAD_REQUEST, OK, UNAVAILABLE = 400, 200, 503
OF_THE_HOST = ("gpuring_rings", "gpuring_rings_unreadable")
"""Tests that run at the same time change these."""


class Receiver(ThreadingHTTPServer):
    """A receiver that parses what comes with the protobufs of OpenTelemetry."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.answers = queue.SimpleQueue()
        """The next answers; then everything is taken."""
        self.came = queue.SimpleQueue()


class Answer(BaseHTTPRequestHandler):
    def do_POST(self):
        sent = service.ExportMetricsServiceRequest()
        sent.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        status = OK
        with contextlib.suppress(queue.Empty):
            status = self.server.answers.get_nowait()
        self.server.came.put((self.path, sent))
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def receiver():
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def sent(receiver):
    """The next message: the attributes of its sender, and the metrics by name."""
    path, request = receiver.came.get(timeout=DEADLINE_S)
    assert path == "/v1/metrics"
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    assert scope.scope.name == "gpuring"
    metrics = {each.name: each for each in scope.metrics}
    assert len(metrics) == len(scope.metrics)
    return {each.key: each.value.string_value for each in resource.resource.attributes}, metrics


def points(metric):
    return getattr(metric, metric.WhichOneof("data")).data_points


def labels(point):
    return tuple(sorted((each.key, each.value.string_value) for each in point.attributes))


def test_what_is_sent_is_what_prometheus_gets(name, children, receiver):
    child = up(children(creator_with_two_readers, name))
    text = gpuring("metrics", "--once", check=True).stdout
    assert gpuring("metrics", "--otlp", receiver.address, "--once", check=True).stdout == ""
    child.finish()
    _, metrics = sent(receiver)
    there = set()
    for family in parser.text_string_to_metric_families(text):
        ours = {
            tuple(sorted(each.labels.items())): each.value
            for each in family.samples
            if each.labels.get("ring", name) == name
        }
        if not ours:
            continue
        there.add(family.name)
        metric = metrics[family.name]
        assert metric.description == family.documentation
        assert (metric.WhichOneof("data") == "sum") == (family.type == "counter")
        assert metric.WhichOneof("data") == "gauge" or metric.sum.is_monotonic
        found = {labels(each): each.as_double for each in points(metric)}
        assert ours.keys() <= found.keys()
        if not family.name.endswith("_seconds") and family.name not in OF_THE_HOST:
            assert {key: found[key] for key in ours} == ours
    assert len(there) > 20


def test_the_units_are_those_that_the_names_say(name, children, receiver):
    child = up(children(creator_with_two_readers, name))
    gpuring("metrics", "--otlp", receiver.address, "--once", check=True)
    child.finish()
    units = {key: metric.unit for key, metric in sent(receiver)[1].items()}
    assert units["gpuring_ring_slot_bytes"] == "By"
    assert units["gpuring_peer_oldest_hold_seconds"] == "s"
    assert units["gpuring_subscription_lag_frames"] == "{frame}"
    assert units["gpuring_frames_published"] == "{frame}"
    assert units["gpuring_peer_deaths"] == "{death}"
    # OpenTelemetry would call a metric with the unit 1 a ratio.
    assert (units["gpuring_ring_closed"], units["gpuring_peer_info"]) == ("", "")


def test_who_sends_is_this_host_unless_the_environment_says_otherwise(receiver):
    gpuring("metrics", "--otlp", receiver.address, "--once", check=True)
    who, _ = sent(receiver)
    assert (who["service.name"], who["host.name"]) == ("gpuring", os.uname().nodename)
    assert who["service.instance.id"] == os.uname().nodename
    more = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.address,
        "OTEL_SERVICE_NAME": "line7",
        "OTEL_RESOURCE_ATTRIBUTES": "host.name=press,site=north",
    }
    gpuring("metrics", "--otlp", "--once", env=environment() | more, check=True)
    who, _ = sent(receiver)
    assert (who["service.name"], who["host.name"], who["site"]) == ("line7", "press", "north")


def test_it_goes_on_while_nothing_is_taken_and_says_so_once(receiver):
    for _ in range(3):
        receiver.answers.put(BAD_REQUEST)
    with running("metrics", "--otlp", receiver.address, "--every", 0.01) as sender:
        assert sender.stdout.readline().startswith(f"sending to {receiver.address} every 0.01 s")
        first = line_with(sender, "")
        assert first.startswith(f"gpuring metrics: {receiver.address} takes nothing (")
        assert "400" in first
        assert "takes the metrics again" in line_with(sender, "")
        for _ in range(5):
            sent(receiver)
        sender.send_signal(signal.SIGTERM)
        assert sender.wait(DEADLINE_S) == 0


def test_it_says_so_before_the_first_sending_is_given_up(receiver):
    """The second attempt succeeds, so nothing is lost."""
    receiver.answers.put(UNAVAILABLE)
    with running("metrics", "--otlp", receiver.address, "--every", 0.01) as sender:
        for _ in range(3):
            sent(receiver)
        sender.send_signal(signal.SIGTERM)
        assert sender.wait(DEADLINE_S) == 0
        first, again = sender.stderr.read().splitlines()
    assert first.startswith(f"gpuring metrics: {receiver.address} takes nothing (")
    assert again == f"gpuring metrics: {receiver.address} takes the metrics again"


def test_once_fails_if_nothing_is_taken(receiver):
    receiver.answers.put(BAD_REQUEST)
    done = gpuring("metrics", "--otlp", receiver.address, "--once")
    assert (done.returncode, done.stdout) == (1, "")
    assert "has not taken the metrics" in done.stderr
    assert "400" in done.stderr


@pytest.mark.slow
def test_if_nobody_listens_it_says_so_in_the_words_of_the_system():
    with socket.socket() as nobody:  # bound, so that nobody else listens there meanwhile
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        done = gpuring("metrics", "--otlp", address, "--once")  # the exporter tries again for 10 s
    assert done.returncode == 1
    assert done.stderr == (
        f"gpuring metrics: {address} has not taken the metrics (Connection refused)\n"
    )


def test_what_is_no_url_is_refused_at_once():
    done = gpuring("metrics", "--otlp", "localhost:4318", "--once")
    assert (done.returncode, done.stdout) == (2, "")
    assert "such as http://localhost:4318" in done.stderr
