"""Others who hand frames between processes, each used as its own documentation recommends.

`work` is what is done with each frame, the same for everybody; `peer` is what a peer brings;
`pair` runs the two processes (`player`, `heir`); `measure` verifies a peer, then measures it.  The
others are the peers, one per family, and say where the recommendation stands and what the peer
lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuring.cli.bench.crew import Crew
from gpuring.cli.bench.figures import Figure
from gpuring.cli.bench.peers import cuda_core, host, indices, pinned, torch_queue
from gpuring.cli.bench.peers.measure import measure

PEERS = (*torch_queue.PEERS, *cuda_core.PEERS, *indices.PEERS, *pinned.PEERS, *host.PEERS)


def run(settings: Any, crew: Crew) -> Iterator[Figure]:
    """The figures of all peers, those of the GPU first.

    settings.quick: shorter runs.  settings.mps: whether the Multi-Process Service is on; then those
    in host memory, which it does not concern, are left to the run without it.  A peer that is not
    installed, fails or delivers wrong data gives one figure without values that says so.
    """
    for peer in PEERS:
        if peer.memory == "cuda" or not getattr(settings, "mps", False):
            yield from measure(peer, settings, crew)
