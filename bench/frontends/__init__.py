"""Front ends and engines that pass photos, over a ring and over what people use today.

    python -m bench.frontends                from the root of a checkout; about two minutes
    python -m bench.frontends --device host --size 320x180 --seconds 1

`transport` is what a way of passing them brings; `ring`, `queues` and `blocks` are those ways.
`roles` are the processes, the same for all ways: workers decode a photo, pass it on, and encode
what comes back, and engines run the model.  `light` is a load in which little but the hand-over is
left.  `measure` verifies, measures and kills.  The codec, the model, the photos and the HTTP client
are those of examples/upscale_frontends.py.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any


def example(part: str) -> Any:
    """A module of the example: "upscale_frontends" or "upscale_load"."""
    place = str(Path(__file__).parents[2] / "examples")
    if place not in sys.path:
        sys.path.append(place)
    return importlib.import_module(part)


def ways() -> dict[str, Any]:
    """All ways of passing photos, by name."""
    from bench.frontends import blocks, queues, ring

    return {each.name: each for each in (*ring.TRANSPORTS, *queues.TRANSPORTS, blocks.TRANSPORT)}
