"""Two processes that pass frames through a rival, in both directions.

A rival brings a *lane*: what its two ends have in common, made before the processes are (queues, a
directory, a name).  There is one for each direction.  Each process has the sending end of one lane,
an Outlet, and the receiving end of the other, an Inlet.

Queues and locks of multiprocessing can only be inherited, so rivals that need them get processes of
their own; the others are played by workers that the crew already has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from bench.rivals.player import play
from bench.rivals.rival import RUN_S, Rival
from gpuring.cli.measure.crew import Crew, Part, RoleFailed, answers

START_S = 90.0
"""The first import of a large package, from a cold disk, is slow."""


@contextlib.contextmanager
def pair(rival: Rival, crew: Crew) -> Iterator[tuple[Part, Part]]:
    """Yields the two players, connected.  Raises RoleFailed.  Never leaves a player running."""
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
        answers(players, RUN_S)
        yield a, b
        with contextlib.suppress(
            RoleFailed
        ):  # the figures count, and a player that fails now is killed
            for player in players:
                ordered(player, "let_go")
            for player in players:
                player.send(None)
                player.result()


def ordered(player: Part, *order: Any) -> Any:
    player.send(order)
    return player.receive()
