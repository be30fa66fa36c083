"""A long link: `python -m bench.bridge.relay PORT TO_PORT MS` passes on what comes, but later.

Whatever arrives at one port of this host goes to the other one after so many milliseconds, in both
directions.  The rate is not limited.  So a round trip takes twice as long, as to another town.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import sys
import threading
import time

from bench.bridge.carriers import HERE, MOST_S, connected

AT_ONCE = 1 << 18
ON_ITS_WAY = 512
"""How many pieces may be under way in one direction.  Then the sender waits, as on a real link."""


def hand_on(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    """Passes on what comes until `source` ends.  Then ends `sink`, too."""
    pieces: queue.Queue[tuple[float, bytes]] = queue.Queue(ON_ITS_WAY)

    def send() -> None:
        with contextlib.suppress(OSError):
            while True:
                due_s, piece = pieces.get()
                time.sleep(max(0.0, due_s - time.monotonic()))
                if not piece:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(piece)

    threading.Thread(target=send, daemon=True).start()
    while True:
        try:
            piece = source.recv(AT_ONCE)
        except OSError:
            piece = b""
        pieces.put((time.monotonic() + delay_s, piece))
        if not piece:
            return


def main(port: str, to_port: str, delay_ms: str) -> None:
    signal.alarm(MOST_S)
    with socket.create_server((HERE, int(port))) as server:
        while True:
            near, far = server.accept()[0], connected(int(to_port))
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in ((near, far), (far, near)):
                later = (*pair, float(delay_ms) / 1000)
                threading.Thread(target=hand_on, args=later, daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
