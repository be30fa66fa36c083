"""Opening a ring that is there, or waiting for one, by its name."""

from __future__ import annotations

from gpuring.arguments import integer
from gpuring.deadlines import deadline_of
from gpuring.registry import directory, segment
from gpuring.ring import shutdown
from gpuring.ring.ring import Ring, opened


def attach(
    name: str,
    *,
    timeout: float | None = 0.0,
    owner: int | None = None,
    device: str | int | None = None,
) -> Ring:
    """Opens the ring `name`.

    * `timeout`: how many seconds to wait for a ring that is alive: its creator lives, or it has a
      producer.  None waits for ever.  The call also waits while the ring is being replaced or
      removed.  A wait costs next to no CPU, ends as soon as the ring is there, and can be
      interrupted by Ctrl-C.  0 does not wait, and takes the ring that is there.  If all of its
      processes are dead, its frames can still be read.
    * `owner`: the id of the user whose ring it must be.  None means this process's own user, or
      root.  Name another user only if you trust them as yourself: they can write every slot, and
      they can kill this process at any time by truncating the ring's files (SIGBUS).
    * `device`: the GPU on which this process uses the slots, as "cuda:1" or by its number in this
      process.  None is the current device.  It may be any GPU that has peer access to that of the
      ring.  Work on the frames inside `with cupy.cuda.Device(n):` of the same GPU, or pass streams
      of it.  For a GPU without peer access attach on the ring's own GPU, and copy the frames with
      `slot.copy_to(out)`.  For a pinned ring it may be any GPU, and with None the CPU uses the
      slots.

    Raises RingNotFound, RingIncompatible (damaged, or of another version), PeerLost (the ring was
    not alive within `timeout`, or its GPU memory cannot be opened any more: see the page "Which
    memory"), DeviceError (no GPU, or one that cannot reach the ring's), PermissionError (another
    user's ring, or one whose mode does not let this process write), RingTimeout (no process has
    handed over the GPU memory for 5 s, whatever `timeout` is), RingError (RLIMIT_AS, a read-only
    /dev/shm), TypeError (a device for a host ring), OSError (no descriptors left).  A call that
    raises leaves nothing open.

    The ring may be closed or replaced as soon as this has returned.  `producer` and `consumer` then
    raise RingClosed: close this handle and attach again.
    """
    shutdown.check()
    segment.check_name(name)
    deadline = deadline_of(timeout)
    owner = whose(owner)
    living = timeout != 0
    return directory.when_there(name, deadline, lambda: opened(name, owner, device, living))


def whose(owner: int | None) -> int | None:
    """`owner`, checked.  Raises TypeError, ValueError."""
    if owner is None:
        return None
    owner = integer(owner, "owner", "the id of a user, an int, or None")
    if not 0 <= owner < 2**32:
        raise ValueError(f"owner must be the id of a user, from 0 to {2**32 - 1}, not {owner}")
    return owner
