"""Types of waits.pyx."""

from typing import Any

from gpuring.native.peer import Peer

MAX_WAITED: int

def look(peer: Peer) -> tuple[int, tuple[Any, ...] | None]: ...
def ready(peer: Peer, spin_ns: int = ...) -> bool: ...
def select(peers: list[Peer], timeout: float | None) -> list[bool]: ...
