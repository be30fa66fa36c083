"""gpuring.torch.DataLoader with a GPU: batches that go there, batches in pinned memory, and workers
that make batches there."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from gpuring.memory.kinds import ON_GPU
from gpuring.torch import DataLoader
from tests.helpers.processes import PATIENCE_S, open_files, poll, runs
from tests.torch import datasets
from tests.torch.batches import same
from tests.torch.programs import left_by, program

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
    """Whether this is the batch of Numbered from sample `first` on."""
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


def test_without_workers_batches_are_on_the_gpu():
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
    """The devices of all tensors in a batch, in order."""
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


def test_batches_on_the_gpu_that_are_kept_stay_as_they_are():
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


# ---- workers that make batches on a GPU ----------------------------------------------------------


def gpu_workers(dataset: Any, batch_size: int = 4, **more: Any) -> Any:
    options = {"num_workers": 2, "multiprocessing_context": "spawn", **more}
    return DataLoader(dataset, batch_size, **options)


def test_what_workers_make_on_a_gpu_is_what_torchs_loader_gives():
    theirs = torch.utils.data.DataLoader(
        datasets.OnCuda(), 4, num_workers=2, multiprocessing_context="spawn"
    )
    expected = [(images.cpu(), labels) for images, labels in theirs]
    loader = gpu_workers(datasets.OnCuda())
    for _ in range(2):
        batches = iter(loader)
        for number, (images, labels) in enumerate(batches):
            assert images.device == torch.device("cuda", 0)
            assert labels.device.type == "cpu"
            assert torch.equal(images.cpu(), expected[number][0])
            assert torch.equal(labels, expected[number][1])
            rings = [each.ring for (_, place), each in batches._inlet._rings.items() if place == 0]
            if number == 7:
                assert len(rings) == 2
                assert {ring.memory for ring in rings} <= {*ON_GPU}
        assert number == 9
        del batches


def test_with_a_device_labels_come_to_the_gpu_as_well():
    for number, (images, labels) in enumerate(gpu_workers(datasets.OnCuda(), device="cuda")):
        assert images.device == labels.device == torch.device("cuda", 0)
        assert right(images, labels, 4 * number)


@pytest.mark.parametrize("persistent", [False, True])
def test_gpu_workers_may_send_everything(persistent):
    expected = list(torch.utils.data.DataLoader(datasets.Structures(), 4))
    loader = gpu_workers(datasets.MixedOnCuda(), persistent_workers=persistent)
    list(loader)
    list(loader)
    before = open_files() if persistent else None
    for _ in range(3):
        for number, batch in enumerate(loader):
            there = batch.pop("there")
            assert type(there) is datasets.Pair
            assert there.a.is_cuda
            assert there.a.dtype == torch.float16
            numbers = [*range(4 * number, 4 * number + 4)]
            assert there.a[:, 1, 2].tolist() == there.b[0].flatten().tolist() == numbers
            assert there.b[1] == ("text",) * 4
            assert same(batch, expected[number])
    if persistent:
        assert poll(lambda: open_files() == before)


def test_the_stream_waits_for_a_batch_that_a_worker_is_still_computing():
    loader = gpu_workers(datasets.LateOnCuda(24), persistent_workers=True)
    list(loader)
    sums = [(images.to(torch.int64).sum((1, 2)), labels) for images, labels in loader]
    for found, labels in sums:
        assert found.tolist() == (15 * labels).tolist()


def test_a_slot_of_a_gpu_is_not_written_while_its_copy_waits():
    batches = iter(gpu_workers(datasets.OnCuda(800, 64, 64), 8))
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


def test_batches_of_gpu_workers_that_are_kept():
    loader = gpu_workers(datasets.OnCuda(120, 128, 128))
    list(loader)
    for number, (images, labels) in enumerate(list(loader)):
        assert right(images, labels, 4 * number)
        assert images.untyped_storage().nbytes() == images.nbytes


def test_ragged_batches_of_gpu_workers():
    for number, batch in enumerate(gpu_workers(datasets.RaggedOnCuda(60), 1)):
        assert batch.is_cuda
        assert batch.shape == (1, 1000 * (number + 1))
        assert (batch == number).all()


def test_images_in_memory_that_torch_has_not_allocated():
    pytest.importorskip("cupy")
    for collate in (None, datasets.as_list):
        loader = gpu_workers(datasets.OfCupy(), collate_fn=collate)
        for _ in range(2):
            for number, (images, _) in enumerate(loader):
                assert all(image.is_cuda for image in images)
                found = [int(image[0, 0]) for image in images]
                assert found == [*range(4 * number, 4 * number + 4)]


def test_a_killed_gpu_worker():
    loader = gpu_workers(datasets.DeadlyOnCuda(), 2)
    came: list[Any] = []
    with pytest.raises(RuntimeError, match=r"Worker 0 .* at sample 13, .* batch 6 \(samples"):
        came.extend(loader)
    assert came
    for number, (images, labels) in enumerate(came[:4]):  # their GPU work was done long before
        assert right(images, labels, 2 * number)


def test_a_batch_that_a_gpu_had_not_made_is_named_when_its_worker_is_killed():
    armed = multiprocessing.get_context("spawn").Value("i", 0)
    loader = gpu_workers(datasets.UnfinishedOnCuda(armed), num_workers=1)
    list(loader)
    armed.value = 1
    batches = iter(loader)
    of_torch = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise anywhere
    try:
        assert [next(batches)[1][0].item() for _ in range(3)] == [0, 4, 8]
        assert not torch.cuda.current_stream().query()
        armed.value = 2
        said = r"at sample 12, .* GPU had not made what came as batch 2 \(samples"
        with pytest.raises(RuntimeError, match=said):
            next(batches)
    finally:
        signal.signal(signal.SIGCHLD, of_torch)


def test_pinned_memory_is_an_error_as_in_torch():
    for kind in (torch.utils.data.DataLoader, DataLoader):
        loader = kind(
            datasets.OnCuda(), 4, num_workers=1, multiprocessing_context="spawn", pin_memory=True
        )
        with pytest.raises(RuntimeError, match="pin"):
            next(iter(loader))


def test_a_forked_worker_says_that_it_has_to_be_spawned():
    torch.ones(1, device="cuda")
    loader = gpu_workers(datasets.OnCuda(), multiprocessing_context="fork")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="spawn"):
            list(loader)


def test_after_a_loop_with_spawned_workers_forked_ones_say_so_as_well():
    """Forked workers know that there is a ring on the GPU, and cannot join it."""
    loader = gpu_workers(datasets.OnCuda())
    list(loader)
    loader.multiprocessing_context = "fork"
    with pytest.raises(RuntimeError, match="spawn"):
        list(loader)


def test_ctrl_c_with_gpu_workers_leaves_nothing():
    with program("cuda") as (process, workers):
        assert len(workers) == 2
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode in (1, -signal.SIGINT)
        assert "KeyboardInterrupt" in said
        assert poll(lambda: not any(map(runs, workers)))
        assert not left_by(process.pid)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@pytest.mark.parametrize("device", [None, "cuda:0", "cuda:1"])
@pytest.mark.parametrize("dataset", [datasets.OnCuda, datasets.OnSecondCuda])
def test_batches_of_gpu_workers_on_two_gpus(dataset, device):
    loader = gpu_workers(dataset(), device=device)
    for _ in range(2):
        for number, (images, labels) in enumerate(loader):
            assert str(images.device) == (device or dataset.device)
            assert right(images, labels, 4 * number)
