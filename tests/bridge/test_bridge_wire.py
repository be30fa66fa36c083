"""What a bridge reads from the network: any bytes give a message or a WireError."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuring import slot_layout
from gpuring.bridge.network import wire, wire_bytes
from gpuring.bridge.network.wire_fields import MAX_NAME
from gpuring.native import MAX_SLOTS, MAX_SPEC_NBYTES

SEQ = st.integers(1, (1 << 48) - 1)
TIME = st.integers(0, (1 << 63) - 1)
ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
TEXT = ANY_TEXT.filter(str.isprintable)
NAME = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=60)
DIGITS = st.text("0123456789abcdef", min_size=32, max_size=32)
FACTS = st.dictionaries(NAME, st.none() | st.booleans() | st.integers() | TEXT, max_size=4)
MESSAGES = st.one_of(
    st.builds(
        wire.Hello, NAME, NAME, DIGITS.map(lambda text: text[:16]), st.sampled_from(wire.POLICIES),
        st.just("") | DIGITS, SEQ,
    ),
    st.builds(wire.Refuse, TEXT, st.booleans()),
    st.builds(wire.Welcome, NAME, DIGITS, SEQ, TEXT, st.dictionaries(NAME, FACTS, max_size=4)),
    st.builds(wire.Open, NAME, st.integers(1, 1024), st.binary(max_size=200)),
    st.builds(wire.Flow, SEQ, st.sets(SEQ, max_size=20).map(sorted).map(tuple)),
    st.builds(wire.Data, SEQ, st.integers(0, 1 << 40), st.binary(min_size=1, max_size=200)),
    st.builds(
        wire.Frame, SEQ, SEQ, st.integers(200, 1 << 40), st.integers(0, (1 << 63) - 1),
        st.integers(0, (1 << 48) - 1), st.lists(st.integers(1, 1 << 40), max_size=4).map(tuple),
        st.binary(max_size=200), st.booleans(), st.binary(max_size=200),
    ),
    st.builds(wire.End, st.booleans()),
    st.builds(wire.Begin),
    st.builds(wire.Ping, TEXT, TEXT),
    st.builds(wire.Bye, TEXT, st.booleans()),
    st.builds(wire.AskTime, TIME),
    st.builds(wire.Time, TIME, TIME),
)  # fmt: skip
SESSION = st.integers(0, (1 << 64) - 1)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


def _read(parts: list[bytes]) -> None:
    """Reads a message or a WireError.  A message that was read can be encoded again, and is then
    read the same."""
    try:
        session, message = wire_bytes.decode(parts)
    except wire.WireError:
        return
    assert wire_bytes.decode(wire_bytes.encode(session, message)) == (session, message)


@given(SESSION, MESSAGES)
def test_what_is_said_is_read(session, message):
    assert wire_bytes.decode(wire_bytes.encode(session, message)) == (session, message)


@given(ANY_TEXT)
def test_words_for_people_can_be_logged_and_shown(text):
    """Without line ends, escape codes, and marks that turn the direction of writing."""
    for message in (wire.Refuse(text, True), wire.Bye(text, True), wire.Ping(text, text)):
        _, read = wire_bytes.decode(wire_bytes.encode(7, message))
        words = [each for each in vars(read).values() if isinstance(each, str)]
        assert all(map(str.isprintable, words))
        assert text in words or not text.isprintable()


def described(shapes: int, character: str, n: int) -> slot_layout.Spec:
    """A description of so many fields.  One has a name of so many characters."""
    fields = {f"field {k}": ((1, 2), "f4") for k in range(shapes)}
    return slot_layout.make(fields=fields | {character * n: (4, "i8")})


@settings(max_examples=8)
@given(st.integers(0, 50), st.sampled_from(["a", '"', "\\", "\n", "é", "\U0001f600"]), st.data())
def test_every_ring_that_can_be_made_can_be_imported(shapes, character, data):
    """A ring's description may be as long as one can be.  An importer adds more to it."""
    least, most = 1, MAX_SPEC_NBYTES  # `least` characters fit, and `most` do not
    while most - least > 1:
        n = (least + most) // 2
        try:
            near, least = described(shapes, character, n), n
        except ValueError:
            most = n
    near = described(shapes, character, data.draw(st.sampled_from([least, max(1, least - 99)])))
    host = data.draw(st.sampled_from(["h", "\U0001f600" * MAX_NAME]))
    facts = {engine: {"x": "y" * 4000} for engine in ("zmq", "nixl")}
    welcome = wire.Welcome(host, "0" * 32, 7, near.to_bytes().decode(), facts)
    assert wire_bytes.decode(wire_bytes.encode(7, welcome)) == (7, welcome)
    slot_layout.make(
        fields={each.name: (each.shape, each.dtype) for each in near.fields},
        origin={"host": host, "ring": "x" * 128},
        about={"lost": (1 << 64) - 1},
    )


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_rubbish(parts):
    _read(parts)


@given(st.integers(0, 255), SESSION, st.binary(max_size=300), st.none() | st.binary(max_size=50))
def test_rubbish_behind_a_right_beginning(kind, session, body, part):
    head = struct.pack("<7sBQ", b"gpuring", kind, session) + body
    _read([head] if part is None else [head, part])


@given(MESSAGES, st.data())
def test_messages_that_are_damaged(message, data):
    """Some bytes are changed, some are missing, and some are added."""
    parts = [bytearray(part) for part in wire_bytes.encode(7, message)]
    part = data.draw(st.sampled_from(parts))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(part)))
        what = data.draw(st.sampled_from(("cut", "insert", "change")))
        if what == "cut":
            del part[at : at + data.draw(st.integers(1, 8))]
        elif what == "insert":
            part[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        else:
            part[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
    _read([bytes(each) for each in parts])


KINDS = [wire.Hello, wire.Refuse, wire.Welcome, wire.Open, wire.End, wire.Ping, wire.Bye]
"""Their fields are JSON."""


HELLO = wire.Hello("r", "h/r", "0" * 16, "lossy", "", 0)
WELCOME = wire.Welcome("h", "0" * 32, 0, "", {})


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (HELLO, {"run": "g" * 16}),
        (HELLO, {"run": "0" * 15}),
        (HELLO, {"policy": "fast"}),
        (HELLO, {"ring": ""}),
        (HELLO, {"importer": "a\nb"}),
        (HELLO, {"importer": "x" * (2 * MAX_NAME + 1)}),
        (HELLO, {"timeout_ms": 0}),
        (HELLO, {"timeout_ms": True}),
        (HELLO, {"seq": 1 << 48}),
        (HELLO, {"more": 1}),
        (WELCOME, {"epoch": "g" * 32}),
        (WELCOME, {"epoch": ""}),
        (WELCOME, {"host": "x" * (MAX_NAME + 1)}),
        (WELCOME, {"engines": []}),
        (WELCOME, {"engines": {"zmq": 1}}),
        (WELCOME, {"engines": {str(n): {} for n in range(17)}}),
        (WELCOME, {"seq": -1}),
        (WELCOME, {"spec": "x" * (MAX_SPEC_NBYTES + 1)}),
        (WELCOME, {"more": 1}),
        (wire.Open("zmq", 1), {"slots": 0}),
        (wire.Open("zmq", 1), {"slots": MAX_SLOTS + 1}),
        (wire.Open("zmq", 1), {"more": 1}),
        (wire.End(True), {"died": 1}),
        (wire.End(True), {"more": 1}),
        (wire.Ping(), {"more": 1}),
        (wire.Bye("", True), {"reason": 7}),
        (wire.Bye("", True), {"more": 1}),
    ],
)
def test_fields_that_cannot_be(message, changes):
    head, *rest = wire_bytes.encode(7, message)
    assert wire_bytes.decode([head, *rest]) == (7, message)
    fields = json.dumps(json.loads(head[16:]) | changes).encode()
    with pytest.raises(wire.WireError):
        wire_bytes.decode([head[:16] + fields, *rest])


@given(MESSAGES.filter(lambda message: type(message) in KINDS), st.data())
def test_fields_that_are_of_other_types_missing_or_too_many(message, data):
    head, *rest = wire_bytes.encode(7, message)
    fields = json.loads(head[16:])
    name = data.draw(st.sampled_from([*fields, "more"]))
    if data.draw(st.booleans()):
        fields[name] = data.draw(ANYTHING)
    else:
        fields.pop(name, None)
    _read([head[:16] + json.dumps(fields).encode(), *rest])


def _packed(kind: int, body: bytes) -> bytes:
    return struct.pack("<7sBQ", b"gpuring", kind, 7) + body


def _frame(*fields: int) -> bytes:
    """(seq, to_seq, nbytes, time_ns, lost, starved, ndim)"""
    return _packed(wire.Frame.kind, struct.pack("<QQQQQ?B", *fields))


@pytest.mark.parametrize("meta", [b"", b"x" * (1 << 16)], ids=len)
def test_frames_like_those_that_cannot_be(meta):
    parts = [_frame(9, 9, 9, 0, 0, 0, 0) + meta, b"x" * 9]
    assert wire_bytes.decode(parts)[1] == wire.Frame(9, 9, 9, 0, 0, (), meta, part=b"x" * 9)


@pytest.mark.parametrize(
    "parts",
    [
        [_packed(wire.Flow.kind, struct.pack("<QI", 1, 0xFFFFFFFF))],
        [_packed(wire.Flow.kind, struct.pack("<QI2Q", 1, 2, 5, 5))],
        [_packed(wire.Flow.kind, struct.pack("<QIQ", 1, 1, 1 << 48))],
        [_packed(wire.Flow.kind, struct.pack("<QI", 1 << 48, 0))],
        [_packed(wire.Flow.kind, struct.pack("<QI", 1, 0)) + b"x"],
        [_frame(9, 9, 1 << 63, 0, 0, 0, 0)],
        [_frame(9, 9, 9, 0, 0, 0, 255)],
        [_frame(9, 9, 9, 0, 0, 0, 255) + b"\1" * 8 * 255],
        [_frame(9, 9, 0, 0, 0, 0, 0)],
        [_frame(9, 9, 9, 1 << 63, 0, 0, 0)],
        [_frame(9, 9, 9, 0, 1 << 48, 0, 0)],
        [_frame(9, 1 << 48, 9, 0, 0, 0, 0)],
        [_frame(9, 9, 9, 0, 0, 0, 1) + bytes(8)],
        [_frame(0, 9, 9, 0, 0, 0, 0)],
        [_frame(9, 9, 9, 0, 0, 0, 0) + b"x" * ((1 << 16) + 1)],
        [_frame(9, 9, 9, 0, 0, 0, 0), b"x" * 10],
        [_frame(9, 9, 9, 0, 0, 0, 0), b""],
        [_frame(9, 9, 1 << 21, 0, 0, 0, 0), b"x" * (wire.MAX_PART + 1)],
        [_packed(wire.Data.kind, struct.pack("<QQ", 9, 1 << 63)), b"x"],
        [_packed(wire.Data.kind, struct.pack("<QQ", 9, 0)), b""],
        [_packed(wire.Data.kind, struct.pack("<QQ", 1 << 48, 0)), b"x"],
        [_packed(wire.Data.kind, struct.pack("<QQQ", 9, 0, 0)), b"x"],
        [_packed(wire.Data.kind, struct.pack("<QQ", 9, 0))],
        [_packed(wire.Data.kind, struct.pack("<QQ", 9, 0)), b"x", b"x"],
        [_packed(wire.Begin.kind, b"x")],
        [_packed(wire.Begin.kind, b""), b"x"],
        [_packed(wire.End.kind, b'{"died": true}' + b" " * wire.MAX_HEAD)],
        [_packed(wire.Data.kind, struct.pack("<QQ", 9, 0)), b"x" * (wire.MAX_PART + 1)],
        [_packed(wire.Open.kind, b'{"engine": "zmq", "slots": 4}'), b"x" * (wire.MAX_OFFER + 1)],
        [_packed(wire.Open.kind, b'{"engine": "zmq", "slots": 1e9}'), b""],
        [_packed(wire.Open.kind, b'{"engine": "zmq", "slots": true}'), b""],
        [_packed(wire.Ping.kind, b'{"by": "", "blocked": ' + b"[" * 60_000 + b"}")],
        [_packed(wire.Ping.kind, b'{"by": "", "blocked": ' + b"9" * 60_000 + b"}")],
        [_packed(wire.Ping.kind, b'{"by": "", "blocked": "\\ud800"}')],
        [_packed(wire.Ping.kind, b'{"by": "", "blocked": "' + b"x" * (1 << 16) + b'"}')],
        [_packed(wire.Ping.kind, b'{"blocked": "", "by": "' + b"x" * 129 + b'"}')],
        [_packed(wire.Hello.kind, b"{}")],
        [
            _packed(
                wire.Welcome.kind,
                b'{"host": "h", "epoch": null, "seq": 0, "spec": "", "engines": {}}',
            )
        ],
        [_packed(wire.AskTime.kind, b"")],
        [_packed(wire.AskTime.kind, struct.pack("<Q", 1 << 63))],
        [_packed(wire.Time.kind, struct.pack("<QQ", 1, 1 << 63))],
        [_packed(wire.Time.kind, struct.pack("<QQQ", 1, 1, 1))],
        [_packed(0, b"")],
        [b"gpuring"],
        [],
    ],
)
def test_counts_and_sizes_that_cannot_be(parts):
    with pytest.raises(wire.WireError):
        wire_bytes.decode(parts)
