cdef int give_back_lost() except -1
cdef bint waits_for_itself(peer) except -1
cdef int warn_of_itself(peer) except -1
