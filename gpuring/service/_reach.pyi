"""Types of an engine's ends of its clients' rings; what each does stands in _reach.pyx."""

from typing import Any

from gpuring.ring.producer import Producer

class Answering(Producer):
    delivers: bool
    begun: list[Any]

class Reach:
    writers: dict[int, Any]
    _used: dict[Any, None]
    _tidied: float
    def reach(self, client: int, now: int = ...) -> Any: ...

def is_gone(writer: Any, trust_ns: int = ..., now: int = ...) -> bool: ...
