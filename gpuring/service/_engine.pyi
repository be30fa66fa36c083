"""Types of how an engine takes calls; what each does stands in _engine.pyx."""

from typing import Any, Literal

from gpuring.service._reach import Reach
from gpuring.service._taken import Taken
from gpuring.service.call import Batch

def batch_size(max_batch: int, slots: int) -> int: ...
def fill_seconds(max_wait_s: float | str | None) -> float: ...

class Taker:
    _ring: Any
    _requests: Any
    _delivery: Any
    _calls: set[Any]
    counts: Any
    _engine: bool
    _measures: Any
    def __init__(
        self,
        ring: Any,
        delivery: Reach,
        counts: Any,
        kind: type[Taken],
        kind_of_batch: type[list[Any]],
        engine: bool,
    ) -> None: ...
    def _open(self, requests: Any) -> None: ...
    def take(
        self,
        max_batch: int = 1,
        max_wait_s: float | Literal["learn"] | None = "learn",
        timeout: float | None = None,
        *,
        stream: Any = None,
    ) -> Batch: ...
    def _let_go(self, call: Any) -> None: ...
    def _end_cancelled(self, call: Any) -> None: ...
    def _claim_part(
        self, call: Any, writer: Any, timeout: float, stream: Any, shape: Any
    ) -> Any: ...
