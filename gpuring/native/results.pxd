from gpuring.native.c cimport gr_culprit

cdef tuple culprit_of(const gr_culprit *c)
