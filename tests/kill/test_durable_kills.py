"""Readers of a durable subscription are killed at random, again and again: each frame is read, in
order, and a frame that comes twice was in the hands of one who was killed."""

from __future__ import annotations

import os
import random
import signal
import struct
import time

import pytest

import gpuring

RECORD = struct.Struct("<qqqq")


def make(name):
    return gpuring.create(name, slots=8, shape=1, dtype="i8", device="host")


def publishes(pipe, name):
    with gpuring.attach(name, timeout=10) as ring, ring.producer() as producer:
        pipe.send("joined")
        k = 0
        while not pipe._connection.poll():
            with producer.claim(20) as slot:
                slot.array[0] = k
            k += 1
        pipe.send(k)


def records(_pipe, name, path, patience):
    """Appends a record of each frame to the file, in one write, and then releases the frame."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with gpuring.attach(name, timeout=10) as ring:
        reader = ring.consumer("recorder", durable=True, patience=patience)
        while True:
            try:
                slot = reader.acquire(20)
            except gpuring.EndOfStream:
                break
            with slot:
                os.write(file, RECORD.pack(slot.array[0], slot.lost, slot.redelivered, slot.seq))


@pytest.mark.slow(keep=1)
@pytest.mark.deadline(300)
@pytest.mark.parametrize(
    ("kills", "patience", "pause_s"), [(30, None, 0.0), (300, None, 0.0), (30, 0.02, 0.1)]
)
def test_each_frame_is_read_once_or_counted(name, children, tmp_path, kills, patience, pause_s):
    chance, path = random.Random(26), tmp_path / "frames"
    with make(name) as ring:
        ring.subscribe("recorder", patience=patience)
        producer = children(publishes, name)
        assert producer.receive() == "joined"
        for _ in range(kills):
            reader = children(records, name, path, patience)
            size = path.stat().st_size if path.exists() else 0
            deadline = time.monotonic() + 20
            while not path.exists() or path.stat().st_size == size:  # until it reads
                assert time.monotonic() < deadline
                time.sleep(0.001)
            time.sleep(chance.random() * 0.003)
            os.kill(reader.pid, signal.SIGKILL)
            reader.process.join()
            time.sleep(pause_s)
        producer.send("end")
        last = children(records, name, path, patience)
        published = producer.receive()
        last.result()
        lost_of_it = ring.stats()
    found = list(RECORD.iter_unpack(path.read_bytes()))
    expected = before = 0
    for value, lost, redelivered, _ in found:
        if not redelivered or value != expected - 1:
            # A frame that a reader wrote down before it was killed may count as lost.  What it said
            # of losses is then said again.
            possible = (lost, max(0, lost - 1), lost - 1 - before)
            assert value - expected in possible, (value, expected, lost, before)
            expected = value + 1
        before = lost  # and if it comes again, a reader was killed around its release
    assert expected == published
    assert lost_of_it.reaps >= kills
    assert (patience is None) == (sum(lost for _, lost, *_ in found) == 0)
