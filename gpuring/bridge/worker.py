"""What both kinds of worker have: how they talk to their supervisor, what is logged, and how they
wait.

A worker and its supervisor talk in lines of JSON over the worker's standard input and output.  A
worker whose supervisor is gone ends at once.  A worker sends its log in this way, too.  The number
of lines is limited, whatever comes from the network.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable
from typing import Any

import zmq

from gpuring.bridge.descriptors import readable
from gpuring.printable import counted

BUSY_S = 0.00005
"""How long a loop rests while something is in flight, and nobody tells it when that is done."""

POLLING_S = 0.0005
"""While an engine has to be polled all the time, a loop looks at its other sockets only so
often."""

_LINES, _LINES_S = 100, 10.0
"""How many lines are logged in how many seconds."""


class Fatal(Exception):
    """There is no point in starting another worker."""


class SupervisorPipe:
    """The supervisor, as its worker sees it."""

    def __init__(self) -> None:
        self._from = os.dup(0)
        self._to = os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)  # libraries that print do not talk to the supervisor
        self._begun = b""
        self._lines, self._lines_since_s = 0, time.monotonic()

    def fileno(self) -> int:
        return self._from

    def say(self, **message: Any) -> None:
        try:
            os.write(self._to, json.dumps(message).encode() + b"\n")
        except OSError:
            os._exit(1)  # it is gone

    def log(self, text: str) -> None:
        """Others can cause such lines, so there are not too many of them."""
        now = time.monotonic()
        if now - self._lines_since_s > _LINES_S:
            if self._lines > _LINES:
                self.say(log=f"left out: {counted(self._lines - _LINES, 'more line')}")
            self._lines_since_s, self._lines = now, 0
        self._lines += 1
        if self._lines <= _LINES:
            self.say(log=text)

    def heard(self) -> list[dict[str, Any]]:
        """What the supervisor has said.  Blocks if it has said nothing."""
        more = os.read(self._from, 1 << 16)
        if not more:
            os._exit(1)  # it is gone
        *lines, self._begun = (self._begun + more).split(b"\n")
        return [json.loads(line) for line in lines]

    def wait_without_a_loop(self, seconds: float) -> None:
        """Waits, and answers the supervisor meanwhile as one that serves nobody yet."""
        if readable([self._from], seconds):
            for message in self.heard():
                if "stop" in message:
                    os._exit(0)
                if "stats" in message:
                    self.say(stats=message["stats"], links=[])

    def first(self) -> dict[str, Any]:
        """What the supervisor says first.  Leaves all else for `heard`."""
        said = b""
        while not said.endswith(b"\n"):
            if not (byte := os.read(self._from, 1)):
                os._exit(1)
            said += byte
        options: dict[str, Any] = json.loads(said)
        return options


class Poller:
    """Sockets and descriptors that a loop waits for."""

    def __init__(self, *always: Any) -> None:
        self._zmq = zmq.Poller()
        self._known: set[Any] = set()
        self._always = {*always}

    def wait(self, others: Iterable[Any], timeout_s: float) -> set[Any]:
        """Returns those that can be read."""
        wanted = self._always | {*others}
        for each in self._known - wanted:
            self._zmq.unregister(each)
        for each in wanted - self._known:
            self._zmq.register(each, zmq.POLLIN)
        self._known = wanted
        if 0 < timeout_s < 0.001:  # poll counts milliseconds
            time.sleep(timeout_s)
            timeout_s = 0
        return {each for each, _ in self._zmq.poll(math.ceil(1000 * timeout_s))}

    def add(self, socket: Any) -> None:
        self._always.add(socket)

    def remove(self, socket: Any) -> None:
        """Before it is closed."""
        self._always.discard(socket)
        if socket in self._known:
            self._known.discard(socket)
            self._zmq.unregister(socket)
