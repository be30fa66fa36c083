"""Types of joining.pyx."""

from typing import Literal

from gpuring.native.device import Device
from gpuring.native.peer import Peer

def join_producer(peer: Peer, device: Device | None, gate_host: bool) -> Peer | int: ...
def join_consumer(
    peer: Peer,
    name: bytes,
    lossless: bool,
    start: Literal["next", "oldest"] | int,
    redeliver: bool,
    device: Device | None,
    gate_host: bool,
) -> Peer | int: ...
