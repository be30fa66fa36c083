"""What verbs and joins return where they do not succeed, as Python sees it.

Callers compare with these, and registry/diagnosis.py has the words.
"""
from gpuring.native.c cimport *

# What a verb returns when it is refused (the negative of the C result).
BLOCKED = -<int>GR_BLOCKED
CLOSED = -<int>GR_CLOSED
ENDED = -<int>GR_ENDED
PEER_LOST = -<int>GR_PEER_LOST
PRODUCER_DIED = -<int>GR_PRODUCER_DIED
REAPED = -<int>GR_REAPED
FORKED = -<int>GR_FORKED
DAMAGED = -<int>GR_DAMAGED
FULL_PEERS = -<int>GR_FULL_PEERS
FULL_SUBSCRIPTIONS = -<int>GR_FULL_SUBS
MODE_MISMATCH = -<int>GR_MODE_MISMATCH
LOCK_TIMEOUT = -<int>GR_LOCK_TIMEOUT
TORN = -<int>GR_TORN_BEHIND  # frames that this consumer has released turned out torn: Peer.take_torn() names them

# Why a verb is blocked (Peer.culprit[0]).
BY_PRODUCER = <int>GR_BY_PRODUCER
BY_HOLDER = <int>GR_BY_HOLDER
BY_SUBSCRIPTION = <int>GR_BY_SUBSCRIPTION
BY_NO_FRAME = <int>GR_BY_NO_FRAME
BY_FENCE = <int>GR_BY_FENCE


cdef tuple culprit_of(const gr_culprit *c):
    return (<int>c.reason, None if c.peer == GR_NONE else c.peer,
            None if c.subscription == GR_NONE else c.subscription, c.seq, c.since_ns)
