"""Types of subscriptions.pyx."""

from typing import Literal

from gpuring.native.header import Header

def subscribe(
    header: Header,
    name: bytes,
    *,
    lossless: bool,
    redeliver: bool,
    start: Literal["next", "oldest"] | int,
    patience_ns: int,
) -> int: ...
def unsubscribe(header: Header, name: bytes) -> tuple[int, bool]: ...
