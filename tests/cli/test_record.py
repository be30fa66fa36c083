"""`gpuring record` and `gpuring replay`."""

from __future__ import annotations

import resource
import signal
import time

import numpy as np
import pytest

import gpuring

pytest.importorskip("mcap")

from gpuring.recording import read
from tests.helpers.commands import DEADLINE_S, environment, line_with, running
from tests.helpers.processes import poll, up
from tests.recording.recordings import put, values


@pytest.fixture
def ring(name):
    with gpuring.create(name, slots=8, shape=2, dtype="i8", device="host") as ring:
        yield ring


def joined(ring, consumers=1):
    poll(lambda: sum(peer.role == "consumer" for peer in ring.stats().peers) == consumers)


def test_what_was_recorded_is_replayed(ring, name, tmp_path):
    path = tmp_path / "run.mcap"
    with running("record", name, "--out", path) as process:
        line_with(process, f"{name} into {path}; Ctrl-C ends it")
        joined(ring)
        with ring.producer() as producer:
            put(producer, range(5))
        _, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert f"5 frames of {name}\n" in told
    assert f"written: {path}\n" in told
    assert values(read(path)) == [*range(5)]
    again = ("--as", f"{name}={name}-2", "--readers", 1, "--rate", "max")
    with running("replay", path, *again) as process:
        line_with(process, f"{name}-2; it waits for 1 reader of each; Ctrl-C ends it")
        with (
            gpuring.attach(f"{name}-2", timeout=DEADLINE_S) as copy,
            copy.consumer() as frames,
        ):
            assert [int(slot.array[0]) for slot in frames] == [*range(5)]
        _, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert "5 frames published; the recording has ended" in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_writes_what_it_has_when_it_is_ended(ring, name, tmp_path, number):
    """A durable subscription goes on behind that when the command is started again."""
    options = ("--out", tmp_path / "run.mcap", "--lossless", "--durable", "recorder")
    with ring.producer() as producer:
        for first in (0, 3):
            with running("record", name, *options, "--patience", 60) as process:
                line_with(process, "Ctrl-C ends it")
                put(producer, range(first, first + 2))
                poll(lambda first=first: sum(p.frames for p in consumers(ring)) == 2 + (first > 0))
                process.send_signal(number)
                _, told = process.communicate(timeout=DEADLINE_S)
                assert process.returncode == 0, told
            put(producer, [first + 2])
    (subscription,) = ring.stats().subscriptions
    assert (subscription.durable, subscription.patience_s) == (True, 60)
    ring.unsubscribe("recorder")
    first, second = (read(tmp_path / file) for file in ("run.mcap", "run-1.mcap"))
    assert (values(first), values(second)) == ([0, 1], [2, 3, 4])
    assert first.complete
    assert second.complete
    assert read(*tmp_path.iterdir()).counts[name].redelivered == 0


def consumers(ring):
    return [peer for peer in ring.stats().peers if peer.role == "consumer"]


def dies(pipe, name):
    with gpuring.attach(name) as ring, ring.producer() as producer:
        put(producer, range(3))
        producer.claim()
        pipe.ask()


def test_a_killed_producer(ring, name, tmp_path, children):
    """The recording ends with status 1, and has all that was published."""
    with running("record", name, "--out", tmp_path / "run.mcap") as process:
        joined(ring)
        child = up(children(dies, name))
        child.kill()
        _, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "died" in told
    assert "A recorder with --follow waits for one" in told
    recording = read(tmp_path / "run.mcap")
    assert (values(recording), recording.complete) == ([0, 1, 2], True)


@pytest.mark.slow
def test_options_of_files(ring, name, tmp_path):
    options = ("--zstd", "--split-size", "1MiB", "--split-time", 3600)
    with running("record", name, "--out", tmp_path / "run.mcap", *options) as process:
        joined(ring)
        with ring.producer() as producer:
            put(producer, range(5))
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert b"zstd" in (tmp_path / "run.mcap").read_bytes()
    assert values(read(tmp_path / "run.mcap")) == [*range(5)]


@pytest.mark.slow
def test_a_loop_ends_by_ctrl_c(ring, name, tmp_path, command):
    with ring.producer() as producer:
        put(producer, range(5))
    assert command("record", name, "--out", tmp_path / "run.mcap").returncode == 0
    loop = ("--loop", "--rate", "max", "--as", f"{name}={name}-2", "--readers", 1)
    with (
        running("replay", tmp_path / "run.mcap", *loop) as process,
        gpuring.attach(f"{name}-2", timeout=DEADLINE_S) as copy,
    ):
        had = []
        with copy.consumer() as frames:
            while len(had) < 12:
                with frames.acquire(DEADLINE_S) as slot:
                    had.append(int(slot.array[0]))
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert had == [*range(5), *range(5), 0, 1]
    assert "interrupted" in told


def test_parts_of_a_recording(ring, name, tmp_path, command):
    with ring.producer() as producer:
        put(producer, range(5))
    assert command("record", name, "--out", tmp_path / "run.mcap").returncode == 0
    recording = read(tmp_path / "run.mcap")
    times = [frame.unix_ns for frame in recording]
    start, end = ((times[k] - times[0]) / 1e9 for k in (1, 3))
    with gpuring.create(f"{name}-3", slots=2, shape=1, dtype="u1", device="host"):
        taken = command("replay", tmp_path / "run.mcap", "--as", f"{name}={name}-3")
    assert taken.returncode == 1
    assert taken.stderr.endswith("Choose another name with --as NAME=NAME\n")
    late = command("replay", tmp_path / "run.mcap", "--as", f"{name}={name}-2", "--from", 60)
    assert late.returncode == 2
    assert late.stderr == "gpuring replay: --from is behind the end: the recording has 0.0 s\n"
    done = command(
        "replay", tmp_path / "run.mcap", "--as", f"{name}={name}-2", "--rate", "max",
        "--from", np.format_float_positional(start), "--to", np.format_float_positional(end),
    )  # fmt: skip
    assert done.returncode == 0
    assert "2 frames published" in done.stderr


def test_what_cannot_be_is_said_in_one_line(name, tmp_path, command, monkeypatch):
    path = tmp_path / "run.mcap"
    with gpuring.create(name, slots=2, shape=1, dtype="u1", device="host") as ring:
        with ring.producer():
            pass
        assert command("record", name, "--out", path).returncode == 0
        ring.subscribe("kept")
        other = "subscription 'kept' exists with another --lossless or `redeliver`; all members"
        for asked, status, said in [
            (("record", name, "--out", path, "--durable", "kept"), 2, other),
            (("record", f"{name}-no", "--out", path), 1, "No ring or service named"),
            (("record", name, name, "--out", path), 2, "named twice"),
            (("record", name, "--out", path, "--patience", 5), 2, "--durable"),
            (("record", name, "--out", tmp_path / "no" / "run.mcap"), 1, "No such file"),
            (("record", name, "--out", tmp_path), 2, f"{tmp_path} is a folder"),
            (("record", name, "--out", "."), 2, ". is a folder"),
            (("replay", tmp_path / "none.mcap"), 1, "No such file"),
            (("replay", path), 1, "has no frames"),
            (("replay", path, "--as", "other=x"), 2, "no ring 'other'"),
            (("replay", path, "--from", 3, "--to", 2), 2, "--to must be after --from"),
        ]:
            done = command(*asked)
            assert (done.returncode, len(done.stderr.splitlines())) == (status, 1), done.stderr
            assert said in done.stderr
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        for asked in (("record", name, "--out", path), ("replay", path)):
            done = command(*asked)
            assert (done.returncode, done.stderr) == (
                1, f"gpuring {asked[0]}: mcap is not installed: pip install 'gpuring[record]'\n",
            )  # fmt: skip


def test_one_that_cannot_write_does_not_begin_the_patience_of_its_subscription_anew(
    ring, name, tmp_path, command
):
    """A supervisor starts it again and again, and producers would wait for ever."""
    ring.subscribe("disk", patience=60)
    options = ("--lossless", "--durable", "disk", "--out", tmp_path / "no" / "run.mcap")
    before = time.monotonic()
    assert command("record", name, *options).returncode == 1
    took = time.monotonic() - before
    (subscription,) = ring.stats().subscriptions
    assert subscription.unread_s >= took
    ring.unsubscribe("disk")


NO_BYTE_CODE = environment() | {"PYTHONDONTWRITEBYTECODE": "1"}


def little_room():
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))


def test_it_says_what_can_be_read_where_the_disk_is_full(name, tmp_path):
    """Two frames fit.  Python must not write cut byte code either."""
    out = ("--out", tmp_path / "run.mcap", "--lossless", "--durable", "disk")
    with (
        gpuring.create(name, slots=4, shape=24 << 10, dtype="u1", device="host") as ring,
        ring.producer() as producer,
        running("record", name, *out, preexec_fn=little_room, env=NO_BYTE_CODE) as process,
    ):
        line_with(process, "Ctrl-C ends it")
        for written in (True, True, False):
            producer.claim(0).publish()
            if written:
                poll(lambda: ring.stats().subscriptions[0].lag == 0)
        _, told = process.communicate(timeout=DEADLINE_S)
        ring.unsubscribe("disk")
    assert process.returncode == 1
    assert told.endswith(f"Written before, and readable: 2 frames of {name}\n")
    assert len([*read(tmp_path / "run.mcap").frames()]) == 2


def test_it_says_when_it_begins_another_ring_and_another_file(name, tmp_path):
    options = ("--lossless", "--follow", "--split-time", 1e-6, "--timeout", DEADLINE_S)
    with running("record", name, "--out", tmp_path / "run.mcap", *options) as process:
        for _ in range(2):
            with (
                gpuring.create(name, slots=2, shape=8, dtype="u1", device="host") as ring,
                ring.producer() as producer,
            ):
                joined(ring)
                producer.claim(0).publish()
                poll(lambda ring=ring: ring.stats().subscriptions[0].lag == 0)
        assert (
            line_with(process, "again") == f"gpuring record: {name} was made again, and goes on\n"
        )
        goes_on = f"gpuring record: goes on in {tmp_path / 'run-1.mcap'}\n"
        assert line_with(process, "goes on in") == goes_on


def test_it_goes_on_when_nobody_reads_what_it_says(ring, name, tmp_path):
    options = ("--lossless", "--split-time", 1e-6)
    with running("record", name, "--out", tmp_path / "run.mcap", *options) as process:
        line_with(process, "Ctrl-C ends it")
        process.stderr.close()
        with ring.producer() as producer:
            put(producer, range(3))
        assert process.wait(DEADLINE_S) == 0
    found = [value for path in sorted(tmp_path.iterdir()) for value in values(read(path))]
    assert sorted(found) == [0, 1, 2]  # each in a file of its own


def test_one_that_cannot_join_leaves_no_file(name, tmp_path, command):
    with (
        gpuring.create(
            name, slots=2, shape=1, dtype="u1", device="host", max_subscriptions=1
        ) as ring,
        ring.consumer(),
    ):
        done = command("record", name, "--out", tmp_path / "run.mcap")
    assert (done.returncode, [*tmp_path.iterdir()]) == (1, [])


def test_it_says_for_which_ring_it_waits(name, tmp_path):
    with (
        gpuring.create(name, slots=2, shape=8, dtype="u1", device="host"),
        running(
            "record", name, f"{name}-2", "--out", tmp_path / "a.mcap", "--timeout", 30
        ) as record,
    ):
        assert line_with(record, "waiting") == f"gpuring record: waiting for {name}-2\n"
