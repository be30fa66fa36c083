"""What a worker does before its first task.

A terminal sends a Ctrl-C to all processes of a program.  torch's workers end at it, so a loop that
the main process wants to go on with would have none.  Here they go on, and the main process ends
them.  Programs that a worker starts end at a Ctrl-C as ever.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuring.torch.packing import Packing
    from gpuring.torch.progress import Progress


class Start:
    """The worker_init_fn of each worker."""

    def __init__(
        self, progress: Progress, packing: Packing, init: Callable[[int], None] | None
    ) -> None:
        """`init`: the user's own worker_init_fn."""
        self._progress, self._packing, self._init = progress, packing, init

    def __call__(self, worker: int) -> None:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _go_on)  # SIG_IGN would be inherited by other programs
        self._progress.start(worker, self._packing.join)
        if self._init is not None:
            self._init(worker)


def _go_on(_number: int, _frame: object) -> None:
    pass
