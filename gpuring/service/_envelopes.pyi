"""Types of what both sides of a service call use; what each does stands in _envelopes.pyx."""

FAILED: int
END: int
TEXT_NBYTES: int
ENVELOPES: tuple[int, int]
