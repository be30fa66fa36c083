"""Builds the extension modules: the C11 library with its binding, and those that need its types."""

import os
import re
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

package = Path("gpuring")
native = package / "native"
sources = sorted([*native.glob("core/*.c"), *native.glob("device/*.c")])
headers = sorted([*native.glob("core/*.h"), *native.glob("device/*.h")])
# Python's own flags ask for debug information, with which a wheel is twice as large.
wants_debug = re.search(r"(^|\s)-g", os.environ.get("CFLAGS", ""))


def extension(name: str, *more: Path) -> Extension:
    return Extension(
        f"gpuring.{name}",
        [f"gpuring/{name}.pyx", *map(str, more)],
        include_dirs=["gpuring/native"],
        depends=[*map(str, [*headers, *package.glob("*.pxd")])],
        extra_compile_args=[
            *("-std=gnu11", "-O2", "-Wall", "-pthread"),
            *([] if wants_debug else ["-g0"]),
        ],
        extra_link_args=["-pthread", "-ldl"],
    )


setup(
    ext_modules=cythonize(
        [
            extension("_core", *sources),
            extension("_slots"),
            extension("_verbs"),
            extension("_snapshot"),
            extension("_dlpack"),
            extension("_signals"),
            extension("_patience"),
            extension("_envelopes"),
            extension("_sleepers"),
            extension("_calls"),
            extension("_sender"),
            extension("_engine"),
        ]
    )
)
