"""One of the two processes.  It takes orders from the benchmark."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bench.rivals.rival import Rival
from gpuring.cli.measure.crew import Pipe


def play(pipe: Pipe, rival: Rival, outward: Any, inward: Any) -> None:
    """The role of each of the two."""
    player = _Player(rival, outward, inward)
    pipe.send((player.outlet.exports, player.inlet.exports))
    theirs = pipe.receive()
    player.inlet.connect(theirs[0])
    player.outlet.connect(theirs[1])
    pipe.send()
    while (order := pipe.receive()) is not None:
        pipe.send(getattr(player, order[0])(*order[1:]))
    player.outlet.close()


class _Player:
    """A player.  Its public methods are its orders.  Times are the host's, in ns."""

    def __init__(self, rival: Rival, outward: Any, inward: Any) -> None:
        self.work = rival.work()
        self.outlet = rival.outlet(outward, self.work)
        self.inlet = rival.inlet(inward, self.work)
        self._sent = self._received = 0

    def set_terms(self, terms: Any) -> None:
        self.work.terms = terms

    def send(self, frames: int) -> Any:
        """Returns the durations of the calls."""
        took = np.zeros(frames, np.int64)
        for n in range(frames):
            start = time.monotonic_ns()
            self._send()
            took[n] = time.monotonic_ns() - start
        self.work.finish()
        return took

    def receive(self, windows: int, per_window: int) -> tuple[Any, Any]:
        """Returns the durations of the calls, and when the checks of each window were done."""
        took = np.zeros(windows * per_window, np.int64)
        done = np.zeros(windows, np.int64)
        for window in range(windows):
            for n in range(window * per_window, (window + 1) * per_window):
                start = time.monotonic_ns()
                self._receive()
                took[n] = time.monotonic_ns() - start
            self.work.finish()
            done[window] = time.monotonic_ns()
        return took, done

    def ask(self, rounds: int) -> tuple[Any, Any]:
        """Returns when the send of each question began, and when its answer was checked."""
        began, ended = np.zeros(rounds, np.int64), np.zeros(rounds, np.int64)
        for n in range(rounds):
            began[n] = time.monotonic_ns()
            self._send()
            self._receive()
            self.work.finish()
            ended[n] = time.monotonic_ns()
        return began, ended

    def answer(self, rounds: int, finish: bool) -> Any:
        """Returns when each question was checked.  Only with `finish` the GPU is waited for."""
        done = np.zeros(rounds, np.int64)
        for n in range(rounds):
            self._receive()
            if finish:
                self.work.finish()
                done[n] = time.monotonic_ns()
            self._send()
        self.work.finish()
        return done

    def wrong(self) -> int:
        return self.work.wrong()

    def let_go(self) -> None:
        self.work.finish()
        self.inlet.close()

    def _send(self) -> None:
        self._sent += 1
        self.outlet.send(self._sent)

    def _receive(self) -> None:
        self._received += 1
        self.inlet.receive(self._received)
