"""Types of exported.pyx."""

from collections.abc import Callable
from typing import Any

class Exported:
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    @property
    def __array__(self) -> Callable[..., Any]: ...

class SlotField(Exported):
    def __init__(self, slot: Any, name: str) -> None: ...
