"""What both ends of a session over NIXL have: the library, its settings, its errors, an agent."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import select
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuring.bridge.engines.contract import EngineError, Slab
from gpuring.bridge.engines.nixl.bounce_buffer import BounceBuffer
from gpuring.memory import gpus

_log = logging.getLogger("gpuring.bridge")
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
    """What both ends have: an agent that knows some memory, and a descriptor."""

    def __init__(self, slab: Slab, bounce_slots: int) -> None:
        """`bounce_slots`: how many slots a bounce buffer has."""
        self.slab = slab
        self.bounce: BounceBuffer | None = None
        self._bounce_slots = bounce_slots
        self.kind = "DRAM" if slab.gpu is None else "VRAM"
        self.agent: Any = None
        self.bell = Bell()

    def fileno(self) -> int:
        """Readable while something is in flight, and when the other end of this host is gone."""
        return self.bell.fileno()

    @property
    def reached(self) -> Slab:
        """What the network reaches: the bounce buffer, or the slots themselves."""
        return self.slab if self.bounce is None else self.bounce.slab

    def start(self, *, bounced: bool) -> None:
        """Makes the agent.  `bounced`: it gets a bounce buffer, and not the slots.  On a GPU it
        also gets one if NIXL does not take the slots.  Raises EngineError."""
        nixl, gpu = package(), self.slab.gpu
        config = nixl.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        with translated("NIXL cannot be used"), current(gpu):
            self.agent = nixl.nixl_agent(f"gpuring-{uuid.uuid4().hex}", config)
        if not bounced:
            try:
                self._register(self.slab)
                return
            except EngineError as error:
                if gpu is None:
                    raise
                _log.warning("%s: frames are copied to a buffer that it can use", error)
        self.bounce = BounceBuffer(self.slab, self._bounce_slots)
        self._register(self.bounce.slab)

    def _register(self, slab: Slab) -> None:
        whole = (slab.pointer, slab.slots * slab.slot_nbytes, slab.gpu or 0, "")
        with translated(f"NIXL cannot use memory of the kind {slab.memory!r}"), current(slab.gpu):
            self.agent.register_memory([whole], self.kind)

    def destroy(self) -> None:
        """Ends the agent now.  Waiting for the garbage collector would not do: the traceback of an
        error refers to the agent, too."""
        agent, self.agent = self.agent, None
        if agent is not None:
            with contextlib.suppress(Exception), current(self.slab.gpu):
                agent.agent = None

    def give_back(self) -> None:
        """Waits for copies, and gives the bounce buffer up.  The agents of both ends are gone."""
        if self.bounce is not None:
            self.bounce.close()
            self.bounce = None


def release(handle: Any) -> None:
    """Gives up a transfer or a list.  One that is in flight is cancelled."""
    with contextlib.suppress(Exception):
        handle.release()
    handle._agent = None  # or it would keep the agent


def host() -> str:
    """The same for all processes of one host since it was started, in whatever container."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def current(gpu: int | None) -> Any:
    """Makes the GPU current.  UCX takes the context that is."""
    return contextlib.nullcontext() if gpu is None else gpus.current(gpu)


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turns every error of NIXL into an EngineError.  NIXL's own derive from Exception directly."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"{what}: {error}") from error
