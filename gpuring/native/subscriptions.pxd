from gpuring.native.c cimport gr_terms

cdef int pad(char *padded, bytes name) except -1
cdef int set_start(gr_terms *terms, start) except -1
