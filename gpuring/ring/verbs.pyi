"""Types of the compiled verbs; what each does stands in verbs.pyx."""

from typing import Any

from gpuring.native import Device, Peer

class Verbs:
    _peer: Peer
    _device: Device | None
    _slots: list[Any]
    _spares: dict[int, Any]
    _replaced: bool
    _polled: bool
    def _lost(self) -> list[int]: ...
    def _recover(self) -> None: ...
    def _renew(self, index: int) -> Any: ...

class ProducerVerbs(Verbs): ...  # its verbs: gpuring/ring/producer.py has the kinds of slots

class ConsumerVerbs(Verbs):  # the same: gpuring/ring/consumer.py
    _lossless: bool
    _untold: list[int]
