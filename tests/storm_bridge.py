"""A storm over a bridge: `python tests/storm_bridge.py --frames 100000 --kills 300`, as root.

See tests/bridged.
"""

from __future__ import annotations

import sys

from bridged.storm import main

if __name__ == "__main__":
    sys.exit(main())
