"""Others who hand frames between processes, each used as its own documentation recommends.

`work` is what is done with each frame, the same for everybody. `rival` is what a rival brings.
`pair` runs the two processes, each of them a `player`. `measure` verifies a rival, then measures
it. The other modules are the rivals, one per family; they say where the recommendation stands and
what the rival lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.rivals import cuda_core, host, indices, pinned, torch_queue, vllm_queue
from bench.rivals.measure import measure
from gpuring.cli.measure.crew import Crew
from gpuring.cli.measure.figures import Figure

RIVALS = (
    *torch_queue.RIVALS, *cuda_core.RIVALS, *indices.RIVALS, *pinned.RIVALS, *host.RIVALS,
    *vllm_queue.RIVALS,
)  # fmt: skip


def run(settings: Any, crew: Crew) -> Iterator[Figure]:
    """Yields the figures of all rivals, those of the GPU first.

    settings.quick: shorter runs.  settings.mps: whether the Multi-Process Service is on; then those
    in host memory, which it does not concern, are left to the run without it.  A rival that is not
    installed, fails or delivers wrong data gives one figure without values that says so.
    """
    for rival in RIVALS:
        if rival.memory == "cuda" or not getattr(settings, "mps", False):
            yield from measure(rival, settings, crew)
