"""Where the C library and its headers are, for those who compile against them.

    cc camera.c $(python -m gpuring.config --cflags --libs)

`--cmake` prints the folder for CMake's `gpuring_DIR`, and `--pkg-config` the one for
PKG_CONFIG_PATH.  A program that was linked with `--libs` finds the library where it is now.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent
INCLUDE = ROOT / "include"
LIBRARY = ROOT / "native" / "libgpuring.so.0"
CMAKE = INCLUDE / "cmake"
PKG_CONFIG = INCLUDE / "pkgconfig"


def cflags() -> list[str]:
    """What the compiler is given."""
    return [f"-I{INCLUDE}"]


def libs() -> list[str]:
    """What the linker is given."""
    return [str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuring.config", description="Where gpuring's C library and headers are."
    )
    parser.add_argument("--cflags", action="store_true", help="options of the compiler")
    parser.add_argument("--libs", action="store_true", help="options of the linker")
    parser.add_argument("--cmake", action="store_true", help="the folder for CMake's gpuring_DIR")
    parser.add_argument("--pkg-config", action="store_true", help="the folder for PKG_CONFIG_PATH")
    asked = parser.parse_args(arguments)
    told = [
        *(cflags() if asked.cflags else ()),
        *(libs() if asked.libs else ()),
        *([str(CMAKE)] if asked.cmake else ()),
        *([str(PKG_CONFIG)] if asked.pkg_config else ()),
    ]
    if not told:
        parser.error("say what to print: --cflags, --libs, --cmake or --pkg-config")
    print(shlex.join(told))


if __name__ == "__main__":
    main()
