"""Types of what both sides of a service call use; what each does stands in _envelopes.pyx."""

from gpuring.native import Header

FAILED: int
END: int
TEXT_NBYTES: int
NEVER: int
ENVELOPES: tuple[int, int]

def call_of(header: Header, seq: int) -> tuple[int, int, bool] | None: ...
