"""What carries the frames of a near ring to a far ring: `python -m bench.bridge.carriers …`.

* **sockets**: one TCP connection, `sendall` from the slot and `recv_into` the slot.  Each side
  blocks, so nothing overlaps.
* **ZeroMQ**: PUSH and PULL.  Large messages are sent from the slot, which is kept until ZeroMQ is
  done with it.  A received message is copied into the slot once.
* **Zenoh**: a publisher that blocks when the network is slow, and a subscriber, peer to peer.

They are what a program without a bridge would do, in as few lines as possible.  None of them
survives the death of a side, reports missing frames, knows how far the other side is, or refuses a
stranger.
"""

from __future__ import annotations

import collections
import importlib.util
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpuring
from bench.bridge.ends import META
from gpuring.bridge import engines

MOST_S = 120
"""A program that runs for longer than that is stuck, and ends."""
META_NAMES = [name for name, _ in META]
HERE = "127.0.0.1"
MOST_AT_ONCE = 4
"""How many frames ZeroMQ may have on the near side."""


@dataclass(frozen=True)
class Carrier:
    name: str
    needs: str = ""
    """The module that has to be importable."""
    engine: str = ""
    """Of a bridge: its engine."""

    @property
    def missing(self) -> str:
        """Why the carrier cannot be measured here, or an empty text."""
        if self.needs and not importlib.util.find_spec(self.needs):
            return f"the package {self.needs} is not installed"
        if self.engine and self.engine not in engines.facts():
            return engines.why_not(self.engine)
        return ""

    def near(self, ring: str, port: int) -> list[str]:
        """The command beside the near ring."""
        if not self.engine:
            return command("bench.bridge.carriers", self.name, "near", ring, port)
        return command("gpuring", "bridge", "export", ring, "--listen", f"{HERE}:{port}")

    def far(self, ring: str, port: int, near: str, slots: int) -> list[str]:
        """The command beside the far ring."""
        if not self.engine:
            return command("bench.bridge.carriers", self.name, "far", ring, port)
        source, places = f"{HERE}:{port}/{near}", ("--slots", slots, "--device", "host")
        engine = ("--engine", self.engine)
        return command("gpuring", "bridge", "import", source, "--as", ring, *places, *engine)


CARRIERS = (
    Carrier("sockets"),
    Carrier("ZeroMQ", "zmq"),
    Carrier("Zenoh", "zenoh"),
    Carrier("bridge, zmq", "zmq", "zmq"),
    Carrier("bridge, nixl", "zmq", "nixl"),
)
OWN_COST = {"bridge, zmq": "ZeroMQ"}
"""What an engine costs without a bridge."""


def command(module: str, *args: Any) -> list[str]:
    return [sys.executable, "-m", module, *map(str, args)]


def _describe(slot: gpuring.WriteSlot, meta: Any) -> None:
    """Gives a claimed slot the metadata that came."""
    for name, value in zip(META_NAMES, np.frombuffer(meta, META)[0], strict=True):
        slot.meta[name] = value


# ---- sockets -------------------------------------------------------------------------------------


def sockets_near(frames: gpuring.Consumer, port: int) -> None:
    peer = socket.create_server((HERE, port)).accept()[0]
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for slot in frames:
        peer.sendall(slot.meta.tobytes())
        peer.sendall(memoryview(slot.array).cast("B"))


def sockets_far(producer: gpuring.Producer, port: int) -> None:
    peer = connected(port)
    while True:
        with producer.claim() as slot:
            meta = bytearray(np.dtype(META).itemsize)
            if not _filled(peer, memoryview(meta)):
                slot.abandon()
                return
            _describe(slot, meta)
            _filled(peer, memoryview(slot.array).cast("B"))


def connected(port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection((HERE, port))
        except ConnectionRefusedError:
            time.sleep(0.01)


def _filled(peer: socket.socket, view: memoryview) -> bool:
    while len(view):
        n = peer.recv_into(view)
        if not n:
            return False
        view = view[n:]
    return True


# ---- ZeroMQ --------------------------------------------------------------------------------------


def zeromq_near(frames: gpuring.Consumer, port: int) -> None:
    import zmq

    sender = zmq.Context().socket(zmq.PUSH)
    sender.set_hwm(2 * MOST_AT_ONCE)
    sender.bind(f"tcp://{HERE}:{port}")
    sent: collections.deque[tuple[Any, Any]] = collections.deque()
    while True:
        slot = frames.acquire()
        meta = slot.meta.tobytes()
        tracker = sender.send_multipart([meta, slot.array], copy=False, track=True)
        sent.append((slot, tracker))
        while sent and (len(sent) >= MOST_AT_ONCE or sent[0][1].done):
            done, tracker = sent.popleft()
            tracker.wait()
            done.release()


def zeromq_far(producer: gpuring.Producer, port: int) -> None:
    import zmq

    receiver = zmq.Context().socket(zmq.PULL)
    receiver.set_hwm(2 * MOST_AT_ONCE)
    receiver.connect(f"tcp://{HERE}:{port}")
    while True:
        meta, frame = receiver.recv_multipart(copy=False)
        with producer.claim() as slot:
            _describe(slot, meta.buffer)
            np.copyto(slot.array, np.frombuffer(frame.buffer, slot.array.dtype))


# ---- Zenoh ---------------------------------------------------------------------------------------


def _zenoh(**endpoints: str) -> Any:
    import zenoh

    config = zenoh.Config()
    config.insert_json5("scouting/multicast/enabled", "false")
    for which, endpoint in endpoints.items():
        config.insert_json5(f"{which}/endpoints", f'["{endpoint}"]')
    return zenoh.open(config)


def zenoh_near(frames: gpuring.Consumer, port: int) -> None:
    import zenoh

    with _zenoh(listen=f"tcp/{HERE}:{port}") as session:
        block = zenoh.CongestionControl.BLOCK
        publisher = session.declare_publisher("frames", congestion_control=block)
        while not publisher.matching_status.matching:
            time.sleep(0.01)
        for slot in frames:
            publisher.put(slot.array.tobytes(), attachment=slot.meta.tobytes())


def zenoh_far(producer: gpuring.Producer, port: int) -> None:
    with _zenoh(connect=f"tcp/{HERE}:{port}") as session:
        subscriber = session.declare_subscriber("frames")  # it ends when it is dropped
        for sample in subscriber:
            with producer.claim() as slot:
                _describe(slot, sample.attachment.to_bytes())
                np.copyto(slot.array, np.frombuffer(sample.payload.to_bytes(), slot.array.dtype))


PROGRAMS: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "sockets": (sockets_near, sockets_far),
    "ZeroMQ": (zeromq_near, zeromq_far),
    "Zenoh": (zenoh_near, zenoh_far),
}


def main(name: str, side: str, ring_name: str, port: str) -> None:
    near, far = PROGRAMS[name]
    signal.alarm(MOST_S)
    with gpuring.attach(ring_name, timeout=60) as ring:
        if side == "near":
            with ring.consumer() as frames:
                near(frames, int(port))
        else:
            with ring.producer() as producer:
                far(producer, int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
