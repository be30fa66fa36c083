"""A header as plain dicts, for people and tools.  It only reads, and calls no verb."""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t

from gpuring.native.c cimport *
from gpuring.native.header cimport Header

SLOT_PHASES = ("void", "writing", "ready", "torn")
TAKE_PHASES = ("done", "open", "held")


def snapshot(Header header not None):
    """Returns what the header says now, field by field, as plain dicts.  Takes no lock.

    Each word is read once.  Words that belong together may be a few transitions apart.
    """
    cdef gr_ring *ring = header.ring
    cdef uint64_t word, sub
    cdef uint32_t i, p, u
    cdef gr_take *take
    slots, peers, subscriptions = [], {}, {}
    alive = header.live_peers()
    for i in range(ring.slots):
        word = gr_load_acquire(&ring.slot[i].word)
        slots.append({
            "seq": seq_of(word), "owner": owner_of(word), "phase": SLOT_PHASES[phase_of(word) & 3],
            "since_ns": gr_load_acquire(&ring.slot[i].since_ns),
            "time_ns": gr_load_acquire(&ring.slot[i].time_ns),
            })
    for p in range(ring.max_peers):
        word = gr_load_acquire(&ring.peer[p].word)
        if state_of(word) == GR_FREE:
            continue
        peers[p] = {
            "role": "producer" if role_of(word) == GR_PRODUCER else "consumer",
            "leaving": state_of(word) == GR_LEAVING,
            "subscription": sub_of(word) if role_of(word) == GR_CONSUMER else None,
            "id": gr_load_acquire(&ring.peer[p].id), "pid": gr_load_acquire(&ring.peer[p].pid),
            "alive": p in alive, "stopped": p in alive and header.is_stopped(p),
            "joined_ns": gr_load_acquire(&ring.peer[p].joined_ns),
            "waiting": gr_load_acquire(&ring.peer[p].waiting) != 0,
            "frames": gr_load_acquire(&ring.peer[p].frames),
            "lost": gr_load_acquire(&ring.peer[p].lost),
            "torn": gr_load_acquire(&ring.peer[p].torn),
            "asked_ns": gr_load_acquire(&ring.peer[p].asked_ns),
            "dropped": gr_load_acquire(&ring.peer[p].dropped),
            "label": header.label(p), "elsewhere": header.in_other_namespace(p),
            "namespace": gr_load_acquire(&ring.peer[p].pidns),
            "ended": gr_load_acquire(&ring.peer[p].ended_at) != 0,
            "pending": _pending(ring, p), "gpu": _gpu(&ring.peer[p]),
            "unregistered": gr_load_acquire(&ring.peer[p].unregistered),
        }
    for u in range(ring.max_subscriptions):
        sub = gr_load_acquire(&ring.sub[u].word)
        if mode_of(sub) == GR_SUB_FREE:
            continue
        takes = []
        for i in range(ring.slots):
            take = take_of(ring, i, u)
            word = gr_load_acquire(&take.word)
            takes.append({"seq": seq_of(word), "member": owner_of(word),
                          "phase": TAKE_PHASES[phase_of(word) % 3],
                          "since_ns": gr_load_acquire(&take.since_ns)})
        subscriptions[u] = {
            "name": header.subscription_name(u), "far": header.far(u),
            "lossless": mode_of(sub) == GR_LOSSLESS, "start": start_of(sub),
            "redeliver": not policy_of(sub) & GR_DROP, "patience": header.patience(u),
            "given_up": start_of(sub) == GR_GIVEN_UP,
            "lost": gr_load_acquire(&ring.sub[u].lost),
            "created_ns": gr_load_acquire(&ring.sub[u].created_ns), "takes": takes,
        }
    word = gr_load_acquire(&ring.head.producers)
    return {"frontier": header.frontier, "closed": header.closed, "producers_in_all": ring.producers_in_all,
            "producers_left": left_of(word), "producers_died": died_of(word), "dropped": gr_load_acquire(&ring.head.dropped), "slots": slots, "peers": peers,
            "subscriptions": subscriptions, "deaths": header.deaths()}

cdef bytes _gpu(gr_peer_entry *entry):
    """The UUID of the GPU that a peer uses.  Zeros for none."""
    cdef uint64_t uuid[2]
    uuid[0], uuid[1] = gr_load_acquire(&entry.gpu[0]), gr_load_acquire(&entry.gpu[1])
    return PyBytes_FromStringAndSize(<char *>uuid, 16)

cdef list _pending(gr_ring *ring, uint32_t p):
    """The slots on which its GPU work is not done."""
    cdef uint32_t i
    return [
        i for i in range(ring.slots) if gr_load_acquire(fence_of(ring, i, p)) < gr_load_acquire(work_of(ring, i, p))
    ]
