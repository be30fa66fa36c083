"""Figures of benchmarks that are made up."""

from __future__ import annotations

import numpy as np

from gpuring.cli.measure.figures import Distribution


def spread(value: float, n: int = 2000) -> Distribution:
    """A sample of equal values.  Of 2000 a p99 is given, too."""
    return Distribution.of(np.full(n, float(value)))
