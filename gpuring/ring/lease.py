"""Until when a view of a frame is valid: its lease, and arrays that look at it at each use.

Debug mode gives out such arrays (debug.py).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gpuring.errors import StaleViewWarning
from gpuring.memory.frameworks import Span
from gpuring.ring import caller


class Lease:
    """One frame in one peer's hands, from its claim or acquire on."""

    def __init__(self, what: str, verbs: tuple[str, str], call: int) -> None:
        """`what` names the frame.  `verbs` are words for how its slot is taken and how it is
        ended."""
        self.open = True
        self.call = call
        taken, self._given = verbs
        self._what = f"{what}, {taken} at {caller.line()}"

    def __str__(self) -> str:
        return self._what

    def check(self) -> None:
        if not self.open:
            caller.warn(
                f"{self}, is used after it was {self._given}: copy what you keep, or give the slot "
                "back later",
                StaleViewWarning,
            )


_NOT_A_USE = (
    *("__array_finalize__", "__array_ufunc__", "__buffer__", "__class_getitem__"),
    *("__dlpack_device__", "__getattr__", "__len__", "__release_buffer__"),
)


def _reporting(original: Any) -> Any:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        for array in (self, *args):
            lease = getattr(array, "_gpuring_lease", None)
            if lease is not None:
                lease.check()
        return original(self, *args, **options)

    return method


def _finalized(array: Any, source: Any) -> None:
    """NumPy's and CuPy's hook for a new array that was made from `source`."""
    shares = not array.flags.owndata
    array._gpuring_lease = getattr(source, "_gpuring_lease", None) if shares else None


def _numpy_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    out = options.get("out", ())
    plain = []
    for array in (*inputs, *out):
        lease = getattr(array, "_gpuring_lease", None)
        if lease is not None:
            lease.check()
        ours = isinstance(array, _watched_type(np.ndarray))
        plain.append(np.ndarray.view(array, np.ndarray) if ours else array)
    if out:
        options["out"] = tuple(plain[len(inputs) :])
    result = getattr(ufunc, method)(*plain[: len(inputs)], **options)
    return out[0] if len(out) == 1 else result


def _part(self: Any, key: Any) -> Any:
    """An element of metadata.  An array and a structure are views, too."""
    lease, value = self._gpuring_lease, _reporting(np.void.__getitem__)(self, key)
    views = lease is not None and type(value) in (np.ndarray, np.void)
    return watched(value, lease) if views else value


def _viewed(array: Any, kind: Any) -> Any:
    if not issubclass(kind, np.void):
        return array.view(type=kind)
    return np.asarray(array).view(np.dtype((kind, array.dtype)))[()]


def _reduced(self: Any, protocol: Any) -> Any:
    """A pickled array is a plain one: who reads it may not be in debug mode."""
    return _viewed(self, type(self).__base__).__reduce_ex__(protocol)


@functools.cache
def _watched_type(base: Any) -> Any:
    """A subclass of numpy.ndarray, numpy.void or cupy.ndarray whose methods look at their lease
    first."""
    members: dict[str, Any] = {"_gpuring_lease": None, "__array_finalize__": _finalized}
    members["__reduce_ex__"] = _reporting(_reduced)
    for name in dir(base):
        original = getattr(base, name)
        if name not in _NOT_A_USE and callable(original) and not hasattr(object, name):
            members[name] = _reporting(original)
    for name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__repr__", "__str__"):
        members[name] = _reporting(getattr(base, name))
    if base is np.void:  # NumPy has no functions of it
        return type(base.__name__, (base,), members | {"__getitem__": _part})
    ours = _numpy_ufunc if base is np.ndarray else _reporting(base.__array_ufunc__)
    members["__array_ufunc__"] = ours  # NumPy's own refuses subclasses that override methods
    return type(base.__name__, (base,), members)


def watched(array: Any, lease: Lease) -> Any:
    """A view of an array whose uses are reported when the lease is over."""
    kind: Any = type(array)
    if kind is Span:  # no user gets it, but an importer keeps it
        array._gpuring_lease = lease
        return array
    view = _viewed(array, _watched_type(kind))
    view._gpuring_lease = lease
    return view
