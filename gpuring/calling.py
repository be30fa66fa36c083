"""Who called into gpuring: the line of the program that a warning is about."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def _caller() -> FrameType:
    """The frame that called into gpuring, or into NumPy with an array of ours."""
    frame = sys._getframe(1)
    while _package(frame) in ("gpuring", "numpy", "cupy") and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def line() -> str:
    """The line that called into gpuring, as file:number."""
    frame = _caller()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def warn(message: str, category: type[Warning], source: object = None) -> None:
    """As `warnings.warn`, of the line that called into gpuring.

    It does what `skip_file_prefixes` does from Python 3.12 on.  What the garbage collector drops
    has no such line, so the one at which it ran stands there.
    """
    frame = _caller()
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
        source=source,
    )
