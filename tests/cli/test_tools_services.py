"""What `gpuring ls`, `top` and `inspect` show of services."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

import gpuring
from tests.helpers.processes import poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of
from tests.service.services import (
    answer,
    ask_here,
    engine,
    holder,
    send,
    sender,
    serve,
)


def row_of(text, name):
    """The first line that begins with the name."""
    return next(line for line in text.splitlines() if line.split()[:1] == [name])


def test_a_service_is_one_line_of_the_list(name, command):
    with serve(name) as server, gpuring.connect(name) as client, gpuring.connect(name) as other:
        calls = [send(client, k) for k in range(3)]
        (taken,) = server.take(timeout=10)
        answers = [each._mailbox._ring.name for each in (client, other)]
        (line,) = [line for line in command("ls").stdout.splitlines() if name in line]
        assert line.split()[-8:-5] == ["2", "1", "open,"]  # producers, consumers, state
        assert line.endswith("open, service, 3 calls in flight")
        assert "Not listed: " in command("ls").stdout
        everything = command("ls", "--all").stdout
        for each in answers:
            (line,) = [line for line in everything.splitlines() if line.startswith(each)]
            assert line.endswith(f"open, answers of {name}")
        answer(taken)
        assert calls[0].wait(10)
        assert "service, 2 calls in flight" in row_of(command("ls").stdout, name)


def test_a_client_whose_service_is_gone_is_told_as_one(name, command):
    with serve(name), gpuring.connect(name) as client:
        call = send(client, 0)
        answers = call._mailbox._ring.name
        gpuring.unlink(name)
        assert row_of(command("ls").stdout, answers).endswith(f"answers of {name}, which is gone")


def test_inspect_says_who_is_who_in_a_service(name, children, command):
    with serve(name, engine=False) as keeper, gpuring.connect(name) as client:
        worker = up(children(engine, name))
        call = send(client, 0)
        assert call.wait(10)
        text = command("inspect", name).stdout
        assert text.startswith(f"service {name}: 64 slots of ")
        assert "\na keeper, 1 engine and 1 client; 0 calls in flight, 0 of them" in text
        peers = text[text.index("\nPEER") :].splitlines()[2:]
        roles = [(each.split()[1], str(worker.pid) in each) for each in peers]
        ours = [("presence", False), ("keeper", False), ("client", False)]
        assert roles == [*ours, ("presence", True), ("engine", True)]
        answers = client._mailbox._ring.name
        told = f"\none of the clients of service {name} gets its answers here\n"
        assert told in command("inspect", answers).stdout
        about = json.loads(command("inspect", name, "--json").stdout)["about"]
        assert (about["service"], about["kept"]) == (2, True)
        assert keeper.stats().about == about
        worker.finish()


def test_the_dead_of_a_service_are_engines_and_clients(name, children, command):
    with serve(name, engine=False) as keeper:
        dead = {"engine": up(children(engine, name)), "client": children(sender, name, 1)}
        dead["client"].receive()  # the client has joined
        for child in dead.values():
            child.kill()
        poll(lambda: keeper.ring._header.reap() or keeper.ring._header.reaps == 3)
        text = command("inspect", name).stdout
        for kind, child in dead.items():  # each is named once
            told = re.findall(rf"ago: {kind} \d+ \(\S+, pid {child.pid}\) died", text)
            assert len(told) == 1, text


@promise(
    "services.md",
    '`serve(…, label="rack 2")` and `connect(…, label="camera 5")` say what messages and '
    "tools show of an engine and of a client. By default that is the name of the program. "
    "Labels distinguish engines in several containers, where each may have the pid 1.",
)
def test_engines_and_clients_are_shown_by_their_labels(name, children, command):
    with (
        serve(name, engine=False, slots=1) as keeper,
        gpuring.connect(name, label="camera 5") as client,
    ):
        worker = up(children(holder, name, 1, {"label": "rack 2", "slots": 1}))
        call = send(client, 0)
        assert worker.receive() == [0]
        with pytest.raises(gpuring.RingFull, match=r"rack 2, pid \d+\) of subscription"):
            client.request(0)
        program = keeper.stats().peers[0].label
        labels = [(each.role, each.label) for each in keeper.stats().peers]
        ours = [("producer", program), ("consumer", program), ("producer", "camera 5")]
        assert labels == [*ours, ("producer", "rack 2"), ("consumer", "rack 2")]
        assert re.search(r"engine +engines +rack 2 ", command("inspect", name).stdout)
        top = command("top", "--once", "--interval", 0.01, name).stdout
        assert re.search(rf"engine +{worker.pid} +rack 2 ", top)
        assert re.search(rf"client +{os.getpid()} +camera 5 ", top)
        call.cancel()


def test_a_terminal_of_80_columns_shows_labels_beside_what_an_engine_holds(
    name, command, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    with serve(name, label="rack 2") as server, gpuring.connect(name, label="camera 5") as client:
        calls = [send(client, k) for k in range(4)]
        taken = [server.take(1, timeout=10) for _ in calls]
        assert all(taken)
        text = command("inspect", name).stdout
        (row,) = re.findall(r"engine +rack 2 .*", text)
        assert "64 for " in row
        assert "67 for " in text  # in a line below
        assert re.search("client +camera 5 ", text)
        assert max(map(len, text.splitlines())) <= 80


def test_the_ring_of_answers_has_the_labels_of_both_sides(name):
    with serve(name, label="rack 2") as server, gpuring.connect(name, label="camera 5") as client:
        ask_here(server, client, 0)
        peers = client._mailbox._ring.stats().peers
        assert [each.label for each in peers] == ["camera 5", "camera 5", "rack 2"]


def test_clean_removes_the_rings_of_dead_clients_with_their_service(name, children, command):
    creator, client = up(children(engine, name)), children(sender, name, 1)
    client.receive()  # the client has joined
    creator.kill()
    client.kill()  # nobody is left to remove its ring
    (answers,) = (each for each in segments_of(name) if f"{name}." in each and "+" not in each)
    done = command("clean", "--dry-run", name).stdout
    assert f"{answers.removeprefix('gpuring.')} would be removed" in done
    done = command("clean", name).stdout
    assert f"removed {answers.removeprefix('gpuring.')}: " in done
    assert segments_of(name) == []


def test_clean_says_nothing_of_the_rings_of_living_clients(name, command):
    with serve(name), gpuring.connect(name) as client:
        answers = client._mailbox._ring.name
        done = command("clean", name)
        assert answers not in done.stdout + done.stderr
        done = command("clean", answers)
        assert f"{answers} stays: " in done.stderr


@pytest.mark.parametrize("options", [("tap", "--out"), ("record", "--out"), ("subscribe",)])
def test_commands_for_rings_say_that_it_is_a_service(name, command, tmp_path, options):
    verb, *out = options
    if verb == "record":
        pytest.importorskip("mcap")
    with serve(name):
        said = command(verb, name, *out, tmp_path / "out" if out else "recorder")
    assert said.returncode == 1
    assert f"'{name}' is a service, and no ring: only its engines read its requests" in said.stderr


def test_a_client_keeps_its_label_in_the_next_service(name):
    server = serve(name)
    with gpuring.connect(name, label="camera 5") as client:
        server.close()
        with serve(name) as server:
            ask_here(server, client, 0)
            assert server.stats().peers[-1].label == "camera 5"


@pytest.mark.parametrize("label", [5, "x" * 65])
def test_a_wrong_label_replaces_no_service(name, label):
    with serve(name) as server:
        with pytest.raises((TypeError, ValueError), match="label"):
            serve(name, replace=True, label=label)
        with pytest.raises((TypeError, ValueError), match="label"):
            gpuring.connect(name, label=label)
        assert not server.ring._header.closed


def test_a_stopped_engine_is_counted_once(name, children, command):
    pytest.importorskip("prometheus_client", reason="gpuring[tools] is not installed")
    with serve(name, engine=False), gpuring.connect(name):
        worker = up(children(engine, name))
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            poll(lambda: ", 1 stopped, service, " in row_of(command("ls").stdout, name))
            metrics = command("metrics", "--once").stdout
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        assert len(re.findall(rf'peer_stopped{{peer="\d+",ring="{name}"}} 1.0', metrics)) == 1
        worker.finish()


def test_a_stopped_engine_is_told_once_and_its_role_in_a_narrow_terminal(
    name, children, command, monkeypatch
):
    with serve(name, engine=False), gpuring.connect(name):
        worker = up(children(engine, name))
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            poll(lambda: ", 1 stopped, service, " in row_of(command("ls").stdout, name))
            told = command("ls", name).stdout
            monkeypatch.setenv("COLUMNS", "60")
            text = command("inspect", name).stdout
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        peers = text[text.index("\nPEER") :].splitlines()[2:]
        (row,) = [each for each in peers if str(worker.pid) in each and "presence" not in each]
        assert "  engine  " in row
        assert "  stopped  " in row
        assert "(not shown, for lack of room: " in text
        assert told.count(f"(pid {worker.pid})") == 1
        assert f"Stopped in {name}: " in told
        worker.finish()


def test_top_shows_clients_and_engines(name, command):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        assert len(server.take(timeout=10)) == 1
        shown = command("top", "--once", "--interval", 0.01).stdout
        assert client._mailbox._ring.name not in shown
        assert " in which clients of services get answers)" in shown
        named = command("top", "--once", "--interval", 0.01, name).stdout
        for text in (shown, named):
            assert row_of(text, name).endswith("open, service, 1 call in flight")
            lines = text.splitlines()
            at = lines.index(f"{name}: 1 engine and 1 client") + 1
            kinds = [line.split()[1:3] for line in lines[at : at + 2]]
            assert kinds == [["engine", str(os.getpid())], ["client", str(os.getpid())]]
        call.cancel()


def test_a_ring_that_is_only_named_like_a_clients_ring_is_listed(name, command):
    odd = f"{name}.{7:016x}"
    options = {"slots": 2, "shape": 1, "dtype": "u1", "device": "host"}
    with gpuring.create(name, **options), gpuring.create(odd, **options):
        text = command("ls").stdout
        assert any(line.startswith(odd) for line in text.splitlines())
        assert "gets its answers here" not in command("inspect", odd).stdout
