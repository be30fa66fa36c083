"""The C core held to the executable model: same commands, same results, same words after each.

The model (model/sequential.py) is the specification that the interleavings are explored with; here
both take whole verbs, one after the other, in whatever order hypothesis thinks of.  `Late` plays a
GPU that gets to its promises when told to: the core sees fences that are behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.fake_driver import Driver
from tests.helpers.segment import Actor, Segment
from tests.model import sequential

REFUSALS = {
    "Blocked": native.BLOCKED,
    "RingClosed": native.CLOSED,
    "EndOfStream": native.ENDED,
    "PeerLost": native.PEER_LOST,
    "Reaped": native.REAPED,
}
PEERS, SUBSCRIPTIONS = 5, 3
MODES = {1: "lossless", 2: "lossy"}
STATES = ("FREE", "LIVE", "LEAVING")


def expected(verb: Callable[..., int | None], *args: Any) -> int:
    """What the model gives: a sequence, 0, or the refusal of the core that means the same."""
    try:
        return verb(*args) or 0
    except Exception as error:
        if (kind := type(error).__name__) not in REFUSALS:
            raise
        return REFUSALS[kind]


class Core(Actor):
    """A peer of the core with its own idea of what it holds, and a late GPU if asked for."""

    def __init__(self, segment: Segment, peer: Any) -> None:
        super().__init__(segment, peer)
        self.held: list[int] = []
        self.had = 0
        self.lossy = False
        self.lone = False
        """Whether it never had another member beside it, and never gave a frame back."""

    def take(self, verb: str, timeout: float = 0) -> int:
        before = self.segment.bytes()
        ready = native.ready(self.peer) or verb == "latest"  # it may pass what acquire waits for
        assert self.segment.bytes() == before
        result = getattr(self.peer, verb)(timeout)
        if result == native.BLOCKED:  # it may have voided sequences before it was blocked
            assert not native.ready(self.peer)
        else:
            assert ready, "there was an answer, and a sleeper would have missed it"
        return self._seq(result)

    def drained(self) -> bool:
        """Whether all fences of the peer are paid."""
        header, slots = self.header, range(self.segment.slots)
        return all(
            raw_verbs.fence(header, self.number, i) >= raw_verbs.work(header, self.number, i)
            for i in slots
        )


class Machine(RuleBasedStateMachine):
    gpu = False

    @initialize(slots=st.integers(1, 4))
    def create(self, slots: int) -> None:
        self.segment = Segment(slots, PEERS, SUBSCRIPTIONS)
        self.model = sequential.SequentialModel(slots, SUBSCRIPTIONS, PEERS, gpu=self.gpu)
        self.cores: dict[int, Core] = {}
        self.dead: list[int] = []
        self.closed = False
        self.driver = Driver(self.segment)  # its streams get nowhere: fences are raised by hand

    def teardown(self) -> None:
        if hasattr(self, "segment"):
            self.cores.clear()
            self.segment.close()

    # ---- helpers -----------------------------------------------------------------------------

    def expected(self, verb: str, *args: Any) -> Any:
        return expected(getattr(self.model, verb), *args)

    def pick(self, data: Any, what: str) -> Core:
        return data.draw(st.sampled_from(self.list(what)), label=what)

    def list(self, what: str) -> list[Core]:
        cores = list(self.cores.values())
        if what == "producers":
            return [core for core in cores if core.subscription == 255]
        if what == "consumers":
            return [core for core in cores if core.subscription != 255]
        if what == "lossy":
            return [core for core in self.list("consumers") if core.lossy]
        if what == "writing":
            return [core for core in self.list("producers") if core.held]
        if what == "reading":
            return [core for core in self.list("consumers") if core.held]
        if what == "idle":
            return [core for core in cores if not core.held and core.drained()]
        return cores

    def bury(self) -> None:
        """Clears the dead, the lowest number first.  The core does so at every join, and the
        watchdog at any time."""
        self.segment.reap()
        for number in sorted(self.dead):
            self.expected("reap", number)
        self.dead.clear()

    # ---- membership --------------------------------------------------------------------------

    @precondition(lambda self: not self.closed)
    @rule()
    def join_producer(self) -> None:
        self.bury()
        header = self.segment.process()
        peer = raw_verbs.join_producer(header, self.device(header))
        try:
            number = self.model.join_producer()
        except sequential.TableFull:
            assert peer == native.FULL_PEERS
            return
        self.enter(number, peer)

    @precondition(lambda self: not self.closed)
    @rule(
        name=st.sampled_from("abcd"),
        lossless=st.booleans(),
        start=st.sampled_from(["next", "next", "oldest"]) | st.integers(0, 20),
    )
    def join_consumer(self, name: str, lossless: bool, start: Any) -> None:
        self.bury()
        header = self.segment.process()
        peer = raw_verbs.join_consumer(
            header, name.encode(), lossless, start, True, self.device(header)
        )
        try:
            number = self.model.join_consumer(name, lossless, start)
        except sequential.TableFull:
            assert peer in (native.FULL_PEERS, native.FULL_SUBSCRIPTIONS)
            return
        except ValueError:
            assert peer == native.MODE_MISMATCH
            return
        self.enter(number, peer)
        core = self.cores[number]
        core.lossy = not lossless
        members = [
            other for other in self.cores.values() if other.subscription == core.subscription
        ]
        core.lone = core.lossy and len(members) == 1
        if len(members) > 1:
            for member in members:
                member.lone = False

    def device(self, header: Any) -> Any:
        return native.Device(header, 0, None, None, self.driver.table) if self.gpu else None

    def enter(self, number: int, peer: Any) -> None:
        assert not isinstance(peer, int), f"the core refuses with {peer}"
        assert peer.number == number
        self.cores[number] = Core(self.segment, peer)

    @precondition(lambda self: self.list("idle"))
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        self.bury()
        core = self.pick(data, "idle")
        assert core.peer.leave() == self.expected("leave", core.number)
        del self.cores[core.number]

    @precondition(lambda self: self.cores)
    @rule(data=st.data())
    def kill(self, data: Any) -> None:
        core = self.pick(data, "anybody")
        core.die()
        self.model.kill(core.number)
        del self.cores[core.number]
        self.dead.append(core.number)

    @precondition(lambda self: self.dead)
    @rule()
    def reap(self) -> None:
        self.bury()

    @rule(certain=st.integers(0, 9))
    def close(self, certain: int) -> None:
        if certain == 0:
            self.closed = True
            self.segment.creator.close_ring()
            self.model.close()

    # ---- frames ------------------------------------------------------------------------------

    @precondition(lambda self: self.list("producers"))
    @rule(data=st.data())
    def claim(self, data: Any) -> None:
        """The core looks at its deadline after each void.  The model has no deadline, so the core
        is asked again."""
        core = self.pick(data, "producers")
        expected = self.expected("claim", core.number)
        while True:
            before = self.segment.creator.frontier
            got = core.take("claim")
            if got != native.BLOCKED or self.segment.creator.frontier == before:
                break
        assert got == expected
        if got > 0:
            core.held.append(got)

    @precondition(lambda self: self.list("writing"))
    @rule(data=st.data(), verb=st.sampled_from(["publish", "publish", "publish", "abandon"]))
    def publish(self, data: Any, verb: str) -> None:
        core = self.pick(data, "writing")
        seq = core.held.pop(data.draw(st.integers(0, len(core.held) - 1), label="which"))
        assert getattr(core, verb)(seq) == self.expected(verb, core.number, seq)

    @precondition(lambda self: self.list("consumers"))
    @rule(data=st.data())
    def acquire(self, data: Any) -> None:
        core = self.pick(data, "consumers")
        self.taken(core, "acquire")

    @precondition(lambda self: self.list("lossy"))
    @rule(data=st.data())
    def latest(self, data: Any) -> None:
        core = self.pick(data, "lossy")
        self.taken(core, "latest")

    def taken(self, core: Core, verb: str) -> None:
        got = core.take(verb)
        if got == native.TORN:  # reports frames released before, and takes nothing
            seqs = core.peer.take_torn()
            assert seqs
            assert all(self.model.torn(seq) for seq in seqs)
            got = core.take(verb)
        assert got == self.expected(verb, core.number)
        if got > 0:
            core.held.append(got)
            core.had += 1

    @precondition(lambda self: self.list("reading"))
    @rule(data=st.data(), verb=st.sampled_from(["release", "release", "release", "give_back"]))
    def release(self, data: Any, verb: str) -> None:
        core = self.pick(data, "reading")
        core.lone &= verb != "give_back"
        seq = core.held.pop(data.draw(st.integers(0, len(core.held) - 1), label="which"))
        torn = verb == "release" and self.model.torn(seq)
        ended = getattr(core, verb)(seq)
        assert (ended == native.TORN) == torn
        if torn:  # it is released, and known to be torn
            ended = 0
        assert ended == self.expected(verb, core.number, seq)

    @precondition(lambda self: self.gpu and self.cores)
    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        """The GPU of one peer gets to the end of its work."""
        core = self.pick(data, "anybody")
        header = self.segment.creator
        for i in range(self.segment.slots):
            raw_verbs.raise_fence(header, core.number, i, raw_verbs.work(header, core.number, i))
        self.model.finish(core.number)

    # ---- the words -----------------------------------------------------------------------------

    @invariant()
    def words_agree(self) -> None:
        if not hasattr(self, "segment"):
            return
        seen, words = self.seen(), self.model.words()
        for key, value in seen.items():
            assert value == words[key], key

    @invariant()
    def everybody_holds_what_he_thinks(self) -> None:
        for core in getattr(self, "cores", {}).values():
            assert sorted(seq for _, seq in core.peer.holding()) == sorted(core.held)

    @invariant()
    def the_books_of_lone_members_balance(self) -> None:
        """A member has read, lost, or found torn all sequences that it has met, including void
        ones."""
        for core in getattr(self, "cores", {}).values():
            if core.lone:
                lost = self.segment.peek("peer", "lost", core.number)
                lost += self.segment.peek("peer", "torn", core.number)
                start = self.segment.peek("sub", "word", core.subscription) >> 16
                assert core.had + lost == core.peer.position - start, core.number

    @invariant()
    def what_was_lost_is_what_the_model_lost(self) -> None:
        for core in getattr(self, "cores", {}).values():
            if core.lossy:
                lost = self.segment.peek("peer", "lost", core.number)
                assert lost == self.model.lost(core.number), core.number

    def seen(self) -> dict[str, Any]:
        ring = self.segment
        peers, slots = range(ring.max_peers), range(ring.slots)
        subs = [ring.peek("sub", "word", u) for u in range(ring.max_subscriptions)]

        def claim_word(table: str, word: tuple[int, int, str]) -> tuple[int, int | None, str]:
            seq, owner, phase = word
            return seq, None if owner == 255 else owner, phase.upper()

        return {
            "slot": [claim_word("slot", ring.slot(i)) for i in slots],
            "take": [
                [claim_word("take", ring.take(u, i)) for i in slots]
                for u in range(ring.max_subscriptions)
            ],
            "tear": [[ring.tear(i, p) for p in peers] for i in slots],
            "sub": [(MODES[w & 0xFFFF], w >> 16) if w & 0xFFFF else None for w in subs],
            "peer": [STATES[ring.peek("peer", "word", p) >> 16] for p in peers],
            "work": [[raw_verbs.work(ring.creator, p, i) for i in slots] for p in peers],
            "fence": [[raw_verbs.fence(ring.creator, p, i) for i in slots] for p in peers],
            "closed": ring.creator.closed,
            "sub_mask": ring.mask("sub_mask"),
            "frontier": ring.creator.frontier,
        }


class LateMachine(Machine):
    gpu = True


budget = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestFew = type("Few", (Machine,), {}).TestCase
TestFew.settings = settings(budget, max_examples=8)
TestHost = pytest.mark.slow(Machine.TestCase)
TestHost.settings = budget
TestLate = pytest.mark.slow(LateMachine.TestCase)
TestLate.settings = budget


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_what_a_lossy_reader_loses_while_it_gives_back_much_is_what_the_model_loses(segment, slots):
    """There is one writer and one reader.  The machine's other rules would end most runs early."""
    chance = random.Random(slots)
    for _ in range(50):
        ring, model = segment(slots), sequential.SequentialModel(slots)
        writer, reader = ring.producer(), ring.consumer("x", lossless=False)
        p, c = model.join_producer(), model.join_consumer("x", lossless=False)
        held: list[int] = []
        for _ in range(40):
            verb = chance.choice(["put", "put", "acquire", "acquire", "latest", "back", "release"])
            if verb == "put":
                seq, before = writer.claim(0), -1
                while seq == native.BLOCKED and ring.creator.frontier != before:  # after a void
                    before = ring.creator.frontier
                    seq = writer.claim(0)
                assert seq == expected(model.claim, p)
                if seq > 0:
                    writer.publish(seq)
                    model.publish(p, seq)
            elif verb in ("acquire", "latest"):
                seq = getattr(reader, verb)(0)
                assert seq == expected(getattr(model, verb), c)
                held += [seq] if seq > 0 else []
            elif held:
                seq = held.pop(chance.choice([-1, -1, 0]))
                (reader.give_back if verb == "back" else reader.release)(seq)
                (model.give_back if verb == "back" else model.release)(c, seq)
            assert ring.peek("peer", "lost", reader.number) == model.lost(c)
