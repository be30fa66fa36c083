"""Whether anybody still has a slot object, by Python's references.

A slot object is used again only when nobody refers to it or to its arrays any more.  An object that is open and that nobody has
is lost (docs/decisions/0014-a-slot-that-nobody-has.md).  There is no state here, and nothing is changed.  Each claim and acquire
asks, so is_free is in whose.pxd, and is compiled into who asks.
"""


def references(list things not None, Py_ssize_t index):
    """How many references there are to an item of a list, with that of the list.

    It is not asked with the item as an argument.  How many references a call adds differs between versions of
    Python, and between places in one function."""
    return Py_REFCNT(PyList_GET_ITEM(<PyObject *>things, index))


def nobody_has(list slots not None, Py_ssize_t index, Py_ssize_t known=0):
    """Whether nobody refers to a slot of an endpoint, to its arrays or to its metadata.

    known: how many references are expected beside that of the endpoint's list."""
    return is_free(PyList_GET_ITEM(<PyObject *>slots, index), 1 + known)
