"""`gpuring bridge` as its users start it: two commands, which are killed and end cleanly."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import socket
from collections.abc import Iterator

import pytest

import gpuring
from gpuring import bridge
from gpuring.cli import bridge as cli_bridge
from gpuring.cli import main
from gpuring.registry import segment
from tests.helpers import commands
from tests.helpers.commands import exporting, line_with
from tests.helpers.processes import SOMEBODY, poll

pytest.importorskip("zmq")

WAIT_S = 60.0
EXPORT, IMPORT = ("bridge", "export"), ("bridge", "import")


@pytest.fixture
def near(name: str) -> Iterator[gpuring.Ring]:
    shape = {"slots": 8, "shape": 16, "dtype": "i8"}
    with gpuring.create(f"{name}-near", device="host", **shape) as ring:
        yield ring


def put(producer: gpuring.Producer, numbers: range) -> None:
    for n in numbers:
        with producer.claim(timeout=WAIT_S) as slot:
            slot.array[...] = n


def number(slot: gpuring.ReadSlot) -> int:
    assert (slot.array == slot.array[0]).all()
    return int(slot.array[0])


def both_ends(
    stack: contextlib.ExitStack, near: gpuring.Ring, there: str
) -> tuple[gpuring.Ring, Iterator[gpuring.ReadSlot], gpuring.Producer]:
    """The far ring, a loop over it that goes on after restarts, and a producer of the near one."""
    far = stack.enter_context(gpuring.attach(there, timeout=WAIT_S))
    frames = stack.enter_context(far.consumer(start="oldest", reattach=True))
    return far, iter(frames), stack.enter_context(near.producer())


@pytest.mark.slow
def test_a_killed_importer_goes_on_where_it_was(name, near):
    there = f"{name}-far"
    with contextlib.ExitStack() as stack:
        run, where = stack.enter_context(exporting(near.name))
        again = (*IMPORT, f"{where}/{near.name}", "--as", there, "--device", "host")
        first = stack.enter_context(commands.running(*again))
        far, loop, producer = both_ends(stack, near, there)
        put(producer, range(8))
        assert [number(next(loop)) for _ in range(4)] == [*range(4)]
        first.kill()
        first.wait()
        poll(lambda: len(far.stats().peers) == 1)  # its worker has ended, too
        second = stack.enter_context(commands.running(*again))
        assert [number(next(loop)) for _ in range(4)] == [*range(4, 8)]
        for n in range(8, 40):
            put(producer, range(n, n + 1))
            assert number(next(loop)) == n
        loop.close()
        second.send_signal(signal.SIGINT)
        assert second.wait(WAIT_S) == 0
        assert near.name in line_with(run, "is gone: the importer was stopped")
        poll(lambda: not near.stats().subscriptions)
        run.send_signal(signal.SIGINT)
        assert run.wait(WAIT_S) == 0


def test_an_importer_that_is_started_again_with_another_mode_makes_a_ring_of_that_mode(name, near):
    there = f"{name}-far"
    with exporting(near.name) as (_, where):
        options = (*IMPORT, f"{where}/{near.name}", "--as", there, "--device", "host")
        with commands.running(*options) as first:
            with gpuring.attach(there, timeout=WAIT_S) as far, far.consumer():
                first.kill()
                first.wait()
                poll(lambda: len(far.stats().peers) == 1)
            with commands.running(*options, "--mode", "0660") as second:
                poll(lambda: segment.mode(segment.header_name(there)) == 0o660)
                second.send_signal(signal.SIGINT)
                assert second.wait(WAIT_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize("policy", [(), ("--lossy",)], ids=["lossless", "lossy"])
def test_an_importer_that_is_terminated_and_started_again_leaves_nothing_out(name, near, policy):
    """A manager of services does this.  What is lost while a lossy importer is away is counted."""
    there = f"{name}-far"
    with contextlib.ExitStack() as stack:
        run, where = stack.enter_context(exporting(near.name))
        # The ring has so many slots that the loop finds all frames, however late it joins the
        # second ring.
        again = (*IMPORT, f"{where}/{near.name}", "--as", there, "--slots", 64, *policy)
        again += ("--device", "host")
        first = stack.enter_context(commands.running(*again))
        far, loop, producer = both_ends(stack, near, there)
        put(producer, range(1))
        slot = next(loop)
        assert number(slot) == 0
        before = slot.origin.seq
        put(producer, range(1, 4))
        poll(lambda: far.stats().link.seq == before + 3)
        first.send_signal(signal.SIGTERM)
        assert first.wait(WAIT_S) == 0
        line_with(run, "is gone: the importer was stopped")
        put(producer, range(4, 12 if not policy else 30))  # the near ring has eight slots
        second = stack.enter_context(commands.running(*again))
        seq, restarts = before, 0
        for slot in loop:
            assert slot.origin.seq == seq + 1 + slot.lost
            assert number(slot) == slot.origin.seq - before
            assert policy or not slot.lost
            seq, restarts = slot.origin.seq, restarts + slot.restarted
            if seq == before + (11 if not policy else 29):
                break
        assert restarts == 1
        loop.close()
        second.send_signal(signal.SIGINT)
        assert second.wait(WAIT_S) == 0


@pytest.mark.slow
def test_a_killed_importer_that_makes_another_ring_counts_on(name, near):
    """Each sequence of the near ring comes or is counted, although the new ring has more slots."""
    there = f"{name}-far"
    with contextlib.ExitStack() as stack:
        _, where = stack.enter_context(exporting(near.name))
        options = (f"{where}/{near.name}", "--as", there, "--device", "host", "--lossy", "--slots")
        first = stack.enter_context(commands.running(*IMPORT, *options, 2))
        far, loop, producer = both_ends(stack, near, there)
        seq = 0

        def read_until(last: int) -> int:
            nonlocal seq
            restarts = 0
            for slot in loop:
                assert slot.origin.seq == (seq or slot.origin.seq - 1 - slot.lost) + 1 + slot.lost
                seq, restarts = slot.origin.seq, restarts + slot.restarted
                if number(slot) == last:
                    break
            return restarts

        put(producer, range(40))  # the far ring has room for two of them
        assert read_until(39) == 0
        before = far.stats().link
        assert before.lost > 0
        first.kill()
        first.wait()
        poll(lambda: len(far.stats().peers) == 1)  # its worker has ended, too
        put(producer, range(40, 60))
        # It has room for all that the near ring still has, however late the reader joins.
        second = stack.enter_context(commands.running(*IMPORT, *options, 16))
        assert read_until(59) == 1
        loop.close()
        with gpuring.attach(there) as again:
            assert (again.slots, again.stats().link.seq) == (16, seq)
            assert again.stats().link.lost > before.lost
        second.send_signal(signal.SIGTERM)
        assert second.wait(WAIT_S) == 0


def test_an_exporter_says_that_it_waits_for_its_ring(name):
    with exporting(f"{name}-near") as (run, _):
        told = line_with(run, f"waits for ring '{name}-near' to be created")
        assert f"No ring or service named '{name}-near': this host has " in told
        with gpuring.create(f"{name}-near", slots=2, shape=4, dtype="u1", device="host"):
            line_with(run, f"ring '{name}-near' is there now")


@contextlib.contextmanager
def given_away(ring: gpuring.Ring) -> Iterator[None]:
    header = segment.path_of(segment.header_name(ring.name))
    os.chown(header, SOMEBODY, -1)
    try:
        yield
    finally:
        os.chown(header, os.geteuid(), -1)  # otherwise nobody would remove it


OF_SOMEBODY = f"belongs to user {SOMEBODY} (mode 0600), not to user 0."


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a ring away")
def test_both_sides_say_by_which_option_a_ring_of_another_user_is_exported(name):
    options = ("--as", f"{name}-far", "--device", "host")
    with (
        exporting(name) as (out, address),
        gpuring.create(name, device="host", slots=2, shape=4, dtype="u1") as ring,
        given_away(ring),
        commands.running(*IMPORT, f"{address}/{name}", *options) as into,
    ):
        for side in (out, into):
            assert f"with --owner {SOMEBODY}, or" in line_with(side, OF_SOMEBODY)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a ring away")
def test_an_exporter_of_a_ring_of_another_user_ends_at_once(near):
    with given_away(near):
        told = commands.gpuring(*EXPORT, near.name, "--listen", "127.0.0.1:0")
    assert (told.returncode, "listens" in told.stderr) == (1, False)
    assert OF_SOMEBODY in told.stderr
    assert f"with --owner {SOMEBODY}, or" in told.stderr


def test_an_exporter_of_a_service_ends_at_once(name):
    with gpuring.serve(name, request=(4, "u1"), response=(4, "u1"), device="host"):
        told = commands.gpuring(*EXPORT, name, "--listen", "127.0.0.1:0")
    assert (told.returncode, "listens" in told.stderr) == (1, False)
    assert f"{name!r} is a service, and no ring" in told.stderr


def test_an_exporter_says_at_once_that_its_port_is_in_use_and_goes_on_when_it_is_free(name):
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        with commands.running(*EXPORT, name, "--listen", where) as run:
            line_with(run, f"another process listens at {where}. It is tried again")
            other.close()
            line_with(run, f"listens at {where}\n")


@pytest.mark.slow
def test_an_exporter_whose_port_is_in_use_can_be_interrupted(name):
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        with commands.running(*EXPORT, name, "--listen", where) as run:
            line_with(run, "another process listens at")
            run.send_signal(signal.SIGINT)
            assert run.wait(WAIT_S) == 0
            assert "cannot listen" not in run.stderr.read()


@pytest.mark.slow
def test_what_cannot_go_on_is_told(name):
    told = commands.gpuring(*EXPORT, name, "--listen", "192.0.2.1:9760")
    assert (told.returncode, "192.0.2.1: give a key" in told.stderr) == (2, True)
    assert told.stderr.endswith("(--insecure)\n")
    told = commands.gpuring(*EXPORT, name, "--listen", "192.0.2.1:9760", "--insecure")
    assert told.returncode == 1
    why = "cannot listen at 192.0.2.1:9760: this host does not have that address"
    assert told.stderr == f"gpuring bridge: export of {name}: {why}\n"
    nobody = (*IMPORT, "127.0.0.1:1/x", "--as", name)
    told = commands.gpuring(*nobody, "--give-up", "0.1", "--device", "host")
    assert (told.returncode, "no session for 0.1 s" in told.stderr) == (1, True)
    no_gpu = commands.environment() | {"CUDA_VISIBLE_DEVICES": ""}
    told = commands.gpuring(*nobody, env=no_gpu)  # refused at once, without an exporter
    assert (told.returncode, "use --device host" in told.stderr) == (1, True)


@pytest.mark.parametrize(
    ("what", "function", "first"),
    [("export", bridge.export, "cam0"), ("import", bridge.import_, "localhost:1/cam0")],
)
def test_its_options_are_the_arguments_with_their_defaults(monkeypatch, what, function, first):
    given = {}
    monkeypatch.setattr(cli_bridge, "_stay", lambda _, make: make())
    monkeypatch.setattr(bridge, function.__name__, lambda _, **options: given.update(options) or 0)
    main(["bridge", what, first])
    arguments = inspect.signature(function).parameters.values()
    assert given == {each.name: each.default for each in arguments if each.default != each.empty}
