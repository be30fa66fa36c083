"""The fake driver with a GPU that is done at once, over a ring in host memory.

It may be told to refuse, and fences may be opened, paid and torn by hand: what a GPU does only on a
bad day.  The fixtures `ring` and `open_fence` make it (conftest.py).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.fake_driver import Driver
from tests.helpers.layout import FIELDS

STREAM = 100
_OPERATIONS = ("write_value", "wait_value", "batch", "event_record", "wait_event")


class InstantDriver(Driver):
    """A driver whose GPU is done at once.  While it is `stuck`, its GPU does nothing."""

    def __init__(self, header):
        super().__init__(header)
        self.segment = SimpleNamespace(
            creator=header, slots=header.slots, max_peers=header.max_peers
        )
        self.stuck = False
        self.has_current_stream = True

    def _enqueued(self, name, stream, words):
        status = super()._enqueued(name, stream, words)
        if not self.stuck:
            self.finish()
        return status

    def refuse(self, status):
        """Makes every operation on a stream return this from now on.  0 means success."""
        self.errors = dict.fromkeys(_OPERATIONS, status) if status else {}


def attach_driver(ring):
    """Gives a GPU to peers of the ring that are made from now on."""
    ring.driver = driver = InstantDriver(ring._header)

    def current():
        if not driver.has_current_stream:
            raise OSError("no current stream")
        return SimpleNamespace(ptr=STREAM)

    ring._device = native.Device(ring._header, 0, current, None, driver.table)


def fences(ring, peer):
    return [
        (raw_verbs.fence(ring._header, peer, index), raw_verbs.work(ring._header, peer, index))
        for index in range(ring.slots)
    ]


def raises_at(ring, *indices):
    """Makes the records of these slots fail from now on, each with a status of its own (see
    `at`)."""
    ring.driver.refuses = {index: 1000 + index for index in indices}


def at(index):
    """The text of the error of a record that raises_at has made fail."""
    return rf"\({1000 + index}\)"


def pay(ring, producer, index):
    work = raw_verbs.work(ring._header, producer.peer, index)
    raw_verbs.raise_fence(ring._header, producer.peer, index, work)


def count_a_death(ring):
    """Counts a death, as a reaper does when it has marked what is torn."""
    with Path(f"/dev/shm/gpuring.{ring.name}").open("r+b") as header:
        header.seek(FIELDS["head", "reaps"].offset)
        header.write((ring._header.reaps + 1).to_bytes(8, "little"))
