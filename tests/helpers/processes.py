"""Real child processes.  They have a pipe and a deadline, and end with the test.

To spawn a process takes as much CPU time as hundreds of quick tests, because it imports everything.
So a fork server imports everything once.  It never has a ring or a GPU, so the processes that it
forks are as good as spawned ones.  The import of CuPy does not start CUDA, so they may use a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import multiprocessing
import os
import resource
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
"""It ends a test that hangs.  A healthy one on a busy machine may wait for many seconds."""
SOMEBODY = 54321
"""The id of a user that nobody is."""


multiprocessing.get_context("forkserver").set_forkserver_preload(
    ["numpy", "pytest", "gpuring", "cupy"]  # those that are not installed are skipped
)


class Child:
    """A process that runs `target(pipe, *args)`.  What that returns is its result.

    method: "spawn", or "forkserver", where the server is its parent.  Both have our environment.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        patience_s: float,
        method: str = "spawn",
    ) -> None:
        context: Any = multiprocessing.get_context(method)
        self.pipe, theirs = context.Pipe()
        self.patience_s = patience_s
        given = (target, theirs, args, dict(os.environ))
        self.process = context.Process(target=_run, args=given, daemon=True)
        self.process.start()
        theirs.close()
        self.pid: int = self.process.pid or 0

    def receive(self) -> Any:
        """Returns what the child sends next.  Raises if the child has failed, or sends nothing in
        time."""
        kind, value = self._next()
        assert kind == "sent", f"the child ended instead: {kind} {value}"
        return value

    def send(self, value: Any = None) -> None:
        self.pipe.send(value)

    def result(self) -> Any:
        kind, value = self._next()
        assert kind == "returned", f"the child did not return: {kind} {value}"
        self.process.join(self.patience_s)
        assert self.process.exitcode == 0, self.process.exitcode
        return value

    def ask(self, value: Any = None) -> Any:
        """Sends something to the child, and returns what the child sends next."""
        self.send(value)
        return self.receive()

    def finish(self) -> Any:
        """Lets a child that waits for this go on to its end, and returns its result."""
        self.send()
        return self.result()

    def _next(self) -> tuple[str, Any]:
        if not self.pipe.poll(self.patience_s):
            raise AssertionError(f"child {self.pid} said nothing for {self.patience_s} s")
        try:
            kind, value = self.pipe.recv()
        except EOFError:
            self.process.join(self.patience_s)
            raise AssertionError(f"child {self.pid} died: {self.process.exitcode}") from None
        assert kind != "raised", f"child {self.pid} raised:\n{value}"
        return kind, value

    def stopped(self) -> bool:
        """Whether all of its threads have stopped (SIGSTOP)."""
        tasks = [task.read_text() for task in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        return all(task.rpartition(") ")[2].startswith("T") for task in tasks)

    def stop(self) -> None:
        """Sends SIGSTOP.  All of its threads have stopped when this returns."""
        os.kill(self.pid, signal.SIGSTOP)
        poll(self.stopped)

    def kill(self) -> None:
        """Sends SIGKILL.  The process is gone when this returns."""
        self.process.kill()
        self.process.join()

    def end(self) -> None:
        self.kill()
        self.pipe.close()
        self.process.close()


def up(child: Child) -> Child:
    """Waits until the child has sent something for the first time."""
    child.receive()
    return child


class Pipe:
    """The child's end of the pipe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, value: Any = None) -> None:
        self._connection.send(("sent", value))

    def receive(self) -> Any:
        # In slices: Python does not handle a signal that comes just before a call that blocks.
        while not self._connection.poll(1):
            pass
        return self._connection.recv()

    def ask(self, value: Any = None) -> Any:
        """Sends something to the test, and waits for what the test sends next."""
        self.send(value)
        return self.receive()

    def told(self) -> bool:
        """Whether there is something to receive."""
        return self._connection.poll()


def _run(
    target: Callable[..., Any],
    connection: Connection,
    args: tuple[Any, ...],
    environment: dict[str, str],
) -> None:
    os.environ.clear()  # the fork server has the environment of when it was started
    os.environ.update(environment)
    try:
        outcome = ("returned", target(Pipe(connection), *args))
    except BaseException:
        outcome = ("raised", traceback.format_exc())
    connection.send(outcome)


def die_with(parent: int) -> None:
    """This process ends with its parent, whatever ends that."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def open_files() -> dict[int, str]:
    """Returns what this process has open.  Other threads may close some of it during the look, as
    the watchdog does."""
    found = {}
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[int(each.name)] = str(each.readlink())
    return found


def has_timer(pid: int) -> bool:
    """Whether the only timer among the descriptors of a process is set, or has run out."""
    found = []
    for each in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(each.read_text())
    (timer,) = [text for text in found if "it_value:" in text]
    return "ticks: 0\n" not in timer or "it_value: (0, 0)" not in timer


def watches_names(pid: int) -> bool:
    """Whether a process waits for a name, as it does for the next ring."""
    with contextlib.suppress(OSError):  # a descriptor was closed meanwhile
        links = [each.readlink() for each in Path(f"/proc/{pid}/fd").iterdir()]
        return any("inotify" in str(link) for link in links)
    return False


def _is_open(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def few_descriptors(more: int) -> Iterator[None]:
    """Leaves this process only so many descriptors.  Do not call it in the process of the tests,
    where the garbage collector may close descriptors of earlier tests at any time.

    The kernel's accept takes a number before it looks for a connection, and gives it back if there
    is none.  The watchdog of an offered ring calls accept now and then.  So a number may become
    free again after all seemed to be taken, and each number is checked."""
    limit, filled = resource.getrlimit(resource.RLIMIT_NOFILE), [os.dup(0) for _ in range(20)]
    end = filled[-1] + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (end, limit[1]))

    def is_full() -> bool:
        with contextlib.suppress(OSError):
            while True:
                filled.append(os.dup(0))
        return all(_is_open(fd) for fd in range(end))

    try:
        poll(is_full)
        for _ in range(more):
            os.close(filled.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for fd in filled:
            os.close(fd)


def runs(pid: int) -> bool:
    """Whether the process is there.  A zombie does not count, because its parent may never wait for
    it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def sleeps(pid: int) -> bool:
    """Whether its main thread waits for something."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "S"


def poll(condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Looks again and again until the condition is true, and returns its value."""
    deadline = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"the condition is not true after {patience_s} s"
        time.sleep(0.001)
    return value


def until(condition: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    """Looks until a process has made the condition true, however long that takes it, and returns
    its value.  The deadline of the test ends one that hangs."""
    while True:
        ended = process.poll() is not None
        if value := condition():
            return value
        assert not ended, f"{process.args} ended with {process.returncode}, and it is not so"
        time.sleep(0.001)


def other_threads_sleep() -> bool:
    me = str(threading.get_native_id())
    threads = [each for each in Path("/proc/self/task").iterdir() if each.name != me]
    states = [(each / "stat").read_text() for each in threads]
    return all(state.rpartition(")")[2].split()[0] == "S" for state in states)


def replaces_its_files(pipe: Pipe) -> list[int]:
    """Closes all descriptors, as a daemon does, and opens files under their numbers."""
    poll(other_threads_sleep)  # a thread that uses a descriptor could not know that it is closed
    last = max(open_files())
    for fd in set(open_files()) - {0, 1, 2, pipe._connection.fileno()}:
        with contextlib.suppress(OSError):
            os.close(fd)
    mine: list[int] = []
    while not mine or mine[-1] <= last:
        mine.append(os.memfd_create("mine"))
    return mine


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Runs a function in a thread.  Returns another one that waits for its result or its error."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        return found[0]

    return result
