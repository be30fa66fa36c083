"""The ring: a service of gpuring, as examples/upscale_frontends.py uses it.

A process that does nothing else keeps the service, as docs/services.md advises where engines come
and go.

With the gate "stream", which is the default, streams wait for the GPU work of other processes.  A
stream of a worker or engine then does nothing else, although other requests of it could go on.
With the gate "host" threads wait, and a stream gets no work that is not ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import gpuring
from bench.frontends.transport import (
    SLICE_S,
    TAKE,
    Answerer,
    Asker,
    Hands,
    Request,
    Setting,
    Transport,
)
from gpuring.cli.measure.settings import remove_rings, ring_name
from gpuring.ring.endpoint import Gate

START_S = 60.0


@contextmanager
def lane(setting: Setting) -> Iterator[str]:
    try:
        yield ring_name()
    finally:
        remove_rings()


def keeper(gate: Gate, setting: Setting, name: str) -> AbstractContextManager[Any]:
    return gpuring.serve(
        name,
        request=(setting.request, "u1"),
        response=(setting.response, "u1"),
        slots=2 * setting.workers * setting.calls,
        device=setting.device,
        gate=gate if setting.device == "cuda" else None,
        engine=False,
    )


class RingAsker(Asker):
    def __init__(self, setting: Setting, name: str, number: int) -> None:
        self._patience_s = setting.patience_s
        self._client = gpuring.connect(name, calls=setting.calls, timeout=START_S)

    async def ask(self, photo: Any, hands: Hands) -> bytes:
        slot = await self._client.request_async(self._patience_s, expires_s=self._patience_s)
        with slot:
            slot.copy_from(photo)
            call = slot.call
        hands.mark("send")
        with await call.result_async(self._patience_s) as answer:
            hands.mark("wait")
            encoded: bytes = await hands.run(hands.encode, answer)
        return encoded

    def close(self) -> None:
        self._client.close()


class RingRequest(Request):
    def __init__(self, call: Any) -> None:
        self._call = call

    def pixels(self) -> Any:
        import torch

        return torch.utils.dlpack.from_dlpack(self._call.slot)

    def answer(self, large: Any) -> None:
        import torch

        with self._call.answer() as slot:
            torch.utils.dlpack.from_dlpack(slot).copy_(large)


class RingAnswerer(Answerer):
    def __init__(self, setting: Setting, name: str, number: int) -> None:
        self._server = gpuring.serve(name, timeout=START_S)

    def take(self) -> Sequence[Request]:
        try:
            return [RingRequest(call) for call in self._server.take(TAKE, timeout=SLICE_S)]
        except gpuring.RingTimeout:
            return []

    def close(self) -> None:
        self._server.close()


def _transport(name: str, gate: Gate) -> Transport:
    return Transport(name, (), lane, RingAsker, RingAnswerer, partial(keeper, gate))


TRANSPORTS = _transport("ring", "stream"), _transport("ring, host gate", "host")
