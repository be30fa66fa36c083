"""`gpuring top` on a terminal, and its keys."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from tests.helpers.commands import DEADLINE_S, running

pytest.importorskip("rich", reason="gpuring[tools] is not installed")

from tests.cli.screen import Screen
from tests.helpers.rings import damage, small_ring


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("end", ["q", "ctrl-c", "sigterm"])
def test_live_on_a_terminal(name, end):
    screen = Screen()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200", "LINES": "50"}
    terminal = dict.fromkeys(("stdin", "stdout", "stderr"), screen.theirs)
    try:
        with running("top", "--interval", 0.02, name, env=environment, **terminal) as top:
            screen.until(lambda text: "waiting for it" in text)
            with small_ring(name, 2) as ring, ring.producer():
                screen.until(lambda text: "producer" in text)
            screen.forget()
            screen.until(lambda text: "waiting for it" in text)
            path = damage(name)
            screen.until(lambda text: "unreadable" in text)
            path.unlink()
            if end == "q":
                os.write(screen.fd, b"xq")
            else:
                top.send_signal(signal.SIGINT if end == "ctrl-c" else signal.SIGTERM)
            screen.until(lambda text: "\x1b[?1049l" in text)  # it restores the old screen
            assert top.wait(DEADLINE_S) == 0
    finally:
        screen.close()


def test_keys_scroll_a_small_terminal(name):
    screen = Screen()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "10"}
    terminal = dict.fromkeys(("stdin", "stdout", "stderr"), screen.theirs)
    try:
        with small_ring(name, 2) as ring, contextlib.ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(ring.consumer("readers"))
            with running("top", "--interval", 60, name, env=environment, **terminal) as top:
                for key, first in (("", 1), ("j", 2), ("\x1b[B", 3), ("\x1b[6~", 11), ("k", 10)):
                    os.write(screen.fd, key.encode())
                    screen.until(lambda text, first=first: f"lines {first}–{first + 8} of" in text)
                os.write(screen.fd, b"q")
                assert top.wait(DEADLINE_S) == 0
    finally:
        screen.close()
