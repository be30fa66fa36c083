"""Memory of rings on GPUs, and what a GPU can do, as the C library has it (memory/*.c).

What it refuses is raised as DeviceError, with its words.  The GIL is released for each call that may wait for the GPU or the driver.
"""
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from posix.unistd cimport getpid

cimport cython

from gpuring.native.c cimport *
from gpuring.native.device cimport Driver
from gpuring.native.exchange cimport Descriptor
from gpuring.native.header cimport Header
from gpuring.native.names cimport refuse

import mmap
import sys

from gpuring.native.gpu import Refused
from gpuring.native.header import GATES, MEMORY_KINDS, SYNC_KINDS

cdef object is_finalizing = sys.is_finalizing  # what has a name in a module is None when it is needed

NOT_SUPPORTED = CU_NOT_SUPPORTED
"""CUDA_ERROR_NOT_SUPPORTED: the GPU lacks something, and nothing was tried."""


FETCH_S = float(GM_FETCH_S)
"""How long those who are in a ring may take to hand its memory on."""


# ---- which GPU, and what it can do -----------------------------------------------------------------


def check_gpu(Driver driver not None, int device):
    """Raises DeviceError if this process has no GPU of this number."""
    cdef gpuring_error error
    if gm_check_gpu(driver.driver, device, &error) != GPURING_OK:
        refuse(&error)


def ordinal_of(Driver driver not None, bytes uuid not None):
    """The GPU of this UUID.  None: this process does not see it."""
    cdef int found = gm_gpu_of(driver.driver, uuid)
    return None if found < 0 else found


def lacks(Driver driver not None, str kind not None, int device, str release not None=""):
    """Why rings on a GPU cannot have a kind of memory, in one line.  "" if nothing is known against it.  `release`: the kernel's."""
    cdef char why[GM_WORDS]
    return gm_lacks(driver.driver, <gr_memory><int>MEMORY_KINDS.index(kind), device, release.encode(), why).decode()


def lacks_timeline(Driver driver not None, int device):
    """Why rings on a GPU cannot have a timeline, in one line.  "" if they can."""
    cdef char why[GM_WORDS]
    return gm_lacks_timeline(driver.driver, device, why).decode()


def auto(gr_bool contained, str no_ipc not None, str no_vmm not None):
    """The kind that memory="auto" takes for a creator that is in a container or not, and why.  `no_ipc` and `no_vmm` say what the
    GPU lacks."""
    cdef char why[2 * GM_WORDS]
    cdef gr_memory kind = gm_auto(contained, no_ipc.encode(), no_vmm.encode(), why)
    return MEMORY_KINDS[<int>kind], why.decode()


def is_contained():
    """Whether this process is in another pid namespace than the first one.  False if unknown."""
    return bool(gm_is_contained())


cdef dict _SYNCS = {"auto": GPURING_SYNC_AUTO, "event": GPURING_SYNC_EVENT, "timeline": GPURING_SYNC_TIMELINE}
cdef dict _GATES = {None: GPURING_GATE_AUTO, "stream": GPURING_GATE_STREAM, "host": GPURING_GATE_HOST}


def order(str sync not None, gate, str no_timeline not None):
    """Which `sync` and `gate` a ring on a GPU has.  `no_timeline` says what the GPU lacks.  Raises DeviceError."""
    cdef gr_sync has_sync
    cdef gr_gate has_gate
    cdef gpuring_error error
    cdef gpuring_sync wanted = <gpuring_sync><int>_SYNCS[sync]
    cdef gpuring_gate waits = <gpuring_gate><int>_GATES[gate]
    if gm_order(wanted, waits, no_timeline.encode(), &has_sync, &has_gate, &error) != GPURING_OK:
        refuse(&error)
    return SYNC_KINDS[<int>has_sync], GATES[<int>has_gate]


def check_creator(str name not None, Header header not None):
    """Raises PeerLost if nobody new can open the memory of a ring, because its creator is dead."""
    cdef gpuring_error error
    if gm_check_creator(name.encode(), header.ring, &error) != GPURING_OK:
        refuse(&error)


# ---- memory ----------------------------------------------------------------------------------------


@cython.no_gc_clear  # __dealloc__ needs the driver
cdef class Slab:
    """The memory of a ring in this process under one GPU (memory/slab.h).  Whoever has this keeps it mapped.  It is given back when
    nobody has it any more, but not at interpreter shutdown nor after fork()."""

    cdef gm_slab *slab
    cdef Driver driver
    cdef object owner  # of memory that was adopted
    cdef object __weakref__

    device = property(lambda Slab self: self.slab.device)
    kind = property(lambda Slab self: MEMORY_KINDS[<int>self.slab.kind])
    handle = property(lambda Slab self: PyBytes_FromStringAndSize(<char *>self.slab.handle, GM_HANDLE))

    @property
    def fd(self):
        """A descriptor that other processes need to open the memory.  -1 if they need none."""
        return self.slab.fd if self.slab.of == NULL else self.slab.of.fd

    @property
    def made(self):
        """Whether this process has made it, and others may not have it open when it is freed."""
        return bool(self.slab.made) and self.slab.kind != GR_MEMORY_VMM

    def view(self, gr_bool writable):
        """Its address, for those who may write, or only read.  Raises DeviceError if it cannot be mapped for that."""
        cdef uint64_t ptr
        cdef gpuring_error error
        cdef gpuring_status status
        with nogil:
            status = gm_view(self.slab, writable, &ptr, &error)
        if status != GPURING_OK:
            refuse(&error)
        return ptr

    def __dealloc__(self):
        if self.slab != NULL and not is_finalizing():
            with nogil:
                gm_put(self.slab)


def make(Driver driver not None, str kind not None, int device, bytes epoch not None, uint64_t nbytes):
    """New memory for the slots of a ring.  Raises DeviceError, and leaves nothing behind then."""
    cdef Slab made = Slab.__new__(Slab)
    cdef gpuring_error error
    cdef gpuring_status status
    cdef gr_memory of = <gr_memory><int>MEMORY_KINDS.index(kind)
    cdef const uint8_t *ring = epoch
    made.driver = driver
    with nogil:
        status = gm_make(driver.driver, of, device, ring, nbytes, &made.slab, &error)
    if status != GPURING_OK:
        made.slab = NULL
        refuse(&error)
    return made


def adopt(Driver driver not None, int device, str ring not None, bytes epoch not None, uint64_t ptr, uint64_t nbytes,
          uint32_t slots, uint64_t slot_nbytes, owner):
    """Slots at the beginning of memory on a GPU that the user has allocated, which `owner` keeps.  Waits for the GPU.

    Raises ValueError if it is too small or another ring has it, DeviceError if it cannot be shared."""
    cdef Slab made = Slab.__new__(Slab)
    cdef gpuring_error error
    cdef gpuring_status status
    cdef gm_given given
    cdef const uint8_t *of = epoch
    cdef bytes name = ring.encode()
    given.ptr, given.nbytes, given.device, given.ring = ptr, nbytes, device, name
    given.slots, given.slot_nbytes = slots, slot_nbytes
    made.driver = driver
    with nogil:
        status = gm_adopt(driver.driver, &given, of, &made.slab, &error)
    if status != GPURING_OK:
        made.slab = NULL
        refuse(&error)
    if made.slab.borrowed:  # otherwise this process has a mapping of its own
        made.owner = owner
    return made


def open(Driver driver not None, str kind not None, int device, str ring not None, bytes epoch not None, bytes uuid not None,
         bytes handle not None, uint32_t slots, uint64_t slot_nbytes, fetch):
    """The memory of a ring that others have.

    `fetch` asks those who are in the ring for the descriptor.  It is not asked if the kind has none, or this process has the memory
    already.  Raises DeviceError if the GPU cannot reach that of the slots, RingIncompatible, and what `fetch` raises."""
    cdef Slab opened = Slab.__new__(Slab)
    cdef gpuring_error error
    cdef gpuring_status status
    cdef gm_wanted wanted
    cdef int fd
    cdef bytes name = ring.encode()
    wanted.ring, wanted.kind = name, <gr_memory><int>MEMORY_KINDS.index(kind)
    wanted.epoch, wanted.uuid, wanted.handle = epoch, uuid, handle
    wanted.slots, wanted.slot_nbytes = slots, slot_nbytes
    opened.driver = driver
    with nogil:
        status = gm_open(driver.driver, device, &wanted, -1, &opened.slab, &error)
    if status == GPURING_OK and opened.slab == NULL:
        fd = (<Descriptor?>fetch()).give_up()
        with nogil:
            status = gm_open(driver.driver, device, &wanted, fd, &opened.slab, &error)
    if status != GPURING_OK:
        refuse(&error)
    return opened


# ---- slots of the host -----------------------------------------------------------------------------


@cython.no_gc_clear
cdef class Registered:
    """Pages of this process that a GPU reaches.  Whoever has this keeps them so."""

    kind = "pinned"
    fd = -1
    made = False
    cdef readonly int device
    cdef readonly uint64_t ptr  # where the GPU has them
    cdef Driver driver
    cdef object pages
    cdef Py_buffer buffer
    cdef int pid
    cdef object __weakref__

    def __init__(self, Driver driver not None, int device, pages):
        """`pages`: a buffer of whole pages but for its end.  Raises Refused, and leaves nothing behind then."""
        cdef gm_refusal refusal
        cdef char words[GM_WORDS]
        cdef gr_bool done
        cdef size_t nbytes
        PyObject_GetBuffer(pages, &self.buffer, PyBUF_WRITABLE)
        self.driver, self.device, self.pages, self.pid = driver, device, pages, getpid()
        nbytes = gm_rounded(self.buffer.len, mmap.PAGESIZE)
        with nogil:
            done = gm_enter(driver.driver, device, &refusal)
            if done:
                done = gm_register(driver.driver, self.buffer.buf, nbytes, &self.ptr, &refusal)
                gm_leave(driver.driver)
        if not done:
            self.ptr = 0
            raise Refused(gm_told(words, driver.driver, &refusal).decode(), refusal.status)

    def view(self, gr_bool writable):
        """Their address there, whether they are written or not."""
        return self.ptr

    def __dealloc__(self):
        cdef gm_refusal refusal
        cdef gr_bool done = not self.ptr
        if self.ptr and self.pid == getpid() and not is_finalizing():
            with nogil:
                if gm_enter(self.driver.driver, self.device, &refusal):
                    done = gm_unregister(self.driver.driver, self.buffer.buf, &refusal)
                    gm_leave(self.driver.driver)
        if done:
            PyBuffer_Release(&self.buffer)
        else:  # CUDA still has them.  Nothing else may be mapped at their address.
            Py_INCREF(self.pages)
