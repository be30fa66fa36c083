"""Where a worker's batch lies in a slot.  The test is the worker, and reads the ring itself."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils import collate, worker

import gpuring
from gpuring.torch.outlet import ring_name
from gpuring.torch.packing import Packing
from gpuring.torch.parcel import ALIGNMENT, SMALL_NBYTES, Kind, Part, over, put_together
from gpuring.torch.places import HOST


@pytest.fixture
def packs(name, monkeypatch):
    """A function that packs a batch, and returns the parcel and the bytes of its frame."""
    info = worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=None)
    monkeypatch.setattr(worker, "_worker_info", info)
    with (
        gpuring.create(
            ring_name(name, 0, HOST, 0), slots=3, shape=1 << 20, dtype="u1", device="host"
        ) as ring,
        ring.consumer() as consumer,
    ):
        packing: Any = None

        def pack(collate: Any, samples: Any) -> tuple[Any, Any]:
            nonlocal packing
            packing = Packing(collate, name, arrays=True)
            parcel = packing(samples)
            if parcel.leaves is not None:
                return parcel, None
            with consumer.acquire(0) as slot:
                assert slot.seq == parcel.parts[0].seq
                return parcel, np.array(slot.array)

        yield pack
        for outlet in packing._outlets.values():
            outlet.close()


def sent(obj: Any) -> Any:
    """The parcel as it comes out of a queue."""
    return ForkingPickler.loads(ForkingPickler.dumps(obj))


PLACED = torch.ones(2)


def unpacked(parcel: Any, frame: Any) -> Any:
    rest, pieces, places = parcel.layout
    memory = [over(torch.from_numpy(frame), piece.begin, piece.kind) for piece in pieces]
    leaves = [memory[k] if kind is None else over(memory[k], at, kind) for k, at, kind in places]
    return put_together(rest, leaves)


def test_the_default_collate_stacks_into_the_slot(packs, monkeypatch):
    stacked = []
    stack = torch.stack

    def noting(*args: Any, **more: Any) -> Any:
        result = stack(*args, **more)
        stacked.append(result.data_ptr())
        return result

    monkeypatch.setattr(torch, "stack", noting)
    copied = []
    copy = torch.Tensor.copy_

    def noting_copy(self: Any, *args: Any) -> Any:
        copied.append(tuple(self.shape))
        return copy(self, *args)

    monkeypatch.setattr(torch.Tensor, "copy_", noting_copy)
    samples = [(torch.full((3, 4), k), k) for k in range(5)]
    parcel, frame = packs(default_collate, samples)
    assert len(stacked) == 1
    assert copied == []  # the labels, which are numbers, were written there
    images, labels = unpacked(parcel, frame)
    assert images.shape == (5, 3, 4)
    assert images[:, 0, 0].tolist() == labels.tolist() == [0, 1, 2, 3, 4]


LARGEST = (1 << 63) - 1


@pytest.mark.parametrize("numbers", [[3, -1, 2], [-LARGEST - 1, LARGEST], [1, 2.5], [1, True]])
def test_numbers_are_as_torch_makes_them(packs, numbers):
    expected = default_collate(numbers)
    found = unpacked(*packs(default_collate, numbers))
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("wrong", [LARGEST + 1, None], ids=["too large", "no number"])
def test_what_torch_makes_no_number_of_is_its_error(packs, wrong):
    with pytest.raises(Exception, match=r"\w") as theirs:
        default_collate([1, wrong])
    with pytest.raises(type(theirs.value)) as ours:
        packs(default_collate, [1, wrong])
    assert str(ours.value) == str(theirs.value)


def test_numbers_go_to_the_device_of_torchs_context(packs):
    with torch.device("meta"):
        numbers, _ = unpacked(*packs(default_collate, [(1, PLACED), (2, PLACED)]))
    assert numbers.is_meta


def test_numbers_that_the_user_collates_are_left_to_that(packs, monkeypatch):
    def text(batch: Any, *, collate_fn_map: Any) -> str:
        return " ".join(map(str, batch))

    monkeypatch.setitem(collate.default_collate_fn_map, int, text)
    numbers, _ = unpacked(*packs(default_collate, [(1, PLACED), (2, PLACED)]))
    assert numbers == "1 2"


def test_tensors_are_aligned(packs):
    sizes = [1, 3, 70_000, 5, 100_000, 255]
    samples = [torch.full((n,), k, dtype=torch.uint8) for k, n in enumerate(sizes)]
    parcel, frame = packs(list, samples)
    begins = [parcel.layout.pieces[piece].begin + at for piece, at, _ in parcel.layout.places]
    assert all(begin % ALIGNMENT == 0 for begin in begins)
    assert [tensor.numel() for tensor in unpacked(parcel, frame)] == sizes
    assert all((t == k).all() for k, t in enumerate(unpacked(parcel, frame)))


def test_a_tensor_at_a_byte_where_none_can_begin_is_refused():
    memory = torch.arange(16, dtype=torch.uint8)
    assert over(memory, 4, Kind(torch.uint8, (2,))).tolist() == [4, 5]
    assert over(memory[4:], 4, Kind(torch.int32, (1,))).view(torch.uint8).tolist() == [8, 9, 10, 11]
    for begin in (1, 2, 3):
        with pytest.raises(ValueError, match="cannot begin at byte"):
            over(memory, begin, Kind(torch.int32, (1,)))


def test_large_tensors_have_pieces_of_their_own(packs):
    sizes = [1, SMALL_NBYTES, 2, SMALL_NBYTES, 3]
    parcel, _ = packs(list, [torch.zeros(n, dtype=torch.uint8) for n in sizes])
    pieces = [piece for piece, _, _ in parcel.layout.places]
    assert pieces[0] == pieces[2] == pieces[4]
    assert len({*pieces}) == 3


def test_a_batch_that_is_too_large_travels_by_itself(packs):
    samples = [torch.zeros(1 << 19, dtype=torch.uint8) + k for k in range(3)]
    parcel, _ = packs(default_collate, samples)
    assert parcel.parts == (Part(HOST, 1, 3 << 19),)
    batch = put_together(parcel.layout.rest, sent(parcel.leaves))
    assert torch.equal(batch, torch.stack(samples))


def test_a_batch_of_no_tensors_is_left_alone(packs):
    packed = Packing(default_collate, "nobody", arrays=True)(["a", "b"])
    assert sent(packed) == ["a", "b"]
    packs(default_collate, [torch.ones(1)])
