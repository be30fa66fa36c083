"""Two processes that pass frames through a rival, in both directions.

A rival brings a *lane*: what its two ends have in common, made before the processes are (queues, a
directory, a name).  There is one for each direction.  Each process has the sending end of one lane,
an Outlet, and the receiving end of the other, an Inlet.

Queues and locks of multiprocessing can only be inherited, so rivals that need them get processes of
their own; the others are played by workers that the crew already has.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from bench.rivals.player import play
from bench.rivals.rival import RUN_S, Rival
from gpuring.cli.measure.crew import Crew, Part, RoleFailed

START_S = 90.0
"""The first import of a large package, from a cold disk, is slow."""


@contextlib.contextmanager
def pair(rival: Rival, crew: Crew) -> Iterator[tuple[Part, Part]]:
    """Yields the two players, connected.  Raises RoleFailed.  In any case none is left running."""
    with contextlib.ExitStack() as stack:
        there, back = stack.enter_context(rival.lane()), stack.enter_context(rival.lane())

        def start(outward: Any, inward: Any) -> Part:
            return crew.start(
                play, rival, outward, inward, patience_s=START_S, inherit=rival.inherits
            )

        players = tuple(
            stack.enter_context(start(*lanes)) for lanes in ((there, back), (back, there))
        )
        a, b = players
        exports = [player.receive() for player in players]  # neither waits for the other yet
        a.send(exports[1])
        b.send(exports[0])
        answers(a, b)
        yield a, b
        with contextlib.suppress(
            RoleFailed
        ):  # what was measured counts, and a player that fails now is killed
            for player in players:
                ordered(player, "let_go")
            for player in players:
                player.send(None)
                player.result()


def ordered(player: Part, *order: Any) -> Any:
    player.send(order)
    return player.receive()


def answers(*players: Part) -> list[Any]:
    """What each of them says next.  Raises RoleFailed as soon as one has failed: the others, which
    wait for that one, would never speak."""
    said: dict[int, Any] = {}
    deadline = time.monotonic() + RUN_S
    while len(said) < len(players):
        for n, player in enumerate(players):
            if n not in said and player.told():
                said[n] = player.receive()
        if time.monotonic() > deadline:
            raise RoleFailed(f"no end after {RUN_S:g} s")
        time.sleep(0.002)
    return [said[n] for n in range(len(players))]
