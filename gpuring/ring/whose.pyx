"""Whether anybody still has a slot object, by Python's references.

A slot object is used again only when nobody refers to it or to its arrays any more.  An object that is open and that nobody has
is lost (docs/decisions/0014-a-slot-that-nobody-has.md).  There is no state here, and nothing is changed.
"""
from cpython.object cimport PyObject

from gpuring.ring.slot cimport Slot

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)
    PyObject *PyList_GET_ITEM(PyObject *, Py_ssize_t)


cdef bint is_free(PyObject *slot, Py_ssize_t known) except -1:
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


def references(list things not None, Py_ssize_t index):
    """How many references there are to an item of a list, with that of the list.

    It is not asked with the item as an argument.  How many references a call adds differs between versions of
    Python, and between places in one function."""
    return Py_REFCNT(PyList_GET_ITEM(<PyObject *>things, index))


def nobody_has(list slots not None, Py_ssize_t index, Py_ssize_t known=0):
    """Whether nobody refers to a slot of an endpoint, to its arrays or to its metadata.

    known: how many references are expected beside that of the endpoint's list."""
    return is_free(PyList_GET_ITEM(<PyObject *>slots, index), 1 + known)
