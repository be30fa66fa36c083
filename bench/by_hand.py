"""What bench/loader.py compares with, if somebody makes the rings by hand: images and labels only.

Each worker has a ring whose frames are whole batches as bytes: the images, and then the labels.  It
stacks straight into a slot.  The reader takes the workers in turn.  On a GPU the rings are pinned,
and a frame comes by one asynchronous copy.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import gpuring
from gpuring.cli.measure.settings import ring_name

SLOTS = 3  # two that wait, as with prefetch_factor=2, and one that is read
PATIENCE_S = 60.0


def batches(dataset: Any, size: int, workers: int, on_gpu: bool) -> Iterator[tuple[Any, Any]]:
    """Yields batches of samples.  A sample is an image and its label."""
    image, _ = dataset[0]
    nbytes = size * (image.nbytes + 8)
    spawn = multiprocessing.get_context("spawn")
    memory: Any = "pinned" if on_gpu else "auto"
    device = "cuda" if on_gpu else "host"
    rings = [
        gpuring.create(
            ring_name(), slots=SLOTS, shape=nbytes, dtype="u1", device=device, memory=memory
        )
        for _ in range(workers)
    ]
    at_work = [
        spawn.Process(target=_work, args=(ring.name, dataset, size, number, workers), daemon=True)
        for number, ring in enumerate(rings)
    ]
    try:
        readers = [ring.consumer() for ring in rings]
        for each in at_work:
            each.start()
        for reader in itertools.cycle(readers):
            on = torch.cuda.current_stream() if on_gpu else None
            batch = torch.empty(nbytes, dtype=torch.uint8, device="cuda" if on_gpu else "cpu")
            with reader.acquire(PATIENCE_S, stream=on) as slot:
                slot.copy_to(batch, stream=on)
            yield _parts(batch, image.shape, size)
    finally:
        for each in at_work:
            each.kill()
            each.join()
        for ring in rings:
            ring.close()


def _parts(frame: torch.Tensor, shape: Any, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = frame.numel() - 8 * size
    return frame[:labels].view(size, *shape), frame[labels:].view(torch.int64)


def _work(name: str, dataset: Any, size: int, first: int, step: int) -> None:
    torch.set_num_threads(1)
    with gpuring.attach(name, device=None) as ring, ring.producer() as producer:
        for batch in itertools.count(first, step):
            numbers = range(batch * size, (batch + 1) * size)
            samples = [dataset[number] for number in numbers]
            with producer.claim(PATIENCE_S) as slot:
                images, labels = _parts(torch.from_numpy(slot.array), samples[0][0].shape, size)
                np.stack([each.numpy() for each, _ in samples], out=images.numpy())
                labels.numpy()[:] = [label for _, label in samples]
