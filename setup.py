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
        [f"gpuring/{name.replace('.', '/')}.pyx", *map(str, more)],
        include_dirs=["gpuring/native"],
        depends=[*map(str, [*headers, *package.glob("*/*.p?[di]")])],
        extra_compile_args=[
            *("-std=gnu11", "-O2", "-Wall", "-pthread"),
            *([] if wants_debug else ["-g0"]),
        ],
        extra_link_args=["-pthread", "-ldl"],
    )


setup(
    ext_modules=cythonize(
        [
            extension("native._core", *sources),
            extension("native.slots"),
            extension("native.verbs"),
            extension("native.snapshot"),
            extension("native.dlpack"),
            extension("native.signals"),
            extension("service._patience"),
            extension("service._envelopes"),
            extension("service._sleepers"),
            extension("service._calls"),
            extension("service._sender"),
            extension("service._engine"),
        ]
    )
)
