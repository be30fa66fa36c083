"""An agent of NIXL, which an end of a session has: the library, its settings, its errors."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import uuid
from collections.abc import Iterator
from typing import Any

from gpuring.bridge.engine import EngineError, Slab
from gpuring.memory.cuda import load_cupy

_PACKAGES = ("nixl_cu13", "nixl_cu12")
_SETTINGS = {
    "UCX_TCP_USER_TIMEOUT": "3s",
    "UCX_TCP_KEEPIDLE": "1s",
    "UCX_TCP_KEEPINTVL": "1s",
    "UCX_TCP_KEEPCNT": "2",
    "UCX_KEEPALIVE_INTERVAL": "1s",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    "UCX_LOG_LEVEL": "fatal",
    "NIXL_LOG_LEVEL": "FATAL",
}
"""Where the environment does not say otherwise.  A cut of the network is an error within 3 s, and
not after 40 s, and nobody but the bridge reports errors."""


def package() -> Any:
    """The package of NIXL.  Raises EngineError if it is not installed or cannot be loaded."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    reasons = []
    for name in _PACKAGES:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            if not (isinstance(error, ModuleNotFoundError) and error.name == name):
                reasons.append(f"{name} cannot be loaded ({error})")
    why = "; ".join(reasons) or "NIXL is not installed"
    raise EngineError(f"{why}: pip install 'gpuring[rdma13]', or 'gpuring[rdma12]' for CUDA 12")


class Bell:
    """A descriptor that is readable while `ringing`, or while one of those given to `also` is."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._event, select.EPOLLIN)
        self._ringing = False

    def also(self, fd: int) -> None:
        self._epoll.register(fd, select.EPOLLIN)

    def set(self, ringing: bool) -> None:
        if ringing != self._ringing:
            self._ringing = ringing
            if ringing:
                os.eventfd_write(self._event, 1)
            else:
                os.eventfd_read(self._event)

    def fileno(self) -> int:
        return -1 if self._epoll.closed else self._epoll.fileno()

    def close(self) -> None:
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._event)


class End:
    """What both ends have: an agent that knows the slots of one ring, and a descriptor."""

    def __init__(self, slab: Slab) -> None:
        self.slab = slab
        self.kind = "DRAM" if slab.gpu is None else "VRAM"
        self.agent: Any = None
        self.bell = Bell()

    def fileno(self) -> int:
        """Readable while something is in flight, and when the other end of this host is gone."""
        return self.bell.fileno()

    def start(self) -> None:
        """Makes the agent.  Raises EngineError."""
        nixl = package()
        slab = self.slab
        config = nixl.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        with translated("NIXL cannot use the slots"), current(slab.gpu):
            self.agent = nixl.nixl_agent(f"gpuring-{uuid.uuid4().hex}", config)
            whole = (slab.pointer, slab.slots * slab.slot_nbytes, slab.gpu or 0, "")
            self.agent.register_memory([whole], self.kind)

    def destroy(self) -> None:
        """Ends the agent now.  Waiting for the garbage collector would not do: the traceback of an
        error refers to the agent, too."""
        agent, self.agent = self.agent, None
        if agent is not None:
            with contextlib.suppress(Exception), current(self.slab.gpu):
                agent.agent = None


def release(handle: Any) -> None:
    """Gives up a transfer or a list.  One that is in flight is cancelled."""
    with contextlib.suppress(Exception):
        handle.release()
    handle._agent = None  # or it would keep the agent


def current(gpu: int | None) -> Any:
    """Makes the GPU current.  UCX takes the context that is."""
    return contextlib.nullcontext() if gpu is None else load_cupy().cuda.Device(gpu)


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Has every error of NIXL be an EngineError.  Its own ones derive from Exception directly."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"{what}: {error}") from error
