"""What the two sides of a service agree on: names, envelopes, and what its ring says about answers.

A frame's metadata begins with an envelope, which users do not see.  The envelope of a request says
which client sent it and until when it is wanted.  As long as an engine has the request, the client
says there how many parts of the answer it has released, and whether it has given the call up.  The
envelope of an answer says which call it answers, and whether it is a part or the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import mmap
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuring import native, slot_layout
from gpuring.errors import RingError, RingIncompatible
from gpuring.memory.host import HostMemory
from gpuring.native import Header
from gpuring.registry import segment
from gpuring.ring import debug, inner
from gpuring.ring.creation import create_of
from gpuring.ring.endpoint import Endpoint
from gpuring.ring.producer import Producer
from gpuring.ring.ring import Ring
from gpuring.service._envelopes import ENVELOPES, TEXT_NBYTES
from gpuring.slot_layout import ARRAY, Spec

if TYPE_CHECKING:
    from gpuring.memory import Memory

ENGINES = "engines"
"""The subscription that the engines share.  A request ring has no other one, so its number is 0."""

SPARE = 4
"""How many slots a client's ring has beside one for each call.  Engines that die before the client
looks may have begun so many answers, or sent so many twice, and no other answer is overwritten."""

REQUEST = np.dtype(
    [("client", "u8"), ("call", "u8"), ("until_ns", "u8"), ("credit", "u8"), ("parts", "u8")]
)
ANSWER = np.dtype(
    [
        ("call", "u8"),
        ("request", "u8"),
        ("part", "u4"),
        ("status", "u1"),
        ("text", f"S{TEXT_NBYTES}"),
    ]
)
assert (REQUEST.itemsize, ANSWER.itemsize) == ENVELOPES
_VERSION = 2

Fields = Mapping[str, tuple[Sequence[int] | int, npt.DTypeLike]]
Slots = Fields | tuple[Sequence[int] | int, npt.DTypeLike]
"""What a request or an answer holds: (shape, dtype), or {name: (shape, dtype)} for several."""


@dataclass(frozen=True)
class Terms:
    """What a service promises to its clients and expects from its engines."""

    response: Spec
    memory: str
    """Where answers are: "host" or "cuda"."""
    redeliver: bool
    kept: bool
    """Whether the creator of the request ring only holds it open."""
    clock: int | None
    """The time namespace of the creator, whose clock says when calls expire.  None: unknown."""

    def about(self) -> dict[str, Any]:
        return {
            "service": _VERSION,
            "response": json.loads(self.response.to_bytes()),
            "memory": self.memory,
            "redeliver": self.redeliver,
            "kept": self.kept,
            "clock": self.clock,
        }

    @classmethod
    def of(cls, ring: Ring) -> Terms:
        """The terms of an attached request ring.  Raises RingIncompatible if the ring is not a
        service, or if the service has another clock than this process."""
        about = ring.spec.about
        if about is None or about.get("service") != _VERSION:
            raise RingIncompatible(
                f"ring {ring.name!r} is a ring, not a service: gpuring.attach() opens it"
                if about is None
                else f"service {ring.name!r} is of another version of gpuring"
            )
        try:
            terms = cls(
                Spec.from_bytes(json.dumps(about["response"]).encode()),
                str(about["memory"]),
                bool(about["redeliver"]),
                bool(about["kept"]),
                about.get("clock"),
            )
        except (KeyError, ValueError) as error:
            raise RingIncompatible(f"service {ring.name!r}: {error}") from error
        here = time_namespace()
        if None not in (here, terms.clock) and here != terms.clock:
            raise RingIncompatible(
                f"service {ring.name!r} is of time namespace {terms.clock}, this process of {here}:"
                " their clocks differ, and calls would expire too early or never. Start all in one"
            )
        return terms


def check_replacement(former: Ring, its: Terms, ring: Ring, terms: Terms) -> None:
    """Raises RingIncompatible unless a client of the former service can use this one as it is."""
    for what, had, has in differences(
        ("request", request_of(former), request_of(ring)),
        ("response", its.response, terms.response),
        ("device", former.memory, ring.memory),
        ("place of its answers", its.memory, terms.memory),
    ):
        raise RingIncompatible(
            f"service {ring.name!r} was replaced by one with another {what}: it has {has}, and "
            f"this client was connected to one that had {had}. Connect again"
        )


def request_of(ring: Ring) -> Spec:
    """What a request holds, without what the ring says of the service."""
    return dataclasses.replace(ring.spec, canary_nbytes=0, origin=None, about=None)


def differences(*pairs: tuple[str, object, object]) -> Iterator[tuple[str, str, str]]:
    """The name and the two sides, in words, of each pair whose sides differ."""
    for what, *sides in pairs:
        if sides[0] != sides[1]:
            one, other = (in_words(x) if isinstance(x, Spec) else repr(x) for x in sides)
            yield what, one, other


def time_namespace() -> int | None:
    """Which CLOCK_MONOTONIC this process has.  None: the kernel or the sandbox does not say."""
    try:
        return os.stat("/proc/self/ns/time").st_ino  # noqa: PTH116
    except OSError:
        return None


def describe(what: str, slots: Slots, meta: npt.DTypeLike | None, envelope: np.dtype[Any]) -> Spec:
    """The spec of a request or an answer with its envelope.  `what` is for messages."""
    fields = slots if isinstance(slots, Mapping) else {ARRAY: slots}
    parts: list[Any] = [("envelope", envelope)]
    try:
        plain = slot_layout.make(fields=fields, meta=meta)
        if meta is not None:
            parts.append(("user", plain.meta))
        return slot_layout.make(fields=fields, meta=np.dtype(parts))
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{what}: {error}") from error


def in_words(described: Spec) -> str:
    """A request or an answer as the user described it, for a message."""
    arrays = map(str, described.fields)
    meta = described.meta
    user = meta["user"] if meta is not None and "user" in (meta.names or ()) else None
    return f"{', '.join(arrays)} and {'no metadata' if user is None else f'metadata {user}'}"


class ClientId(int):
    """The number of a client.  It is shown everywhere as in the name of the ring of its answers: as
    sixteen hexadecimal digits."""

    def __repr__(self) -> str:
        return f"{self:016x}"


def answers_name(service: str, client: int) -> str:
    """The name of a client's own ring."""
    return f"{service}.{ClientId(client)}"


def check_service_name(name: str) -> str:
    segment.check_name(answers_name(segment.check_name(name), 0))
    return name


def make_answer_ring(requests: Ring, terms: Terms, client: int, slots: int) -> Ring:
    """A ring for one client's answers, in the memory that the service says."""
    on_host = terms.memory == "host"
    same: dict[str, Any] = {}
    if not on_host:
        same = {"sync": requests.sync, "gate": requests.gate, "memory": requests.memory}
    return create_of(
        terms.response,
        answers_name(requests.name, client),
        slots=slots,
        device="host" if on_host else "cuda",
        max_peers=native.MAX_PEERS,
        max_subscriptions=1,
        **same,
    )


def make_sink(requests: Ring, terms: Terms) -> Ring:
    """A ring of one slot for answers to clients that have left.  It has no name, so nobody else
    finds it, nothing has to be locked for it, and nothing is left of it."""
    described, on_host = terms.response, terms.memory == "host"
    memory: Memory
    if on_host:
        nbytes = described.slot_nbytes
        memory = HostMemory(mmap.mmap(-1, nbytes), nbytes)
    else:
        from gpuring.memory.cuda import CudaMemory

        slots = inner.memory(requests)
        assert isinstance(slots, CudaMemory)
        memory = CudaMemory.create(
            "ipc", secrets.token_bytes(16), 1, described.slot_nbytes, slots.device
        )
    debug.plant(memory, described, 1)
    fd = os.memfd_create("gpuring sink")
    try:
        header = Header.create(
            fd,
            slots=1,
            max_peers=1,
            max_subscriptions=1,
            memory=memory.kind,
            sync="host" if on_host else requests.sync,
            gate="stream" if on_host else requests.gate,
            slot_nbytes=described.slot_nbytes,
            meta_nbytes=described.meta_nbytes,
            spec=described.to_bytes(),
            epoch=secrets.token_bytes(16),
            device_uuid=memory.device_uuid,
            memory_handle=memory.handle,
        )
    except BaseException:
        memory.close(others=False, then=lambda: None)
        raise
    finally:
        os.close(fd)
    return Ring(f"{requests.name} (no client)", header, memory, described, created=True)


def names_answers(service: str) -> Callable[[str], object]:
    """Returns a function that says whether a name is that of a client's ring of this service."""
    return re.compile(re.escape(service) + r"\.[0-9a-f]{16}").fullmatch


def without_fail(tidy: Callable[[], object]) -> None:
    """Runs `tidy` and ignores its errors.  Other processes can do the same later, so a file that
    another user has put there, for example, is no reason to raise."""
    with contextlib.suppress(RingError, OSError, ValueError):
        tidy()


class Enveloped(Endpoint):
    """An endpoint whose slots' `meta` is the user's part.  The compiled path reads and writes the
    other part.

    Name it behind the compiled class in the list of bases, because the first base makes the object.
    Python takes Endpoint and Producer for compatible, because they have the same fields.  But they
    do not have the same C functions.
    """

    def _metas(self) -> list[Any]:
        table = inner.metadata(self.ring, writable=isinstance(self, Producer))
        return [*table["user"]] if "user" in (table.dtype.names or ()) else [None] * len(table)

    def _envelopes(self) -> npt.NDArray[Any]:
        """The envelopes of all slots, as views."""
        envelopes: npt.NDArray[Any] = inner.metadata(self.ring, writable=False)["envelope"]
        return envelopes
