"""gpuring.torch.DataLoader with a GPU: batches there, and in pinned memory."""

from __future__ import annotations

import gc
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from gpuring.torch import DataLoader
from tests.torch import datasets
from tests.torch.test_loader import same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU"),
]


@pytest.fixture(autouse=True)
def leaves_nothing():
    yield
    torch.cuda.synchronize()
    gc.collect()
    assert not datasets.rings()


def right(images: Any, labels: Any, first: int) -> bool:
    """Whether a batch of Numbered is that from sample `first` on."""
    expected = torch.arange(first, first + len(labels), device=labels.device)
    if not torch.equal(labels, expected):
        return False
    flat = images.reshape(len(labels), -1).to(torch.int64)
    return bool((flat == (expected % 251)[:, None].to(images.device)).all())


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_batches_on_the_gpu(context):
    torch.ones(1, device="cuda")
    loader: Any = DataLoader(
        datasets.Numbered(200, 3, 64, 64),
        8,
        num_workers=2,
        multiprocessing_context=context,
        device="cuda",
        pin_memory=True,
    )
    for _ in range(2):
        for number, (images, labels) in enumerate(loader):
            assert images.device == labels.device == torch.device("cuda", 0)
            assert right(images, labels, 8 * number)


def test_without_workers():
    for number, (images, labels) in enumerate(DataLoader(datasets.Numbered(), 4, device="cuda")):
        assert images.is_cuda
        assert right(images, labels, 4 * number)


@pytest.mark.parametrize("collate", [datasets.as_record, datasets.as_box, datasets.odd])
def test_a_batch_is_the_same_with_workers_and_without(collate):
    alone, over_workers = (
        list(DataLoader(datasets.Numbered(), 4, num_workers=n, collate_fn=collate, device="cuda"))
        for n in (0, 2)
    )
    assert same(alone, over_workers)
    assert devices(alone) == devices(over_workers)
    assert "cuda:0" in devices(alone)


def devices(batch: Any) -> list[str]:
    """Of all tensors in it, in order."""
    if isinstance(batch, torch.Tensor):
        return [str(batch.device)]
    if isinstance(batch, (datasets.Box, datasets.Record)):
        return devices(vars(batch))
    if isinstance(batch, dict):
        return devices(list(batch.values()))
    if isinstance(batch, (list, tuple)):
        return [each for part in batch for each in devices(part)]
    return []


def test_structures_on_the_gpu():
    loader = DataLoader(datasets.Structures(), 4, num_workers=2, device="cuda")
    expected = list(torch.utils.data.DataLoader(datasets.Structures(), 4))
    for _ in range(2):
        for ours, theirs in zip(loader, expected, strict=True):
            assert type(ours["pair"]) is datasets.Pair
            assert ours["pair"].b["deep"][1] == theirs["pair"].b["deep"][1]
            for key in ("array", "number", "bool", "brain", "empty"):
                assert ours[key].is_cuda
                assert torch.equal(ours[key].cpu(), theirs[key])


def test_a_slot_is_not_written_while_its_copy_waits():
    """The stream is held, so no copy begins before several laps of the rings were asked for."""
    loader = DataLoader(datasets.Numbered(4000, 3, 64, 64), 8, num_workers=2, device="cuda")
    batches = iter(loader)
    for _ in range(20):
        next(batches)
    torch.cuda.synchronize()
    kept = []
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)
        kept += [next(batches) for _ in range(4)]
        assert not stream.query()
        kept += [next(batches) for _ in range(40)]
    stream.synchronize()
    for number, (images, labels) in enumerate(kept, 20):
        assert right(images, labels, 8 * number)


def test_batches_that_are_kept():
    loader = DataLoader(datasets.Numbered(400, 3, 128, 128), 4, num_workers=2, device="cuda")
    for number, (images, labels) in enumerate(list(loader)):
        assert right(images, labels, 4 * number)
        assert labels.untyped_storage().nbytes() == labels.nbytes


@pytest.mark.parametrize("collate", [None, datasets.as_box])
def test_pinned_memory(collate):
    loader = DataLoader(
        datasets.Numbered(200, 64, 64), 4, num_workers=2, pin_memory=True, collate_fn=collate
    )
    for _ in range(2):
        for number, batch in enumerate(loader):
            images = batch[0] if collate is None else batch.tensor
            assert images.is_pinned()
            assert (images[0] == 4 * number % 251).all()
            if collate is None:
                assert batch[1].is_pinned()


def test_ragged_batches_on_the_gpu():
    loader = DataLoader(datasets.Ragged(60), 1, num_workers=2, device="cuda")
    for number, batch in enumerate(loader):
        assert batch.shape == (1, 1000 * (number + 1))
        assert (batch == number).all()


def test_a_killed_worker():
    loader = DataLoader(datasets.Deadly(), 2, num_workers=2, device="cuda")
    with pytest.raises(RuntimeError, match=r"Worker 0 .* at sample 13, .* batch 6 \(samples"):
        list(loader)
