"""Rings of which one end is C and the other Python, in both directions."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import gpuring
from gpuring import config, native, slot_layout
from gpuring.registry import segment
from tests.helpers.compiled import CC, PROGRAMS, ROOT
from tests.helpers.processes import poll, up
from tests.helpers.rings import create_far, put, small_ring
from tests.native.api.conftest import STRICT
from tests.native.api.puppet import CONSUMES, FOREVER, NEXT, OLDEST, PRODUCES, S

META = [("pts", "i8")]


def test_what_python_publishes_c_reads(name, puppet):
    with small_ring(name, slots=4, meta=META) as ring, ring.producer() as producer:
        c = puppet(name, ("consume", "all", NEXT, ""))
        for k in range(10):
            with producer.claim(5) as slot:
                slot.array[:] = k
                slot.meta["pts"] = -k
            got = c.ok("acquire", 0, FOREVER, 0)
            assert (int(got["seq"]), int(got["first"]), int(got["meta"])) == (4 + k, k, -k)
            assert (got["lost"], got["producer"], got["redelivered"]) == ("0", "0", "0")
            c.ok("release", 0, 1)
        c.ok("close", 0)
        c.ok("detach")
        c.end()


def test_what_c_publishes_python_reads(name, puppet):
    with small_ring(name, slots=4, meta=META) as ring, ring.consumer() as frames:
        c = puppet(name, ("produce", "camera"))
        for k in range(10):
            assert int(c.ok("claim", 0, FOREVER, 0)["seq"]) == 4 + k
            c.ok("publish", 0, 1, k, -k)
            with frames.acquire(5) as slot:
                assert (slot.seq, slot.array[0], slot.meta["pts"]) == (4 + k, k, -k)
        (producer,) = ring.stats().producers
        assert (producer.label, producer.pid, producer.frames) == ("camera", c.pid, 10)
        c.ok("close", 0)
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire(5)
        c.ok("detach")
        c.end()


def test_batches_go_from_c_to_python_and_to_c(name, puppet):
    with small_ring(name, slots=8) as ring, ring.consumer() as frames:
        c = puppet(name, PRODUCES, CONSUMES)
        assert c("claim", 0, 0, 3).count("seq=") == 3
        c.ok("publish", 0, 3, 5)
        assert [int(slot.array[0]) for slot in frames.acquire_many(9, 5)] == [5, 5, 5]
        assert c("acquire", 1, 0, 9).count("first=5") == 3
        c.ok("release", 1, 3)
        assert c.refused("acquire", 1, 0, 9)[0] == "TIMEOUT"


def test_a_slot_that_is_twice_in_a_batch_is_refused_before_anything_happens(name, puppet):
    with small_ring(name) as ring:
        c = puppet(name, PRODUCES, CONSUMES)
        c.ok("claim", 0, 0, 0)
        status, text = c.refused("twice", 0)
        assert status == "INVALID"
        assert "sequence 4 is given twice" in text
        c.ok("publish", 0, 1, 7)
        c.ok("acquire", 1, 0, 0)
        assert c.refused("twice", 1) == (status, text)
        c.ok("release", 1, 1)
        assert ring.stats().deaths == ()


def test_a_lossy_reader_is_told_what_it_has_lost(name, puppet):
    with small_ring(name, slots=4) as ring, ring.producer() as producer:
        c = puppet(name, ("consume", "-", NEXT, "l"))
        put(producer, 10)
        assert int(c.ok("latest", 0, 0, 0)["lost"]) == 9
        c.ok("release", 0, 1)
        c.ok("consume", "-", NEXT, "")
        status, text = c.refused("latest", 1, 0, 0)
        assert status == "INVALID"
        assert "lossy" in text


def test_what_a_bridge_has_lost_since_its_ring_was_made_counts(name, puppet):
    origin = {"host": "camera-host", "ring": "cam0"}
    with create_far(
        name, origin, about={"lost": 3}, slots=4, shape=4, dtype="u1", device="host"
    ) as ring, ring.producer() as producer:  # fmt: skip
        c = puppet(name, ("consume", "c", OLDEST, ""))
        with producer.claim(5) as slot:
            slot._set_origin(1000, 5_000_000_000, 8)
        assert c.ok("acquire", 0, 0, 0)["lost"] == "5"


def test_members_of_one_subscription_share_its_frames(name, puppet):
    """One member is in C and dies with a frame.  The other one, in Python, gets it."""
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer("both") as frames:
        c = puppet(name, ("consume", "both", NEXT, ""))
        put(producer, 2)
        seqs = {int(c.ok("acquire", 0, S, 0)["seq"])}
        with frames.acquire(5) as slot:
            seqs.add(slot.seq)
        assert seqs == {4, 5}
        c.kill()
        with frames.acquire(20) as slot:
            assert slot.redelivered
            assert {slot.seq} < seqs


def test_what_a_member_in_python_held_when_it_died_c_gets(name, puppet, children):
    with small_ring(name) as ring, ring.producer() as producer:
        c = puppet(name, ("consume", "both", NEXT, ""))
        child = up(children(holds_one, name))
        put(producer, 1)
        child.ask()
        child.kill()
        assert c.ok("acquire", 0, 20 * S, 0)["redelivered"] == "1"


def holds_one(pipe, name):
    with gpuring.attach(name) as ring, ring.consumer("both") as frames:
        pipe.ask()
        slot = frames.acquire(20)
        pipe.ask(slot.seq)


def test_a_producer_in_c_that_is_killed_leaves_its_claim_void(name, puppet):
    with small_ring(name, producers=2) as ring, ring.consumer() as frames:
        c = puppet(name, PRODUCES)
        c.ok("claim", 0, 0, 0)
        c.ok("publish", 0, 1, 3)
        c.ok("claim", 0, 0, 0)
        c.kill()
        with ring.producer() as producer:
            poll(lambda: ring.stats().deaths)
            assert put(producer, 1, 9) == [6]
            assert frames.acquire(5).array[0] == 3
            assert frames.acquire(5).seq == 6


def test_try_claim_counts_what_is_dropped(name, puppet):
    with small_ring(name, slots=2) as ring, ring.consumer() as frames:
        c = puppet(name, PRODUCES)
        for _ in range(2):
            c.ok("try", 0)
            c.ok("publish", 0, 1, 1)
        assert c.refused("try", 0)[0] == "FULL"
        assert int(c.ok("info")["dropped"]) == 1
        for _ in range(2):
            frames.acquire(5).release()
        c.ok("try", 0)
        c.ok("publish", 0, 1, 1)
        assert frames.acquire(5).lost == 1


def test_an_abandoned_claim_carries_no_frame(name, puppet):
    with small_ring(name) as ring, ring.consumer() as frames:
        c = puppet(name, PRODUCES)
        for _ in range(2):
            c.ok("claim", 0, 0, 0)
        c.ok("abandon", 0, 1)
        c.ok("publish", 0, 1, 1)
        assert frames.acquire(5).seq == 5
        assert c.refused("publish", 0, 1, 1)[0] == "INVALID"  # it has no claim any more
        c.ok("claim", 0, 0, 0)
        c.ok("close", 0)  # close abandons it
        assert frames._peer.position == 6
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire(5)


def test_a_wait_in_c_ends_with_a_frame_and_its_descriptor_tells_of_one(name, puppet):
    with small_ring(name, slots=2) as ring, ring.producer() as producer:
        c = puppet(name, CONSUMES)
        c.tell("acquire", 0, FOREVER, 0)
        poll(lambda: any(peer.waiting for peer in ring.stats().peers))
        put(producer, 1)
        assert c.hear().startswith("GPURING_OK")
        c.ok("release", 0, 1)

        assert c("poll", 0, 0) == "GPURING_OK 0"
        c.tell("poll", 0, 20_000)
        put(producer, 1)
        assert c.hear() == "GPURING_OK 1"
        c.ok("acquire", 0, 0, 0)
        c.ok("release", 0, 1)
        assert c.refused("acquire", 0, 0, 0)[0] == "TIMEOUT"
        assert c("poll", 0, 0) == "GPURING_OK 0"


def test_select_says_which_of_several_have_an_answer(name, puppet):
    with small_ring(name, slots=2) as ring:
        c = puppet(name, CONSUMES, PRODUCES)
        assert c("select", 0, 0, 1) == "GPURING_OK 0 1"
        status, text = c.refused("select", S // 100, 0)
        assert status == "TIMEOUT"
        assert "0.01 s" in text
        c.tell("select", FOREVER, 0)
        with ring.producer() as producer:
            put(producer, 1)
            assert c.hear() == "GPURING_OK 1"
        assert c.refused("select", 0)[0] == "INVALID"


def test_both_ends_in_one_process_and_in_c_alone(name, puppet):
    with small_ring(name, slots=2) as ring:
        c = puppet(name, ("consume", "-", NEXT, ""), PRODUCES)
        for k in range(5):
            c.ok("claim", 1, 0, 0)
            c.ok("publish", 1, 1, k)
            assert int(c.ok("acquire", 0, 0, 0)["first"]) == k
            c.ok("release", 0, 1)
        assert len(ring.stats().peers) == 2
        status, text = c.refused("detach")
        assert status == "INVALID"
        assert "2 of its producers and consumers are open" in text
        c.ok("close", 0)
        c.ok("close", 1)
        c.ok("detach")
        assert ring.stats().peers == ()
        c.end()


def test_a_forked_child_can_use_nothing_of_its_parents(name, puppet):
    with small_ring(name) as ring, ring.consumer() as frames:
        c = puppet(name, PRODUCES)
        c.ok("claim", 0, 0, 0)
        assert c("fork", name) == "exit=0"
        c.ok("publish", 0, 1, 4)
        assert frames.acquire(5).array[0] == 4


def test_a_debugger_shows_whose_thread_the_watchdog_is(name, puppet):
    with small_ring(name):
        threads = Path(f"/proc/{puppet(name, CONSUMES).pid}/task")
        poll(lambda: "gpuring\n" in [(each / "comm").read_text() for each in threads.iterdir()])


def test_a_program_that_knows_less_gets_no_more_than_it_has_room_for(name, puppet):
    with small_ring(name) as ring, ring.producer() as producer:
        c = puppet(name, CONSUMES)
        put(producer, 1)
        assert c("old") == "GPURING_OK 1GPURING_OK"


def test_a_structure_without_its_size_is_refused_before_anything_is_taken(name, puppet):
    with small_ring(name) as ring:
        c = puppet(name, PRODUCES)
        assert c("small", name) == "wrong:"
        assert c.ok("claim", 0, 0, 0)["seq"] == "4"
        assert len(ring.stats().peers) == 1


def test_what_a_slot_holds_is_told_as_python_tells_it(name, puppet):
    fields = {
        "y": ((4, 6), "u1"), "half": (3, "bfloat16"), "µ": ((2,), "<f4"),
        "many": (5, np.dtype([("a", "<f4"), ("b", "u1", (2,))])),
    }  # fmt: skip
    meta = np.dtype([("pts", "i8"), ("box", "f4", (2, 2)), ("flag", "?")], align=True)
    with gpuring.create(name, slots=2, fields=fields, meta=meta, device="host") as ring:
        c = puppet(name)
        told, of_meta = c("fields").removeprefix("fields").split(" meta")
        found = {
            each.split("|")[0]: each.rsplit("|", 3) for each in told.split(" ")[1:] if "|" in each
        }
        for field in ring.spec.fields:
            if field.name != "many":  # its dtype has blanks
                dtype = field.extended or field.dtype.str
                shape = ",".join(map(str, field.shape))
                assert f" {field.name}|{dtype}|{field.offset}|{field.nbytes}|{shape}" in told
        assert found
        assert 'many|[["a", "<f4"], ["b", "|u1", [2]]]|768|30|5' in told
        assert of_meta == " pts|<i8|0|8| box|<f4|8|16|2,2 flag||b1|24|1|"
        info = c.ok("info")
        assert int(info["slot_nbytes"]) == ring.spec.slot_nbytes
        assert int(info["meta_nbytes"]) == ring.spec.meta_nbytes == 32
        assert int(info["pid"]) == os.getpid()


def test_the_library_can_be_loaded_and_given_up(name, tmp_path):
    if CC is None:
        pytest.skip("no compiler")
    program = tmp_path / "loads"
    command = [CC, "-std=c99", *STRICT, ROOT / PROGRAMS / "loads.c", "-o", program, "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    with small_ring(name) as ring:
        done = subprocess.run([program, config.LIBRARY, name], check=False, timeout=60)
        assert done.returncode == 0
        assert ring.stats().peers == ()


def test_a_process_of_python_may_use_both(name):
    """There is one library in the process, with one watchdog for calls from C and from Python."""
    library = ctypes.CDLL(str(config.LIBRARY))
    ring, consumer = ctypes.c_void_p(), ctypes.c_void_p()
    error = ctypes.create_string_buffer(12 + 512)
    slot = ctypes.create_string_buffer((56).to_bytes(8, "little"), 256)
    with small_ring(name) as made, made.producer() as producer:
        assert library.gpuring_attach(name.encode(), None, ctypes.byref(ring), error) == 0
        assert library.gpuring_join_consumer(ring, None, ctypes.byref(consumer), error) == 0
        put(producer, 1)
        assert library.gpuring_acquire(consumer, ctypes.c_int64(0), slot, error) == 0
        assert int.from_bytes(slot.raw[8:16], "little") == 4
        assert library.gpuring_close_consumer(consumer, error) == 0
        assert library.gpuring_detach(ring, error) == 0
        assert len(made.stats().peers) == 1


def test_what_is_open_is_ended_by_a_close(name, puppet):
    """The claims are abandoned, and the frames were read: no other member gets them."""
    with small_ring(name, slots=4, producers=2) as ring, ring.producer() as producer:
        c = puppet(name, CONSUMES, PRODUCES)
        put(producer, 1)
        with ring.consumer("c") as frames:
            c.ok("acquire", 0, 0, 0)
            c.ok("claim", 1, 0, 0)
            c.ok("close", 1)
            c.ok("close", 0)
            assert put(producer, 1) == [6]
            assert frames.acquire(5).seq == 6
        assert ring.stats().deaths == ()


def test_try_claim_counts_what_is_dropped_for_readers_in_c(name, puppet):
    with small_ring(name, slots=2) as ring, ring.producer() as producer:
        c = puppet(name, CONSUMES)
        put(producer, 2)
        assert producer.try_claim() is None
        for _ in range(2):
            c.ok("acquire", 0, 0, 0)
            c.ok("release", 0, 1)
        put(producer, 1)
        assert c.ok("acquire", 0, 0, 0)["lost"] == "1"


def test_a_pinned_ring_is_used_by_the_cpu(name, puppet):
    """The CPU stores its fences, and a process that attaches joins the others."""
    with gpuring.create(
        name, slots=4, shape=16, dtype="u1", memory="pinned", device="host"
    ) as ring, ring.consumer("python") as frames, ring.producer() as producer:  # fmt: skip
        c = puppet(name, CONSUMES, PRODUCES)
        for k in range(6):
            c.ok("claim", 1, 0, 0)
            c.ok("publish", 1, 1, k)
            with frames.acquire(5) as slot:
                assert slot.array[0] == k
            assert int(c.ok("acquire", 0, 0, 0)["first"]) == k
            c.ok("release", 0, 1)
        with producer.claim(5) as slot:
            slot.array[:] = 9
        assert c.ok("acquire", 0, 0, 0)["first"] == "9"
        frames.acquire(5).release()
        c.kill()
        poll(lambda: len(ring.stats().peers) == 2)


def test_a_ring_on_a_gpu_is_refused_to_who_uses_it_by_the_cpu(name, puppet):
    """Only the header is read, so this needs no GPU."""
    c = puppet()
    c.ok("under", 0, -3, 0, 0)
    epoch = os.urandom(16)
    with segment.unnamed(0o600) as file:
        header = native.Header.create(
            file.fd, slots=2, max_peers=4, max_subscriptions=4, memory="vmm", sync="timeline",
            gate="stream", slot_nbytes=256, meta_nbytes=0, epoch=epoch,
            spec=slot_layout.make(shape=16, dtype="u1").to_bytes(),
        )  # fmt: skip
        native.give_name(file.fd, segment.path_of(segment.header_name(name)))
    status, text = c.refused("attach", name, S)
    assert status == "UNSUPPORTED"
    assert "its slots are in memory of a GPU (vmm)" in text
    header.disown()
    segment.unlink(segment.header_name(name))
