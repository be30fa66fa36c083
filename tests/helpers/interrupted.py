"""KeyboardInterrupt at every opcode of the package's Python, or where CPython looks for signals."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar

import gpuring
from gpuring.native.signals import is_dropping

PACKAGE = str(Path(gpuring.__file__).parent)
OneInterrupt = TypeVar("OneInterrupt", bound="Interrupt")
NOWHERE = {
    dis.opmap[name]
    for name in dis.opmap
    if name.startswith("RETURN") or name in ("NOP", "PUSH_EXC_INFO", "POP_EXCEPT")
}


def may_come(code: CodeType, at: int) -> bool:
    """Whether an interrupt before this opcode shows anything.

    It does not at a return or a no-op.  CPython looks for signals when a call has returned, and not
    between that and the moment when the caller has the result.  Its no-ops are outside of try
    blocks.  It does not where an `except` begins or ends either.  CPython looks for no signals
    there, and its exception tables do not cover these places: the exception that is being handled
    would stay the current one for the rest of the thread's life, and keep its frames alive.
    """
    here, there = code.co_code[at], code.co_code[at + 2 : at + 3]
    ends = dis.opname[here] == "COPY" and there and dis.opname[there[0]] == "POP_EXCEPT"
    return here not in NOWHERE and not ends


class Interrupt:
    """Raises KeyboardInterrupt in its block, at the k-th opcode that is run in the package's
    Python.

    It does not raise where `may_come` says no.  It does not raise in the end of a dropped object
    either, where CPython would only print the exception.  test_dropped.py has that case.
    """

    IN_DROPS = False
    FILES: tuple[str, ...] = (PACKAGE,)
    """The beginnings of their paths."""

    def __init__(self, k: int) -> None:
        self._left = k
        self.where: str | None = None
        """The line that was interrupted; None: the call was over before."""
        self.raised = False

    def _call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        if self.where or not frame.f_code.co_filename.startswith(self.FILES):
            return None
        if collected(frame) and not self.IN_DROPS:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, _arg: Any) -> Any:
        code = frame.f_code
        if event == "opcode" and not self.where and may_come(code, frame.f_lasti):
            self._left -= 1
            if not self._left:
                file = Path(code.co_filename).name
                self.where = f"{file}:{frame.f_lineno} {code.co_name} opcode {frame.f_lasti}"
                raise KeyboardInterrupt
        return self._opcode

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._call)

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None
    ) -> bool:
        sys.settrace(self._before)
        self.raised = kind is KeyboardInterrupt
        return self.raised


def collected(frame: FrameType | None) -> bool:
    """Whether this runs because an object was dropped."""
    if is_dropping():
        return True
    while frame and frame.f_code.co_filename.startswith(PACKAGE):
        caller = frame.f_back
        if frame.f_code.co_name == "_dropped" or (
            frame.f_code.co_name == "__del__"
            and not (caller and caller.f_code.co_name == "__exit__")
        ):
            return True
        frame = caller
    return False


LOOKS = {
    dis.opmap[name]
    for name in dis.opmap
    if name in ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "CALL_METHOD", "CALL_FUNCTION")
    or "JUMP_BACKWARD" in name
}


@functools.cache
def handlers(code: CodeType) -> list[tuple[int, int, int]]:
    """Where an exception continues, for each range of opcodes."""
    table = getattr(dis, "_parse_exception_table", lambda _: [])(code)
    return [(entry.start, entry.end, entry.target) for entry in table]


def handler(code: CodeType, lasti: int) -> int | None:
    found = [target for start, end, target in handlers(code) if start <= lasti < end]
    return found[-1] if found else None


class Signal(Interrupt):
    """KeyboardInterrupt at the k-th place in the package's Python where CPython runs handlers.

    CPython does so at the end of an opcode, and this raises at the beginning of the next one.
    Places are left out where the two opcodes have different exception handlers, as at the end of a
    `with` that returns.
    """

    def __init__(self, k: int) -> None:
        super().__init__(k)
        self._before: dict[FrameType, int] = {}  # what runs in each frame; -1: nothing yet

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not collected(frame):
            self._before[frame] = -1
            return super()._call(frame, event, arg)
        return None

    def _looks(self, frame: FrameType) -> bool:
        code, now, before = frame.f_code, frame.f_lasti, self._before.get(frame)
        self._before[frame] = now
        if before is None or before == -1:
            return before == -1
        looks = code.co_code[before] in LOOKS
        return looks and handler(code, before) == handler(code, now)

    def _opcode(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode" and self._looks(frame) and not self.where:
            self._left -= 1
            if not self._left:
                code = frame.f_code
                file = Path(code.co_filename).name
                self.where = f"{file}:{frame.f_lineno} {code.co_name} opcode {frame.f_lasti}"
                raise KeyboardInterrupt
        return self._opcode

    def __enter__(self) -> None:
        self._tracing = sys.gettrace()
        sys.settrace(self._call)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(self._tracing)
        self._before.clear()
        self.raised = kind is KeyboardInterrupt
        return self.raised


class InterruptOfALoop(Interrupt):
    """An interrupt in the code of loops only.  It may also come where a function begins, before its
    first opcode, because CPython looks for signals there.  Other tests have the waits of loops."""

    LOOPS = "ring/async_frames.py", "service/streaming.py"

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self.LOOPS):
            return None
        trace = super()._call(frame, event, arg)
        if trace:
            self._left -= 1
            if not self._left:
                self.where = f"{frame.f_code.co_name} at its beginning"
                raise KeyboardInterrupt
        return trace


def interrupts(step: int = 1) -> Iterator[Interrupt]:
    """An interrupt for each (or every step-th) opcode of the call in its `with`, and one that is
    too late."""
    yield from at_each_place(Interrupt, step)


def signals(step: int = 1) -> Iterator[Signal]:
    yield from at_each_place(Signal, step)


def at_each_place(kind: Callable[[int], OneInterrupt], step: int = 1) -> Iterator[OneInterrupt]:
    """All interrupts up to the first that comes too late twice.  CPython 3.13.0 traces the opcodes
    of a function only from its second call on, and after a call that was not traced it begins
    again.  Fails if no interrupt came at all."""
    k = 1
    while True:
        for _ in range(2):
            interrupt = kind(k)
            yield interrupt
            if interrupt.where is not None:
                break
        else:
            assert k > 1, "nothing was traced"
            return
        k += step
