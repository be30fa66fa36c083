"""What to say when the system gives no memory, or no room in /dev/shm."""

from __future__ import annotations

from gpuring import native
from gpuring.errors import RingError


def tell(name: str, error: OSError, what: str, nbytes: int) -> None:
    """Raises RingError if `error` says that the system gave no memory or no room."""
    if error.errno is not None:
        try:
            native.refuse_room(name, error.errno, what, nbytes)
        except RingError as told:
            raise told from error
