"""Messages of several parts on a ZeroMQ socket.

They do what `send_multipart` and `recv_multipart` of pyzmq do, which took half of a worker's time
for a small frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

COPIED = 512 << 10
"""A part that is shorter is copied for sending.  To send it from where it is costs 40 µs whatever
its length, because pyzmq has a thread that hears when a buffer is free.  From this length on the
copy costs more."""

_MOST = 4
"""More parts than this of a message are not kept.  No message of a bridge has so many."""

_NOW = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


def send(socket: Any, parts: Sequence[Any], *, track: bool = False) -> Any:
    """Sends buffers of bytes as one message.  Never blocks.  Raises zmq.ZMQError.

    The last part is not copied if it is long.  With `track` it returns an object whose `done` says
    whether that part may be changed.
    """
    for part in parts[:-1]:
        socket.send(part, _MORE)
    last = parts[-1]
    return socket.send(last, _NOW, len(last) < COPIED and not track, track)


def receive(socket: Any) -> list[zmq.Frame]:
    """The first parts of the next message.  Never blocks.  Raises zmq.Again if there is none."""
    part = socket.recv(_NOW, False)
    parts = [part]
    while part.more:
        part = socket.recv(_NOW, False)
        if len(parts) < _MOST:
            parts.append(part)
    return parts
