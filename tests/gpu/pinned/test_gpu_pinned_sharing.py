"""Processes with and without a GPU that share a pinned ring, or a service of pinned rings."""

from __future__ import annotations

import os

import pytest

import gpuring
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.gpu.pinned import TAKES_S, WORDS, has_cuda, make, put, words
from tests.helpers.processes import up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of

pytestmark = [pytest.mark.gpu, pytest.mark.deadline(300)]

FRAMES = 200


def camera(pipe, name, frames):
    """Creates the ring, and writes frames by the CPU."""
    with make(name, subscriptions=["model", "disk"]) as ring, ring.producer() as producer:
        pipe.send()
        put(producer, frames)
        pipe.receive()
    return has_cuda()


def recorder(pipe, name, frames):
    """Reads frames by the CPU.  Returns how many were wrong."""
    wrong = 0
    with gpuring.attach(name, timeout=TAKES_S) as ring, ring.consumer("disk") as consumer:
        for _ in range(frames):
            with consumer.acquire(TAKES_S) as slot:
                wrong += not (slot.array == words(slot.seq)).all()
    return wrong, has_cuda()


@promise(
    "failure.md",
    "A process that uses a pinned ring by the CPU never touches CUDA.",
)
def test_a_camera_without_cuda_a_model_and_a_recorder_share_a_ring(name, children):
    kernels = tools()
    source = up(children(camera, name, FRAMES))
    disk = children(recorder, name, FRAMES)
    wrong, stream = kernels.counter(), library.new_stream()
    with gpuring.attach(name, device="cuda") as ring, ring.consumer("model") as consumer, stream:
        for _ in range(FRAMES):
            with consumer.acquire(TAKES_S) as slot:
                frame = slot.upload()
            kernels.check(frame, slot.seq, wrong, stream)
        stream.synchronize()
        assert kernels.count(wrong) == 0
        assert {peer.unregistered for peer in ring.stats().peers} == {None}
    assert disk.result() == (0, False)
    source.send()
    assert source.result() is False
    gpuring.unlink(name)  # and with it the durable subscriptions
    assert segments_of(name) == []


def gpu_writer(pipe, name, frames):
    """Copies what its GPU computes into the slots, in stream order."""
    kernels = tools()
    stream = library.new_stream()
    with gpuring.attach(name, device="cuda") as ring, ring.producer() as producer, stream:
        computed = library.empty(WORDS)
        pipe.send()
        for _ in range(frames):
            with producer.claim(TAKES_S) as slot:
                kernels.stamp(computed, slot.seq, stream)
                slot.copy_from(computed)


def test_frames_of_a_gpu_come_to_cpus_and_gpus(name, children):
    kernels = tools()
    with make(name, subscriptions=["disk"], device="cuda") as ring, ring.consumer("gpu") as frames:
        disk = children(recorder, name, FRAMES)
        writer = up(children(gpu_writer, name, FRAMES))
        wrong = kernels.counter()
        for _ in range(FRAMES):
            with frames.acquire(TAKES_S) as slot:
                kernels.check(slot, slot.seq, wrong, None)  # over the bus
        writer.result()
        assert disk.result() == (0, False)
        assert kernels.count(wrong) == 0


def ask(pipe, name):
    with gpuring.connect(name, timeout=TAKES_S) as client:
        for k in range(20):
            with client.request(TAKES_S) as slot:
                slot.array[...] = k
                call = slot.call
            answer = call.result(TAKES_S)
            assert (answer.array == 2 * k).all()
    return has_cuda()


def test_a_service_has_clients_without_cuda_and_an_engine_on_the_gpu(name, children):
    tools()
    frame = ((WORDS,), "i8")
    with gpuring.serve(
        name, request=frame, response=frame, memory="pinned", device="cuda"
    ) as server:
        client = children(ask, name)
        for _ in range(20):
            (call,) = server.take(timeout=TAKES_S)
            doubled = call.slot.upload() * 2
            with call.answer() as slot:
                slot.copy_from(doubled)
        assert client.result() is False


def test_one_process_may_use_a_ring_in_both_ways(ring, by_cpu):
    """The entries of a handle's peers name its GPU."""
    with ring.producer() as first, by_cpu.producer() as second:
        gpus = {peer.number: peer.gpu for peer in ring.stats().peers}
    assert gpus[second.peer] is None
    assert gpus[first.peer]
    assert os.getpid() == ring.stats().creator_pid
