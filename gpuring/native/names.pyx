"""A ring by its name, as the C library opens it (host/*.c).  What it refuses becomes an exception here."""
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from gpuring.native.c cimport *
from gpuring.native.files cimport file_of, mapping_of
from gpuring.native.header cimport Header

import os

from gpuring.errors import (
    DeviceError,
    EndOfStream,
    PeerLost,
    ProducerDied,
    RingClosed,
    RingExists,
    RingError,
    RingFull,
    RingIncompatible,
    RingTimeout,
    TooManyPeers,
)


class Missing(Exception):
    """There is no ring of that name just now, or none that lives, and waiting may help.  The text
    may say more."""


cdef dict _KINDS = {
    GPURING_NOT_FOUND: Missing, GPURING_EXISTS: RingExists, GPURING_INCOMPATIBLE: RingIncompatible, GPURING_PEER_LOST: PeerLost,
    GPURING_NOT_PERMITTED: PermissionError, GPURING_INVALID: ValueError, GPURING_TIMEOUT: RingTimeout,
    GPURING_FULL: RingFull, GPURING_TOO_MANY_PEERS: TooManyPeers, GPURING_CLOSED: RingClosed,
    GPURING_END_OF_STREAM: EndOfStream, GPURING_PRODUCER_DIED: ProducerDied, GPURING_DEVICE: DeviceError,
}


cdef object kind_of(gpuring_status status):
    """Which exception a status is."""
    return _KINDS.get(status, RingError)


cdef int refuse(const gpuring_error *error) except -1:
    """Raises what the C library says."""
    text = error.text.decode(errors="replace")
    if error.status == GPURING_SYSTEM:
        raise OSError(error.sys_errno, text)
    raise kind_of(error.status)(text)


cdef bytes _encoded(str name):
    return name.encode(errors="backslashreplace")


def is_name(str name not None):
    """Whether a ring can have it."""
    cdef bytes encoded = _encoded(name)
    return gh_is_name(encoded, len(encoded))


def check_name(str name not None):
    """Raises ValueError if no ring can have it."""
    cdef bytes encoded = _encoded(name)
    cdef gpuring_error error
    if gh_check_name(encoded, len(encoded), &error) != GPURING_OK:
        refuse(&error)


ELSEWHERE = GH_ELSEWHERE.decode()


def check_subscription(bytes name not None):
    """Raises ValueError if a user cannot give a subscription this name."""
    cdef gpuring_error error
    if gh_check_subscription(name, len(name), &error) != GPURING_OK:
        refuse(&error)


def unnamed():
    """A name for a subscription that was given none.  Nobody else can join it."""
    cdef char name[GH_SUBSCRIPTION]
    cdef gpuring_error error
    if gh_name_none(name, &error) != GPURING_OK:
        refuse(&error)
    return (<bytes>name[:GH_SUBSCRIPTION]).rstrip(b"\0")


def check_label(bytes label not None):
    """Raises ValueError."""
    cdef gpuring_error error
    if gh_check_label(label, len(label), &error) != GPURING_OK:
        refuse(&error)


def spin_ns():
    """For how long a wait spins, as GPURING_SPIN of the environment says.  -1: it is not set.  Raises ValueError."""
    cdef gpuring_error error
    cdef int64_t ns
    if gh_spin_ns(&ns, &error) != GPURING_OK:
        refuse(&error)
    return ns


def header_path(str name not None):
    """The path of the header that has the ring's name."""
    cdef char path[GH_PATH]
    gh_header_path(_encoded(name), path)
    return path.decode()


def slots_path(str name not None, bytes epoch not None):
    """The path of the slots of a ring with this epoch."""
    cdef char path[GH_PATH]
    if len(epoch) != 16:
        raise ValueError(f"an epoch has 16 bytes, not {len(epoch)}")
    gh_slots_path(_encoded(name), epoch, path)
    return path.decode()


cdef class Named:
    """The file that has a name now.  It stays this file, whatever becomes of the name.

    The file itself is not opened (O_PATH): no fifo blocks, no device starts, no link is followed."""

    cdef gh_named named

    def __cinit__(self, path):
        """Raises OSError."""
        cdef bytes encoded
        self.named.place = -1
        if path is None:  # see find
            return
        encoded = os.fsencode(path)
        if len(encoded) >= GH_PATH:
            raise ValueError(f"{path!r} is no path of a ring's file")
        if gh_look(&self.named, encoded) != 0:
            raise OSError(errno, os.strerror(errno), path)

    def __dealloc__(self):
        gh_look_away(&self.named)

    path = property(lambda Named self: os.fsdecode(<bytes>self.named.path))
    uid = property(lambda Named self: self.named.stat.st_uid)  # the user id of its owner
    is_ours = property(lambda Named self: gh_is_own(&self.named))

    @property
    def odd(self):
        """What it is if it is not a file with this name alone.  Empty if it is one."""
        cdef char words[GH_WORDS]
        return gh_odd(&self.named, words).decode()

    @property
    def owner(self):
        """The user id and the mode, in words."""
        cdef char words[GH_WORDS]
        return gh_owner(&self.named, words).decode()

    def open(self, int flags=os.O_RDONLY):
        """Raises PermissionError, whose text is a whole sentence, and other kinds of OSError."""
        cdef gpuring_error error
        cdef int fd = gh_open(&self.named, flags, &error)
        if fd < 0:
            refuse(&error)
        return file_of(fd)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        gh_look_away(&self.named)


def find(str name not None):
    """The file that has the name of the ring's header.  Raises Missing, RingIncompatible, OSError."""
    cdef gpuring_error error
    cdef Named found = Named.__new__(Named, None)
    if gh_find(_encoded(name), &found.named, &error) != GPURING_OK:
        refuse(&error)
    return found


def read_header(str name not None, int fd):
    """Header.read, for a caller that has found the ring `name` by its name.  Raises Missing, RingIncompatible, OSError."""
    cdef gpuring_error error
    cdef Header header = Header.__new__(Header)
    header.is_copy = True
    if gh_read_header(_encoded(name), fd, &header.ring, &error) != GPURING_OK:
        refuse(&error)
    return header


def attach_header(str name not None, owner):
    """The mapped header of a ring of user `owner`.  None means our own user, or root.

    Raises Missing, RingIncompatible, PermissionError, RingError, OSError."""
    cdef gpuring_error error
    cdef int64_t uid = -1 if owner is None else owner
    cdef bytes encoded = _encoded(name)
    cdef Header header = Header.__new__(Header)
    if gh_attach_header(encoded, uid, &header.ring, &error) != GPURING_OK:
        refuse(&error)
    return header


def check_living(str name not None, Header header not None):
    """Raises PeerLost if neither the creator of a ring nor a producer in it lives."""
    cdef gpuring_error error
    if gh_check_living(_encoded(name), header.ring, &error) != GPURING_OK:
        refuse(&error)


def open_slots(str name not None, bytes epoch not None, uint32_t owner, uint32_t slots, uint64_t slot_nbytes):
    """The mapping and the file of the slots of a ring in host memory that another process created, if user `owner` made
    them.  Raises Missing, RingIncompatible, RingError, OSError."""
    cdef gpuring_error error
    cdef void *start = NULL
    cdef int fd = -1
    if gh_open_slots(_encoded(name), epoch, owner, slots, slot_nbytes, &start, &fd, &error) != GPURING_OK:
        refuse(&error)
    file = file_of(fd)
    return mapping_of(start, slots * slot_nbytes), file


def make_slots(str name not None, bytes epoch not None, uint32_t mode, uint32_t slots, uint64_t slot_nbytes):
    """The mapping of a new segment of slots, and a file that keeps others from tidying it away.  Close that when the ring has
    its name.  Raises RingError (no room) and OSError, and leaves nothing then.  Ctrl-C interrupts."""
    cdef gpuring_error error
    cdef gpuring_status status
    cdef void *start = NULL
    cdef int fd = -1
    cdef bytes kept = _encoded(name)
    cdef const char *encoded = kept
    cdef const uint8_t *of = epoch
    while True:
        with nogil:
            status = gh_make_slots(encoded, of, mode, slots, slot_nbytes, &start, &fd, &error)
        if status == GPURING_OK:
            break
        if status != GPURING_SYSTEM or error.sys_errno != EINTR:
            refuse(&error)
        PyErr_CheckSignals()
    file = file_of(fd)
    return mapping_of(start, slots * slot_nbytes), file


def unnamed_file(uint32_t mode):
    """A new, empty file that has no name yet.  Raises RingError if the directory cannot hold such files, OSError."""
    cdef gpuring_error error
    cdef int fd = gh_unnamed(mode, &error)
    if fd < 0:
        refuse(&error)
    return file_of(fd)


def give_name(int fd, path):
    """Raises FileExistsError, OSError."""
    cdef bytes encoded = os.fsencode(path)
    if gh_give_name(fd, encoded) != 0:
        raise OSError(errno, os.strerror(errno), path)


def remove_file(path, uint32_t owner):
    """Removes a name if it is that of a file of user `owner`.  Whether it was one.  Raises OSError."""
    cdef bytes encoded = os.fsencode(path)
    cdef int removed = gh_remove_file(encoded, owner)
    if removed < 0:
        raise OSError(errno, os.strerror(errno), path)
    return bool(removed)


def refuse_room(str name not None, int number, str what not None, uint64_t nbytes):
    """Raises RingError if a system call about `what` of a ring says, by this errno, that there is no memory or no room."""
    cdef gpuring_error error
    if gh_fail_for_room(&error, _encoded(name), number, what.encode(), nbytes) != GPURING_SYSTEM:
        refuse(&error)


# ---- locks

NAME_BYTE = <int>GR_NAME_BYTE
CREATOR_BYTE = <int>GR_CREATOR_BYTE
SETTLING_BYTE = <int>GR_SETTLING_BYTE


def lock(int fd, int byte):
    """Locks a byte until the descriptor is closed.  False if another has locked it.  Raises OSError."""
    cdef int locked = gh_lock(fd, byte)
    if locked < 0:
        raise OSError(errno, os.strerror(errno))
    return bool(locked)


def unlock(int fd, int byte):
    """Raises OSError."""
    if gh_unlock(fd, byte) != 0:
        raise OSError(errno, os.strerror(errno))


def name_is_locked(int fd):
    """Whether another process is about to take the name away, or has not given it yet."""
    return gh_name_is_locked(fd)


def in_use(int fd):
    """Whether a living process has any lock on the file other than that of its name."""
    return gh_is_in_use(fd)


# ---- waiting for a name

LOOK_S = GH_LOOK_NS / 1e9


cdef class Pace:
    """When who waits for a name looks for it (host/arrivals.h).  In seconds."""

    cdef gh_pace pace

    def __cinit__(self, bint watched):
        gh_begin_pace(&self.pace, watched)

    look_s = property(lambda Pace self: self.pace.look_ns / 1e9)  # a wait that nothing ends looks after so long

    def missed(self, bint going):
        """Called before a wait.  `going`: what was found is about to go."""
        gh_missed(&self.pace, going)

    def rest_s(self, bint told, double waited_s):
        """How many seconds to rest before the look, after a wait that lasted so long.  `told`: a name has ended it."""
        return gh_rest_ns(&self.pace, told, <int64_t>(1e9 * waited_s)) / 1e9


# ---- what slots hold

SLOT_ALIGNMENT = <int>GH_ALIGNMENT
SPEC_KEPT_FREE = <int>GH_KEPT_FREE


def read_spec(bytes text not None):
    """What the JSON of a header says of a slot: [(name, shape, dtype, offset)], the bytes of a slot and those of its
    metadata.  `dtype` is a name, or the JSON of a structure.  Raises ValueError."""
    cdef gpuring_error error
    cdef gh_spec spec
    cdef gh_field *field
    cdef uint32_t k, d
    cdef list fields = []
    if gh_read_spec(text, len(text), &spec, &error) != GPURING_OK:
        raise ValueError(error.text.decode(errors="replace"))
    try:
        for k in range(spec.fields):
            field = &spec.field[k]
            shape = tuple([field.shape[d] for d in range(field.dimensions)])
            fields.append((field.name.decode(errors="surrogatepass"), shape, field.dtype.decode(), field.offset))
        return fields, spec.slot_nbytes, spec.meta_nbytes
    finally:
        gh_free_spec(&spec)


def check_sizes(str name not None, Header header not None, uint64_t slot_nbytes, uint64_t meta_nbytes):
    """Raises RingIncompatible if the slots of a ring have other sizes."""
    cdef gpuring_error error
    if gh_check_sizes(_encoded(name), header.ring, slot_nbytes, meta_nbytes, &error) != GPURING_OK:
        refuse(&error)
