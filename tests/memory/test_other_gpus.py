"""A ring that lives on another GPU than this process uses: what is found, and what is refused.

The answers of the driver are made up.  test_two_gpus.py has real ones.
"""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest

from gpuring.errors import DeviceError
from gpuring.memory import cuda, gpus

UUIDS = [uuid.UUID(int=k).bytes for k in range(1, 4)]


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int]]:
    """Three GPUs, and which of them has access to which other one."""
    pairs: set[tuple[int, int]] = set()
    monkeypatch.setattr(gpus, "count", lambda: len(UUIDS))
    monkeypatch.setattr(gpus, "can_reach", lambda device, peer: (device, peer) in pairs)
    monkeypatch.setattr(cuda, "Driver", lambda: SimpleNamespace(uuid=UUIDS.__getitem__))
    return pairs


def test_the_owner_is_this_gpu_or_one_that_it_can_reach(reach: set[tuple[int, int]]) -> None:
    assert cuda.owner_of(1, UUIDS[1], "cam0") == 1
    reach.add((0, 2))
    assert cuda.owner_of(0, UUIDS[2], "cam0") == 2


def test_without_peer_access_the_error_says_where_to_attach(reach: set[tuple[int, int]]) -> None:
    reach.add((2, 0))  # that way it does not help
    with pytest.raises(DeviceError) as caught:
        cuda.owner_of(0, UUIDS[2], "cam0")
    said = str(caught.value)
    assert said.startswith(
        f"ring 'cam0' lives on GPU-{uuid.UUID(int=3)}, which is GPU 2 and cannot"
    )
    assert f"be reached from GPU 0, GPU-{uuid.UUID(int=1)} " in said
    assert "Attach under GPU 2, attach('cam0', device=2), and copy frames" in said
    assert said.endswith("with slot.copy_to(out)")


def test_a_gpu_that_cannot_be_seen_has_to_be_made_visible(reach: set[tuple[int, int]]) -> None:
    with pytest.raises(DeviceError, match="which cannot be seen from GPU 1") as caught:
        cuda.owner_of(1, uuid.UUID(int=9).bytes, "cam0")
    assert "Make that GPU visible to this process" in str(caught.value)
