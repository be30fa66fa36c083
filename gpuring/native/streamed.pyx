"""Many pieces of memory laid one behind the other, past the caches."""

from gpuring.native.c cimport gr_copy_streamed


def gather(size_t to, list addresses, size_t nbytes):
    """Copies `nbytes` from each of the addresses, to `to` and on behind it.  Other threads run meanwhile."""
    cdef size_t address
    for address in addresses:
        with nogil:
            gr_copy_streamed(<void *>to, <const void *>address, nbytes)
        to += nbytes
