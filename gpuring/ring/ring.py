"""Ring, which is one process's handle on a ring."""

from __future__ import annotations

import contextlib
import errno
import threading
import weakref
from typing import TYPE_CHECKING, Any, Literal

from gpuring import arguments, native, slot_layout
from gpuring.errors import (
    PeerLost,
    RingClosed,
    RingError,
    RingIncompatible,
    RingNotFound,
    RingTimeout,
    raise_first,
)
from gpuring.memory import kinds
from gpuring.native import Header
from gpuring.registry import diagnosis, directory, leftovers, segment, stats, survey
from gpuring.registry.subscriptions import encode
from gpuring.ring import caller, debug, joining, kept_memory, ordering, shutdown
from gpuring.ring.consumer import Consumer
from gpuring.ring.described import Described
from gpuring.ring.endpoint import Endpoint, Gate
from gpuring.ring.producer import Producer

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpuring.memory import Memory
    from gpuring.slot_layout import Spec


def attach_any(
    name: str, deadline: float = 0.0, device: int | None = None, owner: int | None = None
) -> Ring:
    """attach() that waits for the name only, and leaves it to its caller whether the ring lives."""
    shutdown.check()
    return directory.when_there(name, deadline, lambda: opened(name, owner, device, living=False))


def opened(name: str, owner: int | None, device: str | int | None, living: bool) -> Ring:
    """attach() without a wait.  Raises native.Missing where that may help.  `living`: that is also
    so if the ring does not live."""
    header = native.attach_header(name, owner)
    try:
        if living:
            native.check_living(name, header)
        slots = _slots_of(name, header, device)
        return Ring(name, header, *slots, created=False, owner=owner)
    except BaseException as error:
        header.disown()  # if the exception is kept, it keeps the header, but not our locks
        if living and isinstance(error, PeerLost):
            raise segment.Dead from error
        raise


def _slots_of(name: str, header: Header, device: str | int | None) -> tuple[Memory, Spec]:
    """The slots of an attached ring, and what they hold."""
    try:
        described = slot_layout.Spec.from_bytes(header.spec)
    except ValueError as error:
        raise RingIncompatible(f"ring {name!r}: {error}") from error
    native.check_sizes(name, header, described.slot_nbytes, described.meta_nbytes)
    return kinds.attach(name, header, device), described


class Ring(Described):
    """One process's handle on a ring.  `create` and `attach` make it.  It is a context manager.

    It can be pickled, and so passed to a process that is spawned.  That process attaches to the
    ring by its name, and uses a pinned ring on the same device.
    """

    def __new__(cls, *made: object, **_: object) -> Self:
        if len(made) < 4:
            raise TypeError("a Ring comes from gpuring.create() or gpuring.attach()")
        return super().__new__(cls)

    def __init__(
        self,
        name: str,
        header: Header,
        memory: Memory,
        described: Spec,
        *,
        created: bool,
        owner: int | None = None,
    ) -> None:
        self._name = name
        self._owner = owner  # as attach() has it, for the next ring of the name
        self._header = header
        self._memory, self._device = ordering.begin(name, header, memory)
        self._spec = described
        self._created = created
        self._epoch = header.epoch  # copied, because that in the header may be damaged later
        self._closed = True  # until there is everything that close() needs
        self._closing = False
        self._joining = threading.RLock()  # reentrant, because a signal handler may close the ring
        self._endpoints: dict[int, weakref.ref[Endpoint]] = {}
        """By id, until they have left.  References are weak, so a producer or consumer that is
        dropped leaves the ring."""
        self._waits_for_last = False  # whether the last endpoint that leaves closes this ring
        self._whole: caller.Whole | None = None
        """The server or client that this handle belongs to, if it belongs to one."""
        self._made_at = caller.line() if debug.ON else ""
        shutdown.add(self)
        self._closed = False

    def _check_open(self) -> None:
        if self._header.forked:
            raise diagnosis.unusable(self._name, native.FORKED)
        if self._closed or self._closing or self._waits_for_last:
            raise RingClosed(f"ring {self._name!r}: this handle was closed")

    def producer(
        self,
        *,
        gate: Gate | None = None,
        reattach: bool = False,
        spin: float | None = None,
        label: str | None = None,
    ) -> Producer:
        """Joins as a producer, and returns it.

        * `gate`: where this producer waits for others' GPU work, "stream" or "host".  None takes
          the ring's own `gate`.
        * `reattach`: whether this producer follows restarts of a ring that another process has
          created.  If that process closes or replaces the ring, the next claim waits for the new
          ring of that name, for as long as its timeout, and joins it.  The first slot there has
          `slot.restarted`.  In the process that has created the ring, that claim raises RingClosed.
        * `spin`: for how many seconds a wait spins before it sleeps, which takes a whole core.
          `math.inf` means that it never sleeps.  None takes the environment variable GPURING_SPIN.
          If that is not set, the time is adaptive, and at most 50 µs.
        * `label`: its name in messages and tools, at most 64 bytes of UTF-8.  None is the name of
          the program.

        Does not wait for frames.  Raises RingClosed if this handle or the ring was closed
        (another ring may have taken its name: attach again), TooManyPeers, DeviceError, RingTimeout
        if the membership lock cannot be taken for 5 s (a stopped process has it).
        """
        arguments.flag(reattach, "reattach")
        join = joining.AsProducer(gate, spin, label)
        self._check_open()  # before the lock, which another thread may have had when we were forked
        with self._joining:
            return Producer(self, join(self), join if reattach and not self._created else None)

    def consumer(
        self,
        subscription: str | None = None,
        *,
        lossless: bool = True,
        start: Literal["next", "oldest"] | int = "next",
        gate: Gate | None = None,
        redeliver: bool = True,
        reattach: bool = False,
        durable: bool = False,
        patience: float | None = None,
        deaths: bool = False,
        spin: float | None = None,
        label: str | None = None,
    ) -> Consumer:
        """Joins as a consumer, and returns it.

        * `subscription`: consumers that join the same name share its frames, and each frame goes to
          one of them.  None makes an unnamed subscription for this consumer alone, which sees every
          frame.
        * `lossless`: whether producers wait for the subscription.  If not, they may overwrite
          frames that it has not read, and `slot.lost` counts these.
        * `start`: the first frame of a new subscription.  "next" is the next frame to be claimed.
          "oldest" is the oldest frame that is still in the ring; with 8 slots that gives at most 7
          frames.  You may also give a sequence.  If that frame is gone, the subscription begins
          with the oldest one.  A consumer that joins an existing subscription goes on there.
        * `gate`: where this consumer waits for the producer's GPU work, "stream" or "host".  None
          takes the ring's own `gate`.
        * `redeliver`: whether a frame that a member held when it died goes to another member.
          Otherwise it is dropped.
        * `reattach`: whether this consumer follows restarts.  At the end of the stream, or if the
          last producer or the creator died, it then waits for another producer, or for a new ring
          of the same name, and joins the same subscription there.  That holds for `acquire`,
          `latest`, batches, loops, their asynchronous forms, `gpuring.select` and `gpuring.align`,
          each within its timeout.  The first frame after that has `slot.restarted`.  Frames of the
          old ring that it still holds stay valid until they are released.
        * `durable`: makes the subscription stay when its last member leaves or dies, as `subscribe`
          does.  So a program that is started again goes on behind the last frame that it has
          released.  `patience` is that of `subscribe`.  A subscription that is durable already
          stays durable, whatever its members ask for.
        * `deaths`: whether `acquire` raises ProducerDied for each producer that died, although the
          stream goes on.  Otherwise only the death that ends the stream is reported, as PeerLost.
        * `spin`: for how many seconds a wait spins before it sleeps, as for `producer`.
        * `label`: its name in messages and tools, as for `producer`.

        If the last producer has gone already, the consumer waits for the next one, as long as the
        ring's creator lives and the stream has only one producer (`create(producers=)`).  But if
        there are frames left from `start` on, it reads those, and then gets the end of the stream.

        Does not wait for frames.  Raises RingClosed if this handle or the ring was closed (another
        ring may have taken its name: attach again), TooManyPeers, DeviceError, RingTimeout if the
        membership lock cannot be taken for 5 s, ValueError if the subscription exists with another
        `lossless` or `redeliver`.
        """
        arguments.flag(reattach, "reattach")
        arguments.flag(deaths, "deaths")
        join = joining.AsConsumer(
            subscription, lossless, redeliver, durable, patience, gate, spin, label
        )
        self._check_open()
        with self._joining:
            peer = join(self, start)
            if self._spec.lost_before is not None:
                peer.count_since(self._spec.lost_before)
            consumer = Consumer(self, peer, lossless, join if reattach else None, deaths)
            gone = self._header.producers_gone  # before the look
            if native.look(peer)[0] in consumer._ends and self._header.producers_in_all == 1:
                consumer._late = gone
            return consumer

    def subscribe(
        self,
        subscription: str,
        *,
        lossless: bool = True,
        start: Literal["next", "oldest"] | int = "next",
        redeliver: bool = True,
        patience: float | None = None,
    ) -> None:
        """Makes a durable subscription, which needs no consumer, or makes an existing one durable.

        It stays when its last member leaves or dies.  The first consumer begins at `start`, and a
        consumer that joins it later goes on behind the last frame that was released.  Producers
        wait for a lossless one as for a slow reader, even while it has no member.

        * `lossless`, `start`, `redeliver`: those of `consumer`.
        * `patience`: for how many seconds producers wait while it has no member.  Each time that
          its last member leaves or dies this begins anew.  Then it is given up: producers go on,
          and `slot.lost` of the next reader's first frame counts what was missed.  math.inf is for
          ever.  None keeps the value that was set before, which is for ever for a new one.

        If another ring takes the name of this one, that ring takes over the subscription.  Frames
        that it has not read here are lost, unless it still has a member that can read them.  They
        are counted in the same way.  Does not wait.  Raises RingClosed, TooManyPeers
        (max_subscriptions), ValueError (it exists with another `lossless` or `redeliver`),
        RingTimeout if the membership lock cannot be taken for 5 s.
        """
        self._check_open()
        encoded = encode(subscription)
        result = native.subscribe(
            self._header,
            encoded,
            lossless=arguments.flag(lossless, "lossless"),
            redeliver=arguments.flag(redeliver, "redeliver"),
            start=joining.checked_start(start),
            patience_ns=joining.patience_ns(patience),
        )
        if result:
            raise diagnosis.cannot_join(self._name, self._header, result, encoded)

    def unsubscribe(self, subscription: str) -> bool:
        """Makes a durable subscription an ordinary one.  It ends when its last member leaves, and
        at once if it has none.

        Returns whether there was a subscription of this name.  Losses in earlier rings of this name
        are not reported any more.  Does not wait.  Raises RingClosed, RingTimeout if the membership
        lock cannot be taken for 5 s, OSError (no descriptors left to look at earlier rings; the
        subscription has ended).
        """
        self._check_open()
        result, found = directory.unsubscribe(
            self._name, self._epoch, self._header, encode(subscription)
        )
        if result:
            raise diagnosis.unusable(self._name, result)
        return found

    def _successor(self) -> Ring | None:
        """The ring that has our name now, if it is another one and was not closed."""
        try:
            if not native.has_successor(self._name, self._header):
                return None
            device = self._memory.device if self.memory == "pinned" else None
            return attach_any(self._name, device=device, owner=self._owner)
        except (RingNotFound, RingIncompatible, PeerLost, PermissionError):
            return None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # there may be a descriptor later
                return None
            if error.errno == errno.EBADF and self._header.lock_fd < 0:  # closed just now
                return None
            raise

    def _forget(self, endpoint: Endpoint) -> None:
        self._endpoints.pop(id(endpoint), None)
        if self._waits_for_last and not self._endpoints:
            with contextlib.suppress(Exception):
                self.close()

    def watch(self) -> None:
        """Lets this process clear dead peers, although it has not joined the ring.

        This is for a process that only holds a ring open.  A process with a producer or consumer
        does so without this call.
        """
        self._check_open()
        self._header.watch()

    def stats(self) -> stats.RingStats:
        """A frozen record of what the ring is doing.  It costs a few microseconds for each slot and
        tens for each peer."""
        self._check_open()
        return survey.collect(self._name, self._header)

    def close(self) -> None:
        """Closes the producers and consumers made from this handle, and the handle.

        If this process has created the ring, this also closes the ring for all and removes its
        name.  Consumers then read the frames that are there, and get EndOfStream.  If the creator
        is dead, the last process that leaves removes the name, unless a bridge fills the ring.  If
        there are durable subscriptions, the header keeps the name, and the next ring takes them
        over.

        GPU memory is freed when no other handle has the ring.  This process checks that when it
        makes or closes a ring, and when it ends.

        Waits for this process's own GPU work on the slots.  May be called twice.  Raises
        RingTimeout, and stays open, if a producer or consumer cannot leave the ring (see
        `Producer.close`).  Other errors of a producer or consumer are raised when everything is
        closed.
        """
        if self._closed:
            return
        if self._header.forked:
            self._closed = True
            return
        with self._joining:  # a peer that is about to join is closed as well
            self._closing = True  # nobody else joins any more
        try:
            self._close()
        finally:
            self._closing = False

    def _close(self) -> None:
        errors: list[Exception] = []
        shutdown.finish_dropped()
        for endpoint in shutdown.all_of(self._endpoints.values()):
            try:
                endpoint.close()
            except RingTimeout:
                raise  # it is still open, and so is this handle
            except Exception as error:
                if not (endpoint.closed or isinstance(error, RingError)):
                    raise
                errors.append(error)  # raised below; what is left of the peer is reaped after this
        if self._created:
            self._header.close_ring()
            native.remove_own(self._name, self._epoch, self._header)
        # The garbage collector is about to call the _dropped of some endpoints, perhaps in another
        # thread. It has cleared our references to them. They still need the slots and the device.
        if any(each() is None for each in list(self._endpoints.values())):
            self._waits_for_last = True
            return
        if self._device is not None and not shutdown.all_of(self._endpoints.values()):
            self._device.close()  # otherwise when the last endpoint is gone, which may still use it
        if not errors:  # else what could not be ended is torn, as after a death
            self._header.drop_all()
        if self._created or self._header.leave_late():
            kept_memory.keep(self._header, self._memory, created=self._created)
        else:
            go_with_us = native.goes_with_the_last(self._name, self._header)
            self._memory.close(others=True, then=self._header.disown)
            if go_with_us:
                with contextlib.suppress(RingError, OSError):  # others can do it later
                    leftovers.remove_dead(self._name, self._epoch)
        kept_memory.free()
        self._closed = True
        shutdown.remove(self)
        if errors:
            raise_first(errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _dropped(self) -> None:
        if not getattr(self, "_closed", True) and not self._header.forked:
            what = f"ring {self._name!r}"
            try:
                caller.warn_not_closed(what, self._made_at, "it is closed", self, self._whole)
            finally:  # warnings can be turned into errors
                with contextlib.suppress(Exception):
                    self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        device = self._memory.device if self.memory == "pinned" else None
        return attach_any, (self._name, 0.0, device, self._owner)
