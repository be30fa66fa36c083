"""Answers in parts: how a test sends, takes and reads them."""

from __future__ import annotations

from gpuring.service.streaming import Parts
from tests.helpers.processes import PATIENCE_S
from tests.service.services import send


def part(call, k, timeout=PATIENCE_S):
    """Sends part k."""
    with call.part(timeout) as slot:
        slot.array[...] = k


def last(call, k):
    with call.answer() as slot:
        slot.array[...] = k


def take(server):
    (call,) = server.take(timeout=PATIENCE_S)
    return call


def begun(pair, parts=0):
    """A call of the client, and the call as its engine has it.  So many parts of it were sent."""
    server, client = pair
    call = send(client, 0)
    taken = take(server)
    for k in range(parts):
        part(taken, k)
    return call, taken


def value(slot):
    """The value of which a part is full."""
    assert (slot.array == slot.array[0]).all()
    return int(slot.array[0])


def read(call, n=None, **options):
    """The values of the next n parts, or of all."""
    parts = call if isinstance(call, Parts) else call.parts(PATIENCE_S, **options)
    got = []
    while n is None or len(got) < n:
        each = next(parts, None)
        if each is None:
            return got
        got.append(value(each))
    return got
