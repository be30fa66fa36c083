"""Types of the compiled reader of headers."""

from typing import Any

from gpuring.native._core import Header

SLOT_PHASES: tuple[str, ...]
TAKE_PHASES: tuple[str, ...]

def snapshot(header: Header) -> dict[str, Any]: ...
