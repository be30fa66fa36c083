"""Who survives a death: how long it may wait, and what it finds in order afterwards."""

from __future__ import annotations

HELD_S = 60  # how long a victim's GPU work would take if it lived
RECOVERY_S = 5  # generous: what is asserted is that survivors go on at all


def still_healthy(cupy, round_number):
    """A process with a stuck stream can neither load a kernel nor allocate."""
    kernel = cupy.RawKernel(
        f'extern "C" __global__ void k{round_number}(int *x) {{ *x = {round_number}; }}',
        f"k{round_number}",
    )
    x = cupy.zeros(1, cupy.int32)
    kernel((1,), (1,), (x,))
    assert int(x.get()[0]) == round_number


def ring_is_whole(cupy, ring):
    """Two laps through every slot: none was lost."""
    import kernels

    wrong = kernels.counter()
    with ring.consumer() as consumer, ring.producer() as producer:
        for _ in range(2 * ring.slots):
            with producer.claim(10) as slot:
                kernels.stamp(slot.array, slot.seq, None)
            with consumer.acquire(10) as slot:
                kernels.check(slot.array, slot.seq, wrong, None)
    assert int(wrong.get()[0]) == 0
