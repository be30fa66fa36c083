
cdef class File:
    cdef readonly int fd
    cdef object __weakref__
    cpdef close(self)


cdef class MappedFile:
    cdef void *start
    cdef Py_ssize_t nbytes


cdef class NameWatch:
    cdef readonly int fd


cdef File file_of(int fd)
cdef MappedFile mapping_of(void *start, Py_ssize_t nbytes)
