"""Data sets and programs for the tests of DataLoader.  Workers that are spawned import them."""

from __future__ import annotations

import os
import signal
import sys
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import gpuring.torch

Pair = namedtuple("Pair", "a b")


class Numbered(Dataset[Any]):
    """Sample k says k in each of its tensors."""

    def __init__(self, n: int = 40, *shape: int) -> None:
        self._n, self._shape = n, shape or (3, 5)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, k: int) -> Any:
        return torch.full(self._shape, k % 251, dtype=torch.uint8), k


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


class Random(Numbered):
    """What the seeds of a worker give."""

    def __getitem__(self, k: int) -> Any:
        return torch.rand(3), np.random.rand(), k


class Ragged(Numbered):
    """Each batch of one is larger than that before."""

    def __getitem__(self, k: int) -> Any:
        return torch.full((1000 * (k + 1),), k)


class Stream(IterableDataset[Any]):
    """Worker k has 5 + 4 k samples."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        number = 0 if info is None else info.id
        return iter([torch.tensor([number, k]) for k in range(5 + 4 * number)])


class Wrong(Numbered):
    def __getitem__(self, k: int) -> Any:
        if k == 13:
            raise KeyError("sample 13")
        return super().__getitem__(k)


class Deadly(Numbered):
    def __getitem__(self, k: int) -> Any:
        if k == 13 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(k)


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
    """What cannot lie in a slot, and what lies there in an order of its own."""
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
    """A program that loads for ever.  It says the pids of its workers."""
    loader: Any = gpuring.torch.DataLoader(
        Numbered(1 << 20, 100, 100), 4, num_workers=2, persistent_workers=kind == "persistent"
    )
    batches = iter(loader)
    for number, _ in enumerate(batches):
        if number == 50:
            print(*(worker.pid for worker in batches._workers), flush=True)
            if kind == "waits":  # while its workers wait for slots
                sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
