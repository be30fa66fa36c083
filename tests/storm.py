"""A storm over host rings: `python tests/storm.py --seconds 3600 --seed 1`.  See tests/storms."""

from __future__ import annotations

import sys

from storms.storm import main

if __name__ == "__main__":
    sys.exit(main())
