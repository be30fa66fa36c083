"""Shared memory as the model sees it: claim words, and the operations that a verb may yield.

A verb is a generator.  It yields one operation, the driver (`explore.py`, `sequential.py`) performs
it on the memory, a flat row of integers, and sends the result back.  Between two yields a verb
touches only what is its own, so *one yield is one step*: the unit of interleaving and of SIGKILL.

One rule for verbs: give the result of a yield a name, or use it up, before the next yield (the
explorer identifies a paused verb by its position and its locals, see `explore.Program`).
"""

NONE = 255  # owner of nothing


def word(seq, owner, phase):
    """seq 48 | owner 8 | phase 8, as in the core."""
    return seq << 16 | owner << 8 | phase


def seq(w):
    return w >> 16


def owner(w):
    return w >> 8 & 255


def phase(w):
    return w & 255


# Operations.  The first element says what the driver does; all of them are sequentially consistent.
LOAD, STORE, CAS, ADD, OR, CLEAR, LOCK, BOTH, ALL, ENQUEUE, WAIT, DONE, FAIL, DEAD = range(14)


def load(a):
    """-> the value."""
    return LOAD, a


def store(a, value):
    return STORE, a, value


def cas(a, old, new, undoes=False):
    """-> whether it swapped.  `undoes`: for the ghosts, DONE of a frame that was not read."""
    return CAS, a, old, new, undoes


def fetch_add(a, n=1):
    """-> the value before."""
    return ADD, a, n


def fetch_or(a, bits):
    return OR, a, bits


def fetch_and_not(a, bits):
    return CLEAR, a, bits


def lock(a, tag):
    """Wait until the kernel's lock word is 0, then put my tag there.  Death puts 0 back."""
    return LOCK, a, tag


def load_both(a, b):
    """-> both values, at one instant: only for what the kernel does (futex_wait, a probe)."""
    return BOTH, a, b


def load_all(*addresses):
    """-> all values, at one instant: only for words that nobody but LOCK's holder writes, which is
    me.  One load after the other would see the same."""
    return ALL, *addresses


def enqueue(what, a, v):
    """Put ("wait" | "set", fence address, value) on the caller's stream; see `device.py`."""
    return ENQUEUE, (what, a, v)


def wait(*watch):
    """Sleep until one of the watched (address, value I saw) differs from what I saw.

    In the core this is the doorbell (`doorbell.py` shows that it loses no wake-up), and the verb
    looks again from its label.  The explorer lets the actor go on only when something differs.
    Another look before that would load the same values, and a round of loads can be moved or left
    out without any other actor noticing.  If the list of watched words is too short, that can only
    show up as a false alarm (a dead end).  A word that is watched and never read again shows up as
    a spin, which counts as a dead end, too.
    """
    return WAIT, watch


def effect(memory, op):
    """What `op` would do: (enabled, result, the new value of word op[1], None for no change)."""
    kind = op[0]
    if kind == LOAD:
        return True, memory[op[1]], None
    if kind == WAIT:
        for a, v in op[1]:
            if memory[a] != v:
                return True, None, None
        return False, None, None
    if kind == BOTH:
        return True, (memory[op[1]], memory[op[2]]), None
    if kind == ALL:
        return True, tuple(memory[a] for a in op[1:]), None
    if kind == ENQUEUE:
        return True, None, None
    old = memory[op[1]]
    if kind == CAS:
        return True, old == op[2], op[3] if old == op[2] and op[3] != old else None
    if kind == LOCK:
        return old == 0, None, op[2]
    if kind == STORE:
        return True, None, op[2] if op[2] != old else None
    new = old + op[2] if kind == ADD else old | op[2] if kind == OR else old & ~op[2]
    return True, old, new if new != old else None


def apply(memory, op):
    """Perform `op` on a list.  -> (enabled, result)"""
    enabled, result, new = effect(memory, op)
    if enabled and new is not None:
        memory[op[1]] = new
    return enabled, result


def run(memory, verb):
    """Run one verb to its end on a list, undisturbed.  -> its result."""
    result = None
    try:
        while True:
            enabled, result = apply(memory, verb.send(result))
            if not enabled:
                raise AssertionError("a verb that runs alone must not wait")
    except StopIteration as stop:
        return stop.value
