from cpython.object cimport PyObject

from gpuring.ring.slot cimport Slot

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)
    PyObject *PyList_GET_ITEM(PyObject *, Py_ssize_t)
    bint PyDict_Next(PyObject *, Py_ssize_t *, PyObject **, PyObject **)
    Py_ssize_t PyDict_GET_SIZE(PyObject *)


cdef inline bint is_free(PyObject *slot, Py_ssize_t known) noexcept:
    """Whether nobody refers to a Slot, but for `known` references of ours, nor to its arrays."""
    cdef PyObject *meta
    cdef PyObject *view
    cdef PyObject *views = <PyObject *>(<Slot>slot)._views
    cdef PyObject *whole = <PyObject *>(<Slot>slot)._whole
    cdef Py_ssize_t at = 0
    if Py_REFCNT(slot) != known:
        return False
    meta = <PyObject *>(<Slot>slot)._meta
    if meta != <PyObject *>None and Py_REFCNT(meta) != 1:
        return False
    if PyDict_GET_SIZE(views) == 1 and whole != <PyObject *>None:  # as most slots are: it is the only view
        return Py_REFCNT(whole) == 2
    while PyDict_Next(views, &at, NULL, &view):
        if Py_REFCNT(view) != 1 + (view == whole):  # the dict's
            return False
    return True
