from cpython.object cimport PyObject

cdef bint is_free(PyObject *slot, Py_ssize_t known) except -1
