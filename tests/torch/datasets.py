"""Data sets and programs for the tests of DataLoader.  Workers that are spawned import them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import namedtuple
from dataclasses import dataclass
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import gpuring.torch
from tests.helpers.processes import poll

Pair = namedtuple("Pair", "a b")


class Numbered(Dataset[Any]):
    """Sample k has the value k in each of its tensors."""

    def __init__(self, n: int = 40, *shape: int) -> None:
        self._n, self._shape = n, shape or (3, 5)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, k: int) -> Any:
        return torch.full(self._shape, k % 251, dtype=torch.uint8), k


class Forgets(Numbered):
    """A forked worker drops its copies of what the main process has kept."""

    kept: ClassVar[list[Any]] = []

    def __getitem__(self, k: int) -> Any:
        self.kept.clear()
        return super().__getitem__(k)


class Structures(Numbered):
    def __getitem__(self, k: int) -> Any:
        image = torch.full((3, 4, 5), float(k))
        return {
            "pair": Pair(image, {"deep": [torch.tensor(k), "text" * k]}),
            "array": np.full((2, 2), k, "i2"),
            "number": 1.5 * k,
            "bytes": b"x",
            "bool": torch.tensor([k % 2 == 0]),
            "brain": image.to(torch.bfloat16),
            "empty": torch.zeros(0, 3),
        }


class OnCuda(Numbered):
    """Sample k is an image on a GPU with the value k.  It is computed there, as by a decoder."""

    device = "cuda:0"
    cycles = 100_000
    """For so long nothing is there yet."""

    def __getitem__(self, k: int) -> Any:
        ones = torch.ones(256, *self._shape, device=self.device)
        with torch.cuda.device(self.device):
            torch.cuda._sleep(self.cycles)
        return ones[: k % 251].sum(0).to(torch.uint8), k


class OnSecondCuda(OnCuda):
    device = "cuda:1"


class LateOnCuda(OnCuda):
    """The GPU computes the image long after the worker has gone on."""

    cycles = 30_000_000


class MixedOnCuda(Numbered):
    """Samples have tensors on the GPU, and all that Structures has."""

    def __getitem__(self, k: int) -> Any:
        sample = Structures.__getitem__(self, k)
        half = torch.full((2, 3), k, dtype=torch.float16, device="cuda")
        return sample | {"there": Pair(half, [torch.tensor([k], device="cuda"), "text"])}


class RaggedOnCuda(Numbered):
    def __getitem__(self, k: int) -> Any:
        return torch.full((1000 * (k + 1),), k, device="cuda")


class DeadlyOnCuda(OnCuda):
    def __getitem__(self, k: int) -> Any:
        if k == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(k)


class UnfinishedOnCuda(OnCuda):
    """When it is armed (1), sample 8 takes the GPU a second.  At sample 12 the worker waits until
    it is armed once more (2), and is killed."""

    def __init__(self, armed: Any) -> None:
        super().__init__()
        self._armed = armed

    def __getitem__(self, k: int) -> Any:
        if self._armed.value:
            self.cycles = 2_000_000_000 if k == 8 else OnCuda.cycles
            if k == 12:
                assert poll(lambda: self._armed.value == 2)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(k)


class OfCupy(Numbered):
    """Images in memory that torch has not allocated, as those of a decoder."""

    def __getitem__(self, k: int) -> Any:
        import cupy

        return torch.from_dlpack(cupy.full(self._shape, k % 251, "u1")), k


class Random(Numbered):
    """Samples of the random numbers that a worker's seeds give."""

    def __getitem__(self, k: int) -> Any:
        return torch.rand(3), np.random.rand(), k


class Ragged(Numbered):
    """Each sample is larger than the one before it."""

    def __getitem__(self, k: int) -> Any:
        return torch.full((1000 * (k + 1),), k)


class Stream(IterableDataset[Any]):
    """Worker k has 5 + 4 k samples."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        number = 0 if info is None else info.id
        return iter([torch.tensor([number, k]) for k in range(5 + 4 * number)])


class Longer(Stream):
    """A stream with more samples than its length says."""

    def __len__(self) -> int:
        return 2


class Wrong(Numbered):
    def __getitem__(self, k: int) -> Any:
        if k == 13:
            raise KeyError("sample 13")
        return super().__getitem__(k)


class WrongInItsOwnWay(Numbered):
    def __getitem__(self, k: int) -> Any:
        class OfNoModuleError(Exception):
            """An error that cannot be pickled."""

        if k == 13:
            raise OfNoModuleError("sample 13")
        return super().__getitem__(k)


class Unreachable(Numbered):
    """A worker stops at sample 2, and nobody can fetch anything from it."""

    def __init__(self, there: Any) -> None:
        super().__init__()
        self._there = there

    def __getitem__(self, k: int) -> Any:
        if k == 2:
            resource_sharer.stop()
            self._there.set()
            signal.pause()
        return super().__getitem__(k)


class Gated(Numbered):
    """A worker waits for the gate from some sample on."""

    def __init__(self, gate: Any, first: int) -> None:
        super().__init__()
        self._gate, self._first = gate, first

    def __getitem__(self, k: int) -> Any:
        if k >= self._first:
            self._gate.wait()
        return super().__getitem__(k)


class Deadly(Numbered):
    def __getitem__(self, k: int) -> Any:
        if k == 13 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(k)


class DeadlyAtOnce(Deadly):
    """Gets the samples of a batch in one call, and begins with the last one."""

    def __getitems__(self, samples: list[int]) -> list[Any]:
        assert type(samples) is list
        return [self[k] for k in reversed(samples)]


class DeadlyStream(IterableDataset[Any]):
    """Worker 1 dies at the sample after six others."""

    def __iter__(self) -> Any:
        for k in range(40):
            if k == 6 and get_worker_info().id == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield torch.tensor(k)


def deadly_collate(samples: list[Any]) -> Any:
    if samples[0][1] == 12:
        os.kill(os.getpid(), signal.SIGKILL)
    return samples


@dataclass
class Record:
    """A batch of a user's own type."""

    images: Any
    rest: Any


def as_record(samples: list[Any]) -> Any:
    images = torch.stack([image for image, _ in samples]).float()
    labels = torch.tensor([k for _, k in samples])
    return Record(
        images,
        {
            "labels": [labels, labels],
            "inner": Record(labels[::2].clone(), "text"),
            "sparse": images.to_sparse(),
            "gradient": torch.ones(2, requires_grad=True),
            "array": np.arange(3),
        },
    )


class Box:
    """A batch of a user's own type."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


def as_list(samples: list[Any]) -> Any:
    return [image for image, _ in samples], np.array([k for _, k in samples], "i4")


def as_box(samples: list[Any]) -> Any:
    return Box(torch.stack([image for image, _ in samples]))


def odd(samples: list[Any]) -> Any:
    """Makes tensors that cannot lie in a slot, and some with an order of their own there."""
    images = torch.stack([image for image, _ in samples]).float()
    same = torch.arange(4)
    return {
        "sparse": images.to_sparse(),
        "last": images.reshape(len(samples), 3, 5, 1).to(memory_format=torch.channels_last),
        "every other": images[:, ::2],
        "transposed": images.transpose(0, 1),
        "expanded": torch.ones(1).expand(7),
        "gradient": torch.ones(3, requires_grad=True),
        "scalar": torch.tensor(3.5),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "same": [same, same],
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "objects": np.array(["a", None], object),
        "time": np.array(["2026-11-27"], "M8[D]"),
    }


def rings() -> set[str]:
    """The segments of loaders of this process."""
    return {each.name for each in Path("/dev/shm").glob(f"gpuring*loader-{os.getpid()}-*")}


def main(kind: str) -> None:
    """A program that loads for ever.  It prints the pids of its workers."""
    on_gpu = kind == "cuda"
    loader: Any = gpuring.torch.DataLoader(
        (OnCuda if on_gpu else Numbered)(1 << 20, 100, 100),
        4,
        num_workers=2,
        persistent_workers=kind == "persistent",
        multiprocessing_context="spawn" if on_gpu else None,
    )
    batches = iter(loader)
    for number, _ in enumerate(batches):
        if number == 50:
            print(*(worker.pid for worker in batches._workers), flush=True)
            if kind == "waits":  # while its workers wait for slots
                sys.stdin.read()


def go_on() -> None:
    """A program that goes on with its loop after a Ctrl-C.  It prints the pids of its workers when
    it waits for them, and then how many batches came after the Ctrl-C and in the next loop."""
    gate = multiprocessing.Event()
    loader: Any = gpuring.torch.DataLoader(
        Gated(gate, 8), 4, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    )
    batches = iter(loader)
    next(batches), next(batches)

    def tell() -> None:
        assert poll(lambda: batches._data_queue.waits)
        print(*(worker.pid for worker in batches._workers), flush=True)

    threading.Thread(target=tell).start()
    try:
        next(batches)
    except KeyboardInterrupt:
        gate.set()
    print(len(list(batches)), len(list(loader)))


if __name__ == "__main__":
    go_on() if sys.argv[1] == "goes on" else main(sys.argv[1])
