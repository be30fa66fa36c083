"""gpuring.torch.DataLoader compared with torch's own, with the same dataset, workers and batches.

    python -m bench.loader [--rounds 2] [--seconds 2] [--only CASE …] [--json FILE] [--host]

On a GPU these loaders take turns in each round:

* `gpuring`: with device="cuda".
* `torch pinned`: torch's with pin_memory=True, and an asynchronous copy of each tensor to the GPU.
* `torch`: torch's without it, and a copy of each tensor to the GPU.
* `by hand`: no loader, but rings that are made by hand for these images (by_hand.py).  It is there
  where a batch is images and labels in host memory.

With --host there is no GPU, and tensors are in host memory.

Samples are views of images that the worker has in memory, so most cases measure the hand-over.  The
exceptions are `GPU workers`, whose images a worker has on the GPU and brightens there, so that
torch's loader passes them by its own CUDA IPC; `jpeg`, whose workers decode; and `train`, which
trains a small residual network with each batch. There `no loader` is the same step with one batch
that is on the GPU already.

* `batches`: in a second, once all workers are at work.
* `bandwidth`: the bytes of the tensors in these.
* `cpu`: of the main process, with all of its threads, for each batch.
* `step`: of `train`, from batch to batch.

Before a clock runs, the first batches are compared with the samples.  It takes about four minutes.
"""

from __future__ import annotations

import contextlib
import gc
import io
import sys
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import DataLoader, Dataset

import gpuring.torch
from bench import by_hand, options
from gpuring.cli.measure import stored
from gpuring.cli.measure.figures import VERIFICATION_FAILED, Distribution, Figure

GROUP = "loader"
POOL = 32
"""So many different samples a dataset has."""
COMPARED = 8
"""So many batches are compared."""
LONG = 1 << 22
"""The samples of an epoch: more than any run takes."""


class Images(Dataset[Any]):
    """Views of random images in memory, each with a label."""

    def __init__(self, *shape: int) -> None:
        self._shape = shape
        self._pool: Any = None

    def _samples(self) -> Any:
        if self._pool is None:  # in the worker, so that nothing is pickled
            self._pool = torch.from_numpy(
                np.random.default_rng(0).integers(0, 256, (POOL, *self._shape), "u1")
            )
        return self._pool

    def __len__(self) -> int:
        return LONG

    def __getitem__(self, index: int) -> Any:
        return self._samples()[index % POOL], index


class OnGpu(Images):
    """The same images on the GPU.  Each is made brighter there, as if a decoder made it."""

    def _samples(self) -> Any:
        if self._pool is None:
            self._pool = Images(*self._shape)._samples().to("cuda")
        return self._pool

    def __getitem__(self, index: int) -> Any:
        return self._samples()[index % POOL] + 1, index


class Detection(Images):
    """Images of different sizes, each with five tensors of what is on it."""

    def __getitem__(self, index: int) -> Any:
        height, width = 320 + 32 * (index % 7), 320 + 32 * (index % 5)
        n = index % 9 + 1
        return self._samples()[index % POOL, :, :height, :width], {
            "boxes": torch.full((n, 4), float(index)),
            "labels": torch.full((n,), index),
            "area": torch.full((n,), float(index)),
            "iscrowd": torch.zeros(n, dtype=torch.uint8),
            "image_id": torch.tensor(index),
        }


class Jpegs(Images):
    """The same images as JPEG, which are decoded for each sample."""

    def _samples(self) -> Any:
        if self._pool is None:
            from PIL import Image

            smooth = np.random.default_rng(0).integers(0, 256, (POOL, 14, 14, 3), "u1")
            self._pool = []
            for each in smooth:
                file = io.BytesIO()
                Image.fromarray(each).resize((self._shape[2], self._shape[1])).save(
                    file, "JPEG", quality=90
                )
                self._pool.append(file.getvalue())
        return self._pool

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        with Image.open(io.BytesIO(self._samples()[index % POOL])) as image:
            return torch.from_numpy(np.array(image)).permute(2, 0, 1), index


def together(samples: list[Any]) -> Any:
    """The collate_fn of detection: the images stay as they are."""
    return [image for image, _ in samples], [target for _, target in samples]


Case = tuple[Dataset[Any], int, int, Any]
"""The dataset, samples of a batch, workers, the collate_fn."""


def cases(on_gpu: bool) -> dict[str, Case]:
    full, hd = (224, 224), (1080, 1920)
    some, many = 4, 12
    if not on_gpu:
        full, hd, some, many = (56, 56), (270, 480), 1, 2
    tiny = Images(3, 32, 32)
    gpu_workers: dict[str, Case] = {
        "GPU workers": (OnGpu(3, *full), 256, some, None),
        "GPU workers, tiny": (OnGpu(3, 32, 32), 64, some, None),
    }
    return {
        "256×3×224×224": (Images(3, *full), 256, some, None),
        "256×3×224×224, more workers": (Images(3, *full), 256, many, None),
        "16×3×1080×1920": (Images(3, *hd), 16, some, None),
        "16×3×1080×1920, more workers": (Images(3, *hd), 16, many, None),
        "64×3×32×32": (tiny, 64, some, None),
        "64×3×32×32, more workers": (tiny, 64, many, None),
        "detection": (Detection(3, 512, 448), 19, some, together),
        "jpeg": (Jpegs(3, *full), 64, many, None),
        "train": (Images(3, *full), 128, many, None),
        **(gpu_workers if on_gpu else {}),
    }


def contenders(case: Case, on_gpu: bool) -> tuple[str, ...]:
    """The loaders that can load this case.  Tensors on a GPU cannot be pinned."""
    can_pin = on_gpu and not isinstance(case[0], OnGpu)
    pinned = ("torch pinned",) if can_pin else ()
    plain = ("by hand",) if type(case[0]) is Images else ()
    return ("gpuring", *pinned, "torch", *plain)


def batches_of(whose: str, case: Case, on_gpu: bool) -> Generator[Any, None, None]:
    """The batches, on the GPU if there is one.  The workers end when it is closed."""
    dataset, size, workers, collate_fn = case
    if whose == "by hand":
        yield from by_hand.batches(dataset, size, workers, on_gpu)
    kind: Any = gpuring.torch.DataLoader if whose == "gpuring" else DataLoader
    more: dict[str, Any] = {"device": "cuda"} if whose == "gpuring" and on_gpu else {}
    start = {"multiprocessing_context": "spawn"} if isinstance(dataset, OnGpu) else {}
    pinned = whose == "torch pinned"
    loader: Any = kind(
        dataset,
        size,
        num_workers=workers,
        collate_fn=collate_fn,
        pin_memory=pinned,
        **start,
        **more,
    )
    for batch in loader:
        yield tree_map(_to_gpu, batch) if on_gpu and not more else batch


def _to_gpu(leaf: Any) -> Any:
    return leaf.to("cuda", non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf


def wait(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def verify(batches: Iterator[Any], case: Case) -> None:
    dataset, size, _, collate_fn = case
    collate = collate_fn or torch.utils.data.default_collate
    for number in range(COMPARED):
        found, _ = tree_flatten(next(batches))
        expected, _ = tree_flatten(collate([dataset[number * size + k] for k in range(size)]))
        if len(found) != len(expected) or not all(
            torch.equal(a.cpu(), b.cpu()) for a, b in zip(found, expected, strict=True)
        ):
            raise RuntimeError(f"{VERIFICATION_FAILED}: batch {number} arrived damaged")


def measure(
    whose: str, case: Case, seconds: float, on_gpu: bool, step: Callable[[Any], None] | None
) -> dict[str, float]:
    """One turn of one loader."""
    _, _, workers, _ = case
    taken, nbytes = 0, 0
    with contextlib.closing(batches_of(whose, case, on_gpu)) as batches:
        verify(batches, case)
        for _ in range(4 * workers + 8):  # afterwards all rings are there, and all memory was used
            batch = next(batches)
            if step is not None:
                step(batch)
        wait(on_gpu)
        leaves, _ = tree_flatten(batch)
        nbytes = sum(leaf.nbytes for leaf in leaves)
        begun, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - begun < seconds:
            batch = next(batches)
            if step is not None:
                step(batch)
            taken += 1
        wait(on_gpu)
        took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    found = {"cpu": 1e3 * cpu / taken}
    if step is not None:
        return found | {"step": 1e3 * took / taken}
    return found | {"batches": taken / took, "bandwidth": nbytes * taken / took / 1e9}


# ---- a training step -----------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self._way = torch.nn.Sequential(
            torch.nn.Conv2d(before, after, 3, 2, 1, bias=False),
            torch.nn.BatchNorm2d(after),
            torch.nn.ReLU(),
            torch.nn.Conv2d(after, after, 3, 1, 1, bias=False),
            torch.nn.BatchNorm2d(after),
        )
        self._short = torch.nn.Conv2d(before, after, 1, 2)

    def forward(self, x: Any) -> Any:
        return torch.relu(self._way(x) + self._short(x))


def training(on_gpu: bool) -> Callable[[Any], None]:
    """A step of a small residual network."""
    net = torch.nn.Sequential(
        *(Block(3, 32), Block(32, 64), Block(64, 128), Block(128, 256)),
        *(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(256, POOL)),
    )
    net.to("cuda" if on_gpu else "cpu")
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(batch: Any) -> None:
        images, labels = batch
        with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
            loss = torch.nn.functional.cross_entropy(net(images.float() / 255), labels % POOL)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def without_loader(case: Case, step: Callable[[Any], None], seconds: float, on_gpu: bool) -> float:
    """Milliseconds of a training step with one batch that is on the GPU already."""
    dataset, size, _, _ = case
    batch = torch.utils.data.default_collate([dataset[k] for k in range(size)])
    if on_gpu:
        batch = tree_map(_to_gpu, batch)
    step(batch)
    wait(on_gpu)
    begun, steps = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        step(batch)
        steps += 1
        if steps % 8 == 0:
            wait(on_gpu)
    wait(on_gpu)
    return 1e3 * (time.perf_counter() - begun) / steps


# ---- the run -------------------------------------------------------------------------------------

UNITS = {"batches": "batches/s", "bandwidth": "GB/s", "cpu": "ms", "step": "ms"}


def figures(only: list[str], rounds: int, seconds: float, on_gpu: bool) -> Iterator[Figure]:
    if on_gpu and not torch.cuda.is_available():
        yield Figure(GROUP, "all", "gpuring", "", skipped="torch has no GPU")
        return
    for name, case in cases(on_gpu).items():
        if only and name not in only:
            continue
        who = contenders(case, on_gpu)
        setting: dict[str, Any] = {
            "case": name.partition(", more")[0],
            "workers": case[2],
            "samples": case[1],
        }
        found: dict[tuple[str, str], list[float]] = {}
        try:
            step = training(on_gpu) if name == "train" else None
            for _ in range(rounds):
                for whose in who:
                    for what, value in measure(whose, case, seconds, on_gpu, step).items():
                        found.setdefault((what, whose), []).append(value)
                    gc.collect()
                if step is not None:
                    alone = without_loader(case, step, seconds, on_gpu)
                    found.setdefault(("step", "no loader"), []).append(alone)
        except (RuntimeError, ImportError, OSError, gpuring.RingError) as error:
            yield Figure(GROUP, "all", "gpuring", "", setting, skipped=str(error))
            continue
        verified = f"the first {COMPARED} batches"
        for (what, whose), values in found.items():
            yield Figure(
                GROUP, what, whose, UNITS[what], setting, Distribution.of(values), verified
            )
        for whose in who[1:]:
            if step is None:
                pairs = zip(found["batches", "gpuring"], found["batches", whose], strict=True)
                ratios = Distribution.of([ours / theirs for ours, theirs in pairs])
                yield Figure(GROUP, "batches beside", whose, "×", setting, ratios, verified)


def main() -> int:
    parser = options.parser("python -m bench.loader", __doc__)
    options.add_rounds(parser, 2)
    options.add_seconds(parser, 2.0)
    options.add_only(parser, cases(on_gpu=True), "CASE")
    options.add_json(parser)
    parser.add_argument("--host", action="store_true", help="no GPU, and small sizes")
    args = parser.parse_args()
    run = figures(args.only or [], args.rounds, args.seconds, not args.host)
    return stored.run(run, sys.argv[1:], args.json).status


if __name__ == "__main__":
    options.run(main)
