"""Types of slot_owner.pyx, which says what each does."""

from typing import Any, ClassVar

from gpuring.native import Device, Peer
from gpuring.native.signals import Dropped
from gpuring.ring.debug import Watcher
from gpuring.ring.slot import Slot

class SlotOwner(Dropped):
    _role: ClassVar[str]
    _slot_type: ClassVar[type[Slot]]
    _peer: Peer
    _device: Device | None
    _kind: type[Slot]
    _slots: list[Any]
    _watch: Watcher | None
    def _metas(self) -> list[Any]: ...
    def _renew(self, index: int) -> Any: ...
    def _lost(self) -> list[int]: ...
    def _put_back(self, index: int) -> None: ...
    def _give_back_lost(self) -> None: ...
    def _give_back(self, index: int) -> None: ...
    def _finish(self) -> list[Exception]: ...
