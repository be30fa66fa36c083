"""Types of diagnosis.pyx."""

from collections.abc import Callable, Sequence

from gpuring.errors import RingError
from gpuring.native.header import Header
from gpuring.native.peer import Peer

def refused(
    ring: str,
    peer: Peer,
    result: int,
    verb: str,
    timeout: float | None,
    is_stopped: Callable[[int], bool] | None = None,
) -> RingError: ...
def unusable(ring: str, result: int) -> RingError: ...
def cannot_join(
    ring: str, header: Header, result: int, subscription: bytes
) -> RingError | ValueError: ...
def resting(
    ring: str, header: Header, result: int, verb: str, timeout: float | None
) -> RingError: ...
def in_the_way(
    header: Header,
    culprit: tuple[int, int | None, int | None, int, int],
    is_stopped: Callable[[int], bool] | None = None,
) -> str: ...
def way_out(header: Header, culprit: tuple[int, int | None, int | None, int, int]) -> str: ...
def torn(ring: str, seqs: Sequence[int], released: bool) -> str: ...
