"""Translates Cython modules into C: gpuring/native/clock.pyx into OUT/gpuring.native.clock.c.

    python translate.py ROOT OUT DIRECTIVE=VALUE,… gpuring/native/clock.pyx …

CMakeLists.txt calls it.  One interpreter does them all, because to import Cython takes longer than
to translate most of them.  Those that have not changed, nor any declaration, are left as they are.
"""

import os
import sys
from pathlib import Path

from Cython.Compiler.Main import compile as translate
from Cython.Compiler.Options import parse_directive_list

root, out, directives, *sources = sys.argv[1:]
os.chdir(root)
newest = max(path.stat().st_mtime for path in [Path(__file__), *Path("gpuring").rglob("*.pxd")])
failed = 0
for source in sources:
    module = source.removesuffix(".pyx").replace("/", ".")
    made = Path(out, f"{module}.c")
    if made.exists() and made.stat().st_mtime > max(newest, Path(source).stat().st_mtime):
        continue
    failed += translate(
        source,
        full_module_name=module,
        output_file=str(made),
        compiler_directives=parse_directive_list(directives),
        language_level=3,
    ).num_errors
sys.exit(failed > 0)
