"""NIXL: the near end writes into the far slots, over RDMA, NVLink or what else UCX finds.

The slots themselves are source and destination where that is possible, and no byte is copied in
between.  Otherwise an end has a bounce buffer (bounce_buffer.py), and copies frames between it and
the slots.  An end of a session has one agent, which is destroyed with the session.  Afterwards the
network card or the connection refuses what the other end still sends.  On one host that is not
enough, and write_permits.py has the rest.

Nobody polls while nothing is in flight.  The near end polls its own transfers.  UCX needs the far
end's help to connect, and on networks without RDMA for each byte.  So the near end sends one byte
over the channel for the newest frame in flight, and the far end polls until the bridge says that
this frame has arrived.  If others are in flight then, the near end has said so before.

This file has the facts of a machine, and the choice.  sender.py and receiver.py have the two ends,
and agent.py what both ends use.  Over plain TCP, UCX writes to whatever address the network names,
so `suits` refuses that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuring.bridge.engines.contract import EngineError, Slab
from gpuring.bridge.engines.nixl import bounce_buffer, rdma_devices
from gpuring.bridge.engines.nixl.agent import host, package
from gpuring.bridge.engines.nixl.receiver import Receiver
from gpuring.bridge.engines.nixl.sender import Sender
from gpuring.printable import counted

NAME = "nixl"
sender, receiver = Sender, Receiver


def facts() -> dict[str, Any] | None:
    """What the other side has to know to choose.  None if NIXL is not installed."""
    try:
        package()
    except EngineError:
        return None
    return {
        "host": host(),
        "spaces": _spaces(),
        "rdma": [str(nic) for nic in rdma_devices.look() if nic.active][:8],
    }


def suits(near: Mapping[str, Any], far: Mapping[str, Any], slab: Slab) -> tuple[bool, str]:
    """Whether both sides have RDMA or are on one host, and there is memory for a bounce buffer if
    one is needed."""
    if near.get("host") == far.get("host"):
        if near.get("spaces") != far.get("spaces"):
            return False, "both sides are on one host, but not in the same namespaces"
        reason = "both sides are on one host"
    else:
        for which, side in (("near", near), ("far", far)):
            if not side.get("rdma"):
                return False, f"the {which} side has no RDMA device that is active"
        reason = f"both sides have RDMA: {far['rdma'][0]}"
    if slab.gpu is not None and bounce_buffer.receiver_needs_one(slab):
        slots = bounce_buffer.slots_beside_far(slab)
        try:
            bounce_buffer.reserve(slab.gpu, slots * slab.slot_nbytes)
        except EngineError as error:
            return False, str(error)
        reason += f", with a bounce buffer of {counted(slots, 'slot')}"
    return True, reason


def _spaces() -> list[int]:
    """The namespaces that two processes must share to watch and to reach each other."""
    return [Path(f"/proc/self/ns/{name}").stat().st_ino for name in ("net", "pid")]
