"""What the far end of NIXL tells the near one: where to write, and how to reach its agent."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from gpuring.bridge.engines.contract import EngineError
from gpuring.bridge.engines.nixl.write_permits import is_name

_MAX_HEAD = 4096


@dataclass(frozen=True)
class Offer:
    """What the near end must know of the far memory, and how it comes over the network."""

    pointer: int
    slots: int
    """How many slots there are from `pointer` on.  If they are fewer than the far ring has, it is a
    bounce buffer.  What is for slot `i` of the ring belongs into slot `i` modulo this."""
    slot_nbytes: int
    gpu: int
    """The ordinal in the far process.  -1: host memory."""
    host: str
    hold: str
    """The name under which the far end gives permits to write (write_permits.py)."""
    agent: bytes
    """NIXL's own description of the far agent."""

    @property
    def kind(self) -> str:
        return "DRAM" if self.gpu < 0 else "VRAM"

    def part(self, index: int, nbytes: int) -> tuple[int, int, int]:
        at = index % self.slots
        return self.pointer + at * self.slot_nbytes, nbytes, max(self.gpu, 0)

    def parts(self, nbytes: int) -> list[tuple[int, int, int]]:
        return [self.part(index, nbytes) for index in range(self.slots)]

    def written(self) -> bytes:
        head = asdict(self)
        del head["agent"]
        return json.dumps(head).encode() + b"\n" + self.agent

    @classmethod
    def read(cls, offer: bytes) -> Offer:
        """Raises EngineError for what `written` does not make."""
        text, _, agent = offer.partition(b"\n")
        try:
            head = json.loads(text) if len(text) <= _MAX_HEAD else None
        except (ValueError, RecursionError):
            head = None
        limits = {"pointer": (1, 1 << 64), "slots": (1, 1 << 16), "slot_nbytes": (1, 1 << 48)}
        limits |= {"gpu": (-1, 1 << 10)}
        if (
            not isinstance(head, dict)
            or set(head) != {*limits, "host", "hold"}
            or not all(type(head[k]) is int and a <= head[k] < b for k, (a, b) in limits.items())
            or not isinstance(head["host"], str)
            or not is_name(head["hold"])
        ):
            raise EngineError("the far side's offer is not one of NIXL's")
        return cls(agent=agent, **head)
