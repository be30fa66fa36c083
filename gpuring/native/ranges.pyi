"""Types of ranges.pyx: what a program has does not depend on GPURING_NVTX."""

from gpuring.native.peer import Peer as Peer
from gpuring.native.tracer import annotate as annotate
