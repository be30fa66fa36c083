"""Makes and opens DLPack capsules.

NumPy and CuPy could do this, but they do not know bfloat16 and they speak different versions of the protocol.  NumPy also
does not export read-only arrays to importers of an older version.

The layout and the ownership are those of dlpack.h 1.x and of the Python array API standard (data-apis.org).  An importer
renames the capsule.  When its tensor dies, it calls the deleter, from any thread, with or without the GIL.
"""
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyCapsule_SetName
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

cdef enum:
    DL_MAX_NDIM = 8  # GR_MAX_NDIM, which Cython does not take as the size of an array

DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED = 1, 2, 3, 13
DL_READ_ONLY, DL_COPIED = 1, 2

cdef struct dl_tensor:
    void *data
    int device_type, device_id
    int ndim
    uint8_t code, bits
    uint16_t lanes
    int64_t *shape
    int64_t *strides
    uint64_t byte_offset

cdef struct dl_managed:
    dl_tensor tensor
    void *context
    void (*deleter)(dl_managed *) noexcept nogil

cdef struct dl_versioned:
    uint32_t major, minor
    void *context
    void (*deleter)(dl_versioned *) noexcept nogil
    uint64_t flags
    dl_tensor tensor

cdef struct dl_export:  # a tensor of either kind, with the shape and the strides that it points to
    dl_managed managed
    dl_versioned versioned
    int64_t shape[DL_MAX_NDIM]
    int64_t strides[DL_MAX_NDIM]


cdef extern from "Python.h" nogil:
    bint Py_IsInitialized()


cdef void _release(void *context) noexcept with gil:
    Py_DECREF(<object>context)


# A library may destroy its last tensors in exit handlers, when there is no Python any more.  Then nothing is left that
# could be released.
cdef void _free_managed(dl_managed *managed) noexcept nogil:
    if Py_IsInitialized():
        _release(managed.context)
        free(<dl_export *>managed)


cdef void _free_versioned(dl_versioned *versioned) noexcept nogil:
    if Py_IsInitialized():
        _release(versioned.context)
        free(<char *>versioned - sizeof(dl_managed))


cdef void _drop_capsule(object capsule) noexcept:
    """The destructor of a capsule.  If nobody has imported it, its tensor is freed."""
    cdef dl_managed *managed
    cdef dl_versioned *versioned
    if PyCapsule_IsValid(capsule, b"dltensor"):
        managed = <dl_managed *>PyCapsule_GetPointer(capsule, b"dltensor")
        managed.deleter(managed)
    elif PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        versioned = <dl_versioned *>PyCapsule_GetPointer(capsule, b"dltensor_versioned")
        versioned.deleter(versioned)


def dlpack_export(owner, size_t data, tuple device, tuple shape, tuple kind, unsigned flags, bint versioned):
    """Returns a capsule over C-contiguous memory that `owner` keeps alive.  `kind` is (type code, bits)."""
    cdef dl_export *made
    cdef dl_tensor tensor
    cdef int64_t stride = 1
    cdef int k
    if len(shape) > DL_MAX_NDIM:
        raise BufferError(f"at most {DL_MAX_NDIM} dimensions, not {len(shape)}")
    tensor.data, tensor.byte_offset, tensor.lanes, tensor.ndim = <void *>data, 0, 1, len(shape)
    tensor.device_type, tensor.device_id = device
    tensor.code, tensor.bits = kind
    made = <dl_export *>calloc(1, sizeof(dl_export))
    if made == NULL:
        raise MemoryError
    for k in range(tensor.ndim - 1, -1, -1):
        made.shape[k], made.strides[k] = shape[k], stride
        stride *= made.shape[k]
    tensor.shape, tensor.strides = made.shape, made.strides
    made.managed.tensor = made.versioned.tensor = tensor
    made.managed.context = made.versioned.context = <void *>owner
    made.managed.deleter, made.versioned.deleter = _free_managed, _free_versioned
    made.versioned.major, made.versioned.minor, made.versioned.flags = 1, 0, flags
    try:
        if versioned:
            capsule = PyCapsule_New(&made.versioned, b"dltensor_versioned", _drop_capsule)
        else:
            capsule = PyCapsule_New(&made.managed, b"dltensor", _drop_capsule)
    except BaseException:
        free(made)
        raise
    Py_INCREF(owner)
    return capsule


cdef class DLPackImport:
    """Another library's tensor, which lives until this is gone."""

    cdef dl_managed *managed
    cdef dl_versioned *versioned
    cdef readonly size_t data
    cdef readonly tuple shape
    cdef readonly tuple strides
    """The strides in elements, not in bytes.  None: those of a C-contiguous array."""
    cdef readonly bint read_only
    """Whether it says that it may not be written.  Tensors of the protocol's older version cannot say so."""
    cdef readonly tuple kind
    """The type of an element: (type code, bits, lanes)."""

    def __cinit__(self, capsule):
        cdef dl_tensor *tensor
        cdef int k
        if PyCapsule_IsValid(capsule, b"dltensor_versioned"):
            self.versioned = <dl_versioned *>PyCapsule_GetPointer(capsule, b"dltensor_versioned")
            if self.versioned.major != 1:
                self.versioned = NULL  # its layout may differ behind the version; it stays in the capsule
                raise BufferError("the DLPack tensor has another major version than 1")
            PyCapsule_SetName(capsule, b"used_dltensor_versioned")
            tensor = &self.versioned.tensor
            self.read_only = self.versioned.flags & <uint64_t>DL_READ_ONLY != 0
        elif PyCapsule_IsValid(capsule, b"dltensor"):
            self.managed = <dl_managed *>PyCapsule_GetPointer(capsule, b"dltensor")
            PyCapsule_SetName(capsule, b"used_dltensor")
            tensor = &self.managed.tensor
        else:
            raise BufferError(f"{capsule!r} is no DLPack capsule, or was imported already")
        self.data = <size_t>tensor.data + tensor.byte_offset
        self.kind = (tensor.code, tensor.bits, tensor.lanes)
        self.shape = tuple([tensor.shape[k] for k in range(tensor.ndim)])
        if tensor.strides != NULL:
            self.strides = tuple([tensor.strides[k] for k in range(tensor.ndim)])

    def __dealloc__(self):
        if self.versioned != NULL and self.versioned.deleter != NULL:
            self.versioned.deleter(self.versioned)
        if self.managed != NULL and self.managed.deleter != NULL:
            self.managed.deleter(self.managed)
