"""Workers whose samples are on a GPU, which is made up (shared_gpu.py).

tests/gpu/test_gpu_loader.py has a real one.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import gpuring
from gpuring.torch import DataLoader, inlet, packing, parcel
from tests.helpers.interrupted import at_each_place
from tests.helpers.processes import open_files, poll
from tests.memory.fake_gpu import forget
from tests.torch import datasets
from tests.torch.batches import same
from tests.torch.interrupted import SignalInTorch, check_interrupted
from tests.torch.shared_gpu import SharedGpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedGpu]:
    made = SharedGpu()
    made.put_in_place_of_cuda(monkeypatch)
    yield made
    gc.collect()
    assert not datasets.rings()
    assert made.kept() == []
    forget()


@pytest.fixture
def laid(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The places of each batch that came in slots."""
    came: list[tuple[int, ...]] = []
    opened = inlet.Inlet.open

    def noting(self: Any, arrived: parcel.Parcel, *, pinned: bool) -> Any:
        if arrived.leaves is None:
            came.append(tuple(part.place for part in arrived.parts))
        return opened(self, arrived, pinned=pinned)

    monkeypatch.setattr(inlet.Inlet, "open", noting)
    return came


class OnGpu(datasets.Numbered):
    """The images are on the GPU, and the numbers are not."""

    def __init__(self, gpu: SharedGpu, n: int = 40, *shape: int) -> None:
        super().__init__(n, *shape)
        self._gpu = gpu

    def __getitem__(self, k: int) -> Any:
        image, number = super().__getitem__(k)
        return self._gpu.tensor(image), number


def loader(dataset: Any, batch_size: int | None = 4, **more: Any) -> DataLoader[Any]:
    options = {"num_workers": 2, "multiprocessing_context": "fork", **more}
    return DataLoader(dataset, batch_size, **options)


def test_images_come_on_the_gpu_and_labels_on_the_host(gpu, laid):
    loading = loader(OnGpu(gpu))
    for _ in range(2):
        for number, (images, labels) in enumerate(loading):
            assert labels.tolist() == [4 * number + k for k in range(4)]
            assert (images == labels[:, None, None]).all()
            assert not gpu.has_tensor(labels)
    assert set(laid) == {(0, -1)}
    assert len(laid) >= 10  # in the second epoch the sizes are known
    others, current = gpu.records()
    assert not others
    assert current == 2 * len(laid)  # once by a worker, and once by the main process


class Mixed(OnGpu):
    def __getitem__(self, k: int) -> Any:
        sample = datasets.Structures.__getitem__(self, k)
        sample["on the GPU"] = self._gpu.tensor(torch.arange(30.0).reshape(2, 3, 5) + k)
        sample["deep"] = [{"there": self._gpu.tensor(torch.tensor([k]))}, "text"]
        return sample


def test_a_batch_may_have_everything(gpu, laid):
    expected = list(torch.utils.data.DataLoader(datasets.Structures(), 4))
    loading = loader(Mixed(gpu))
    for epoch in range(2):
        for number, batch in enumerate(loading):
            there, deep = batch.pop("on the GPU"), batch.pop("deep")
            assert same(batch, expected[number])
            assert there.tolist() == [
                (torch.arange(30.0).reshape(2, 3, 5) + k).tolist()
                for k in range(4 * number, 4 * number + 4)
            ]
            assert deep[0]["there"].flatten().tolist() == [*range(4 * number, 4 * number + 4)]
            assert deep[1] == ("text",) * 4
            assert gpu.has_tensor(there) or not epoch
    assert {*map(frozenset, laid)} == {frozenset({0, -1})}


def as_box(samples: list[Any]) -> Any:
    return datasets.Box([image for image, _ in samples])


def test_what_is_on_the_gpu_alone_has_a_slot_there_alone(gpu, laid):
    """The tensor is in a user's object, and was not stacked."""
    loading = loader(OnGpu(gpu), collate_fn=as_box)
    for _ in range(2):
        for number, box in enumerate(loading):
            assert [int(image.max()) for image in box.tensor] == [
                *range(4 * number, 4 * number + 4)
            ]
    assert set(laid) == {(0,)}


def test_a_worker_takes_the_names_of_its_rings_away_before_it_loads(gpu):
    gate = multiprocessing.Event()
    gate.set()
    loading = loader(Gated(gpu, gate))
    list(loading)
    gate.clear()
    batches = iter(loading)
    assert {place for _, place in batches._inlet._rings} == {0, -1}
    assert poll(lambda: not datasets.rings())
    gate.set()
    assert len(list(batches)) == 10


class Gated(OnGpu):
    def __init__(self, gpu: SharedGpu, gate: Any) -> None:
        super().__init__(gpu)
        self._gate = gate

    def __getitem__(self, k: int) -> Any:
        self._gate.wait()
        return super().__getitem__(k)


class Ragged(OnGpu):
    def __getitem__(self, k: int) -> Any:
        return self._gpu.tensor(torch.full((1000 * (k + 1),), k))


def test_larger_batches_get_larger_rings(gpu, laid):
    for number, batch in enumerate(loader(Ragged(gpu, 30), 1)):
        assert batch.shape == (1, 1000 * (number + 1))
        assert (batch == number).all()
    assert len(laid) > 1  # how many travel as in torch depends on timing


class RaggedOnHost(OnGpu):
    """The tensors on the GPU have one size, and those on the host grow."""

    def __getitem__(self, k: int) -> Any:
        return self._gpu.tensor(torch.tensor(k)), torch.full((1000 * (k + 1),), k)


def test_only_the_ring_that_is_too_small_is_made_again(gpu):
    batches = iter(loader(RaggedOnHost(gpu, 30), 1, num_workers=1))
    for number, (there, here) in enumerate(batches):
        assert there.tolist() == [number]
        assert here.tolist() == [[number] * 1000 * (number + 1)]
        if number == 25:
            generations = batches._inlet._generations[0]
    assert generations[0] == 0
    assert generations[-1] > 1


def test_batches_that_are_kept_have_memory_of_their_own(gpu):
    loading = loader(OnGpu(gpu, 60, 200, 400), 2)
    list(loading)
    for number, (images, _) in enumerate(list(loading)):
        assert (images[0] == 2 * number).all()
        assert gpu.has_tensor(images)


def test_without_memory_on_the_gpu_batches_travel_as_in_torch(gpu, laid):
    gpu.full = True
    loading = loader(OnGpu(gpu))
    with pytest.warns(RuntimeWarning, match="batches on GPU 0 of DataLoader travel as in torch"):
        numbers = [int(images[0, 0, 0]) for images, _ in loading]
    assert numbers == [*range(0, 40, 4)]
    assert not laid


def test_workers_that_cannot_join_a_ring_on_the_gpu_go_on(gpu, laid):
    gpu.cannot_be_opened = True
    loading = loader(OnGpu(gpu))
    for _ in range(2):
        assert [labels[0].item() for _, labels in loading] == [*range(0, 40, 4)]
    assert not laid


@pytest.mark.parametrize("error", [gpuring.DeviceError, RuntimeError])
def test_a_worker_that_cannot_join_a_ring_on_the_gpu_says_so_once(monkeypatch, error):
    def refuse(_name: str, _place: int) -> Any:
        raise error("it is far away")

    monkeypatch.setattr(packing, "Outlet", refuse)
    monkeypatch.setattr(packing, "_worker", lambda: 0)
    joining = packing.Packing(list, "loader", arrays=True, known=(0,))
    with pytest.warns(RuntimeWarning, match=r"GPU 0 travel as in torch.* \(it is far away"):
        joining.join()
    with warnings.catch_warnings(record=True) as more:
        joining.join()
    assert not more


def files() -> Counter[str]:
    """The open files, without pidfds: a watchdog opens one for each peer at its next look."""
    return Counter(file for file in open_files().values() if file != "anon_inode:[pidfd]")


def test_persistent_workers_keep_their_rings_and_descriptors(gpu, laid):
    loading = loader(OnGpu(gpu), persistent_workers=True)
    list(loading)
    before = files()
    for _ in range(3):
        assert [labels[0].item() for _, labels in loading] == [*range(0, 40, 4)]
        assert poll(lambda: files() == before)
    assert len(laid) >= 30


class Deadly(OnGpu):
    """A dataset with which, in its second epoch, the GPU stops before sample 8, and the worker is
    killed at sample 12."""

    def __init__(self, gpu: SharedGpu, armed: Any) -> None:
        super().__init__(gpu)
        self._armed = armed

    def __getitem__(self, k: int) -> Any:
        if self._armed.value:
            self._gpu.finishes = k < 8
            if k == 12:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(k)


def test_a_killed_worker_is_named_and_takes_no_batch_along(gpu):
    armed = multiprocessing.Value("i", 0)
    loading = loader(Deadly(gpu, armed), num_workers=1)
    list(loading)
    armed.value = 1
    came: list[Any] = []
    with pytest.raises(RuntimeError, match=r"^DataLoader worker .* at sample 12, in batch 3, and"):
        came.extend(loading)
    for number, (images, labels) in enumerate(came):
        assert labels[0] == images[0, 0, 0] == 4 * number


def test_a_batch_that_a_gpu_had_not_made_is_an_error_of_its_dead_worker(gpu):
    """The batch comes through the queue, where torch's handler of SIGCHLD does not look."""
    armed = multiprocessing.Value("i", 0)
    loading = loader(Deadly(gpu, armed), num_workers=1, prefetch_factor=4)
    list(loading)
    armed.value = 1
    of_torch = signal.getsignal(signal.SIGCHLD)
    batches = iter(loading)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        (ring,) = (each.ring for key, each in batches._inlet._rings.items() if key[1] == 0)
        assert poll(lambda: ring.stats().reaps == 1)
        assert [next(batches)[1][0].item() for _ in range(2)] == [0, 4]
        with pytest.raises(RuntimeError, match=r"killed before its GPU had made .* at sample 12"):
            next(batches)
    finally:
        signal.signal(signal.SIGCHLD, of_torch)


class DeadlyLater(Deadly):
    """The worker is killed only when the test says so."""

    def __getitem__(self, k: int) -> Any:
        if self._armed.value and k == 12:
            assert poll(lambda: self._armed.value == 2)
        return super().__getitem__(k)


def test_a_batch_that_was_taken_before_a_gpu_had_made_it_is_named(gpu):
    armed = multiprocessing.Value("i", 0)
    loading = loader(DeadlyLater(gpu, armed), num_workers=1, timeout=1)
    list(loading)
    armed.value = 1
    of_torch = signal.getsignal(signal.SIGCHLD)
    batches = iter(loading)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        assert [next(batches)[1][0].item() for _ in range(3)] == [0, 4, 8]
        armed.value = 2
        ring = batches._inlet._rings[0, 0].ring
        assert poll(lambda: ring.stats().reaps == 1)
        said = r"at sample 12, .* GPU had not made what came as batch 2 \(samples \[8, 9, 10, .*\.$"
        with pytest.raises(RuntimeError, match=said):
            next(batches)
    finally:
        signal.signal(signal.SIGCHLD, of_torch)


@pytest.mark.slow
def test_after_a_ctrl_c_a_loop_with_a_ring_on_the_gpu_goes_on_or_raises(gpu):
    loading = loader(OnGpu(gpu, 12), 2, num_workers=1, persistent_workers=True)
    for interrupt in at_each_place(SignalInTorch, step=13):
        check_interrupted(interrupt, loading, 2)
