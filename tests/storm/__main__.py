"""Runs a storm: `python -m tests.storm rings --seconds 3600 --seed 1`.  The package says more."""

from __future__ import annotations

import sys
from importlib import import_module

from tests.storm import harness

STORMS = {
    "rings": "rings.storm.Rings",
    "bridge": "bridge.storm.Bridge",
    "services": "services.Services",
    "clients": "clients.Clients",
    "soak": "soak.Soak",
    "calls": "calls.Calls",
    "strangers": "bridge.strangers.Strangers",
}


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in STORMS:
        print(f"python -m tests.storm {'|'.join(STORMS)} [--help]")
        return 0 if sys.argv[1:2] == ["--help"] else 2
    module, _, kind = STORMS[sys.argv[1]].rpartition(".")
    made = getattr(import_module(f"tests.storm.{module}"), kind)
    return harness.main(made, f"python -m tests.storm {sys.argv[1]}", sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
