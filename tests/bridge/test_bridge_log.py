"""What importers can make an exporter log."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.processes import poll

pytest.importorskip("zmq")

from gpuring import bridge
from gpuring.bridge.network import wire
from tests.bridge.bridge_sides import asking


def test_the_log_has_each_refusal_once_until_the_importer_was_served(name, caplog):
    caplog.set_level("INFO", "gpuring.bridge")
    shape = {"slots": 4, "shape": 4, "dtype": "i8", "device": "host"}

    def ask(who: str) -> type:
        with asking(out, name, who) as far:
            kind = type(far.heard(wire.Welcome, wire.Refuse))
            if kind is wire.Welcome:
                far.say(7, wire.Bye("it was a test", False))
                poll(lambda: not out.stats().links)
        return kind

    def refused() -> list[str]:
        assert out.stats().restarts == 0  # all lines before this answer have come
        return [line.split()[3] for line in caplog.messages if "was refused" in line]

    with (
        gpuring.create(name, max_subscriptions=1, **shape) as ring,
        bridge.export(name, listen="127.0.0.1:0") as out,
    ):
        with ring.consumer("somebody"):
            assert [ask(who) for who in ("h/a", "h/b", "h/a", "h/b")] == 4 * [wire.Refuse]
            assert refused() == ["h/a", "h/b"]
        assert ask("h/a") is wire.Welcome
        with ring.consumer("somebody"):
            assert [ask(who) for who in ("h/a", "h/b")] == 2 * [wire.Refuse]
            assert refused() == ["h/a", "h/b", "h/a"]


def test_nobody_can_fill_the_log(name, caplog):
    caplog.set_level("INFO", "gpuring.bridge")
    with (
        bridge.export(name, listen="127.0.0.1:0") as out,
        asking(out, "another ring", "h/x") as far,
    ):
        for _ in range(400):
            far.hello("lossy", who="h/x")
        for _ in range(401):
            assert "and not 'another ring'" in far.heard(wire.Refuse).reason
        assert out.stats().restarts == 0  # all lines before this answer have come
    assert 100 <= len(caplog.messages) < 300


def test_nobody_writes_lines_of_the_log(name, caplog):
    caplog.set_level("INFO", "gpuring.bridge")
    evil = "\n2026-11-23 00:00:00 a line \x1b[2J that nobody has written\u202e"
    with (
        gpuring.create(name, slots=2, shape=4, dtype="i8", device="host"),
        bridge.export(name, listen="127.0.0.1:0") as out,
        asking(out, name, "h/x") as far,
    ):
        far.heard(wire.Welcome)
        far.say(7, wire.Ping(evil, evil))
        shown = poll(lambda: out.stats().links[0].blocked)
        far.say(7, wire.Bye(evil, True))
        poll(lambda: "is gone" in caplog.text)
    assert all(map(str.isprintable, [shown, *caplog.messages]))
    assert r"\x1b[2J" in shown
