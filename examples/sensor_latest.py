"""A 1 kHz lidar, a planner that always takes the newest scan, a logger that keeps every scan.

python examples/sensor_latest.py [SECONDS]       writes scans.h5; needs h5py, torch

The lidar is computed: rays in a room, by the same arithmetic on a GPU and on a CPU, bit for bit.
So the log can be compared with what was measured, and the plans with what they should have been.
"""

import argparse
import signal
import sys
import time
from contextlib import suppress

from crew import start, together, until

if __name__ == "__main__":  # first, because --help needs no package
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", nargs="?", type=float, default=3, help="how long it runs (3)")
    seconds = parser.parse_args().seconds
    if not seconds > 0:
        parser.error("seconds must be more than 0")

try:
    import h5py
    import numpy as np
    import torch

    import gpuring
except ImportError as missing:
    sys.exit(f"{missing}: pip install 'gpuring[examples]'")

device, torch_device = ("cuda", "cuda") if torch.cuda.is_available() else ("host", "cpu")
BEAMS, SECTORS, COLUMNS, POINTS = 16, 32, 4, 16 * 32 * 4
FIELDS = {"points": ((POINTS, 3), "f4"), "intensity": ((POINTS,), "u1")}
META = [("stamp_ns", "i8"), ("pose", "f4", (3,))]
SLOTS = 256  # the disk may pause for a quarter of a second before the lidar would have to wait
HZ, PLANS_HZ, BITE, LOG = 1000, 100, 64, "scans.h5"
ended = suppress(gpuring.EndOfStream)
torch.set_num_threads(1)  # three processes share the cores
gpuring.exit_on_sigterm()  # also in the processes that it spawns


class Lidar:
    """Rays from a pose to the walls of a room of 20 × 12 × 3 m."""

    def __init__(self, device):
        turn = (np.arange(SECTORS * COLUMNS) + 0.5) * 2 * np.pi / (SECTORS * COLUMNS)
        tilt, turn = np.meshgrid(np.linspace(-0.25, 0.25, BEAMS), turn, indexing="ij")
        rays = [np.cos(tilt) * np.cos(turn), np.cos(tilt) * np.sin(turn), np.sin(tilt)]
        rays = np.stack(rays, axis=-1).reshape(POINTS, 3).astype("f4")
        walls = np.where(rays > 0, [10, 6, 3], [-10, -6, 0]).astype("f4")
        self.rays, self.walls = (torch.from_numpy(each).to(device) for each in (rays, walls))
        self.texture = torch.arange(POINTS, device=device) * 2654435761

    def measure(self, n):
        pose = np.array([6 * np.cos(n / 800), 3 * np.sin(n / 800), 1.2], "f4")
        at = torch.from_numpy(pose).to(self.rays.device)
        metres = ((self.walls - at) / self.rays).amin(1, keepdim=True)
        intensity = (self.texture + n * 40503) % 2**32 >> 13
        return metres * self.rays, intensity.to(torch.uint8), pose


def clearance(points):
    """How far one can go in the freest of the sectors.  The result is on the host, so the GPU is
    done."""
    level = points.reshape(BEAMS, SECTORS, COLUMNS, 3)[BEAMS // 2 - 2 : BEAMS // 2 + 2]
    return float((level**2).sum(3).amin((0, 2)).max() ** 0.5)


def plan(ring, scans):
    """Plans ten times slower than the lidar, and is never behind it, because `latest` passes over
    old scans."""
    clearance(torch.zeros(POINTS, 3, device=torch_device))  # loads kernels
    metres, lost, ages_ns, lidar = {}, 0, [], Lidar("cpu")
    with ring, ring.consumer("planner", lossless=False) as frames, ended:
        while True:
            with frames.latest() as slot:
                metres[slot.seq] = clearance(torch.from_dlpack(slot.field("points")))
                ages_ns.append(slot.age * 1e9)
                lost += slot.lost
            time.sleep(1 / PLANS_HZ)
    # One write, where `print` may make two: other processes write as well.
    plans = f"{len(metres)} plans, {lost} scans lost, age of the scan {spread(ages_ns)}"
    sys.stdout.write(f"planner  {plans}\n")
    assert len(metres) + lost == scans, "scans were neither used for a plan nor counted as lost"
    for seq, answer in metres.items():
        assert abs(answer - clearance(lidar.measure(seq)[0])) < 1e-3, f"plan of {seq} is wrong"


def log(ring, scans):
    """Writes as many scans at once as there are.  So it writes more at a time if the disk is
    slow."""
    bite = {name: np.empty((BITE, *shape), dtype) for name, (shape, dtype) in FIELDS.items()}
    if device == "cuda":  # copies into pinned memory wait for nothing
        bite = {name: torch.from_numpy(rows).pin_memory().numpy() for name, rows in bite.items()}
    bite |= {"meta": np.empty(BITE, META), "seq": np.empty(BITE, "i8")}
    ages_ns, lidar = [], Lidar("cpu")
    with h5py.File(LOG, "w") as file, ring, ring.consumer("logger") as frames, ended:
        for name, rows in bite.items():
            file.create_dataset(name, data=rows[:0], maxshape=(None, *rows.shape[1:]))
        while True:
            with frames.acquire_many(BITE) as slots:
                for row, slot in enumerate(slots):
                    ages_ns.append(slot.age * 1e9)
                    bite["meta"][row], bite["seq"][row] = slot.meta, slot.seq
                    for name in FIELDS:
                        slot.copy_to(bite[name][row], field=name)
            if device == "cuda":  # the slots are back already: the lidar's stream waits
                torch.cuda.synchronize()
            for name, rows in bite.items():
                file[name].resize(len(ages_ns), axis=0)
                file[name][-len(slots) :] = rows[: len(slots)]
    with h5py.File(LOG) as file:
        assert np.array_equal(file["seq"], SLOTS + np.arange(scans)), "the log has gaps"
        for row, seq in enumerate(file["seq"]):
            for name, right in zip(FIELDS, lidar.measure(seq), strict=False):
                assert (file[name][row] == right.numpy()).all(), f"scan {seq} has other {name}"
    sys.stdout.write(
        f"logger   {len(ages_ns)} scans in {LOG}, age when taken {spread(ages_ns)}\n"
        "         every one, in order, bit for bit as the lidar measured it\n"
    )


def spread(ns):
    return "p50 {:.2f}, p99 {:.2f}, max {:.2f} ms".format(*np.percentile(ns, [50, 99, 100]) / 1e6)


def sense(producer, scans):
    lidar, late_ns = Lidar(torch_device), []
    lidar.measure(0)  # loads kernels
    start = time.monotonic_ns()
    for n in range(scans):
        due = start + n * 10**9 // HZ
        time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
        with producer.claim() as slot:
            slot.meta["stamp_ns"] = time.monotonic_ns()
            points, intensity, slot.meta["pose"] = lidar.measure(slot.seq)
            slot.copy_from(points, field="points")
            slot.copy_from(intensity, field="intensity")
            late_ns.append(slot.meta["stamp_ns"] - due)  # a wait for the logger would show
    rate = scans / (time.monotonic_ns() - start) * 1e9
    sys.stdout.write(f"lidar    {rate:.0f} scans/s of {POINTS} points, late by {spread(late_ns)}\n")
    sys.stdout.flush()


def main(seconds):
    if device == "host":
        print("no GPU here, so this runs on host memory with torch on the CPU", flush=True)
    scans, spec = int(seconds * HZ), {"slots": SLOTS, "fields": FIELDS, "meta": META}
    with gpuring.create("lidar", **spec, device=device) as ring, together():
        roles = {"planner": plan, "logger": log}
        readers = [start(name, role, ring, scans) for name, role in roles.items()]
        until(lambda: len(ring.stats().subscriptions) == 2, readers)  # none misses the first scan
        with ring.producer() as producer:
            sense(producer, scans)
        for each in readers:
            each.join()
    sys.exit(any(each.exitcode for each in readers))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # Ctrl-C leaves no traceback
    main(seconds)
