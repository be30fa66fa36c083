from cpython.object cimport PyObject

from gpuring.ring.slot cimport Slot

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)
    PyObject *PyList_GET_ITEM(PyObject *, Py_ssize_t)


cdef inline bint is_free(PyObject *slot, Py_ssize_t known) except -1:
    """Whether nobody refers to a Slot, but for `known` references of ours, nor to its arrays."""
    cdef PyObject *meta
    if Py_REFCNT(slot) != known:
        return False
    meta = <PyObject *>(<Slot>slot)._meta
    if meta != <PyObject *>None and Py_REFCNT(meta) != 1:
        return False
    for view in (<Slot>slot)._views.values():
        if Py_REFCNT(<PyObject *>view) != 2 + (view is (<Slot>slot)._whole):  # the dict's, and this loop's
            return False
    return True
