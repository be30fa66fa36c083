"""Plants one at random."""

from __future__ import annotations

import os
import random
import secrets
import sys
from typing import Any

from tests.cli.planted import PLANTED
from tests.helpers.processes import PATIENCE_S, Child


def main() -> None:
    """Plants one of the jams, and prints the name of its ring.  Prints which one it was when a line
    comes."""
    started: list[Child] = []

    def children(target: Any, *args: Any) -> Child:
        started.append(Child(target, args, PATIENCE_S, "forkserver"))
        return started[-1]

    ring = f"cam-{secrets.token_hex(2)}"
    chosen = random.SystemRandom().choice(list(PLANTED))
    try:
        with PLANTED[chosen](children, ring) as blame:
            print(ring, flush=True)
            sys.stdin.readline()
            print(chosen, blame, flush=True)
            for child in started:
                child.end()
    finally:
        os._exit(0)


main()
