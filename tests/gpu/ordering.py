"""Whether the GPU has come to what stands behind a wait; the mutant in which nothing waits."""

from __future__ import annotations


def tools():
    """CuPy and our kernels, which are loaded."""
    import cupy
    import kernels

    kernels.warm_up()
    return cupy, kernels


def done(cupy, stream):
    return cupy.cuda.runtime.streamQuery(stream.ptr) == 0


def unordered(ring):
    """The mutant: nothing waits."""
    ring._sync.disarm()
    ring._sync.order = lambda *_: True
