"""Proof that the model can fail: each hole of docs/holes.md, opened by switching its fix off.

`caught` is how the violation that the explorer must find begins; with the fix on, the same
configuration is clean.
"""

from dataclasses import dataclass

from .configs import ONE, READ, READ_TWO, TWO, bell, device, host
from .words import CONSUMER, PRODUCER


@dataclass(frozen=True)
class Mutant:
    hole: str
    caught: str
    build: object  # which fixes are off -> what to explore
    slow: bool = False  # the clean run takes long: only with --long

    def explore(self, *off):
        """-> Report, with these fixes off."""
        return self.build(off).explore()


def torn_twice(off=()):
    """A ring in which no promise is ever paid.  The frame is the first in its slot, and of peer id
    1."""
    ring = host(off, kills=2, slots=1, peers=2, clocks="device")
    ring.producer(1, mortal=True, leave=False).producer(1, late=True, mortal=True, leave=False)
    return ring.reaper(0, 1).judge(0, 0, 1, 1 << 16)


MUTANTS = {
    # ------------------------------------------------------------------ host order
    "H1": Mutant(
        "the look after the swap sees a holder of c-N only",
        "invariant 3",
        lambda off: host(off).producer(5, leave=False).consumer(1, lossy=True, leave=False),
    ),
    "H2": Mutant(
        "claim makes VOIDs for ever while readers hold every slot",
        "invariant 7",
        lambda off: host(off, horizon=12).producer(3).consumer(2, lossy=True, keep=2, leave=False),
    ),
    "H3": Mutant(
        "`over` is looked at after the slot",
        "invariant 4: the stream is said to end",
        lambda off: host(off).producer(1).consumer(),
    ),
    "H4": Mutant(
        "a re-opened frame lies below every position",
        "P1 waits for ever",
        lambda off: host(off, kills=1).producer(3).consumer(1, mortal=True).consumer().reaper(1),
        slow=True,
    ),
    "H5": Mutant(
        "a lossless start is announced and the frontier not read again",
        "invariant 4: frame 2 overwritten",
        lambda off: (
            host(off).producer(3, leave=False).consumer(1, at="oldest", late=True, leave=False)
        ),
    ),
    "H6": Mutant(
        "the subscription of the last member stays",
        "invariant 12: subscription 0 without a member",
        lambda off: host(off, kills=1).producer(3, leave=False).consumer(1, mortal=True).reaper(1),
    ),
    "H7": Mutant(
        "what another member took is counted as lost",
        "invariant 4: lossless subscription 0 counted",
        lambda off: (
            host(off).producer(3, leave=False).consumer(1, leave=False).consumer(1, leave=False)
        ),
    ),
    "H8": Mutant(
        "a doomed hold is undone by a plain store",
        "invariant 2: illegal change take",
        lambda off: (
            host(off)
            .producer(3)
            .consumer(1, lossy=True, leave=False)
            .consumer(1, lossy=True, leave=False)
        ),
        slow=True,
    ),
    "H9": Mutant(
        "`closed` is looked at before the swap only",
        "invariant 4: the stream is said to end",
        lambda off: host(off).producer(1, leave=False).consumer(leave=False).closer(),
    ),
    "H11": Mutant(
        "a new subscription inherits take words",
        "invariant 4: the stream is said to end",
        lambda off: (
            host(off).producer(2).consumer(2).consumer(1, late=True, at="oldest", leave=False)
        ),
    ),
    "C1": Mutant(
        "a claim that waits at a full ring does not look at `closed`",
        "P1 waits for ever",
        lambda off: host(off).producer(3).consumer(0, leave=False).closer(),
    ),
    "E1": Mutant(
        "the end is decided between the reaper's OPEN and its redo",
        "invariant 4: the stream is said to end",
        lambda off: host(off, kills=1).producer(1).consumer(1, mortal=True).consumer().reaper(1),
    ),
    "E2": Mutant(
        "a frame is given back without a word to members that sleep",
        "P1 waits for ever",
        lambda off: host(off).producer(3).consumer(1, gives_back=1).consumer(),
    ),
    "E3": Mutant(
        "`no producer is LIVE` is read entry by entry",
        "invariant 4: the stream is said to end, and a producer is there or to come",
        lambda off: host(off, peers=4).consumer(0).producer(0).producer(1, late=True).consumer(),
    ),
    "E5": Mutant(
        "the high-water mark of lost stays where a frame was given back",
        "invariant 4: 1 lost and 2 had of 4",
        lambda off: host(off, counting=True).producer(4).consumer(gives_back=1, lossy=True),
    ),
    "E6": Mutant(
        "a member's own open take word is read as another member's",
        "invariant 4: ",
        lambda off: (
            host(off, counting=True).producer(4).consumer(gives_back=2, together=True, lossy=True)
        ),
    ),
    "E7": Mutant(
        "a reaper that repeats the work of a dead one counts a producer again",
        "invariant 4: the stream is said to end, and a producer is there or to come",
        lambda off: (
            host(off, kills=2, producers=2)
            .producer(0, mortal=True)
            .consumer()
            .reaper(0, mortal=True)
            .reaper(0)
            .producer(0, late=True)
        ),
    ),
    "E8": Mutant(
        "who is reaped late says once more how the stream ended",
        "invariant 8: illegal change producers",
        lambda off: (
            host(off, kills=2)
            .producer(0, mortal=True)
            .producer(0, mortal=True)
            .consumer()
            .reaper(0, 1)
        ),
    ),
    "H12": Mutant(
        "a durable subscription is removed at the last leave",
        "invariant 12: illegal change sub[0]",
        lambda off: (
            host(off, durable=True).producer(3, leave=False).consumer(1).consumer(1, late=True)
        ),
    ),
    "H13": Mutant(
        "a durable subscription is given up while a member is there",
        "invariant 4: frame",
        lambda off: (
            host(off, durable=True)
            .producer(3)
            .consumer(0)
            .consumer(late=True, leave=False)
            .impatient()
        ),
    ),
    "H14": Mutant(
        "a durable subscription is given up before its place is noted",
        "invariant 4: ",
        lambda off: (
            host(off, kills=1, durable=True)
            .producer(2)
            .consumer(0)
            .impatient(mortal=True)
            .consumer(late=True, leave=False)
        ),
    ),
    "H15": Mutant(
        "a frame that was counted as lost comes at the end",
        "invariant 4: ",
        lambda off: (
            host(off, kills=1, durable=True)
            .producer(2)
            .consumer(1, mortal=True)
            .reaper(1)
            .impatient()
            .consumer(late=True, leave=False)
        ),
        slow=True,
    ),
    "H16": Mutant(
        "the note of a loss is cleared before the loss is owed",
        "invariant 4: ",
        lambda off: (
            host(off, kills=1, durable=True)
            .durable(owed=1)
            .published(3)
            .producer(0)
            .consumer(0, late=True, mortal=True)
            .reaper(0, 1)
            .consumer(late=True, leave=False)
        ),
    ),
    "H17": Mutant(
        "a lossy subscription is taken up behind what was overwritten meanwhile",
        "invariant 4: 0 told as lost and 0 counted",
        lambda off: (
            host(off, durable=True, counting=True)
            .durable(lossy=True)
            .producer(3)
            .consumer(lossy=True, late=True, leave=False)
        ),
    ),
    "H18": Mutant(
        "whoever subscribes notes nowhere that it is not done",
        "invariant 4: frame 2 overwritten, which 0 is to read",
        lambda off: (
            host(off, kills=1, durable=True)
            .producer(3)
            .subscriber(at="oldest", mortal=True)
            .consumer(late=True, leave=False)
        ),
    ),
    "H19": Mutant(
        "a take word says DONE before the loss is counted",
        "invariant 4: ",
        lambda off: (
            host(off, kills=1, slots=1, durable=True, counting=True)
            .producer(2)
            .consumer(1, lossy=True, mortal=True)
            .reaper(1)
        ),
    ),
    "H20": Mutant(
        "what earlier rings lost is told to each member",
        "invariant 4: ",
        lambda off: (
            host(off, durable=True)
            .durable(owed=1)
            .producer(2)
            .consumer(1, late=True)
            .consumer(late=True, leave=False)
        ),
    ),
    "H21": Mutant(
        "what was lost is told to a member that is killed, and to nobody after it",
        "invariant 4: ",
        lambda off: (
            host(off, kills=1, durable=True)
            .durable(owed=1)
            .producer(1)
            .consumer(1, late=True, mortal=True)
            .reaper(0, 1, 2)
            .consumer(late=True, alone=True, leave=False)
        ),
        slow=True,
    ),
    "M1": Mutant(
        "sub_mask is not read again after the swap",
        "invariant 3",
        lambda off: (
            host(off)
            .producer(4, leave=False)
            .consumer(1, lossy=True, late=True, at="oldest", leave=False)
        ),
    ),
    "M2": Mutant(
        "the bit of sub_mask is set after the announcement",
        "invariant 4: frame 2 overwritten",
        lambda off: host(off).producer(4).consumer(1, late=True, at="oldest"),
    ),
    "M3": Mutant(
        "the gate loads the first word of the mask only",
        "invariant 4: frame 2 overwritten",
        lambda off: host(off, subs=2, word_bits=1).producer(3).consumer(u=1),
    ),
    "M4": Mutant(
        "the look after the swap loads the first word of the mask only",
        "invariant 3",
        lambda off: (
            host(off, subs=2, word_bits=1).producer(4, leave=False).consumer(1, u=1, lossy=True)
        ),
    ),
    "M5": Mutant(
        "holders of every slot are looked for in the first word of the mask only",
        "invariant 7",
        lambda off: (
            host(off, horizon=12, subs=2, word_bits=1)
            .producer(3)
            .consumer(2, u=1, lossy=True, keep=2, leave=False)
        ),
    ),
    # ------------------------------------------------------------------ membership
    "A1": Mutant(
        "leave removes a subscription without LOCK",
        "invariant 12: peer 2 is a member of nothing",
        lambda off: (
            host(off).producer(1, leave=False).consumer(0).consumer(0, late=True, leave=False)
        ),
    ),
    "A2": Mutant(
        "a reaper works without LOCK, on a number that lives again",
        "invariant 12",
        lambda off: (
            host(off, kills=1)
            .producer(1)
            .consumer(1, mortal=True)
            .consumer(1, late=True, leave=False)
            .reaper(1)
            .reaper(1)
        ),
        slow=True,
    ),
    "A4": Mutant(
        "the entry is LIVE before its byte is locked",
        "invariant 12: peer 1 lives, its entry is FREE",
        lambda off: (
            host(off).producer(0, leave=False).consumer(0, late=True, leave=False).reaper(1)
        ),
    ),
    "A5": Mutant(
        "the subscription is announced before its member's entry",
        "invariant 12: subscription 0 without a member",
        lambda off: (
            host(off, kills=1)
            .consumer(0, late=True, leave=False, mortal=True)
            .reaper(0)
            .producer(1, leave=False)
        ),
    ),
    "A7": Mutant(
        "a leave does not wait for the verbs of other threads",
        "invariant 12: WRITING by a FREE entry",
        lambda off: host(off, peers=2, threads=True).threads(PRODUCER).producer(2, leave=False),
    ),
    "A8": Mutant(
        "a number is given out while a word of its last owner stands",
        "L1 waits for ever",
        lambda off: (
            host(off, peers=2, threads=True).consumer().orphan(PRODUCER, 1).producer(2, late=True)
        ),
    ),
    "A9": Mutant(
        "a verb looks at the id of its entry first, then whether it is LIVE",
        "P3 waits for ever",
        lambda off: (
            host(off, peers=2, threads=True).threads(PRODUCER).producer(3, late=True, leave=False)
        ),
    ),
    "A10": Mutant(
        "a leave does not take back what a verb of another thread got",
        "invariant 12: HELD by a FREE entry",
        lambda off: (
            host(off, threads=True)
            .threads(CONSUMER)
            .producer(2, leave=False)
            .consumer(1, leave=False)
        ),
    ),
    "A11": Mutant(
        "who clears an orphan dies between OPEN and redo",
        "P1 waits for ever",
        lambda off: (
            host(off, kills=1, slots=1, threads=True)
            .producer(1, leave=False)
            .consumer(2, leave=False)
            .orphan(CONSUMER, 2)
            .sweeper(mortal=True)
            .sweeper()
            .reaper(2)
        ),
        slow=True,
    ),
    "A12": Mutant(
        "a verb is counted after its look at its own entry",
        "invariant 12: WRITING by a FREE entry",
        lambda off: host(off, peers=2, threads=True).threads(PRODUCER).producer(2, leave=False),
    ),
    # ------------------------------------------------------------------ device order
    "G1": Mutant(
        "words are cleared when the locks drop, the GPU still runs",
        "invariant 10",
        lambda off: device(off, 1, peers=2).producer(ONE, mortal=True).producer(ONE),
    ),
    "G2": Mutant(
        "a claim is ordered after the previous owner only",
        "invariant 10",
        lambda off: device(off, 1).producer(ONE).producer(ONE, mortal=True).producer(ONE),
    ),
    "G3": Mutant(
        "a dead peer's fence is raised beyond its promise",
        "invariant 8: fence[0][0] beyond its promise",
        lambda off: (
            device(off, 1)
            .producer(ONE + " leave", mortal=True)
            .producer("join " + ONE + " leave", late=True)
            .consumer(READ_TWO)
        ),
    ),
    "G4": Mutant(
        "the fence is raised before the torn mark",
        "invariant 11",
        lambda off: device(off, 1).producer(ONE, mortal=True).consumer(READ),
    ),
    "G5": Mutant(
        "torn is marked in the slot word only, which may have moved on",
        "invariant 11",
        lambda off: device(off, 1).producer(ONE, mortal=True).consumer(READ).producer(ONE),
    ),
    "G6": Mutant(
        "abandon records no fence",
        "invariant 10",
        lambda off: device(off, peers=2).producer("claim abandon").producer(ONE),
    ),
    "G7": Mutant(
        "a fence is a bare sequence, and the number is used again",
        "invariant 10",
        lambda off: (
            device(off, subs=2, peers=4)
            .producer(TWO)
            .consumer(READ + " leave")
            .consumer("", u=1)
            .consumer("join " + READ + " " + READ, u=1, late=True)
        ),
    ),
    "G8": Mutant(
        "leave does not wait for the peer's own GPU work",
        "a stream of P2 is blocked for ever",
        lambda off: device(off, 1).producer(ONE + " leave", mortal=True).producer(ONE),
    ),
    "G12": Mutant(
        "a consumer that changes streams is not ordered after itself",
        "invariant 8: fence[1][0] falls",
        lambda off: device(off, 1).producer(TWO, mortal=True).consumer(READ_TWO),
    ),
    "G14": Mutant(
        "a process without a GPU does not wait for the GPU work of others",
        "invariant 10: L2 reads 1 while P1 writes 1",
        lambda off: device(off, 1).producer(ONE).consumer(READ, cpu=True),
    ),
    # ------------------------------------------------------------------ torn marks
    "T1": Mutant(
        "the torn mark is by slot only",
        "invariant 11: L3 is told that finished 1 is torn",
        lambda off: (
            device(off, 1).producer(ONE + " leave").producer(ONE, mortal=True).consumer(READ_TWO)
        ),
    ),
    "T2": Mutant(
        "the torn mark does not say what had been reached",
        "invariant 11: L2 is told that finished 1 is torn",
        lambda off: device(off, 1).producer(TWO, mortal=True).consumer(READ_TWO),
    ),
    "T3": Mutant(
        "the torn mark does not say which owner of the number died",
        "invariant 11: L2 is told that finished 2 is torn",
        lambda off: (
            device(off, 1)
            .producer(ONE, mortal=True)
            .consumer(READ_TWO)
            .producer("join " + ONE + " leave", late=True)
        ),
    ),
    "T4": Mutant(
        "the torn mark is believed while it is being written",
        "invariant 11: L2 is told that finished 1 is torn",
        lambda off: device(off, 1).producer(TWO, mortal=True).consumer(READ_TWO),
    ),
    "T5": Mutant(
        "what had been reached is read, and whose it is not looked at again",
        "J4 failed: AssertionError a torn frame is taken for whole",
        torn_twice,
    ),
    # ------------------------------------------------------------------ doorbell
    "D1": Mutant(
        "the bell is read after the condition",
        "frame_sleeper 2 waits for ever",
        lambda off: bell(off).cast("frame_sleeper", "publisher"),
    ),
    "D2": Mutant(
        "waiters is raised after the condition",
        "frame_sleeper 2 waits for ever",
        lambda off: bell(off).cast("frame_sleeper", "publisher"),
    ),
    "D3": Mutant(
        "the reaper does not ring for the dead",
        "frame_sleeper 2 waits for ever",
        lambda off: bell(off).cast(
            "frame_sleeper", "frame_sleeper", "publisher", "reaper", kills=1
        ),
    ),
    "D4": Mutant(
        "the bell rings before the change",
        "frame_sleeper 2 waits for ever",
        lambda off: bell(off).cast("frame_sleeper", "publisher"),
    ),
    "D6": Mutant(
        "leave frees its entry in one stage, and dies before it rings",
        "end_sleeper 2 waits for ever",
        lambda off: bell(off).cast("end_sleeper", "leaver", "reaper", kills=1),
    ),
    "D12": Mutant(
        "a reaper frees the entry, and dies before it rings",
        "frame_sleeper 2 waits for ever",
        lambda off: bell(off).cast(
            "frame_sleeper",
            "publisher",
            "reaper",
            "reaper",
            kills=2,
            mortal=("publisher", "reaper"),
        ),
    ),
    "D7": Mutant(
        "arming does not kick the notifier thread, which sleeps elsewhere",
        "poller 2 waits for ever",
        lambda off: bell(off).cast("poller", "notifier_thread", "publisher"),
    ),
    "D8": Mutant(
        "the notifier thread reads the bell after its look",
        "poller_of_two 2 waits for ever",
        lambda off: bell(off).cast(
            "poller_of_two", "notifier_thread", "publisher", "second_publisher"
        ),
    ),
    "D9": Mutant(
        "an event loop announces itself after its look",
        "poller_of_two 2 waits for ever",
        lambda off: bell(off).cast(
            "poller_of_two", "notifier_thread", "publisher", "second_publisher"
        ),
    ),
    "D10": Mutant(
        "the descriptor is drained when it is armed already",
        "poller 2 waits for ever",
        lambda off: bell(off).cast("poller", "notifier_thread", "publisher"),
    ),
    "D11": Mutant(
        "who waits at two rings sleeps at the bell of the first",
        "select_sleeper 2 waits for ever",
        lambda off: bell(off).cast("select_sleeper", "publisher2"),
    ),
}
