# How batches end: together if one driver call can record them all, else slot by slot.


cdef tuple _common_stream(list slots, size_t *stream):
    """(stream,) if all of `slots` were used on that one alone and a timeline can write on it now, else None."""
    cdef Slot slot, first
    if not slots:
        return None
    first = slots[0]
    if first._sync is None or first._sync.base == 0 or len(slots) > MAX_OPS:
        return None
    for slot in slots:
        if slot.thread:
            slot._leave_thread()
    stream[0] = first._sync.current()
    if not first._sync.usable(stream[0]):
        return None
    for slot in slots:
        if slot.stream != stream[0] or len(slot.streams) != 1:
            return None
    return first.streams


cdef int _record_all(Peer peer, DeviceOrder sync, size_t stream, tuple streams, list slots, uint64_t *values) except -1:
    """Two clocks: promises for all, paid by one call.  0: reaped meanwhile, the verb will say so."""
    cdef mem_ops ops
    cdef Slot slot
    cdef int status, k = 0
    cdef uint64_t number = peer.recorded.id_for(sync, stream)
    ops.n = 0
    for slot in slots:
        values[k] = gr_promise(&peer.me, slot.index, slot._seq)
        peer.recorded.on[slot.index] = 0
        if values[k]:
            sync.add(&ops, CU_WRITE_64, peer.me.number, slot.index, values[k])
        k += 1
    status = sync.submit(stream, &ops)
    if status:
        peer._refuse_capture(sync, streams, status, [slot.index for slot in slots])
        peer._settle(sync, [(slot.index, values[k]) for k, slot in enumerate(slots)], streams)
        raise sync.refused(stream, status)
    for slot in slots:
        peer.recorded.on[slot.index] = number
    return 0


def still_open(batch):
    """Slot objects are used again each lap: one that has a later sequence is not the batch's any more.

    (Whatever the slot of a frame carries next was claimed after the last of the batch, or while the frame
    was held: then it is void, and nobody acquires it.)"""
    cdef Slot slot
    cdef uint64_t last = batch._last
    return [slot for slot in batch if slot._open and slot._seq <= last]


cdef int _abandon(list slots) except -1:
    """All of them, whatever happens; raises the first error."""
    cdef WriteSlot slot
    cdef object error = None
    for slot in slots:
        try:
            slot.abandon()
        except BaseException as refused:
            error = refused if error is None else error
    if error is not None:
        raise error
    return 0


def publish_all(batch):
    """Publishes those WriteSlots of one producer that are open; with a timeline and one stream in one driver call.

    If one cannot be published, those behind it are abandoned.
    """
    cdef list slots = still_open(batch)
    cdef uint64_t values[MAX_OPS]
    cdef size_t stream = 0
    cdef tuple streams = _common_stream(slots, &stream)
    cdef WriteSlot slot
    cdef Peer peer
    cdef int k = 0, result, refused = 0
    if streams is None:
        for k in range(len(slots)):
            try:
                (<WriteSlot>slots[k])._publish()
            except BaseException as failed:
                try:
                    _abandon(slots[k + 1:])
                except BaseException:
                    pass  # for the same reason
                raise failed
        return
    peer = (<Slot>slots[0])._peer
    try:
        _record_all(peer, (<Slot>slots[0])._sync, stream, streams, slots, values)
    except BaseException:
        for slot in slots:
            if not peer.recorded.is_unpaid(slot.index):
                slot._open = False
                gr_abandon(&peer.me, slot.index, slot._seq)
        raise
    for slot in slots:
        slot._open = False
        result = peer._publish(slot.index, slot._seq, values[k], slot._shape)
        refused = refused or result
        k += 1
    if refused:
        raise (<WriteSlot>slots[0])._refused(refused, "publish")


def abandon_all(batch):
    """Abandons those WriteSlots of one producer that are open."""
    _abandon(still_open(batch))


def release_all(batch):
    """Releases those ReadSlots of one consumer that are open; with a timeline and one stream in one driver call.

    The sequences of those that are known to be torn.  If something else is raised, they are told later: by the
    next acquire, or at close.
    """
    cdef list slots = still_open(batch)
    cdef uint64_t values[MAX_OPS]
    cdef size_t stream = 0
    cdef tuple streams = _common_stream(slots, &stream)
    cdef ReadSlot slot
    cdef Peer peer
    cdef int result, refused = 0
    cdef list torn = []
    cdef object error = None
    if streams is not None:
        peer = (<Slot>slots[0])._peer
        try:
            _record_all(peer, (<Slot>slots[0])._sync, stream, streams, slots, values)
        except BaseException as failed:
            error = failed
    for slot in slots:
        if streams is None:
            try:
                result = slot._let_go()
            except BaseException as failed:  # the others go back all the same
                error = failed if error is None else error
                continue
        elif peer.recorded.is_unpaid(slot.index):
            continue
        else:
            slot._open = False
            result = peer._release(slot.index, slot._seq, slot._sync)
        if result == TORN_:
            torn.append(slot)
        elif result:
            refused = result
    if refused and error is None:
        error = slots[0]._refused(refused, "release")
    if error is not None:
        for slot in torn:
            slot._peer.released.tell_later(slot.index, slot._seq)
        raise error
    return [slot._seq for slot in torn]
