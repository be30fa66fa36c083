"""The messages of wire.py as bytes, and back.  Pure functions.

A message has a head and at most one part behind it, which is bytes of a frame, or an offer.  The
form, types and ranges of incoming messages are checked here, so other modules only check whether a
message fits the ones before it.  The head is `gpuring`, a byte for the kind, and the session;
then the fields of the kind, as JSON where only a session begins or ends, and otherwise packed.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from gpuring.bridge.network.wire import (
    MAX_HEAD,
    MAX_OFFER,
    MAX_PART,
    POLICIES,
    VERSION,
    AskTime,
    Begin,
    Bye,
    Data,
    End,
    Flow,
    Frame,
    Hello,
    Message,
    Open,
    OtherVersion,
    Ping,
    Refuse,
    Time,
    Welcome,
    WireError,
)
from gpuring.bridge.network.wire_fields import MAX_NAME, MAX_TEXT, Fields
from gpuring.native import MAX_META_NBYTES, MAX_NDIM, MAX_SLOTS, MAX_SPEC_NBYTES

_MAX_SEQ = (1 << 48) - 1
_MAX_NBYTES = 1 << 40
_HEAD = struct.Struct("<7sBQ")
_MAGIC = b"gpuring"
_FLOW = struct.Struct("<QI")
_DATA = struct.Struct("<QQ")
_FRAME = struct.Struct("<QQQQQ?B")
_ASK_TIME = struct.Struct("<Q")
_TIME = struct.Struct("<QQ")


def encode(session: int, message: Message) -> list[Any]:
    """The parts of a message.  Bytes of a frame are not copied."""
    head = _HEAD.pack(_MAGIC, message.kind, session)
    match message:
        case Frame(seq, to_seq, nbytes, time_ns, lost, shape, meta, starved, part):
            head += _FRAME.pack(seq, to_seq, nbytes, time_ns, lost, starved, len(shape))
            head += struct.pack(f"<{len(shape)}Q", *shape) + meta
            return [head, part] if len(part) else [head]
        case Data(to_seq, begin, part):
            return [head + _DATA.pack(to_seq, begin), part]
        case Flow(acked, credits):
            packed = _FLOW.pack(acked, len(credits))
            return [head + packed + struct.pack(f"<{len(credits)}Q", *credits)]
        case Open(offer=offer):
            return [head + _json(message), offer]
        case Begin():
            return [head]
        case AskTime(asked_ns):
            return [head + _ASK_TIME.pack(asked_ns)]
        case Time(asked_ns, time_ns):
            return [head + _TIME.pack(asked_ns, time_ns)]
    return [head + _json(message)]


def _json(message: Message) -> bytes:
    said = {each.name: getattr(message, each.name) for each in fields(message)}
    said.pop("offer", None)
    for name in ("reason", "blocked"):
        if name in said:
            said[name] = said[name][:MAX_TEXT]
    if isinstance(message, Hello):
        said["version"] = VERSION
    return json.dumps(said).encode()


def decode(parts: Sequence[Any]) -> tuple[int, Message]:
    """The session and the message.  `parts` are buffers of bytes.  Raises WireError, and nothing
    else.

    Bytes of a frame are in the buffer that was given.
    """
    if not 1 <= len(parts) <= 2 or len(parts[0]) > MAX_HEAD:
        raise WireError("a message has a head and at most one part")
    head = bytes(parts[0])
    if len(head) < _HEAD.size:
        raise WireError("a message without a head")
    magic, kind, session = _HEAD.unpack_from(head)
    if magic != _MAGIC:
        raise WireError("this is not the other side of a bridge")
    body, part = head[_HEAD.size :], parts[1] if len(parts) == 2 else None
    if kind != Frame.kind and (part is not None) != (kind in (Data.kind, Open.kind)):
        raise WireError(f"a message of kind {kind} with {len(parts)} parts")
    try:
        return session, _read(kind, session, body, part)
    except WireError:
        raise
    except (struct.error, UnicodeError, RecursionError, KeyError) as error:
        raise WireError(f"a message of kind {kind} that cannot be read: {error}") from None
    except ValueError as error:
        raise WireError(str(error)) from None


def _read(kind: int, session: int, body: bytes, part: Any) -> Message:
    match kind:
        case Frame.kind:
            return _frame(body, part)
        case Data.kind:
            return _data(body, part)
        case Flow.kind:
            return _flow(body)
        case Hello.kind:
            return _hello(session, Fields(body))
        case Refuse.kind:
            said = Fields(body)
            return Refuse(said.words("reason"), said.boolean("again"))
        case Welcome.kind:
            return _welcome(Fields(body, 5))
        case Open.kind:
            return _open(Fields(body, 2), part)
        case End.kind:
            return End(Fields(body, 1).boolean("died"))
        case Begin.kind:
            if body:
                raise WireError("a Begin that says more")
            return Begin()
        case Ping.kind:
            said = Fields(body, 2)
            return Ping(said.words("blocked"), said.words("by", MAX_NAME))
        case Bye.kind:
            said = Fields(body, 2)
            return Bye(said.words("reason"), said.boolean("again"))
        case AskTime.kind:
            return AskTime(*_times(_ASK_TIME, body))
        case Time.kind:
            return Time(*_times(_TIME, body))
    raise WireError(f"a message of the unknown kind {kind}")


def _hello(session: int, said: Fields) -> Hello:
    version = said.integer("version", 0, 1 << 31)
    if version != VERSION:
        raise OtherVersion(session, version)
    said.are(1 + len(fields(Hello)))
    policy = said.text("policy", 10)
    if policy not in POLICIES:
        raise WireError("an unknown policy")
    return Hello(
        said.name("ring"),
        said.name("importer", 2 * MAX_NAME),
        said.digits("run", 16),
        policy,
        said.epoch(""),
        said.integer("seq", 0, _MAX_SEQ),
        said.integer("timeout_ms", 1, 10**12),
    )


def _welcome(said: Fields) -> Welcome:
    engines = said["engines"]
    if not isinstance(engines, dict) or len(engines) > 16:
        raise WireError("engines are described by an object")
    for facts in engines.values():
        if not isinstance(facts, dict):
            raise WireError("the facts of an engine are an object")
    spec = said.text("spec", MAX_SPEC_NBYTES)
    seq = said.integer("seq", 0, _MAX_SEQ)
    return Welcome(said.name("host"), said.epoch(), seq, spec, engines)


def _open(said: Fields, offer: Any) -> Open:
    if len(offer) > MAX_OFFER:
        raise WireError("an offer that is too long")
    return Open(said.name("engine"), said.integer("slots", 1, MAX_SLOTS), bytes(offer))


def _flow(body: bytes) -> Flow:
    acked, n = _FLOW.unpack_from(body)
    if acked > _MAX_SEQ or n > MAX_SLOTS or len(body) != _FLOW.size + 8 * n:
        raise WireError("credits that cannot be")
    credits = struct.unpack_from(f"<{n}Q", body, _FLOW.size)
    rising = all(a < b for a, b in itertools.pairwise(credits))
    if not rising or max((0, *credits)) > _MAX_SEQ:
        raise WireError("credits that do not rise")
    return Flow(acked, credits)


def _data(body: bytes, part: Any) -> Data:
    if len(body) != _DATA.size:
        raise WireError("data without a place")
    to_seq, begin = _DATA.unpack(body)
    if to_seq > _MAX_SEQ or begin > _MAX_NBYTES or not 0 < len(part) <= MAX_PART:
        raise WireError("data that cannot be")
    return Data(to_seq, begin, part)


def _times(of: struct.Struct, body: bytes) -> tuple[int, ...]:
    times = of.unpack(body)
    if any(each >> 63 for each in times):
        raise WireError("a time that cannot be")
    return times


def _frame(body: bytes, part: Any) -> Frame:
    seq, to_seq, nbytes, time_ns, lost, starved, ndim = _FRAME.unpack_from(body)
    meta_at = _FRAME.size + 8 * ndim
    if ndim > MAX_NDIM or len(body) < meta_at:
        raise WireError("a frame with a shape that cannot be")
    shape = struct.unpack_from(f"<{ndim}Q", body, _FRAME.size)
    largest = max(seq, to_seq, lost)
    if not 0 < seq <= largest <= _MAX_SEQ or not 0 < nbytes <= _MAX_NBYTES or time_ns >> 63:
        raise WireError("a frame that cannot be")
    if not all(0 < extent <= _MAX_NBYTES for extent in shape):
        raise WireError("a frame with an extent that cannot be")
    if len(body) - meta_at > MAX_META_NBYTES:
        raise WireError("metadata that is too long")
    if part is None:
        part = b""
    elif not 0 < len(part) <= min(nbytes, MAX_PART):
        raise WireError("a part of a frame that cannot be")
    return Frame(seq, to_seq, nbytes, time_ns, lost, shape, body[meta_at:], starved, part)
