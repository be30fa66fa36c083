"""A GPU of this process: its context, and what the package itself enqueues there.

The context is the primary one of the GPU, which CuPy, torch and everything else above CUDA's runtime use as well.  Each call makes
it current in its thread, because the handle of a default stream means that of the current GPU.  Afterwards the context before is
current again.

Python runs signal handlers between two of its own instructions.  The calls are compiled to C, so none runs between a push and its
pop.  A stream is the handle of a CUstream as an int.

The GIL is released for each call that may wait for the GPU.  Its work may wait for a frame of another thread, or for a callback.
"""
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint64_t
from libc.string cimport memset
from posix.unistd cimport getpid

from gpuring.native.c cimport *
from gpuring.native.device cimport Driver

import sys

from gpuring.errors import DeviceError

cdef object is_finalizing = sys.is_finalizing  # what has a name in a module is None when it is needed

DONE, NOT_READY = 0, 600
"""CUresults of a query.  Any other one, also while another thread's capture forbids to ask, says nothing of the work."""


class Refused(DeviceError):
    """The driver refused a call.  The text names the call and the status."""

    def __init__(self, text, status=0):
        super().__init__(text)
        self.status = status
        """The CUresult.  0: the driver has no such call."""


def current_gpu(Driver driver not None):
    """The number of the GPU whose context is current in this thread.  None: no context is.  Raises Refused."""
    cdef int number = 0, status = driver.driver.init(0) or driver.driver.ctx_get_device(&number)
    if status == CU_INVALID_CONTEXT:
        return None
    if status:
        raise refused(driver, "cuCtxGetDevice", status)
    return number


cdef object refused(Driver driver, str call, int status):
    return Refused(f"{call}: {driver.status_name(status)} ({status})", status)


cdef class Gpu:
    """GPU `ordinal`.  Its context is there from now on until the process ends.  Every call raises Refused."""

    def __init__(self, int ordinal, Driver driver not None):
        self.table, self.driver, self.ordinal, self.reached = driver, driver.driver, ordinal, {ordinal}
        cdef int status
        with nogil:  # it takes a while
            status = self.driver.init(0) or self.driver.primary_retain(&self.context, ordinal)
        if status:
            raise refused(driver, "cuDevicePrimaryCtxRetain", status)

    @property
    def address(self):
        """The CUcontext."""
        return <size_t>self.context

    cdef int push(self) except -1:
        cdef int status = self.driver.ctx_push(self.context)
        if status:
            raise refused(self.table, "cuCtxPushCurrent_v2", status)
        return 0

    cdef int pop(self, str call, int status) except -1:
        """After `call` has returned `status`."""
        cdef void *popped
        self.driver.ctx_pop(&popped)
        if status:
            raise refused(self.table, call, status)
        return 0

    def current(self):
        """A block in which this GPU is the current one of this thread.  After it the one before is again."""
        return Current(self)

    def use(self):
        """Makes this GPU the current one of this thread for good."""
        cdef int status = self.driver.ctx_set_current(self.context)
        if status:
            raise refused(self.table, "cuCtxSetCurrent", status)

    def device_of(self, uint64_t pointer):
        """The number of the GPU that an address belongs to."""
        cdef int status, number = 0
        self.push()
        status = self.driver.pointer_get_attribute(&number, CU_DEVICE_ORDINAL, pointer)
        self.pop("cuPointerGetAttribute", status)
        return number

    def reach(self, Gpu other not None):
        """Gives this GPU peer access to another one, for good.  Where the two can have none, nothing changes."""
        cdef int mode = CU_CAPTURE_RELAXED
        if other.ordinal in self.reached:
            return
        self.push()
        with nogil:
            self.driver.capture_mode(&mode)  # else it would spoil a capture of another thread
            self.driver.let_reach(other.context, 0)
            self.driver.capture_mode(&mode)
        self.pop("cuCtxEnablePeerAccess", CU_OK)
        self.reached.add(other.ordinal)

    def copy(self, uint64_t to, uint64_t source, size_t nbytes, size_t stream):
        """Enqueues a copy from address to address.  The driver finds out where the two are.  Between GPUs without peer access it
        copies through the host (see `reach`)."""
        cdef int status
        self.push()
        with nogil:
            status = self.driver.copy(to, source, nbytes, <void *>stream)
        self.pop("cuMemcpyAsync", status)

    def copy_rows(self, uint64_t to, size_t to_pitch, uint64_t source, size_t source_pitch, size_t width, size_t rows, size_t stream):
        """The same for rows of `width` bytes, each `pitch` bytes behind the one before."""
        cdef int status
        cdef gd_copy_2d what
        memset(&what, 0, sizeof(what))
        what.source.kind = what.to.kind = CU_UNIFIED
        what.source.device, what.source.pitch = source, source_pitch
        what.to.device, what.to.pitch = to, to_pitch
        what.width, what.rows = width, rows
        self.push()
        with nogil:
            status = self.driver.copy_rows(&what, <void *>stream)
        self.pop("cuMemcpy2DAsync_v2", status)

    def fill(self, uint64_t pointer, unsigned char value, size_t nbytes, size_t stream):
        """Enqueues that every byte becomes `value`."""
        cdef int status
        self.push()
        with nogil:
            status = self.driver.fill(pointer, value, nbytes, <void *>stream)
        self.pop("cuMemsetD8Async", status)

    def follow(self, size_t stream, Event event not None):
        """Makes a stream of this GPU wait for an event."""
        cdef int status
        self.push()
        with nogil:
            status = self.driver.stream_wait_event(<void *>stream, event.raw, 0)
        self.pop("cuStreamWaitEvent", status)

    def synchronize(self, size_t stream):
        """Waits for all work so far on a stream."""
        cdef int status
        self.push()
        with nogil:
            status = self.driver.stream_synchronize(<void *>stream)
        self.pop("cuStreamSynchronize", status)

    def finish(self):
        """Waits for all work of this process on this GPU."""
        cdef int status
        self.push()
        with nogil:
            status = self.driver.ctx_synchronize()
        self.pop("cuCtxSynchronize", status)


@cython.no_gc_clear  # __dealloc__ needs the GPU
cdef class Current:
    """What Gpu.current returns.  The block has the only reference to it.

    Where Python looks for signals between `__enter__` and the block (3.14 does), a handler that raises would leave the block without
    `__exit__`.  Then the frame drops this object, which ends the block."""

    cdef Gpu gpu
    cdef bint inside

    def __init__(self, Gpu gpu not None):
        self.gpu = gpu

    def __enter__(self):
        self.gpu.push()
        self.inside = True

    def __exit__(self, *_):
        self.leave()

    def __dealloc__(self):
        self.leave()

    cdef void leave(self) noexcept:
        cdef void *popped
        if self.inside:
            self.inside = False
            self.gpu.driver.ctx_pop(&popped)


@cython.no_gc_clear
cdef class Owned:
    """A handle of the driver's, which is given back when this object is gone.  But not at interpreter shutdown, nor after fork()."""

    def __init__(self, Gpu gpu not None):
        self.gpu, self.pid = gpu, getpid()

    device = property(lambda Owned self: self.gpu.ordinal)
    handle = property(lambda Owned self: <size_t>self.raw)

    def __dealloc__(self):
        cdef void *popped
        if self.raw == NULL or self.pid != getpid() or is_finalizing():
            return
        if self.gpu.driver.ctx_push(self.gpu.context) == CU_OK:
            with nogil:
                self.destroy(self.raw)
            self.gpu.driver.ctx_pop(&popped)


cdef class Stream(Owned):
    """A stream.  The default streams do not wait for it, nor it for them."""

    def __init__(self, Gpu gpu not None):
        cdef int status
        super().__init__(gpu)
        self.destroy = gpu.driver.stream_destroy
        gpu.push()
        with nogil:
            status = gpu.driver.stream_create(&self.raw, CU_STREAM_NON_BLOCKING)
        gpu.pop("cuStreamCreate", status)


cdef class Event(Owned):
    """An event."""

    def __init__(self, Gpu gpu not None):
        cdef int status
        super().__init__(gpu)
        self.destroy = gpu.driver.event_destroy
        gpu.push()
        with nogil:
            status = gpu.driver.event_create(&self.raw, CU_EVENT_NO_TIMING)
        gpu.pop("cuEventCreate", status)

    def record(self, size_t stream):
        """The event is complete when all work so far on a stream of its GPU is."""
        cdef int status
        self.gpu.push()
        with nogil:
            status = self.gpu.driver.event_record(self.raw, <void *>stream)
        self.gpu.pop("cuEventRecord", status)

    def query(self):
        """DONE, NOT_READY or another CUresult."""
        return self.gpu.driver.event_query(self.raw)

    def synchronize(self):
        """Waits until the event is complete."""
        cdef int status
        self.gpu.push()
        with nogil:
            status = self.gpu.driver.event_synchronize(self.raw)
        self.gpu.pop("cuEventSynchronize", status)


cdef class PinnedBuffer(Owned):
    """Memory of the host that the GPU copies to and from by itself.  Whoever has a view of it keeps it."""

    cdef size_t nbytes

    def __init__(self, Gpu gpu not None, size_t nbytes):
        cdef int status
        super().__init__(gpu)
        self.destroy, self.nbytes = gpu.driver.host_free, nbytes
        gpu.push()
        with nogil:
            status = gpu.driver.host_alloc(&self.raw, nbytes)
        gpu.pop("cuMemAllocHost_v2", status)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.raw, self.nbytes, False, flags)
