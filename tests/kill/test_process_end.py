"""The ends of a process, and what its readers get of each (docs/failure.md)."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import gpuring
from gpuring.native.snapshot import snapshot
from tests.helpers.commands import python
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of, small_ring

JOINS = """
import contextlib, multiprocessing, os, sys, threading, time
import gpuring

def joins(name):
    ring = gpuring.attach(name)
    producer = ring.producer()
    producer.claim(0).publish()
    return ring, producer

def child(name):
    globals()["kept"] = joins(name)

def waits(call):
    threading.excepthook = say
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread

def runs(call):
    began = threading.Event()
    def loop():
        while True:
            call()
            began.set()
    waits(loop)
    began.wait(20)

def terminates(waiting):
    # SIGTERM comes when a peer of the ring waits.
    def watch():
        while not any(peer.waiting for peer in waiting.stats().peers):
            time.sleep(0.001)
        os.kill(os.getpid(), 15)
    gpuring.exit_on_sigterm()
    threading.Thread(target=watch, daemon=True).start()

def say(told):
    # Python would print it to stderr, and it aborts if a daemon has the lock of stderr at the end.
    os.write(2, f"{told.exc_type.__module__}.{told.exc_type.__name__}: in a thread\\n".encode())
"""


def ended(name: str, script: str, status: int = 0) -> str:
    """Runs a script in an interpreter of its own, to its end.  Returns what it printed."""
    main = f"\nif __name__ == '__main__':\n    name = {name!r}\n"
    script = JOINS + main + "".join(f"    {line}\n" for line in script.strip().splitlines())
    done = python(script)
    assert done.returncode == status, done.stderr
    if status == 0:  # a thread whose verb is refused at the end says so, as threads do
        last_words = re.findall(
            r"^(\S*Error|\S*Exception|gpuring\S+)(?=:)", done.stderr, re.MULTILINE
        )
        said = {word.removeprefix("gpuring.errors.") for word in last_words}
        assert said <= {"RingClosed", "RingError", "EndOfStream"}, done.stderr
    return done.stdout


def end_of(reader: gpuring.Consumer) -> type[Exception]:
    """Reads all frames.  Returns what comes after them."""
    while True:
        try:
            reader.acquire(10).release()
        except (gpuring.EndOfStream, gpuring.PeerLost) as end:
            return type(end)


IN_ORDER = {
    "the end of the script": "kept = joins(name)",
    "a daemon thread that waits": "kept = joins(name); waits(kept[0].consumer().acquire)",
    "sys.exit": "kept = joins(name); sys.exit()",
    "a claim that is open": "kept = joins(name); slot = kept[1].claim(0)",
    "a daemon thread that selects": "kept = joins(name); mine = kept[0].consumer()\n"
    "waits(lambda: gpuring.select([mine]))",
    "a daemon thread that opens rings": "kept = joins(name)\n"
    "runs(lambda: gpuring.attach(name).close())",
    "an error that nobody catches": "kept = joins(name); 1 / 0",
}
SIGTERM = {
    "acquire": "kept = joins(name); terminates(kept[0]); kept[0].consumer().acquire()",
    "claim": "kept = joins(name); slow = kept[0].consumer(); terminates(kept[0])\n"
    "while True: kept[1].claim(20).publish()",
    "select": "kept = joins(name); mine = kept[0].consumer(); terminates(kept[0])\n"
    "gpuring.select([mine])",
    "a task that waits": "import asyncio\nkept = joins(name); mine = kept[0].consumer()\n"
    "gpuring.exit_on_sigterm()\nasync def main():\n"
    "    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), 15)\n"
    "    await mine.acquire_async()\nasyncio.run(main())",
    "an end that is interrupted again": "kept = joins(name); gpuring.exit_on_sigterm()\n"
    "try: os.kill(os.getpid(), 15); time.sleep(20)\nfinally: os.kill(os.getpid(), 15)",
}
AS_A_DEATH = {
    "os._exit": "kept = joins(name); os._exit(0)",
    "SIGKILL": "kept = joins(name); os.kill(os.getpid(), 9)",
    "a crash": "kept = joins(name); import ctypes; ctypes.string_at(0)",
    "SIGTERM": "kept = joins(name); os.kill(os.getpid(), 15); time.sleep(20)",
}
STATUS = {"SIGKILL": -9, "a crash": -11, "SIGTERM": -15, "an error that nobody catches": 1}


@pytest.fixture
def ring(name):
    with small_ring(name) as made:
        yield made


@promise(
    "failure.md",
    "clean. Open slots are abandoned or released. If it was the last producer, readers get "
    "`EndOfStream`.",
)
@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("how", IN_ORDER)
def test_an_end_in_order_is_the_end_of_the_stream(ring, how):
    with ring.consumer() as reader:
        ended(ring.name, IN_ORDER[how], STATUS.get(how, 0))
        assert end_of(reader) is gpuring.EndOfStream
        assert ring._header.live_peers() == [reader.peer]
        assert ring._header.reaps == 0


@promise(
    "failure.md",
    "clean, with status 143: SystemExit is raised in the main thread. If the signal comes again "
    "while rings are being closed, they are still closed.",
)
@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("where", SIGTERM)
def test_sigterm_ends_in_order_wherever_the_main_thread_waits(ring, where):
    with ring.consumer(lossless=False) as reader:
        ended(ring.name, SIGTERM[where], 143)
        assert end_of(reader) is gpuring.EndOfStream
        assert ring._header.live_peers() == [reader.peer]
        assert ring._header.reaps == 0


CLOSES = """
import os, sys
import gpuring
from gpuring import native

remove = native.remove_own
def told_again(*args):
    os.kill(os.getpid(), 15)
    remove(*args)
native.remove_own = told_again
gpuring.exit_on_sigterm()
made = {"slots": 2, "shape": 4, "dtype": "u1", "device": "host"}
kept = [gpuring.create(f"{sys.argv[1]}-{k}", **made) for k in "ab"]
os.kill(os.getpid(), 15)
"""


@promise(
    "failure.md",
    "clean, with status 143: SystemExit is raised in the main thread. If the signal comes again "
    "while rings are being closed, they are still closed.",
)
def test_a_sigterm_that_comes_while_rings_are_closed_leaves_none(name):
    done = python(CLOSES, name)
    assert (done.returncode, done.stderr) == (143, "")
    assert segments_of(name) == []


def test_only_the_main_thread_is_told_of_sigterm():
    with ThreadPoolExecutor() as threads:
        refused = threads.submit(gpuring.exit_on_sigterm).exception()
    assert isinstance(refused, RuntimeError)
    assert "call it at the beginning of the program" in str(refused)


@promise(
    "failure.md",
    "clean. Open slots are abandoned or released. If it was the last producer, readers get "
    "`EndOfStream`.",
)
def test_what_is_open_at_the_end_is_abandoned_or_released(ring):
    """A death would void the claim and give the frame to another member."""
    with ring.producer() as producer, ring.consumer("x") as other:
        producer.claim(0).publish()
        ended(
            ring.name,
            "ring = gpuring.attach(name)\n"
            "slot = ring.consumer('x').acquire(10); slot.array.sum()\n"
            "claim = ring.producer().claim(10); claim.array[:] = 1",
        )
        with pytest.raises(gpuring.RingTimeout):
            other.acquire(0)
        producer.claim(0).publish()
        assert other.acquire(0).seq == 2 + ring.slots
        assert ring._header.reaps == 0


DAEMON = """
import atexit, os, sys, threading, time
heard = threading.Event()
atexit.register(heard.wait, 10)  # before gpuring's, and so called after it
import gpuring

mine = gpuring.attach(sys.argv[1]).consumer()

def call():
    try:
        mine.acquire()
    except gpuring.RingClosed:
        os.write(1, b"RingClosed")
        heard.set()

threading.Thread(target=call, daemon=True).start()
while not mine.ring.stats().peers[0].waiting:
    time.sleep(0.001)
"""


@promise(
    "failure.md",
    "Daemon threads that are inside a call then get `RingClosed`, and Python prints that error.",
)
def test_a_daemon_thread_in_a_call_gets_ringclosed(ring):
    done = python(DAEMON, ring.name)
    assert (done.returncode, done.stdout) == (0, "RingClosed"), done.stderr


@promise(
    "failure.md",
    "`os._exit`, SIGKILL, a crash, or a signal without a handler, such as SIGTERM by default | "
    "a death",
)
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("how", AS_A_DEATH)
def test_an_end_without_a_word_is_a_death(ring, how):
    with ring.consumer() as reader:
        ended(ring.name, AS_A_DEATH[how], STATUS.get(how, 0))
        assert end_of(reader) is gpuring.PeerLost


MAIN = """
if __name__ == "__main__":
    method, name, gives = sys.argv[1:]
    with gpuring.attach(name) if gives else contextlib.nullcontext(name) as given:
        process = multiprocessing.get_context(method).Process(target=child, args=(given,))
        process.start()
        process.join(20)
    assert process.exitcode == 0
"""


@pytest.fixture
def program(tmp_path):
    """Makes a program whose child does something in a ring."""

    def write(child=""):
        file = tmp_path / "program.py"
        file.write_text(JOINS + child + MAIN)
        return file

    return write


def ends_in_order(ring, program, method, gives=""):
    with ring.consumer() as reader:
        done = python(program, method, ring.name, gives)
        assert done.returncode == 0, done.stderr
        assert end_of(reader) is gpuring.EndOfStream
        assert ring._header.reaps == 0


@promise(
    "failure.md",
    "a child of `multiprocessing` that returns from its function | clean, with every start method",
)
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_child_of_multiprocessing_that_returns_ends_in_order(ring, method, program):
    """A forked one ends by os._exit, after the finalizers of multiprocessing."""
    ends_in_order(ring, program(), method)


THREADS = """
from concurrent.futures import ThreadPoolExecutor

def work(producer, returned):
    returned.wait(20)
    for _ in range(10):
        producer.claim(20).publish()
        time.sleep(0.01)

def child(name):
    returned = threading.Event()
    pool = ThreadPoolExecutor(1)  # its threads wait for more work, until they are told
    pool.submit(print).result()
    threading.Thread(target=work, args=(joins(name)[1], returned)).start()
    returned.set()
"""


@promise(
    "failure.md",
    "**Threads.** Before its rings are closed, Python waits for all threads that are not daemons, "
    "in a child of `multiprocessing` as well.",
)
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_child_of_multiprocessing_waits_for_its_threads_first(ring, method, program):
    with ring.consumer() as reader:
        started = subprocess.Popen([sys.executable, program(THREADS), method, ring.name, ""])
        assert len([slot.release() for slot in reader]) == 11
        assert started.wait(60) == 0
        assert ring._header.reaps == 0


FAST = """
fast = gpuring.attach(name).producer()
runs(lambda: fast.claim(20).publish())
"""
READS = "waits(lambda: [slot.release() for slot in mine])\n"
ROUNDS = {
    "claims": READS + "runs(lambda: kept[1].claim().publish())",
    "acquires": FAST + "runs(lambda: mine.acquire(20).release())",
    "takes the latest": FAST + READS + "runs(lambda: lossy.latest(20).release())",
    "acquires batches": FAST + "runs(lambda: mine.acquire_many(2, 20).release())",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ROUNDS)
def test_a_daemon_thread_at_full_speed_takes_nothing_along(ring, what):
    """The exit handler leaves while the thread is in a verb.  No word of the header names the peer
    afterwards."""
    reader = ring.consumer("all", lossless=False)
    for _ in range(8):
        ended(
            ring.name,
            "kept = joins(name)\n"
            "mine = kept[0].consumer('mine')\n"
            "lossy = kept[0].consumer('lossy', lossless=False)\n" + ROUNDS[what],
        )
        seen = snapshot(ring._header)
        assert [slot for slot in seen["slots"] if slot["phase"] == "writing"] == []
        assert list(seen["subscriptions"]) == [0]
        assert ring._header.live_peers() == [reader.peer]
        assert ring._header.reaps == 0
        with ring.producer() as producer:  # all slots are free
            for _ in range(2 * ring.slots):
                producer.claim(10).publish()


@promise("failure.md", "From then on `create` and `attach` raise `RingClosed`.")
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "opens", ["attach(name)", "create(name + '-late', slots=1, shape=1, dtype='u1')"]
)
def test_rings_are_refused_when_the_process_is_about_to_end(ring, opens):
    script = f"""
def late():
    try:
        gpuring.{opens}
    except gpuring.RingClosed as error:
        print(error)

class Kept:
    def __del__(self):
        late()

gpuring.kept = Kept()
"""
    assert "about to end" in ended(ring.name, script)
    assert ring._header.live_peers() == []


GIVEN = """
def child(ring):
    globals()["kept"] = ring, ring.producer()
    kept[1].claim(0).publish()
"""


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_child_that_was_given_the_ring_ends_in_order(ring, method, program):
    """The child opens the ring before multiprocessing forgets the finalizers of the parent."""
    ends_in_order(ring, program(GIVEN), method, gives="the ring")
