"""Types of an engine's ends of its clients' rings; what each does stands in _reach.pyx."""

from typing import Any

from gpuring.ring.producer import Producer

class Answering(Producer):
    begun: list[Any]

class Reach:
    writers: dict[int, Any]
    _used: dict[Any, None]

def is_gone(writer: Any, trust_ns: int = ..., now: int = ...) -> bool: ...
