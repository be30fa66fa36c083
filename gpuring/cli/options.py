"""Numbers on a command line, refused with a reason."""

from __future__ import annotations

import argparse


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        limit = "below 1e9" if value >= 1e9 else "above 0"
        raise argparse.ArgumentTypeError(f"a number {limit}, not {text}")
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {text}")
    return value


def count_or_zero(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"at least 0, not {text}")
    return value
