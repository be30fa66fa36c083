"""The engine that needs nothing but the channel: frames go over the bridge's own connection.

A frame in host memory is sent from its slot, unless it is small (network/multipart.py).  On the far
side it is copied once, from the message into the claimed slot.  On a GPU both sides copy through
pinned memory (gpu.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from gpuring.bridge.engines.contract import Channel, Receiver, Sender, Slab
from gpuring.bridge.engines.zmq.gpu import GpuReceiver, GpuSender
from gpuring.bridge.engines.zmq.host import HostReceiver, HostSender

NAME = "zmq"


def facts() -> Mapping[str, Any] | None:
    return {} if find_spec("zmq") is not None else None


def suits(near: Mapping[str, Any], far: Mapping[str, Any], slab: Slab) -> tuple[bool, str]:
    return True, "ZeroMQ over TCP needs no special network"


def sender(slab: Slab, channel: Channel) -> Sender:
    return (HostSender if slab.gpu is None else GpuSender)(slab, channel)


def receiver(slab: Slab) -> Receiver:
    return (HostReceiver if slab.gpu is None else GpuReceiver)(slab)
