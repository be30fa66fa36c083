"""A call as its client has it (_calls.pyx), for compiled code that builds on it."""
from libc.stdint cimport uint64_t

from gpuring.service._books cimport Entry
from gpuring.service._inbox cimport Inbox


cdef class InFlight(Entry):
    cdef readonly Inbox _mailbox
    cdef void begin(self, Inbox mailbox, uint64_t number, uint64_t seq, expires) noexcept
    cpdef _outcome_of(self, bint done, timeout, stream)
    cdef hand_out(self)
    cpdef int _check_sent(self, timeout) except -1
