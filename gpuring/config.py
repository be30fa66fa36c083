"""Where the C library and its headers are, for those who compile against them.

    cc camera.c $(python -m gpuring.config --cflags --libs)

`--nvcc` prints both as nvcc takes them.  `--cmake` prints the folder for CMake's `gpuring_DIR`,
`--pkg-config` the one for PKG_CONFIG_PATH, and `--gst-plugin-path` the one for GST_PLUGIN_PATH, if
the elements of GStreamer were built.  A program that was linked with `--libs` or `--nvcc` finds the
library where it is now.
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
GSTREAMER = ROOT / "gstreamer"

WITHOUT_GSTREAMER = (
    "this gpuring was built without the elements of GStreamer. Install GStreamer's development "
    "files, such as libgstreamer-plugins-base1.0-dev, and build gpuring from its source"
)


def cflags() -> list[str]:
    """What the compiler is given."""
    return [f"-I{INCLUDE}"]


def libs() -> list[str]:
    """What the linker is given."""
    return [str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}"]


def nvcc() -> list[str]:
    """What nvcc is given: it takes no library of this name, and no -Wl."""
    return [*cflags(), "-Xlinker", str(LIBRARY), "-Xlinker", f"-rpath,{LIBRARY.parent}"]


def has_gstreamer() -> bool:
    """Whether the elements of GStreamer were built."""
    return (GSTREAMER / "libgstgpuring.so").exists()


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuring.config", description="Where gpuring's C library and headers are."
    )
    parser.add_argument("--cflags", action="store_true", help="options of the compiler")
    parser.add_argument("--libs", action="store_true", help="options of the linker")
    parser.add_argument("--nvcc", action="store_true", help="options of nvcc")
    parser.add_argument("--cmake", action="store_true", help="the folder for CMake's gpuring_DIR")
    parser.add_argument("--pkg-config", action="store_true", help="the folder for PKG_CONFIG_PATH")
    parser.add_argument(
        "--gst-plugin-path", action="store_true", help="the folder for GST_PLUGIN_PATH"
    )
    asked = parser.parse_args(arguments)
    if asked.gst_plugin_path and not has_gstreamer():
        parser.exit(1, f"{WITHOUT_GSTREAMER}\n")
    told = [
        *(cflags() if asked.cflags else ()),
        *(libs() if asked.libs else ()),
        *(nvcc() if asked.nvcc else ()),
        *([str(CMAKE)] if asked.cmake else ()),
        *([str(PKG_CONFIG)] if asked.pkg_config else ()),
        *([str(GSTREAMER)] if asked.gst_plugin_path else ()),
    ]
    if not told:
        parser.error(
            "say what to print: --cflags, --libs, --nvcc, --cmake, --pkg-config or "
            "--gst-plugin-path"
        )
    print(shlex.join(told))


if __name__ == "__main__":
    main()
