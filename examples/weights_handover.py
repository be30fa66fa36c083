"""A trainer hands its model's weights to samplers, which use them in place, without a copy.

python examples/weights_handover.py [STEPS]       needs torch

A version of the weights is several buckets, one a slot. A sampler uses a version once it has all of
its buckets, and goes on with the one before until then. It checks each by the trainer's checksum.
"""

import argparse
import signal
import sys
import time

from crew import SPAWN, start, together, until

if __name__ == "__main__":  # first, because --help needs no package
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="?", type=int, default=400, help="steps of training (400)")
    steps = parser.parse_args().steps

try:
    import torch
    from torch.func import functional_call
    from torch.nn.functional import binary_cross_entropy_with_logits as loss_of

    import gpuring
except ImportError as missing:
    sys.exit(f"{missing}: pip install 'gpuring[examples]'")

device, torch_device = ("cuda", "cuda") if torch.cuda.is_available() else ("host", "cpu")
LAYERS = (2, 256), (256, 256), (256, 256), (256, 1)
EVERY = 5  # steps for each version, which has a bucket for each layer
SLOTS = 10 * len(LAYERS)  # each of three samplers holds a version and collects another
META = [("version", "i8"), ("bucket", "i8"), ("checksum", "i8")]
torch.set_num_threads(1)  # four processes share the cores
gpuring.exit_on_sigterm()  # also in the processes that it spawns


def model():
    layers = [each for sizes in LAYERS for each in (torch.nn.Linear(*sizes), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers[:-1])


def buckets(net):
    return [dict(net[2 * k].named_parameters(prefix=str(2 * k))) for k in range(len(LAYERS))]


def views(slot, bucket):
    """The bucket's tensors in a slot, in its own memory."""
    parts = torch.from_dlpack(slot).split([each.numel() for each in bucket.values()])
    return {key: part.view(bucket[key].shape) for key, part in zip(bucket, parts, strict=True)}


def checksum(tensors):
    """A checksum of the bits, which is the same on any device.  Values that changed places change
    it, too."""
    total = 0
    for each in tensors:
        bits = each.detach().view(torch.int32).flatten().long()
        total = total * 31 + (bits * (2 * torch.arange(len(bits), device=bits.device) + 1)).sum()
    return int(total)


def spirals(count, seed):
    """Points on two noisy spirals, and which spiral each is on.  The model learns to tell that."""
    dice = torch.Generator().manual_seed(seed)
    which, turn = torch.rand(2, count, 1, generator=dice)
    angle = torch.pi * (3 * turn + which.round())
    points = torch.cat((angle.cos(), angle.sin()), 1) * (3 * turn + 0.3)
    points += 0.2 * torch.randn(count, 2, generator=dice)
    return points.to(torch_device), which.round().to(torch_device)


def train(producer, steps):
    net, (points, which) = model().to(torch_device), spirals(1000, seed=0)  # held out
    optimiser = torch.optim.Adam(net.parameters(), 2e-3)
    for step in range(1, steps + 1):
        batch, labels = spirals(512, seed=step)
        optimiser.zero_grad()
        loss_of(net(batch), labels).backward()
        optimiser.step()
        if step % EVERY:
            continue
        version, total = step // EVERY, checksum(net.parameters())
        for k, bucket in enumerate(buckets(net)):
            with producer.claim(shape=sum(each.numel() for each in bucket.values())) as slot:
                slot.meta["bucket"], slot.meta["version"], slot.meta["checksum"] = k, version, total
                for key, view in views(slot, bucket).items():
                    view.copy_(bucket[key].detach())
    # One write, where `print` may make two: other processes write as well.
    loss = loss_of(net(points), which)
    sys.stdout.write(f"trainer    made {version} versions, loss {loss:.4f}\n")


def look(frames, held, parts):
    """Makes `held` the newest complete version.  Waits for the first one.  Returns False if the
    stream is over."""
    try:
        while True:
            slot = frames.acquire(0 if held else None)
            if parts and slot.meta["version"] != parts[0].meta["version"]:
                release(parts)  # the trainer came round, and the rest of that version is gone
            parts.append(slot)
            if slot.meta["bucket"] != len(parts) - 1:  # one before it was missed
                release(parts)
            elif len(parts) == len(LAYERS):
                release(held)
                held[:], parts[:] = parts, []
    except (gpuring.RingTimeout, gpuring.EndOfStream) as why:
        return isinstance(why, gpuring.RingTimeout)


def release(slots):
    while slots:
        slots.pop().release()


@torch.no_grad()
def sample(ring, number, versions, ready):
    net = model().to("meta")  # only the structure, because the weights are the trainer's
    used, held, parts, more = [], [], [], True
    ready.wait(120)
    while number == 2 and ring.stats().cursor < SLOTS + versions * len(LAYERS) // 3:
        time.sleep(0.01)  # the third comes late
    with ring, ring.consumer(lossless=False, start="oldest") as frames:
        while more:
            more, weights = look(frames, held, parts), {}
            for slot, bucket in zip(held, buckets(net), strict=True):
                weights |= views(slot, bucket)
            version, _, expected = held[0].meta.item()
            if version not in used:
                assert checksum(weights.values()) == expected, "these are not the trainer's weights"
                used.append(version)
            functional_call(net, weights, spirals((64, 20000, 64)[number], seed=version)[0])
        points, which = spirals(1000, seed=0)
        loss = loss_of(functional_call(net, weights, points), which)
    assert version == versions, "the last version was missed"
    versions_used = f"used {len(used)} versions, {used[0]} … {used[-1]}"
    sys.stdout.write(f"sampler {number}  {versions_used}, loss {loss:.4f}\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # Ctrl-C leaves no traceback
    if steps < EVERY:
        parser.error(f"at least {EVERY} steps make a version")
    if device == "host":
        print("no GPU here, so this runs on host memory with torch on the CPU", flush=True)
    ready = SPAWN.Barrier(4)
    spec = {"shape": max((each + 1) * out for each, out in LAYERS), "dtype": "f4", "meta": META}
    with gpuring.create("weights", slots=SLOTS, **spec, device=device) as ring, together():
        roles = [(f"sampler {n}", sample, ring, n, steps // EVERY, ready) for n in range(3)]
        samplers = [start(*role) for role in roles]
        with ring.producer() as producer:
            until(lambda: ready.n_waiting == len(samplers), samplers)
            ready.wait(120)
            train(producer, steps)
        for each in samplers:
            each.join()
    sys.exit(any(each.exitcode for each in samplers))
