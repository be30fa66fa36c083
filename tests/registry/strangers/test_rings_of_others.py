"""If root runs a command on a ring of another user, the error says which command to type
instead."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers import commands
from tests.helpers.processes import Pipe
from tests.registry.strangers import NOBODY, OPTIONS

SUDO = f"sudo -u '#{NOBODY}' gpuring"


def keep(pipe: Pipe, name: str) -> None:
    with gpuring.create(name, **OPTIONS, mode=0o666):
        pipe.ask()


@pytest.fixture
def others(name, stranger):
    """The name of a ring of another user."""
    child = stranger(keep, name)
    child.receive()
    yield name
    child.send()


def test_clean_names_the_command_that_removes_it(others):
    told = commands.gpuring("clean", others).stderr
    assert f"{others} stays: only its owner, user nobody, can remove it. As root: " in told
    assert f"`{SUDO} clean {others}`" in told


def test_trace_says_whose_rings_it_takes(others, tmp_path):
    pytest.importorskip("perfetto", reason="gpuring[trace] is not installed")
    told = commands.gpuring("trace", others, "--out", tmp_path / "x.pftrace").stderr
    assert "Only rings of your own user or of root can be traced" in told
    assert f"As root: `{SUDO} trace …`" in told


def test_subscriptions_are_made_and_ended_for_an_owner_who_is_named(others):
    for command in ("subscribe", "unsubscribe"):
        refused = commands.gpuring(command, others, "recorder")
        assert refused.returncode == 1
        assert f"attach with --owner {NOBODY}, or run this program as that user" in refused.stderr
        done = commands.gpuring(command, others, "recorder", "--owner", "nobody")
        assert (done.returncode, done.stderr) == (0, "")
