"""What an engine measures of its calls, and where the figures can be read."""

from __future__ import annotations

import threading

import pytest

import gpuring
from gpuring.service import metrics
from tests.helpers.commands import gpuring as command
from tests.helpers.processes import poll
from tests.helpers.promise import promise
from tests.service.services import running, send, serve

prometheus = pytest.importorskip("prometheus_client", reason="gpuring[tools] is not installed")
parser = pytest.importorskip("prometheus_client.parser")


def reader(text):
    """A function that returns the value of a sample by its name and labels, or None."""
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    return lambda sample, **labels: found.get((sample, frozenset(labels.items())))


@promise(
    "services.md",
    "Only the engine knows how long each call waited, how large its batches are, and how long they "
    "take: `server.metrics()` has these figures as histograms, and as sums for each client.",
    "The time of a batch ends with its `with` block, so work that a GPU does later does not count.",
)
def test_an_engine_measures_batches_queues_and_work_also_for_each_client(name):
    with serve(name) as server, gpuring.connect(name) as one, gpuring.connect(name) as other:
        assert server.metrics().batch_size.count == 0
        for k in range(3):
            send(one, k)
        send(other, 3)
        begun = threading.Event()
        age = poll(lambda: server.stats().subscriptions[0].oldest_s)
        with server.take(3, timeout=10) as calls:
            begun.wait(0.01)
            calls.fail("no")
        with server.take(3, timeout=10) as calls:
            calls.fail("no")
        seen = server.metrics()
        assert (seen.batch_size.count, seen.batch_size.total) == (2, 4)
        sizes = dict(zip(seen.batch_size.bounds, seen.batch_size.counts, strict=False))
        assert (sizes[1], sizes[2], sizes[4]) == (1, 0, 1)
        assert (seen.queue_s.count, seen.compute_s.count) == (4, 2)
        assert seen.queue_s.total > age
        assert seen.compute_s.total >= 0.01
        first, second = seen.clients[one.id], seen.clients[other.id]
        assert (first.calls, second.calls) == (3, 1)
        assert first.queue_s + second.queue_s == pytest.approx(seen.queue_s.total)
        assert first.compute_s + second.compute_s == pytest.approx(seen.compute_s.total)
        assert first.compute_s >= 0.01


@promise(
    "services.md",
    "An engine measures from the first `server.metrics()` on, or from the beginning of `run`.",
)
def test_an_engine_that_runs_measures_by_itself(name):
    with serve(name, response_meta=None) as server, gpuring.connect(name) as client:
        server.batch(4)(lambda requests: requests)
        calls = [send(client, k) for k in range(3)]
        with running(server):
            for call in calls:
                call.result(20).release()
            poll(lambda: server.metrics().compute_s.count)
        seen = server.metrics()
        assert (seen.batch_size.count, seen.batch_size.total) == (1, 3)
        assert (seen.queue_s.count, seen.compute_s.count) == (3, 1)


@promise(
    "services.md",
    "An engine measures from the first `server.metrics()` on, or from the beginning of `run`.",
)
def test_an_engine_that_was_not_asked_to_measures_nothing(name):
    with serve(name) as server, gpuring.connect(name) as client:
        send(client, 0)
        with server.take(timeout=10) as calls:
            calls.fail("no")
        assert server.metrics().batch_size.count == 0


def test_clients_that_have_left_are_forgotten_when_they_are_many(monkeypatch):
    monkeypatch.setattr(metrics, "_MANY_CLIENTS", 4)
    measures = metrics.Measures()
    for number in range(20):
        measures.took([(number, 0.5), (100, 0.5)], present={number, 100})
        measures.ended([number, 100], 1.0)
    seen = measures.read()
    assert len(seen.clients) <= 4
    assert seen.clients[100].calls == 20
    assert seen.queue_s.total == 20


def test_values_are_counted_in_the_bucket_whose_bound_they_do_not_exceed():
    measures = metrics.Measures()
    for size in (1, 2, 3, 4, 5, 2000):
        measures.took([(1, 100.0)] * size, present={1})
    sizes = measures.read().batch_size
    assert sizes.counts == (1, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 1)
    assert measures.read().queue_s.counts[-1] == 2015


@promise("services.md", "An engine serves its own figures:")
def test_an_engine_serves_its_own_figures_to_prometheus(name):
    with serve(name) as server, gpuring.connect(name) as client:
        from gpuring.service.prometheus import EngineCollector

        registry = prometheus.CollectorRegistry()
        registry.register(EngineCollector(server))
        for k in range(3):
            send(client, k)
        with server.take(3, timeout=10) as calls:
            calls.fail("no")
        seen = reader(prometheus.generate_latest(registry).decode())
    assert seen("gpuring_batch_size_bucket", le="2.0", service=name) == 0
    assert seen("gpuring_batch_size_bucket", le="4.0", service=name) == 1
    assert seen("gpuring_batch_size_bucket", le="+Inf", service=name) == 1
    assert seen("gpuring_batch_size_sum", service=name) == 3
    assert seen("gpuring_queue_seconds_count", service=name) == 3
    assert seen("gpuring_compute_seconds_count", service=name) == 1
    assert seen("gpuring_calls_total", end="failed", service=name) == 3
    assert seen("gpuring_calls_total", end="answered", service=name) == 0
    assert seen("gpuring_calls_redelivered_total", service=name) == 0
    assert seen("gpuring_fill_seconds_total", service=name) == server.counts.waited_s
    mine = {"client": f"{client.id:016x}", "service": name}
    assert seen("gpuring_client_calls_total", **mine) == 3
    for what in ("queue", "compute"):
        of_client = seen(f"gpuring_client_{what}_seconds_total", **mine)
        assert of_client == pytest.approx(seen(f"gpuring_{what}_seconds_sum", service=name))


@promise(
    "services.md",
    "An engine of several services gives all of its servers to one collector: "
    "`EngineCollector(urgent, normal)`.",
)
def test_calls_that_were_given_up_are_in_the_figures_and_one_collector_takes_several_services(name):
    with serve(name) as one, serve(f"{name}-2") as two, gpuring.connect(name) as client:
        from gpuring.service.prometheus import EngineCollector

        registry = prometheus.CollectorRegistry()
        registry.register(EngineCollector(one, two))
        send(client, 0).cancel()
        with pytest.raises(gpuring.RingTimeout):
            one.take(timeout=0)
        text = prometheus.generate_latest(registry).decode()
    seen = reader(text)
    assert seen("gpuring_calls_total", end="cancelled", service=name) == 1
    assert seen("gpuring_calls_total", end="cancelled", service=f"{name}-2") == 0
    assert text.count("# TYPE gpuring_batch_size ") == 1


@promise(
    "services.md",
    "`gpuring metrics` serves what the header of each service on the host says: how many calls "
    "wait and for how long, how many each engine has taken, and when each engine last asked for "
    "calls.",
)
@pytest.mark.slow
def test_what_the_header_knows_of_a_service_is_in_the_metrics_of_the_host(name):
    with serve(name) as server, gpuring.connect(name) as client:
        queue = {"kind": "lossless", "ring": name, "subscription": "engines"}
        peer = {"peer": str(server._requests.peer), "ring": name, "subscription": "engines"}
        seen = reader(command("metrics", "--once").stdout)
        assert seen("gpuring_subscription_untaken_frames", **queue) == 0
        assert seen("gpuring_subscription_oldest_untaken_seconds", **queue) == 0
        assert seen("gpuring_engine_asked_seconds", **peer) is None
        for k in range(3):
            send(client, k)
        held = server.take(1, timeout=10)
        seen = reader(command("metrics", "--once").stdout)
        assert seen("gpuring_subscription_untaken_frames", **queue) == 2
        assert seen("gpuring_subscription_oldest_untaken_seconds", **queue) > 0
        assert seen("gpuring_engine_asked_seconds", **peer) >= 0
        assert seen("gpuring_frames_acquired_total", **peer) == 1
        del held
