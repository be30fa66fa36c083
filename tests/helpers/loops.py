"""`asyncio.run` for programs whose signal handlers raise.

Where a handler raises in the event loop's own code, the loop loses a callback that it had taken
from its queue.  If that was the step of a task, nothing resumes this task any more, not even to
cancel it, and `asyncio.run` waits for it for ever.  Python's documentation warns of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

PATIENCE_S = 5.0
"""For the tasks that were cancelled.  Those that are left then are dropped."""


def run(main: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(main)
    finally:
        try:
            _end_tasks(loop)  # raises again where a task has passed on what another one raised
        finally:
            loop.close()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE_S))
