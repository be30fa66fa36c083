"""Two ends of a session without a bridge, in which test_bridge_engines.py tries every engine.

The far end is in the test's own process.  The near end is in another process, and obeys the far
end.  It reports over a pipe, in order, what it sends over the channel, what has arrived, and how it
has failed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
from collections import deque
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuring.bridge import engines
from gpuring.bridge.engines.contract import EngineError, Receiver, Sender, Slab
from tests import ROOT
from tests.bridge import host_bounce_buffer
from tests.helpers.processes import PATIENCE_S, poll

PATTERN = np.random.default_rng(1).integers(0, 256, 1 << 16, "u1")


engines.MODULES["local"] = "tests.bridge.local_engine"


def use_bounce_buffers(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Gives all ends of NIXL a bounce buffer in host memory: here, and in processes that are
    started from now on."""
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.bridge import host_bounce_buffer\nhost_bounce_buffer.always()\n"
    )
    known = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), known))))
    host_bounce_buffer.always(monkeypatch.setattr)


def slab(slots: int, slot_nbytes: int, window: int = 0) -> Slab:
    """Slots in host memory of this process.  A window of 0 means all of them."""
    memory = np.frombuffer(mmap.mmap(-1, slots * slot_nbytes), "u1")
    return Slab(
        pointer=memory.ctypes.data,
        slots=slots,
        slot_nbytes=slot_nbytes,
        memory="host",
        gpu=None,
        owner=memoryview(memory),
        window=window or slots,
    )


def content(seq: int, nbytes: int) -> np.ndarray[Any, Any]:
    """The bytes of the frame with this sequence.  No two sequences have the same bytes."""
    frame = np.resize(np.roll(PATTERN, seq), nbytes)
    marks = np.frombuffer(seq.to_bytes(8, "little"), "u1")
    for at in range(0, nbytes, 4096):
        part = frame[at : at + 8]
        part[:] = marks[: len(part)]
    return frame


# ---- the near end ------------------------------------------------------------------------------


class _Channel:
    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell

    def data(self, to_seq: int, begin: int, part: Any, *, track: bool = False) -> Any:
        self._tell("data", to_seq, begin, bytes(part))
        return _Sent() if track else None


class _Sent:
    done = True


class Near:
    """A sender that obeys commands and reports."""

    def __init__(self, name: str, slots: int, slot_nbytes: int, tell: Callable[..., None]) -> None:
        self._memory, self._tell = slab(slots, slot_nbytes), tell
        self.sender: Sender = engines.engine(name).sender(self._memory, _Channel(tell))
        self.ended = False

    def obey(self, verb: str, *args: Any) -> None:
        if verb == "open":
            self.sender.open(*args)
            self._tell("opened")
        elif verb == "send":
            self._fill(*args)
            self._send(*args)
        elif verb == "fill":
            self._fill(*args)
            self._tell("filled")
        elif verb == "send again":
            self._send(*args)
        else:
            assert verb == "close"
            self.sender.close()
            self._tell("closed")
            self.ended = True

    def _send(self, seq: int, index: int, to_seq: int, to_index: int, nbytes: int) -> None:
        part = self.sender.send(seq, index, to_seq, to_index, nbytes)
        if len(part):
            self._tell("data", to_seq, nbytes - len(part), bytes(part))

    def _fill(self, seq: int, index: int, to_seq: int, to_index: int, nbytes: int) -> None:
        self._memory.part(index, 0, nbytes)[:] = content(seq, nbytes).data

    def step(self, *commands: tuple[Any, ...]) -> None:
        if self.ended:
            return
        try:
            for command in commands:
                self.obey(*command)
            for seq in self.sender.poll():
                self._tell("arrived", seq)
        except EngineError as error:
            self.sender.close()
            self._tell("failed", str(error))
            self.ended = True


def near_process(_: Any, pipe: Connection, name: str, slots: int, slot_nbytes: int) -> None:
    """Obeys commands until the end of the session, or until the pipe is closed."""
    near = Near(name, slots, slot_nbytes, lambda *said: pipe.send(said))
    watch = select.poll()
    watch.register(pipe.fileno(), select.POLLIN)
    if near.sender.fileno() >= 0:
        watch.register(near.sender.fileno(), select.POLLIN)
    while not near.ended:
        watch.poll(0 if near.sender.busy else None)
        near.step(*([pipe.recv()] if pipe.poll() else []))


# ---- the far end -------------------------------------------------------------------------------


class Session:
    """A receiver in this process, and a near end that obeys it."""

    def __init__(
        self, name: str, children: Callable[..., Any], memory: Slab, *, near_slots: int = 4
    ) -> None:
        self.memory, self.near_slots = memory, near_slots
        self.receiver: Receiver = engines.engine(name).receiver(memory)
        self.child: Any = None
        """The near end's process.  None: it is in this one."""
        self._near: Near | None = None
        self._told: deque[tuple[Any, ...]] = deque()
        args = name, near_slots, memory.slot_nbytes
        if name == "local":
            self._near = Near(*args, lambda *said: self._told.append(said))
        else:
            self.pipe, theirs = Pipe()
            self.child = children(near_process, theirs, *args, method="spawn")
            theirs.close()
        self.sent: dict[int, tuple[int, int]] = {}
        """The far slot and the length of each frame that was sent, by sequence."""
        self.arrived: list[int] = []
        self.published: list[int] = []
        """The indices of slots that may be published, in the order of the receiver."""
        self.said: list[str] = []

    def open(self) -> Session:
        self.command("open", self.receiver.open())
        self.until(lambda: "opened" in self.said)
        return self

    def send(self, seq: int, to_index: int, nbytes: int, verb: str = "send") -> None:
        """Lets the near end write a frame into the slot of the same number, and send it.

        `verb`: "fill" only writes it, and "send again" sends what is there.
        """
        self.sent[seq] = to_index, nbytes
        to_seq = 7 * self.memory.slots + to_index
        self.command(verb, seq, to_index % self.near_slots, to_seq, to_index, nbytes)

    def command(self, *command: Any) -> None:
        if self._near is not None:
            self._near.step(command)
        else:
            with contextlib.suppress(BrokenPipeError):  # it has ended by itself
                self.pipe.send(command)

    def hear(self, patience_s: float = 0) -> tuple[Any, ...]:
        """The next report of the near end, or () if there is none.  Raises EngineError if the near
        end is gone."""
        if self._near is not None:
            self._near.step()
            return self._told.popleft() if self._told else ()
        try:
            return self.pipe.recv() if self.pipe.poll(patience_s) else ()
        except (EOFError, ConnectionResetError):
            raise EngineError("the near end is gone") from None

    def step(self) -> None:
        """Does what a bridge does at the far side, without waiting.  Raises EngineError."""
        while heard := self.hear():
            said, *args = heard
            if said == "data":
                to_seq, begin, part = args
                self.receiver.write(to_seq % self.memory.slots, begin, part)
            elif said == "arrived":
                self.arrived += args
                self.receiver.finish(*self.sent[args[0]])
            elif said == "failed":
                raise EngineError(args[0])
            else:
                self.said.append(said)
        self.published += self.receiver.poll()

    def until(self, condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
        def stepped() -> Any:
            self.step()
            return condition()

        poll(stepped, patience_s)

    def frame(self, index: int, nbytes: int) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.memory.part(index, 0, nbytes), "u1")

    def end(self) -> None:
        """Closes both ends cleanly."""
        self.command("close")
        self.until(lambda: "closed" in self.said)
        self.receiver.close()

    def drain(self) -> str:
        """Drops what the near end still reports.  Returns how it ended."""
        while True:
            try:
                said = self.hear(PATIENCE_S)
            except EngineError:
                return "gone"
            if not said or said[0] in ("closed", "failed"):
                return str(said[0]) if said else "silent"
