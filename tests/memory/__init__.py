"""The memory of slots, on hosts and on GPUs."""

from __future__ import annotations

import numpy as np

from gpuring.slot_layout import Field

EPOCH = bytes(range(16))
SLOTS, NBYTES = 4, 1 << 20
FIELD = Field("array", (NBYTES,), np.dtype("u1"), 0)
KINDS = ("ipc", "vmm", "pool")
