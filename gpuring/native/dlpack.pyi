"""Types of the compiled DLPack capsules."""

from typing import Any

DL_CPU: int
DL_CUDA: int
DL_CUDA_HOST: int
DL_CUDA_MANAGED: int
DL_READ_ONLY: int
DL_COPIED: int

def dlpack_export(
    owner: Any,
    data: int,
    device: tuple[int, int],
    shape: tuple[int, ...],
    kind: tuple[int, int],
    flags: int,
    versioned: bool,
) -> Any: ...

class DLPackImport:
    data: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    kind: tuple[int, int, int]
    read_only: bool
    def __init__(self, capsule: Any) -> None: ...
