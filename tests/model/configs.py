"""What is explored: small rings, few actors, every interleaving and every kill.  Must all be clean.

`CI` runs with every test run (about a minute in all), `LONG` by `python -m tests.model --long`.
Each entry is a function of nothing that returns a Report.  P is a producer, L a member of a
lossless, Y of a lossy subscription, R a reaper; two slots unless it says otherwise.  What a mutant
explores with its fix on (`mutants.py`) is not here again.
"""

from . import doorbell
from .actors import Cast
from .device import Device
from .protocol import Ring
from .words import CONSUMER, PRODUCER

CI, LONG = {}, {}


def host(off=(), kills=0, horizon=None, **ring):
    return Cast(Ring(off=off, **ring), kills, horizon)


def device(off=(), kills=0, slots=1, **ring):
    return Device(Ring(slots, off=off, clocks="device", **ring), kills)


def bell(off=()):
    return doorbell.Doorbell(off)


def _both(small, large):
    for configurations, chosen in (small, CI), (large, LONG):
        for name, build in configurations.items():
            chosen[name] = lambda build=build: build().explore()


# ---------------------------------------------------------------------- frames, nobody dies

_both(
    {
        "1P 1L, 3 laps": lambda: host().producer(6).consumer(),
        "2P 1L": lambda: host().producer(3).producer(2).consumer(),
        "1P 1L on 3 slots, holding 2": lambda: host(slots=3).producer(7).consumer(keep=2),
        "1P, two subscriptions": lambda: host(subs=2).producer(4).consumer().consumer(u=1),
        "1P, 2L share": lambda: host().producer(4).consumer().consumer(),
        "1P 1Y": lambda: host().producer(5).consumer(lossy=True),
        "1P 1Y holding every slot": lambda: host().producer(3).consumer(lossy=True, keep=2),
        "2P 1Y": lambda: host().producer(2).producer(1).consumer(lossy=True),
        "1P, 2Y share": lambda: host().producer(2).consumer(lossy=True).consumer(lossy=True),
        "1P 1L 1Y": lambda: host(subs=2).producer(3).consumer().consumer(u=1, lossy=True),
        "1P, latest": lambda: host().producer(4).consumer(lossy=True, newest=True),
        "1P, latest shared": lambda: (
            host().producer(2).consumer(lossy=True, newest=True).consumer(lossy=True, newest=True)
        ),
        "2P that abandon, 1L": lambda: (
            host().producer(3, abandon=(0, 2)).producer(1, abandon=(0,)).consumer()
        ),
        "1P, lost is counted": lambda: host(counting=True).producer(4).consumer(lossy=True),
    },
    {
        "3P 1L": lambda: host(peers=4).producer(2).producer(1).producer(1).consumer(),
        "2P, 2L share": lambda: host(peers=4).producer(1).producer(1).consumer().consumer(),
        "1P, 3L share": lambda: host(peers=4).producer(2).consumer().consumer().consumer(),
        "1P, 2L share, on 3 slots": lambda: host(slots=3).producer(5).consumer().consumer(),
        "2P 1L on 3 slots": lambda: host(slots=3).producer(4).producer(2).consumer(),
        "1P, 2Y share, 2 laps": lambda: (
            host().producer(3).consumer(lossy=True).consumer(lossy=True)
        ),
        "1P 1L 1Y, 2 laps": lambda: host(subs=2).producer(4).consumer().consumer(u=1, lossy=True),
    },
)

# ---------------------------------------------------------------------- join, leave, give back

_both(
    {
        "join next": lambda: host().producer(3).consumer(late=True),
        "join oldest": lambda: host().producer(4).consumer(late=True, at="oldest"),
        "join at 3": lambda: host().producer(3).consumer(late=True, at=3),
        "join oldest, 2P": lambda: host().producer(2).producer(1).consumer(late=True, at="oldest"),
        "join a member": lambda: host().producer(3).consumer(2).consumer(late=True),
        "join where another leaves": lambda: (
            host().producer(2).consumer(1).consumer(1, late=True, at="oldest")
        ),
        "join lossy": lambda: host().producer(4).consumer(1, lossy=True, late=True, at="oldest"),
        "close, 1P 1L": lambda: host().producer(3).consumer().closer(),
        "close, 2P 1L": lambda: host().producer(1).producer(1).consumer().closer(),
        "give back, alone": lambda: host().producer(3).consumer(gives_back=2),
        "give back and leave": lambda: (
            host().producer(2).consumer(2, gives_back=2).consumer(gives_back=1)
        ),
        "give back, lossy": lambda: host().producer(3).consumer(gives_back=2, lossy=True),
        "give back, lost is counted": lambda: (
            host(counting=True).producer(4).consumer(gives_back=2, lossy=True)
        ),
    },
    {
        "close, 2P 1L, 2 laps": lambda: host().producer(2).producer(2).consumer().closer(),
        "close, 1P, 2L share": lambda: host().producer(3).consumer().consumer().closer(),
        "join oldest, 2P, 2 laps": lambda: (
            host().producer(2).producer(2).consumer(late=True, at="oldest")
        ),
        "2L join": lambda: host().producer(2).consumer(late=True).consumer(late=True, at="oldest"),
        "give back, both": lambda: host().producer(3).consumer(gives_back=2).consumer(gives_back=1),
        "give back and leave, on 3 slots": lambda: (
            host(slots=3).producer(4).consumer(2, gives_back=2).consumer(gives_back=1)
        ),
    },
)

# ---------------------------------------------------------------------- masks of several words

# A word has one bit, so the two subscriptions are in two words.
_both(
    {
        "two words: 1P 1L 1Y": lambda: (
            host(subs=2, word_bits=1).producer(2).consumer().consumer(u=1, lossy=True)
        ),
        "two words: one joins in the first, one leaves the second": lambda: (
            host(subs=2, word_bits=1)
            .producer(3)
            .consumer(1, late=True, at="oldest")
            .consumer(1, u=1)
        ),
        "two words: one leaves the first, one joins in the second": lambda: (
            host(subs=2, word_bits=1)
            .producer(3)
            .consumer(1)
            .consumer(1, u=1, late=True, at="oldest")
        ),
        "two words: a joiner dies in the second": lambda: (
            host(kills=1, subs=2, word_bits=1)
            .producer(2)
            .consumer(0, lossy=True)
            .consumer(1, u=1, late=True, mortal=True, at="oldest")
            .reaper(2)
        ),
    },
    {
        "two words: 1P 1L 1Y, 2 laps": lambda: (
            host(subs=2, word_bits=1).producer(4).consumer().consumer(u=1, lossy=True)
        ),
        "two words: 2L, 2 laps": lambda: (
            host(subs=2, word_bits=1).producer(4).consumer().consumer(u=1)
        ),
        "two words: 1Y 1L, holding 2": lambda: (
            host(subs=2, word_bits=1).producer(3).consumer(lossy=True, keep=2).consumer(u=1)
        ),
        "two words: both join": lambda: (
            host(subs=2, word_bits=1)
            .producer(2)
            .consumer(1, late=True, at="oldest")
            .consumer(1, u=1, lossy=True, late=True, at="oldest")
        ),
    },
)

# ---------------------------------------------------------------------- deaths

_both(
    {
        "P dies": lambda: host(kills=1).producer(3, mortal=True).consumer().reaper(0),
        "one of 2P dies": lambda: (
            host(kills=1).producer(1, mortal=True).producer(1).consumer().reaper(0)
        ),
        "a member dies": lambda: (
            host(kills=1).producer(2).consumer(mortal=True).consumer().reaper(1)
        ),
        "a member dies, frames are dropped": lambda: (
            host(kills=1, redeliver=False).producer(2).consumer(mortal=True).consumer().reaper(1)
        ),
        "the last member dies": lambda: host(kills=1).producer(4).consumer(mortal=True).reaper(1),
        "Y dies": lambda: host(kills=1).producer(3).consumer(mortal=True, lossy=True).reaper(1),
        "L and a reaper die": lambda: (
            host(kills=2).producer(2).consumer(mortal=True).reaper(1, mortal=True).reaper(1)
        ),
        "a joiner dies": lambda: (
            host(kills=1).producer(3).consumer(2, late=True, mortal=True, at="oldest").reaper(1)
        ),
        "P and L die": lambda: (
            host(kills=2).producer(2, mortal=True).consumer(mortal=True).reaper(0, 1)
        ),
        "a member dies that gave back": lambda: (
            host(kills=1).producer(1).consumer(gives_back=1, mortal=True).consumer().reaper(1)
        ),
        "P dies, fences stored by the CPU": lambda: (
            host(kills=1, clocks=True).producer(2, mortal=True).consumer().reaper(0)
        ),
        "L dies, fences stored by the CPU": lambda: (
            host(kills=1, clocks=True).producer(3).consumer(mortal=True).reaper(1)
        ),
    },
    {
        "one of 2P dies, 2 laps": lambda: (
            host(kills=1).producer(2, mortal=True).producer(2).consumer().reaper(0)
        ),
        "a member dies, 2 laps": lambda: (
            host(kills=1).producer(3).consumer(mortal=True).consumer().reaper(1)
        ),
        "2 of 3 members die": lambda: (
            host(kills=2, peers=4)
            .producer(1)
            .consumer(mortal=True)
            .consumer(mortal=True)
            .consumer()
            .reaper(1, 2)
        ),
        "one of 3 members dies": lambda: (
            host(kills=1, peers=4).producer(1).consumer(mortal=True).consumer().consumer().reaper(1)
        ),
        "a member and a reaper die": lambda: (
            host(kills=2)
            .producer(1)
            .consumer(mortal=True)
            .consumer()
            .reaper(1, mortal=True)
            .reaper(1)
        ),
        "2P 1Y, fences stored by the CPU": lambda: (
            host(clocks=True).producer(2).producer(1).consumer(lossy=True)
        ),
        "a number is used again while two reap": lambda: (
            host(kills=1)
            .producer(2)
            .consumer(1, mortal=True)
            .consumer(1, late=True)
            .reaper(1)
            .reaper(1)
        ),
        "a joiner dies where a member leaves": lambda: (
            host(kills=1)
            .producer(2)
            .consumer(1)
            .consumer(1, late=True, mortal=True, at="oldest")
            .reaper(2)
        ),
        "a member dies in a closed ring": lambda: (
            host(kills=1).producer(1).consumer(mortal=True).consumer().reaper(1).closer()
        ),
        "one of 2P dies, fences stored by the CPU": lambda: (
            host(kills=1, clocks=True).producer(1, mortal=True).producer(1).consumer().reaper(0)
        ),
    },
)

# ---------------------------------------------------------------------- several producers, durable

_both(
    {
        "2 of 2P come and go": lambda: (
            host(producers=2).producer(1).producer(1, late=True).consumer()
        ),
        "one of 2P dies, the other one is to come": lambda: (
            host(kills=1, producers=2)
            .producer(1, mortal=True)
            .producer(1, late=True)
            .consumer()
            .reaper(0)
        ),
        "durable: a member leaves, another comes": lambda: (
            host(durable=True).producer(3).consumer(1).consumer(late=True, leave=False)
        ),
        "durable: a member dies, another comes": lambda: (
            host(kills=1, durable=True)
            .producer(2)
            .consumer(1, mortal=True)
            .consumer(late=True, leave=False)
            .reaper(1)
        ),
        "durable: given up, taken up": lambda: (
            host(durable=True).producer(3).consumer(1).consumer(late=True, leave=False).impatient()
        ),
        "durable: who gives it up dies": lambda: (
            host(kills=1, durable=True)
            .durable(owed=1)
            .producer(2)
            .impatient(mortal=True)
            .impatient()
            .consumer(late=True, leave=False)
        ),
        "durable: who subscribes dies": lambda: (
            host(kills=1, durable=True)
            .producer(3)
            .subscriber(at="oldest", mortal=True)
            .subscriber(at="oldest")
            .consumer(late=True, leave=False)
        ),
        "durable: who unsubscribes dies": lambda: (
            host(kills=1, durable=True)
            .producer(3)
            .consumer(0)
            .unsubscriber()
            .consumer(late=True, leave=False)
        ),
        "durable: lossy, a member leaves, another comes": lambda: (
            host(durable=True, counting=True)
            .producer(3)
            .consumer(1, lossy=True)
            .consumer(lossy=True, late=True, alone=True, leave=False)
        ),
        "durable: lossy, a member dies that gave back, latest": lambda: (
            host(kills=1, durable=True, counting=True)
            .producer(2)
            .consumer(2, lossy=True, gives_back=1, newest=True, mortal=True)
            .reaper(1)
        ),
    },
    {
        "durable: a member dies, given up, taken up": lambda: (
            host(kills=1, durable=True)
            .producer(3)
            .consumer(1, mortal=True)
            .reaper(1)
            .impatient()
            .consumer(late=True, leave=False)
        ),
        "durable: given up, and who takes it up dies": lambda: (
            host(kills=1, durable=True)
            .durable(owed=1)
            .published(3)
            .producer(1)
            .consumer(0, late=True, mortal=True)
            .reaper(0, 1)
            .consumer(late=True, leave=False)
        ),
        "durable: 2 die that take it up": lambda: (
            host(kills=2, peers=4, durable=True)
            .durable(owed=1)
            .published(3)
            .producer(0)
            .consumer(0, late=True, mortal=True)
            .consumer(0, late=True, mortal=True)
            .reaper(0, 1)
            .consumer(late=True, leave=False)
        ),
        "durable: lossy, a member dies, another comes": lambda: (
            host(kills=1, durable=True, counting=True)
            .producer(3)
            .consumer(1, lossy=True, mortal=True)
            .consumer(lossy=True, late=True, alone=True, leave=False)
            .reaper(1)
        ),
        "durable: lossy, who takes it up dies": lambda: (
            host(kills=1, slots=1, durable=True, counting=True)
            .durable(owed=1, lossy=True)
            .published(2)
            .producer(1)
            .consumer(0, lossy=True, late=True, mortal=True)
            .reaper(0, 1)
            .consumer(lossy=True, late=True, alone=True, leave=False)
        ),
    },
)

# ---------------------------------------------------------------------- threads, lost locks

_both(
    {
        "P leaves while it claims, and dies": lambda: (
            host(kills=1, peers=2, threads=True)
            .threads(PRODUCER, mortal=True)
            .producer(2, leave=False)
            .reaper(0)
        ),
        "P is taken for dead while it claims": lambda: (
            host(peers=2, threads=True)
            .robbed(PRODUCER)
            .reaper(0)
            .sweeper()
            .producer(3, leave=False)
        ),
    },
    {
        "P leaves while it publishes, its number is used again, 1L": lambda: (
            host(threads=True).threads(PRODUCER, 2, ends=True).producer(1, late=True).consumer()
        ),
        "L leaves while it releases, its number is used again": lambda: (
            host(threads=True).threads(CONSUMER, ends=True).producer(2).consumer(1, late=True)
        ),
        "P leaves while it claims, and dies, 1P 1L": lambda: (
            host(kills=1, threads=True)
            .threads(PRODUCER, mortal=True)
            .producer(2)
            .consumer()
            .reaper(0)
        ),
        "L leaves while it acquires, and dies, 1P 1L": lambda: (
            host(kills=1, threads=True)
            .threads(CONSUMER, mortal=True)
            .producer(2)
            .consumer()
            .reaper(0)
        ),
    },
)

# ---------------------------------------------------------------------- streams

ONE, TWO = "claim publish", "claim publish claim publish"
READ, READ_TWO = "acquire release", "acquire release acquire/1 release/1"

_both(
    {
        "GPU: 1P 1L": lambda: (
            device(slots=2)
            .producer(TWO + " claim abandon " + ONE + " leave")
            .consumer(READ_TWO + " acquire release leave")
        ),
        "GPU: one of 2P dies, 1L": lambda: (
            device(kills=1)
            .producer(ONE + " leave", mortal=True)
            .producer(ONE + " leave")
            .consumer(READ_TWO)
        ),
        "GPU: one of 2P dies, 1Y": lambda: (
            device(kills=1)
            .producer(ONE + " leave", mortal=True)
            .producer(ONE + " leave")
            .consumer(READ_TWO, lossy=True)
        ),
        "GPU: P dies, sync event": lambda: (
            device(kills=1, event=True).producer(TWO, mortal=True).consumer(READ_TWO)
        ),
        "GPU: L dies": lambda: (
            device(kills=1, slots=2).producer(TWO + " " + ONE).consumer(READ_TWO, mortal=True)
        ),
        "pinned: P without a GPU dies, 1P 1L with one": lambda: (
            device(kills=1)
            .producer(ONE + " leave", mortal=True, cpu=True)
            .producer(ONE + " leave")
            .consumer(READ_TWO)
        ),
        "pinned: P dies, 1P 1L without a GPU": lambda: (
            device(kills=1)
            .producer(ONE + " leave", mortal=True)
            .producer(ONE + " leave", cpu=True)
            .consumer(READ_TWO.replace("/1", ""), cpu=True)
        ),
        "pinned: L without a GPU dies, 1P": lambda: (
            device(kills=1, slots=2)
            .producer(TWO + " " + ONE)
            .consumer(READ_TWO.replace("/1", ""), mortal=True, cpu=True)
        ),
    },
    {
        "GPU: 2 of 3P die, 1L": lambda: (
            device(kills=2, peers=4)
            .producer(ONE + " leave", mortal=True)
            .producer(ONE + " leave", mortal=True)
            .producer(ONE + " leave")
            .consumer(READ_TWO)
        ),
        "GPU: a number is used again, P dies, 1L": lambda: (
            device(kills=1, slots=2)
            .producer(ONE + " leave", mortal=True)
            .producer(TWO + " leave")
            .consumer(READ_TWO)
            .producer("join " + ONE + " leave", late=True)
        ),
        "GPU: one of 2P dies, 2L share": lambda: (
            device(kills=1, slots=2, peers=4)
            .producer(TWO + " leave", mortal=True)
            .producer(ONE + " leave")
            .consumer(READ_TWO)
            .consumer(READ)
        ),
        "GPU: P and L die": lambda: (
            device(kills=2, slots=2)
            .producer(TWO + " leave", mortal=True)
            .producer(ONE + " leave")
            .consumer(READ_TWO, mortal=True)
        ),
        "pinned: P with a GPU and L without one die, 2P 1L": lambda: (
            device(kills=2, slots=2, peers=4)
            .producer(TWO + " leave", mortal=True)
            .producer(ONE + " leave", cpu=True)
            .consumer(READ_TWO.replace("/1", ""), mortal=True, cpu=True)
            .consumer(READ + " " + READ)  # one may come again from the member that died
        ),
    },
)

# ---------------------------------------------------------------------- sleepers

_both(
    {
        "bell: one at two rings": lambda: bell().cast("select_sleeper", "publisher", "publisher2"),
        "bell: one at two rings, one at one": lambda: bell().cast(
            "select_sleeper", "frame_sleeper", "publisher", "publisher2"
        ),
        "bell: an event loop and a sleeper, the waker dies": lambda: bell().cast(
            "poller", "notifier_thread", "frame_sleeper", "publisher", "reaper", kills=1
        ),
        "bell: a sleeper dies": lambda: bell().cast(
            "frame_sleeper", "frame_sleeper", "publisher", kills=1, mortal=("frame_sleeper",)
        ),
        "bell: 3 sleepers, the leaver dies": lambda: bell().cast(
            "frame_sleeper", "end_sleeper", "end_sleeper", "leaver", "reaper", kills=1
        ),
    },
    {},
)
