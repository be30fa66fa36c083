"""Where tensors lie: in host memory, or on a GPU.

What rings on a GPU ask of torch's CUDA is here.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gpuring.arrays.tensors import bytes_of
from gpuring.memory.pinned import RegisteredMemory
from gpuring.ring import inner

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gpuring.ring.ring import Ring

HOST = -1
"""A place is the number of a GPU, or this one."""


def place_of(leaf: torch.Tensor | np.ndarray[Any, Any]) -> int:
    return HOST if isinstance(leaf, np.ndarray) else int(leaf.get_device())


def on(place: int) -> AbstractContextManager[Any]:
    """Inside the block that GPU is the current one: the verbs of its rings ask for that."""
    return contextlib.nullcontext() if place == HOST else torch.cuda.device(place)


def stream_of(place: int) -> int | None:
    """The handle of torch's current stream there.  None: in host memory."""
    # torch.cuda.current_stream() makes an object first, for each batch.
    return None if place == HOST else torch._C._cuda_getCurrentRawStream(place)


def wait(place: int) -> None:
    """Waits for torch's current stream there."""
    if place != HOST:
        torch.cuda.current_stream(place).synchronize()


def copy_of(tensor: torch.Tensor, gpu: int) -> torch.Tensor:
    """A copy on a GPU, in order of torch's current stream there."""
    return tensor.to(torch.device("cuda", gpu), non_blocking=True, copy=True)


def slots_of(ring: Ring, place: int) -> list[torch.Tensor]:
    """The bytes of each slot of a ring that has bytes.  Those of a pinned ring are taken by the
    addresses of the CPU, which are those of torch's tensors in host memory."""
    only, memory = ring.spec.fields[0], inner.memory(ring)
    if isinstance(memory, RegisteredMemory):
        memory = memory.host
    arrays = (memory.array(k, only, only.shape, writable=True) for k in range(ring.slots))
    return [torch.from_numpy(each) if place == HOST else bytes_of(each) for each in arrays]
