"""Frames as .npy and PNG files: what these are called, and how they are written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuring.cli.trouble import CommandError
from gpuring.recording.message import Frame
from gpuring.slot_layout import Field

Array = npt.NDArray[Any]


def picture_mode(shape: Sequence[int], dtype: np.dtype[Any]) -> str | None:
    """Pillow's mode for such an array; None if it is no picture."""
    if dtype != np.uint8:
        return None
    if len(shape) == 2:
        return "L"
    return {3: "RGB", 4: "RGBA"}.get(shape[2]) if len(shape) == 3 else None


def check_pictures(fields: Sequence[Field]) -> None:
    """Raises CommandError unless every field can be a PNG."""
    for field in fields:
        if picture_mode(field.shape, field.dtype) is None:
            raise CommandError(_no_picture(field.name, field.shape, field.dtype))


def _no_picture(name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> str:
    extents = " × ".join(map(str, shape))
    return (
        f"field {name!r} is no picture ({extents} {dtype}): --format png needs uint8 arrays of "
        "H × W, H × W × 3 or H × W × 4. Take --format npy, or choose other fields with --field"
    )


class Writer:
    """Writes frames of one ring into a folder.

    The names carry the ring's epoch, because a restarted ring begins with the same sequences again.
    A file appears whole or not at all.
    """

    def __init__(
        self, folder: Path, ring: str, epoch: str, form: str, fields: Sequence[str]
    ) -> None:
        self._folder = folder
        self._ring = ring
        self._epoch = epoch
        self._stem = f"{ring}-{epoch[:8]}"
        self._form = form
        self._tags = _tags(fields)

    def write(self, frame: Frame) -> list[Path]:
        """One file a field, and the rest as JSON, which is written last.  Raises CommandError."""
        try:
            return self._write(frame)
        except OSError as error:
            raise CommandError(
                f"sequence {frame.seq} cannot be written to {self._folder}: "
                f"{error.strerror or error}"
            ) from error

    def _write(self, frame: Frame) -> list[Path]:
        written = []
        for name, array in frame.arrays.items():
            path = self._folder / f"{self._stem}-{frame.seq:012}{self._tags[name]}.{self._form}"
            written.append(path)
            self._put(path, array, name)
        path = self._folder / f"{self._stem}-{frame.seq:012}.json"
        described = {
            "ring": self._ring,
            "epoch": self._epoch,
            "seq": frame.seq,
            "time_ns": frame.time_ns,
            "lost": frame.lost,
            "fields": {
                name: {"file": file.name, "shape": array.shape, "dtype": str(array.dtype)}
                for (name, array), file in zip(frame.arrays.items(), written, strict=True)
            },
            "meta": None if frame.meta is None else plain(frame.meta),
        }
        with _whole(path) as file:
            file.write(json.dumps(described, indent=2, allow_nan=False).encode() + b"\n")
        return [*written, path]

    def _put(self, path: Path, array: Array, name: str) -> None:
        if self._form == "npy":
            with _whole(path) as file:
                # what has only a method is no file for NumPy, which does not tell why a file fails
                output: Any = SimpleNamespace(write=file.write)
                np.lib.format.write_array(output, array, allow_pickle=False)
            return
        if picture_mode(array.shape, array.dtype) is None:  # a frame smaller than its slot
            raise CommandError(_no_picture(name, array.shape, array.dtype))
        from PIL import Image

        with _whole(path) as file:
            Image.fromarray(array).save(file, "PNG")


class _whole:
    """A file under a name of its own until it is complete."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.part")

    def __enter__(self) -> Any:
        self._file = self._part.open("wb")
        return self._file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._file.close()  # which may find that the disk is full
            if kind is None:
                self._part.replace(self._path)
        finally:
            self._part.unlink(missing_ok=True)


def _tags(fields: Sequence[str]) -> dict[str, str]:
    """What tells a field's file from the others'.  Fields may be called anything, files may not."""
    if len(fields) == 1:
        return {fields[0]: ""}
    cleaned = [re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] for name in fields]
    unique = len(set(cleaned)) == len(cleaned)
    return {
        name: f".{tag}" if unique else f".{k}-{tag}"
        for k, (name, tag) in enumerate(zip(fields, cleaned, strict=True))
    }


def plain(value: Any) -> Any:
    """Metadata as JSON: records are objects, bytes hexadecimal, what is not finite a word."""
    if isinstance(value, np.void):
        if value.dtype.names is None:
            return bytes(value.tobytes()).hex()
        return {name: plain(value[name]) for name in value.dtype.names}
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool) else str(value)
