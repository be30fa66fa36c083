"""The GPU: the driver's functions, and one process's device order of a ring.

What the driver refuses is raised as DeviceError.  It names the operation, the reason and the next step.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_Occurred
from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer
from cpython.ref cimport Py_INCREF
from libc.stdint cimport intptr_t, uint8_t
from libc.string cimport memcpy

from gpuring.native.c cimport *
from gpuring.native.header cimport Header
from gpuring.native.names cimport refuse

from gpuring.errors import DeviceError


cdef class Driver:
    """The CUDA driver's functions.  Raises DeviceError if there is no driver, or one that is too old."""

    def __init__(self, functions=None):
        """`functions` has the address of each function by its symbol, for tests.  None takes libcuda's."""
        cdef const char *why = NULL
        cdef gr_bool found = True
        cdef gpuring_error error
        if functions is None:
            self.driver = gd_driver_load(&why, &found)
        elif gd_driver_fill(&self.own, _find, <void *>functions, &why):
            self.driver, self.functions = &self.own, functions
        if self.driver == NULL:
            gm_fail_no_driver(why, found, &error)
            refuse(&error)

    def status_name(self, int status):
        """The name of a status, such as "CUDA_ERROR_INVALID_VALUE"."""
        return gd_status_name(self.driver, status).decode()

    def attribute(self, int number, int device):
        """A device's attribute (CUdevice_attribute).  Raises DeviceError."""
        cdef int value = 0
        cdef int status = self.driver.init(0) or self.driver.device_get_attribute(&value, number, device)
        if status:
            raise DeviceError(
                f"GPU {device} cannot be asked for attribute {number}: {self.status_name(status)}")
        return value

    def uuid(self, int device):
        """The 16 bytes that name a GPU (or MIG instance) in every process, whatever its ordinal there.

        Asked from the driver itself: CuPy's device properties cut the UUID at a zero byte.
        """
        cdef uint8_t uuid[16]
        cdef gpuring_error error
        if gm_uuid(self.driver, device, uuid, &error) != GPURING_OK:
            refuse(&error)
        return PyBytes_FromStringAndSize(<char *>uuid, 16)


cdef void *_find(void *functions, const char *symbol) noexcept with gil:
    return <void *><size_t>(<object>functions).get(symbol.decode(), 0)


@cython.no_gc_clear  # __dealloc__ needs the header
cdef class Device:
    """How streams of this process are ordered with those of others, for one ring (device/state.h)."""

    def __init__(self, Header header not None, int ordinal, get_current_stream, capsule=None, Driver driver=None):
        """`ordinal` is that of the GPU under which this process has the slots.  `get_current_stream` is the framework's and
        returns a handle, or an object with `ptr`, which keeps the stream.  `capsule` holds a C function that returns its handle,
        or is None.  Raises
        DeviceError."""
        cdef gd_trouble trouble
        self.header, self.driver, self.get_current_stream = header, driver or Driver(), get_current_stream
        if capsule is not None:
            self.fast_current_stream = <fast_stream>PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule))
        cdef bytes uuid = self.driver.uuid(ordinal)
        if gd_open(&self.gd, self.driver.driver, header.ring, ordinal, &trouble) != GR_OK:
            raise self.refused(&trouble)
        memcpy(header.ring.gpu, <const char *>uuid, 16)  # a join notes it
        self.is_open = True

    def __dealloc__(self):
        self.close()

    ordinal = property(lambda Device self: self.gd.ordinal)

    def close(self):
        """Gives up what is registered and opened.  Waits for this process's work on the GPU: a wait that is still in some
        stream reads the header."""
        if not self.is_open:
            return
        cdef bint unmapped
        self.is_open = False
        with nogil:  # a callback of the GPU's may need the GIL
            unmapped = gd_close(&self.gd)
        if not unmapped:  # Another thread captures, so it stays registered.  Nothing else may be mapped at its address.
            Py_INCREF(self.header)

    cdef object refused(self, const gd_trouble *trouble):
        """The error for what the C library has said (gd_trouble in device/state.h)."""
        cdef gpuring_error error
        gm_fail_trouble(&error, &self.gd, trouble)
        return DeviceError(error.text.decode())

    def current_stream(self):
        """The handle of the current stream of the framework and of this thread."""
        return self.current()

    cdef size_t current(self) except? 1:
        cdef intptr_t stream
        if self.fast_current_stream == NULL:
            given = self.get_current_stream()
            return given if isinstance(given, int) else given.ptr
        stream = self.fast_current_stream()
        if PyErr_Occurred() != NULL:
            return 1  # with the exception set
        return <size_t>stream

    def check_stream(self, size_t stream):
        """Raises DeviceError if `stream` may not be used for the ring now: it is another GPU's, or it is being captured."""
        cdef gd_trouble trouble
        cdef gr_result result
        with nogil:
            result = gd_check_stream(&self.gd, stream, &trouble)
        if result != GR_OK:
            raise self.refused(&trouble)

    def follow(self, size_t stream, others):
        """Makes `stream` wait for all work so far on `others`.  Raises DeviceError."""
        cdef gd_trouble trouble
        cdef gr_result result = GR_OK
        cdef gd_stream other
        if not others:
            self.check_stream(stream)
        for each in others:
            other = each
            with nogil:
                result = gd_follow(&self.gd, stream, &other, 1, &trouble)
            if result != GR_OK:
                raise self.refused(&trouble)
