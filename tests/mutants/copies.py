"""Private copies of a checkout: they are made and built, and tests run in them."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("gpuring", "tests", "cmake", "docs", "examples", "bench", ".ci")
COMPILED = (".c", ".h", ".pyx", ".pxd")
BUILD_S = 300  # for one command


class Run(NamedTuple):
    """The outcome of a test: "passed", "skipped", "failed", "timeout" or "error"."""

    outcome: str
    seconds: float
    said: str


class Copy:
    """A copy of a checkout with what is built there."""

    def __init__(self, of: Path, files: list[Path], path: Path) -> None:
        self.of, self.files, self.path = of, files, path
        self.restore()

    def restore(self) -> None:
        """Copies each file anew that has changed, also those that were built."""
        for file in self.files:
            there, here = self.of / file, self.path / file
            if not here.exists() or _stamp(here) != _stamp(there):
                here.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(there, here)

    def build(self, files: list[str], commands: list[str]) -> None:
        """Runs those commands of a build that need these files.

        CalledProcessError: one failed, and `stderr` has why.  SyntaxError: of a Python file.
        """
        for file in (file for file in files if file.endswith(".py")):
            compile((self.path / file).read_text(), file, "exec")
            # Python tells old bytecode by the size and second of the source, which may both be the
            # same.
            shutil.rmtree(f"{self.path}.pyc", ignore_errors=True)
        for command in commands:  # in the order in which they need each other
            if any(_needs(command, file) for file in files):
                subprocess.run(
                    command.replace(HERE, str(self.path)), cwd=self.path / "cmake", shell=True,
                    check=True, capture_output=True, text=True, timeout=BUILD_S,
                )  # fmt: skip

    def run(self, test: str, timeout_s: float, gpu: bool = False) -> Run:
        path = os.pathsep.join(filter(None, [str(self.path), os.environ.get("PYTHONPATH")]))
        env = os.environ | {
            "PYTHONPATH": path,
            "PYTHONPYCACHEPREFIX": f"{self.path}.pyc",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # to load plugins takes a second
        }
        if not gpu:
            env["CUDA_VISIBLE_DEVICES"] = ""
        command = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", "--no-header"]
        if not gpu:
            command = [*own_shm(), *command]
        begun, code = time.monotonic(), None
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                [*command, f"--basetemp={self.path}.tmp", test], cwd=self.path, env=env,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(timeout_s)
            finally:
                _end(process, env["PYTHONPYCACHEPREFIX"])
            output.seek(0)
            text = output.read()
        outcome = "timeout" if code is None else "failed" if code == 1 or code < 0 else "error"
        if code == 0:
            outcome = "passed" if re.search(r"\d+ passed", text) else "skipped"
        lines = re.findall(r"^E  +(.+)", text, re.MULTILINE) or text.strip().split("\n")[-1:]
        return Run(outcome, time.monotonic() - begun, lines[0])


@functools.cache
def own_shm() -> list[str]:
    """What gives a command a /dev/shm of its own, because a mutant of `gpuring clean` may remove
    any ring.  Empty where this user may not mount one."""
    before = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run([*before, "true"], check=False, capture_output=True).returncode == 0:
            return before
    return []


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kills a run of pytest and all processes with its mark, and removes the names that they have
    left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for path in Path("/proc").glob("[0-9]*/environ"):  # children with a session of their own
        with contextlib.suppress(OSError):
            if f"={mark}\0".encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
    for left in Path("/dev/shm").glob(f"*-{process.pid}-*"):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


# ---- the build of the checkout -----------------------------------------------------------------

HERE = "@HERE@"  # the folder of the copy, in a command


def files_of(root: Path) -> list[Path]:
    """The files of a copy: all that a test may look at, and what is built."""
    found = [path for folder in FOLDERS for path in root.glob(f"{folder}/**/*")]
    files = [path.relative_to(root) for path in [*root.glob("*"), *found] if path.is_file()]
    return [file for file in files if file.suffix != ".pyc"]


def commands_of(root: Path) -> list[str]:
    """The commands that have built the checkout.  Ends the program if they cannot run again."""
    sources = [path for path in root.glob("gpuring/**/*") if path.suffix in COMPILED]
    times = [
        max((path.stat().st_mtime for path in paths), default=0.0)
        for paths in (sources, root.glob("gpuring/**/*.so*"))
    ]
    if not (root / "cmake/build.ninja").exists() or times[0] > times[1]:
        sys.exit(
            "build the checkout in place first: CONTRIBUTING.md, After a change of C or Cython"
        )
    cython = subprocess.run([sys.executable, "-c", "import Cython"], check=False).returncode == 0
    made = re.search(r"CMAKE_MAKE_PROGRAM:\w+=(.+)", (root / "cmake/CMakeCache.txt").read_text())
    ninja = shutil.which("ninja") or shutil.which(made[1] if made else "")
    if not ninja or not cython:
        sys.exit("mutants of C and Cython need: pip install 'Cython>=3.1,<4' ninja")
    listed = [ninja, "-C", str(root / "cmake"), "-t", "commands"]
    text = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    # The name of an object has the path of its source in it, and stays.  So does an interpreter in
    # the checkout, which is not copied.
    return re.sub(rf"(?<!\.dir){re.escape(str(root))}\b(?!/[^/\s]+/bin/)", HERE, text).split("\n")


def _needs(command: str, file: str) -> bool:
    """Whether a command has to run again when this file has changed."""
    if file.endswith(".pyx"):
        return f"{file[:-4].replace('/', '.')}.c" in command or f" {file} " in f"{command} "
    if file.endswith(".c"):
        return f"/{file}.o" in command
    # A header's functions are called in the library, and its tables stay as they are.
    return file.endswith(".pxd") or (file.endswith(".h") and "/gpuring.dir/" in command)
