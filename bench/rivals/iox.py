"""An iceoryx2 service in one direction: one publisher, one subscriber, nothing overwritten.

As in the project's examples (examples/python/publish_subscribe and publish_subscribe_dynamic_data
in eclipse-iceoryx/iceoryx2): a typed payload is loaned, written in place and sent, and the reader
asks until there is something.  The examples pause between two questions; here there is no pause,
as in its own benchmark (benchmarks/publish-subscribe), which gives the rival its best latency and
costs it a core.  Safe overflow, which is the default, drops the oldest sample; frames must not be
lost, so it is off and a publisher whose reader is behind retries.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.rivals.rival import RUN_S, SLOTS

_POLLS_PER_YIELD = 64


class Node:
    """A process's node.  Ports and the node are removed when they are dropped."""

    def __init__(self) -> None:
        import iceoryx2

        self._iox = iceoryx2
        iceoryx2.set_log_level_from_env_or(iceoryx2.LogLevel.Error)
        self._node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)

    def _service(self, name: str, payload: Any) -> Any:
        return (
            self._node.service_builder(self._iox.ServiceName.new(name))
            .publish_subscribe(payload)
            .enable_safe_overflow(False)
            .subscriber_max_buffer_size(SLOTS)
            .history_size(0)
            .max_publishers(1)
            .max_subscribers(1)
            .open_or_create()
        )

    def numbers_out(self, name: str) -> Any:
        """A publisher of 64-bit numbers."""
        service = self._service(name, ctypes.c_uint64)
        return service.publisher_builder().backpressure_strategy(self._patient).create()

    def numbers_in(self, name: str) -> Any:
        return self._service(name, ctypes.c_uint64).subscriber_builder().create()

    def frames_out(self, name: str, most_words: int) -> Any:
        """A publisher of arrays of 64-bit words."""
        service = self._service(name, self._iox.Slice[ctypes.c_uint64])
        return (
            service.publisher_builder()
            .initial_max_slice_len(most_words)
            .backpressure_strategy(self._patient)
            .create()
        )

    def frames_in(self, name: str) -> Any:
        service = self._service(name, self._iox.Slice[ctypes.c_uint64])
        return service.subscriber_builder().create()

    @property
    def _patient(self) -> Any:
        return self._iox.BackpressureStrategy.RetryUntilDelivered


def next_sample(receive: Callable[[], Any]) -> Any:
    """The next sample of a subscriber.  Raises TimeoutError."""
    deadline = time.monotonic() + RUN_S
    while True:
        for _ in range(_POLLS_PER_YIELD):
            sample = receive()
            if sample is not None:
                return sample
        os.sched_yield()  # so that on a busy machine the sender gets the core
        if time.monotonic() > deadline:
            raise TimeoutError(f"no sample for {RUN_S:g} s")


@contextlib.contextmanager
def service_name() -> Iterator[str]:
    yield f"gpuring-bench-{secrets.token_hex(6)}"
