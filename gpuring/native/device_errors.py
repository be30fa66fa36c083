"""The errors for what the GPU's driver refuses.  Each names the operation, the reason and the next
step.

The C code (device/) reports what it was doing, on which stream, and the driver's CUresult.
"""

from __future__ import annotations

from gpuring.errors import DeviceError

PROCESS_LIMIT = 4096
"""About how many interprocess events one process can make (measured on driver 580)."""


def no_driver(why: str, found: bool) -> DeviceError:
    """The error for a missing driver.  `found` says that there is one, which lacks the function
    `why`."""
    if found:
        return DeviceError(
            f"this NVIDIA driver has no {why}: CUDA 12 or later is needed; update the driver"
        )
    return DeviceError(f"there is no NVIDIA driver ({why}); use device='host'")


def refused(
    where: str,
    status: str,
    *,
    ordinal: int,
    stream: int,
    peer: int,
    index: int,
    value: int,
    pid: int,
    made: int,
) -> DeviceError:
    """The error for a gd_trouble (device/state.h).  `status` is the name of the CUresult.

    `pid` is that of `peer`, and `made` is how many interprocess events this process has made.
    """
    if where == "captured":
        text = (
            f"stream {stream:#x} is being captured into a CUDA graph, or is the default stream "
            f"while another one is ({status}). Handing a slot over cannot be part of a graph: "
            "claim, publish, acquire and release outside the capture (a slot that you have stays "
            "yours), or with stream= another stream. Capture the work between, one graph for each "
            "slot (docs/guide.md, CUDA graphs)"
        )
    elif where == "other device":
        text = (
            f"the default stream of GPU {value} was given (it is current), but this handle of the "
            f"ring was attached under GPU {ordinal}. Give a stream explicitly, or work inside "
            f"`with cupy.cuda.Device({ordinal}):`"
        )
    elif where == "no context":
        text = f"GPU {ordinal} cannot be used ({status})"
    elif where == "open event":
        text = (
            f"peer {peer}'s event for slot {index} cannot be opened ({status}; pid {pid}). Both "
            "processes must share /dev/shm and the host's pid and IPC namespaces"
        )
    elif where == "make events":
        text = (
            f"peer {peer} needs an interprocess event for each slot, {value} could be made "
            f"({status}). This process has made {made}, about {PROCESS_LIMIT} is the limit: use "
            "fewer slots, fewer peers in one process, or sync='timeline'"
        )
    elif where == "work failed":
        text = f"peer {peer}'s GPU work on slot {index} (fence {value}) has failed: {status}"
    elif where == "not now":
        text = (
            f"GPU {ordinal} cannot be waited for while a thread captures a CUDA graph ({status}). "
            "Try again when the capture has ended"
        )
    elif where == "register":
        text = (
            f"the ring's header cannot be mapped into GPU {ordinal} ({status}). Create the ring "
            "with sync='event'"
        )
    elif where == "no memory":
        text = "there is no memory left to note which streams and events a slot is used with"
    else:
        text = (
            f"stream {stream:#x} does not take the ring's waits and records ({status}); is it a "
            f"stream of GPU {ordinal}?"
        )
    return DeviceError(text)
