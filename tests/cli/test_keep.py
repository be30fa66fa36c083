"""`gpuring keep`, with every option of what it makes."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import signal
import stat
from pathlib import Path

import numpy as np
import pytest

import gpuring
from gpuring.cli import keep
from tests.helpers.commands import DEADLINE_S, running
from tests.helpers.processes import poll


@contextlib.contextmanager
def kept(name, *options):
    """Runs `gpuring keep` during a block.  Gives its first line."""
    with running("keep", name, *options, "--device", "host") as process:
        yield process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def modes(name):
    return {stat.S_IMODE(each.stat().st_mode) for each in Path("/dev/shm").glob(f"gpuring.{name}*")}


def test_it_makes_a_ring_of_several_fields_with_every_number(name):
    fields = ("--field", "y:u1:4,6", "--field", "2nd:bfloat16:2,3,2", "--field", "n:i8")
    more = ("--mode", "0640", "--max-peers", 2, "--max-subscriptions", 1)
    meta = ("--meta", "pts:i8", "--meta", "gain:f4,lens:u1")
    with kept(name, "--slots", 3, *fields, *more, *meta) as told, gpuring.attach(name) as ring:
        assert told.startswith(f"keeping {name}: 3 slots of ")
        assert told.endswith(" in host memory; Ctrl-C ends it\n")
        assert [(each, shape) for each, (shape, _) in ring.fields.items()] == [
            ("y", (4, 6)), ("2nd", (2, 3, 2)), ("n", ()),
        ]  # fmt: skip
        assert ring.spec.meta == np.dtype([("pts", "i8"), ("gain", "f4"), ("lens", "u1")])
        assert (ring._header.max_peers, ring._header.max_subscriptions) == (2, 1)
        assert modes(name) == {0o640}
    assert modes(name) == set()


def test_it_makes_a_service_that_engines_and_clients_join(name):
    what = ("--request", "i4:2", "--response", "sum:i8", "--response", "both:i4:2")
    with kept(name, "--slots", 5, *what, "--request-meta", "k:i8", "--no-redeliver") as told:
        assert told.startswith(f"keeping {name}: 5 slots of ")
        with gpuring.serve(name) as engine, gpuring.connect(name) as client:
            with client.request(10) as slot:
                slot.array[...] = [1, 2]
                slot.meta["k"] = 7
                call = slot.call
            (taken,) = engine.take(timeout=10)
            assert (taken.array.tolist(), taken.meta["k"]) == ([1, 2], 7)
            with taken.answer() as slot:
                slot["sum"][...] = 3
                slot["both"][...] = taken.array
            with call.result(10) as answer:
                assert (int(answer["sum"]), answer["both"].tolist()) == (3, [1, 2])
            (one,) = (one for one in gpuring.ls() if one.name == name)
            assert (one.about["kept"], one.about["redeliver"]) == (True, False)
            assert {peer.label for peer in one.peers if peer.pid == one.creator_pid} == {"keep"}
    with pytest.raises(gpuring.RingNotFound):
        gpuring.attach(name)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (gpuring.create, (*keep.BOTH, *keep.RING)),
        (gpuring.serve, (*keep.BOTH, *keep.SERVICE)),
    ],
)
def test_it_has_an_option_for_each_argument(function, options):
    """`label` and `timeout` are for engines.  A keeper has no label, and waits for nobody."""
    arguments = {*inspect.signature(function).parameters} - {"name", "engine", "timeout", "label"}
    assert arguments == {*options}
    parser = argparse.ArgumentParser()
    keep.add_arguments(parser)
    assert {*options} <= {*vars(parser.parse_args(["x"]))}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--slots", 2), "a ring needs --shape and --dtype, or --field"),
        (("--shape", 3, "--dtype", "u1"), "a ring needs --slots"),
        (("--request", "f4:3"), "a service needs --request and --response"),
        (("--shape", 3, "--request", "f4:3"), "--shape is for a ring, and --request for a service"),
        (("--slots", 2, "--field", "u1:3"), "--field has a name"),
        (("--slots", 2, "--field", "y:u1:3", "--shape", 3), "the place of --shape and --dtype"),
        (
            ("--slots", 2, "--field", "y:u1", "--field", "y:u1"),
            "each --field needs a name of its own",
        ),
        (
            ("--slots", 2, "--shape", 3, "--dtype", "u1", "--meta", "k:i8", "--meta", "k:f4"),
            "each field of --meta has a name of its own",
        ),
    ],
)
def test_what_cannot_be_made_is_told_in_options(command, name, options, reason):
    done = command("keep", name, *options, "--device", "host")
    assert done.returncode == 2
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_keeper_that_is_ended_while_it_says_that_it_keeps_closes_its_ring(name):
    """Nobody reads its output, so it is still writing when the signal comes."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    os.set_blocking(write, True)
    ring = ("--slots", "4", "--shape", "4", "--dtype", "u1", "--device", "host")
    with os.fdopen(read, "rb") as said, running("keep", name, *ring, stdout=write) as started:
        os.close(write)
        with gpuring.attach(name, timeout=20):
            stat = Path(f"/proc/{started.pid}/stat")
            poll(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")
        started.terminate()
        assert b"closing" in said.read()
        assert started.wait(20) == 0
