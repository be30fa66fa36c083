"""Types of the compiled reader of headers."""

from typing import Any

from gpuring.native import Header

SLOT_PHASES: tuple[str, ...]
TAKE_PHASES: tuple[str, ...]

def snapshot(header: Header) -> dict[str, Any]: ...
