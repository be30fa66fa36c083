"""Types of a call as its client has it; what each does stands in _calls.pyx."""

from typing import Any

from typing_extensions import Self

from gpuring.errors import RingError
from gpuring.service._books import Entry
from gpuring.service._inbox import Inbox

class InFlight(Entry):
    _mailbox: Inbox
    def _was_closed(self) -> RingError: ...
    def _give_up(self, error: RingError) -> None: ...

class HandsOut:
    _call: Any
    def __init__(self, call: InFlight) -> None: ...
    def _leave(self) -> None: ...
    def _hand_out(self) -> Any: ...
    def __iter__(self) -> Self: ...
