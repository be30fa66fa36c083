"""What an engine does with a batch: the user's function, and how it is called."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpuring.errors import DeviceError
from gpuring.ring import inner
from gpuring.service import stacking
from gpuring.service.call import Batch
from gpuring.slot_layout import ARRAY

if TYPE_CHECKING:
    from gpuring.ring.ring import Ring
    from gpuring.service.call import AnswerSlot
    from gpuring.slot_layout import Spec

_log = logging.getLogger("gpuring")


class Work:
    """A function of the user that answers the calls of one service in batches."""

    def __init__(
        self,
        function: Callable[..., Any],
        requests: Ring,
        answers: Spec,
        max_batch: int,
        max_wait_s: float | Literal["learn"],
        warm_up: bool | Callable[[], object],
    ) -> None:
        self.max_batch, self.max_wait_s = max_batch, max_wait_s
        self._function, self._warm_up = function, warm_up
        self._requests, self._answers = requests, answers
        self._stack = stacking.Stack(requests, max_batch)
        self._wants_calls = "calls" in inspect.signature(function).parameters
        signature = inspect.signature(function, follow_wrapped=False)  # a decorator may add some
        fields = [field.name for field in requests.spec.fields]
        more = {"calls": None} if self._wants_calls else {}
        try:
            if fields == [ARRAY]:
                signature.bind(None, **more)
            else:
                signature.bind(**(more | dict.fromkeys(fields)))
        except TypeError as error:
            given = "one array" if fields == [ARRAY] else ", ".join(f"{name}=" for name in fields)
            raise TypeError(f"the function of a batch gets {given}, but: {error}") from error

    def warm_up(self) -> None:
        """Calls the function as for a batch before there is one, if that is wanted."""
        if callable(self._warm_up):
            self._warm_up()
        elif self._warm_up:
            self._call(self._stack.zeros(), Batch(), self.max_batch)

    def do(self, calls: Batch) -> None:
        """Answers the calls.  If the function raises an exception, they fail with its text, and it
        is logged.  Raises DeviceError, because this engine cannot use its GPU then."""
        with calls:
            for some in stacking.of_one_shape(calls):
                try:
                    with some:
                        answers = self._call(self._stack.requests(some), some, len(some))
                        self._send(some, answers)
                except DeviceError:
                    raise
                except Exception:
                    name, n = self._requests.name, len(some)
                    _log.exception("service %r: a batch of %d failed", name, n)

    def _send(self, calls: Batch, answers: list[dict[str, Any]]) -> None:
        """Answers the calls that the function has not answered itself: all of them, or none.

        A request's slot is given back when its answer is sent.  So all answers are written before,
        because they may be made of views of the requests."""
        slots: list[AnswerSlot] = []
        try:
            for call, answer in zip(calls, answers, strict=True):
                if not call.answered:
                    slots.append(call.answer())
                    self._write(slots[-1], answer)
            for slot in slots:
                slot.publish()
        except BaseException:
            for slot in slots:
                if inner.is_open(slot):
                    slot.abandon()
            raise

    def _call(self, arrays: dict[str, Any], calls: Batch, n: int) -> list[dict[str, Any]]:
        """What the function answers to each of n requests, by field."""
        more = {"calls": calls} if self._wants_calls else {}
        if list(arrays) == [ARRAY]:
            result = self._function(arrays[ARRAY], **more)
        else:
            result = self._function(**(more | arrays))
        return stacking.answers(result, n, self._answers)

    def _write(self, slot: AnswerSlot, answer: dict[str, Any]) -> None:
        for field in self._answers.fields:
            target, value = inner.array(slot, field.name), answer[field.name]
            plain = type(value) is type(target) is np.ndarray and not field.extended
            if plain and (value.shape, value.dtype) == (target.shape, target.dtype):
                target[...] = value  # a fifth of the time of copy_from, which does the same
            else:
                slot.copy_from(value, field=field.name)
