"""How names go from one ring to another, and what is left of the dead, as the C library decides it (host/taking.c,
host/leftovers.c, host/debts.c)."""
from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport strcpy

from gpuring.native.c cimport *
from gpuring.native.header cimport Header
from gpuring.native.names cimport refuse
from gpuring.native.subscriptions cimport pad

import os

cdef dict _REPLACE = {None: GPURING_REPLACE_DEAD, False: GPURING_REPLACE_NONE, True: GPURING_REPLACE_ANY}


def make_way(str name not None, replace):
    """Checks, before anything is made, that the name is free or may be taken.  Removes what nobody uses any more, first of all
    because its memory may be needed.

    `replace` is that of create().  Raises RingExists, PermissionError, RingIncompatible, OSError."""
    cdef gpuring_error error
    cdef gpuring_status status
    cdef gpuring_replace how = _REPLACE[replace]
    cdef bytes kept = name.encode()
    cdef const char *encoded = kept
    with nogil:
        status = gh_make_way(encoded, how, &error)
    if status != GPURING_OK:
        refuse(&error)


def take_name(str name not None, int fd, replace, Header header not None):
    """Gives the name to a whole header, which is open as `fd`.  A ring that makes way is closed, and its durable subscriptions
    are those of the new one, too.  Raises what make_way() raises, and RingTimeout."""
    cdef gpuring_error error
    cdef gpuring_status status
    cdef gpuring_replace how = _REPLACE[replace]
    cdef bytes kept = name.encode()
    cdef const char *encoded = kept
    with nogil:
        status = gh_take_name(encoded, fd, how, header.ring, &error)
    if status != GPURING_OK:
        refuse(&error)


def remove_name(str name not None, *, bint close):
    """Takes the name from its ring, and closes that if `close`, whoever uses it.  False if there was none.  Raises
    RingIncompatible (no file), PermissionError (another user's), OSError."""
    cdef gpuring_error error
    cdef gpuring_status status
    cdef gr_bool found = False
    cdef bytes kept = name.encode()
    cdef const char *encoded = kept
    with nogil:
        status = gh_remove_name(encoded, close, &found, &error)
    if status != GPURING_OK:
        refuse(&error)
    return bool(found)


def remove_own(str name not None, bytes epoch not None, Header header not None):
    """Removes the names of a ring that is ours and closed.  Raises OSError."""
    cdef gpuring_error error
    if gh_remove_own(name.encode(), epoch, header.ring, &error) != GPURING_OK:
        refuse(&error)


def has_successor(str name not None, Header header not None):
    """Whether another ring has the name of this one now, and was not closed.  Raises OSError."""
    cdef int found = gh_has_successor(name.encode(), header.ring)
    if found < 0:
        raise OSError(errno, os.strerror(errno), name)
    return bool(found)


# ---- what the dead have left


def remove_left(str name not None, list paths not None):
    """Removes what is left of one ring, or slots without one.  `paths`: the files beside its header.  Returns the paths that are
    gone, or None if the ring is.  Raises OSError."""
    cdef gpuring_error error
    cdef gpuring_status status
    cdef gh_beside beside
    cdef gr_bool removed = False
    cdef bytes kept = name.encode(), path
    cdef const char *encoded = kept
    cdef uint32_t k
    beside.n = len(paths)
    beside.file = <gh_beside_file *>calloc(max(beside.n, 1), sizeof(gh_beside_file))
    if beside.file == NULL:
        raise MemoryError()
    try:
        for k in range(beside.n):
            path = os.fsencode(paths[k])
            if len(path) >= GH_PATH:
                raise ValueError(f"{paths[k]!r} is no path of a ring's file")
            strcpy(beside.file[k].path, path)
        with nogil:
            status = gh_remove_left(encoded, &beside, NULL, False, &removed, &error)
        if status != GPURING_OK:
            refuse(&error)
        return None if removed else [paths[k] for k in range(beside.n) if beside.file[k].gone]
    finally:
        free(beside.file)


def remove_dead(str name not None, bytes epoch):
    """Removes the ring of this name if its creator and its peers are all dead, and if it has this `epoch` (None: any).  Whether
    it was removed.  Does not wait.  Raises OSError."""
    cdef gpuring_error error
    cdef gr_bool removed = False
    cdef const uint8_t *wanted = NULL
    if epoch is not None:
        if len(epoch) != 16:
            raise ValueError(f"an epoch has 16 bytes, not {len(epoch)}")
        wanted = epoch
    if gh_remove_dead(name.encode(), wanted, &removed, &error) != GPURING_OK:
        refuse(&error)
    return bool(removed)


def goes_with_the_last(str name not None, Header header not None):
    """Whether the names of this ring go when the last process leaves it, because its creator is dead."""
    return gh_goes_with_the_last(name.encode(), header.ring)


def is_kept(Header header not None):
    """Whether the ring is open, and its creator alive."""
    return gh_is_kept(header.ring)


def has_durable(Header header not None):
    """Whether a ring has subscriptions that go over to the next ring of its name."""
    return gh_has_durable(header.ring)


def is_left(path):
    """Whether a file is ours, and nobody is making it just now."""
    return gh_is_left(os.fsencode(path))


def tidy_sockets(path, *, bint only_look):
    """Removes the sockets of a directory at which nobody listens, and the directory with the last one.  Whether that is gone, or
    would be."""
    return gh_tidy_sockets(os.fsencode(path), only_look)


# ---- what rings owe that had the name earlier (host/debts.h)


def may_owe(Header header not None):
    """Whether earlier rings may owe this one anything."""
    return gh_may_owe(header.ring)


def settle(str name not None, Header header not None):
    """Has this ring owe its durable subscriptions what earlier rings of its name owe them in which nobody reads any more.  Does
    next to nothing if there is none."""
    cdef bytes kept = name.encode()
    cdef const char *encoded = kept
    header.to_write()
    with nogil:
        gh_settle(encoded, header.ring)


def forget(str name not None, Header header not None, bytes subscription not None):
    """Earlier rings owe nothing any more to a subscription that has ended here.  Raises OSError."""
    cdef gpuring_error error
    cdef gpuring_status status
    cdef char padded[64]
    cdef bytes kept = name.encode()
    cdef const char *encoded = kept
    header.to_write()
    pad(padded, subscription)
    with nogil:
        status = gh_forget(encoded, header.ring, padded, &error)
    if status != GPURING_OK:
        refuse(&error)


def is_kept_aside(str name not None, path):
    """Whether this is the header of an earlier ring of a ring that is there."""
    return gh_is_kept_aside(name.encode(), os.fsencode(path))
