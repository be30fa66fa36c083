"""`python -m tests.storm rings --seconds 3600 --seed 1`: see the package."""

from __future__ import annotations

import sys
from importlib import import_module

STORMS = {
    "rings": "rings.storm",
    "bridge": "bridge.storm",
    "services": "services",
    "soak": "soak",
    "soak-services": "soak_services",
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in STORMS:
        sys.exit(f"python -m tests.storm {'|'.join(STORMS)}")
    which = sys.argv.pop(1)
    sys.argv[0] = f"python -m tests.storm {which}"
    sys.exit(import_module(f"tests.storm.{STORMS[which]}").main())
