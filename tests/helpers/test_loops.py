"""`loops.run`, which the storms use, ends where `asyncio.run` would not."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers import loops


def test_a_task_whose_step_was_lost_is_dropped_and_what_it_had_is_closed(monkeypatch):
    monkeypatch.setattr(loops, "PATIENCE_S", 0.01)
    closed = []

    async def waits():
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    async def main():
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        asyncio.get_running_loop()._ready.clear()  # as an exception after `popleft` does
        assert not task.done()
        del task  # the exception has this frame
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loops.run(main())
    assert closed == [True]
