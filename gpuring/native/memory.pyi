"""Types of memory.pyx."""

from collections.abc import Callable

from typing_extensions import Buffer

from gpuring.native.device import Driver
from gpuring.native.exchange import Descriptor
from gpuring.native.header import Header

NOT_SUPPORTED: int
FETCH_S: float

def check_gpu(driver: Driver, device: int) -> None: ...
def ordinal_of(driver: Driver, uuid: bytes) -> int | None: ...
def lacks(driver: Driver, kind: str, device: int, release: str = "") -> str: ...
def lacks_timeline(driver: Driver, device: int) -> str: ...
def auto(contained: bool, no_ipc: str, no_vmm: str) -> tuple[str, str]: ...
def is_contained() -> bool: ...
def order(sync: str, gate: str | None, no_timeline: str) -> tuple[str, str]: ...
def check_creator(name: str, header: Header) -> None: ...

class Slab:
    @property
    def device(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def handle(self) -> bytes: ...
    @property
    def fd(self) -> int: ...
    @property
    def made(self) -> bool: ...
    def view(self, writable: bool) -> int: ...

def make(driver: Driver, kind: str, device: int, epoch: bytes, nbytes: int) -> Slab: ...
def adopt(
    driver: Driver,
    device: int,
    ring: str,
    epoch: bytes,
    ptr: int,
    nbytes: int,
    slots: int,
    slot_nbytes: int,
    owner: object,
) -> Slab: ...
def open(
    driver: Driver,
    kind: str,
    device: int,
    ring: str,
    epoch: bytes,
    uuid: bytes,
    handle: bytes,
    slots: int,
    slot_nbytes: int,
    fetch: Callable[[], Descriptor],
) -> Slab: ...

class Registered:
    def __init__(self, driver: Driver, device: int, pages: Buffer) -> None: ...
    kind: str
    fd: int
    made: bool
    @property
    def device(self) -> int: ...
    @property
    def ptr(self) -> int: ...
    def view(self, writable: bool) -> int: ...
