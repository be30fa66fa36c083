"""Three cameras, two detectors, a recorder and a page, which are killed and started again.

python examples/supervised/run.py [SECONDS] [--calm]

Each is a program of its own, and this one does what a supervisor does: it starts what has ended
again.  It also kills them by chance, ends them cleanly, and stops them for a while.  At the end it
compares what the cameras have sent with what the recorder has written.
"""

import argparse
import collections
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from camera import H, W, place

import gpuring

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("seconds", nargs="?", type=float, default=20, help="how long it runs (20)")
parser.add_argument("--calm", action="store_true", help="stop and kill nobody")
parser.add_argument("--port", type=int, default=8000, help="port of the page (8000)")
parser.add_argument("--seed", type=int, help="seed of who is stopped or killed, when and how")

HERE, CAMERAS, RESTART_S = Path(__file__).parent, ("cam0", "cam1", "cam2"), 0.5
PICTURES = f"--shape {H},{W} --dtype u1 --meta pts:i8 --subscription detect"
FOUND = "--shape 2 --dtype i4 --meta camera:i8,pts:i8,lost:i8 --subscription record --producers 2"
# A program that is started like this ends with this one, also if this one ends before they are
# tied.
ALIVE = '[ $PPID = $0 ] && exec "$@"'
TIED = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", ALIVE, str(os.getpid())]


def programs(files, port):
    """The command of each, by its name."""
    for name, frames in (*((name, PICTURES) for name in CAMERAS), ("seen", FOUND)):
        options = f"keep {name} --device host --slots 16 {frames}"
        yield f"keep {name}", ["-m", "gpuring", *options.split()]
    yield from ((name, [HERE / "camera.py", name, files / name]) for name in CAMERAS)
    yield from ((f"detector {n}", [HERE / "detector.py", *CAMERAS]) for n in (1, 2))
    yield "recorder", [HERE / "recorder.py", files / "recorded"]
    yield "page", [HERE / "page.py", str(port)]


class Unit:
    """A program that is to run, as supervisors call it."""

    def __init__(self, name, command):
        self.name, self.command, self.starts = name, command, 0
        self.start()

    def start(self):
        # It inherits that Ctrl-C is blocked: that is for this process, which ends the others.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        self.process = subprocess.Popen([*TIED, sys.executable, *map(str, self.command)])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        self.starts += 1
        self.ended = None

    def look(self):
        """Starts the program again a moment after it has ended."""
        now = time.monotonic()
        if self.ended is None and self.process.poll() is not None:
            self.ended = now
        elif self.ended is not None and now > self.ended + RESTART_S:
            self.start()

    def stop(self):
        """Ends it cleanly, for good."""
        self.process.terminate()
        self.process.send_signal(signal.SIGCONT)  # a stopped process does not end
        self.process.wait(60)


def run(units, seconds):
    """Lets all programs run for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for unit in units:
            unit.look()
        time.sleep(0.05)


def torment(units, seconds, chance):
    """Now and then kills one of them, ends it cleanly, or stops it for a while."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        run(units, chance.uniform(0.2, 2))
        unit = chance.choice(units)
        number = chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
        unit.process.send_signal(number)
        if number == signal.SIGSTOP:
            run(units, chance.uniform(0.1, 1))
            unit.process.send_signal(signal.SIGCONT)


def finish(units):
    """Stops the cameras, and the others when they have had every picture."""
    for unit in units:
        if unit.name in CAMERAS:
            unit.stop()
    for name in (*CAMERAS, "seen"):
        with gpuring.attach(name, timeout=60) as ring:
            while any(each.lag for each in ring.stats().subscriptions):
                time.sleep(0.05)


def compare(files):
    """Prints what was sent, and what is in the recorder's file.  Returns whether all of it is there
    or was counted as lost."""
    recorded, lost = {name: collections.Counter() for name in CAMERAS}, 0
    for line in (files / "recorded").read_text().splitlines():
        camera, pts, y, x, lost_before, lost_after = map(int, line.split())
        assert (y, x) == place(pts), f"cam{camera}: the picture of {pts} was seen wrongly"
        recorded[f"cam{camera}"][pts] += 1
        lost += lost_before + lost_after
    missing = 0
    for name, times in recorded.items():
        sent = set(map(int, (files / name).read_text().split()))
        missing += len(sent - times.keys())
        twice = times.total() - len(times)
        kept = len(sent & times.keys())
        print(f"{name}  {len(sent)} pictures sent, {kept} of them recorded, {twice} twice")
    print(f"{missing} are missing, {lost} were counted as lost")
    return missing <= lost


def main():
    asked = parser.parse_args()
    seed = random.randrange(10**6) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as files:
        units = [Unit(*program) for program in programs(Path(files), asked.port)]
        try:
            if asked.calm:
                run(units, asked.seconds)
            else:
                torment(units, asked.seconds, random.Random(seed))
                run(units, 2)  # until all of them are there
            finish(units)
        finally:
            for unit in reversed(units):
                unit.stop()
            for name in (*CAMERAS, "seen"):
                with contextlib.suppress(gpuring.RingNotFound):
                    gpuring.unlink(name)  # and so its durable subscription
        print("started:", ", ".join(f"{unit.name} {unit.starts}" for unit in units))
        return compare(Path(files))


if __name__ == "__main__":
    if not shutil.which("setpriv"):
        sys.exit("setpriv is missing: it is a part of util-linux")
    gpuring.exit_on_sigterm()
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # Ctrl-C leaves no traceback
    sys.exit(not main())
