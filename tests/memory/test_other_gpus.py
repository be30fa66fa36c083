"""A ring on another GPU than this process uses: what is found, and what is refused.

The answers of the driver are made up.  test_two_gpus.py has real ones.
"""

from __future__ import annotations

import uuid

import pytest

from gpuring.errors import DeviceError
from tests.helpers import raw_verbs
from tests.memory import fake_gpu

UUIDS = [uuid.UUID(int=k).bytes for k in range(1, 4)]


@pytest.fixture
def reach(gpu: fake_gpu.Gpu) -> set[tuple[int, int]]:
    """Three GPUs, and which of them has access to which other one."""
    gpu.uuids, gpu.reaches = UUIDS, set()
    return gpu.reaches


def owner_of(gpu: fake_gpu.Gpu, device: int, wanted: bytes) -> int:
    owner: int = raw_verbs.gpu_owner(gpu.table, device, wanted, "cam0")
    return owner


def test_the_owner_is_this_gpu_or_one_that_it_can_reach(gpu, reach):
    assert owner_of(gpu, 1, UUIDS[1]) == 1
    reach.add((0, 2))
    assert owner_of(gpu, 0, UUIDS[2]) == 2


def test_without_peer_access_the_error_says_where_to_attach(gpu, reach):
    reach.add((2, 0))  # access in that direction does not help
    with pytest.raises(DeviceError) as caught:
        owner_of(gpu, 0, UUIDS[2])
    said = str(caught.value)
    assert said.startswith(
        f"ring 'cam0' lives on GPU-{uuid.UUID(int=3)}, which is GPU 2 and cannot"
    )
    assert f"be reached from GPU 0, GPU-{uuid.UUID(int=1)} " in said
    assert said.endswith("Attach with `device` 2, and copy the frames to other GPUs")


def test_a_gpu_that_cannot_be_seen_has_to_be_made_visible(gpu, reach):
    with pytest.raises(DeviceError, match="which cannot be seen from GPU 1") as caught:
        owner_of(gpu, 1, uuid.UUID(int=9).bytes)
    assert "Make that GPU visible to this process" in str(caught.value)
