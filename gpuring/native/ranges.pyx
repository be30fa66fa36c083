"""NVTX ranges around verbs and around gpuring.annotate, which Nsight Systems shows (GPURING_NVTX=1).

A peer is made with them or without, so a verb without them looks at nothing.  nvtx is compiled: no Python code runs in a verb
for it, and so no signal handler.
"""
import os

from libc.stdint cimport uint32_t

from gpuring.native.c cimport gd_call
from gpuring.native.peer cimport Peer as PlainPeer
from gpuring.native.peer cimport verb

from gpuring.native import tracer

ON = os.environ.get("GPURING_NVTX", "0") not in ("", "0")
"""Read once, at import."""

VERBS = ("claim", "acquire", "latest", "publish", "abandon", "release")  # in the order of `verb`

if ON:
    try:
        import nvtx
    except ImportError as error:
        raise ImportError("GPURING_NVTX=1 needs the package nvtx: pip install 'gpuring[nvtx]'") from error
    domain = nvtx.get_domain("gpuring")


cdef class RangedPeer(PlainPeer):
    """A peer each verb of which is a range.  That of publish, abandon and release has the sequence as its payload."""

    cdef list messages

    def __init__(self, header, str ring=""):
        self.messages = [f"{name} {ring}" for name in VERBS]

    cdef int take(self, gd_call *call, verb which) except? -1000:
        domain.push_range(message=self.messages[which])
        try:
            return PlainPeer.take(self, call, which)
        finally:
            domain.pop_range()

    cdef int end(self, gd_call *call, verb which) except? -1000:
        cdef uint32_t first = call.indices[0]
        domain.push_range(message=self.messages[which], payload=self.gd.use[first].seq)
        try:
            return PlainPeer.end(self, call, which)
        finally:
            domain.pop_range()


class RangedSlice(tracer.annotate):
    __doc__ = tracer.annotate.__doc__

    def __init__(self, name):
        super().__init__(name)
        self.name = name

    def __enter__(self):
        domain.push_range(message=self.name)
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        domain.pop_range()


Peer = RangedPeer if ON else PlainPeer
annotate = RangedSlice if ON else tracer.annotate
