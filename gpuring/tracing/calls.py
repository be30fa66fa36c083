"""The calls of services: request, queue, engine, answer, over all processes that have a part in it.

An event of a request, and of each part of its answer, says to which call it belongs (GR_DID_CALL).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuring.registry.segment import ANSWERS
from gpuring.tracing.tracks import Args, Picture, Slice


@dataclass
class _Call:
    service: str
    number: int
    client: int
    request: Slice | None = None
    engine: Slice | None = None
    answers: list[Slice] = field(default_factory=list)
    received: Slice | None = None


class Calls:
    def __init__(self, picture: Picture, pids: Mapping[int, str]) -> None:
        self._picture, self._pids = picture, pids
        self._calls: dict[tuple[str, int, int], _Call] = {}
        self._by_seq: dict[tuple[str, int], _Call] = {}

    def written(self, ring: str, seq: int, client: int, number: int, it: Slice) -> None:
        """`it` writes a request or a part of an answer."""
        answers = ANSWERS.fullmatch(ring)
        service = answers[1] if answers else ring
        key = service, client, number
        call = self._calls.setdefault(key, _Call(service, number, client))
        self._by_seq[ring, seq] = call
        it.args["call"] = f"{number} of client {client:016x}"
        if not answers:
            call.request = it
            return
        call.answers.append(it)
        if call.engine is not None:
            self._picture.arrow(call.engine, it)

    def taken(self, ring: str, seq: int, it: Slice) -> None:
        """`it` reads what was written as that sequence."""
        call = self._by_seq.pop((ring, seq), None)
        if call is None:
            return
        it.args["call"] = f"{call.number} of client {call.client:016x}"
        if ring == call.service:
            call.engine = it
        else:
            call.received = it

    def draw(self) -> None:
        """A row for each call that was seen from its request to the end of its answer."""
        whole = [
            (call.request, call.engine, call.answers, call.received, call)
            for call in self._calls.values()
            if call.request and call.engine and call.answers and call.received
        ]
        for request, engine, answers, received, call in sorted(
            whole, key=lambda each: each[0].begin_ns
        ):
            begin, queued, taken = request.begin_ns, request.end_ns, engine.begin_ns
            answered, end = answers[-1].end_ns, received.begin_ns
            if not begin <= queued <= taken <= answered <= end:  # it was taken twice
                continue
            service = self._picture.track(("calls", call.service), f"calls of {call.service}")
            args: Args = {"client": f"{call.client:016x}", "parts": len(answers)}
            key, what = ("calls of", call.service), f"call {call.number}"
            whole_call = self._picture.begin_in_lane(
                key, "calls", service, what, begin, "call", args
            )
            pid = engine.track.of_process
            name = f"{self._pids.get(pid) or 'engine'}, pid {pid}"
            for what, its_begin, its_end in (
                ("is sent", begin, queued),
                ("in the queue", queued, taken),
                (name, taken, answered),
                ("answer waits", answered, end),
            ):
                self._picture.end(
                    self._picture.begin(whole_call.track, what, its_begin, "call"), its_end
                )
            self._picture.end(whole_call, end)
