"""Two engines, three clients, and an engine that is killed half-way: every call is answered.

On host memory, also where there is a GPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

import numpy as np
from crew import start, together, until
from numpy.random import default_rng

import gpuring
from gpuring.service import Batch

NAME = f"example-{os.getpid()}"
TERMS: dict[str, Any] = {
    "request": ((8, 8), "f4"),
    "response": ((8,), "f4"),
    "request_meta": [("scale", "f4")],
    "device": "host",
}
CALLS = 2000
gpuring.exit_on_sigterm()  # also in the processes that it spawns


def engine(name: str) -> None:
    with gpuring.serve(name, timeout=10) as server:

        @server.batch(max_batch=16, max_wait_s=0.001)
        def scaled_sums(images: Any, calls: Batch) -> Any:
            scales = np.array([call.meta["scale"] for call in calls])
            return images.sum(axis=2) * scales[:, None]

        server.run()  # until the keeper closes the service


def client(name: str, seed: int) -> None:
    random = default_rng(seed)
    with gpuring.connect(name, timeout=10) as service:
        for _ in range(CALLS):
            image = random.random((8, 8), "f4")
            with service.request(timeout=10) as slot:
                slot.array[:], slot.meta["scale"] = image, 2
                call = slot.call
            with call.result(timeout=10) as answer:
                assert np.allclose(answer.array, image.sum(axis=1) * 2)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with gpuring.serve(NAME, **TERMS, engine=False) as keeper, together():
        engines = [start(f"engine {n}", engine, NAME) for n in range(2)]
        clients = [start(f"client {n}", client, NAME, n) for n in range(3)]
        until(lambda: keeper.stats().cursor >= CALLS, [*engines, *clients])  # a third of them
        engines[0].kill()
        for process in clients:
            process.join(60)
            assert process.exitcode == 0, process.exitcode
    engines[1].join(10)
    print(f"{3 * CALLS} calls answered; engine {engines[0].pid} was killed on the way")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # Ctrl-C leaves no traceback
    main()
