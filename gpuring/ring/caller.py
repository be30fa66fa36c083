"""Who called into gpuring: the line of the program that a warning is about."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
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


@dataclass
class Whole:
    """What has several rings: a server or a client.  If it is dropped, one warning names it, and
    none names its rings, producers and consumers."""

    what: str
    so: str
    """What its end is, for the warning."""
    told: bool = False


def warn_not_closed(
    what: str, made_at: str, so: str, source: object, whole: Whole | None = None
) -> None:
    """Warns of something that was dropped, and not closed.  `whole` is what it is a part of."""
    if whole is not None:
        if whole.told:
            return
        whole.told, what, so = True, whole.what, whole.so
    warn(
        f"{what} was not closed{f' (made at {made_at})' if made_at else ''}. Nobody has it any "
        f"more, so {so}. Close it, or use it in a with block",
        ResourceWarning,
        source=source,
    )
