from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import ReferenceType

Iterator = TypeVar("Iterator")
Item = TypeVar("Item")

class Dropped:
    def _dropped(self) -> None: ...

def is_dropping() -> bool: ...
def finish_dropped() -> None: ...
def begun_elsewhere(
    step: Callable[[ReferenceType[Iterator]], Coroutine[Any, Any, Item]],
) -> Callable[[Iterator], Coroutine[Any, Any, Item]]: ...
