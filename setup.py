"""Builds the one extension module: the C11 core and its Cython binding."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

core = Path("gpuring/core")

setup(
    ext_modules=cythonize(
        Extension(
            "gpuring._core",
            ["gpuring/_core.pyx", *map(str, sorted(core.glob("*.c")))],
            include_dirs=["gpuring"],
            depends=[str(header) for header in core.glob("*.h")],
            extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-pthread"],
            extra_link_args=["-pthread"],
        )
    )
)
