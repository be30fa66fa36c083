"""Types of how a client sends requests; what each does stands in _sender.pyx."""

from typing import Any

from gpuring.native import Header
from gpuring.ring.write_slot import WriteSlot
from gpuring.service._books import Calls
from gpuring.service._calls import InFlight
from gpuring.service._inbox import Inbox
from gpuring.service._sleepers import Turn

def has_engines(header: Header, kept: bool) -> bool: ...
def is_closed(header: Header) -> bool: ...

class Sender:
    _id: int
    _sending: Turn
    _calls: Calls
    def __init__(
        self,
        ring: Any,
        requests: Any,
        mailbox: Inbox,
        turn: Turn,
        id: int,
        kept: bool,
        kind: type[InFlight],
    ) -> None: ...
    def _settle_in(self, ring: Any, requests: Any, mailbox: Inbox, id: int, kept: bool) -> bool: ...
    @property
    def dropped(self) -> int: ...
    def _no_turn(self, timeout: float | None, others: str) -> Exception: ...
    def _sends_at_once(self) -> bool: ...
    def _send(
        self,
        timeout: float | None,
        expires_s: float | None,
        stream: Any,
        shape: Any,
        waited: float | None = ...,
    ) -> Any: ...

class SendsRequest(WriteSlot):
    def _done(self, well: bool) -> None: ...
