"""`gpuring tap` saves what was published, and nobody waits for it."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import threading

import numpy as np
import pytest

import gpuring
from gpuring import cli
from gpuring.cli import tap
from gpuring.cli.tap import files
from gpuring.cli.trouble import CommandError
from gpuring.recording.message import RecordedRing, copier
from tests.helpers.arrays import array_of
from tests.helpers.commands import DEADLINE_S, line_with, running
from tests.helpers.commands import gpuring as command
from tests.helpers.places import HOST
from tests.helpers.processes import poll, up
from tests.helpers.words import tear

META = [("pts", "i8"), ("box", "f4", 2), ("tag", "S4")]
OPTIONS = {"slots": 4, "shape": (3, 5), "dtype": "i4", "meta": META}


def picture(seq, shape, dtype):
    """The picture that a producer writes into frame `seq`."""
    return (np.arange(np.prod(shape)) * 7 + seq).reshape(shape).astype(dtype)


def publish(pipe, name, place, options):
    """Publishes without a pause and without ever waiting for a reader, until it is told to end."""
    published = 0
    with place.create(name, **options) as ring, ring.producer() as producer:
        pipe.send()
        while not pipe.told():
            with producer.claim(timeout=0 if not place.on_gpu else 10) as slot:
                for field in ring.spec.fields:
                    place.fill(
                        array_of(slot, field.name), picture(slot.seq, field.shape, field.dtype)
                    )
                if ring.spec.meta is not None:
                    slot.meta["pts"], slot.meta["box"] = slot.seq * 10, (slot.seq, np.nan)
                    slot.meta["tag"] = b"ab"
            published += 1
    return published


def step(pipe, name):
    """Publishes a frame each time that it is told to; on None it hangs in the midst of one."""
    with gpuring.create(name, **OPTIONS, device="host") as ring, ring.producer() as producer:
        pipe.send()
        while pipe.receive() is not None:
            with producer.claim() as slot:
                slot.array[...] = picture(slot.seq, (3, 5), "i4")
                slot.meta["pts"] = slot.seq * 10
        slot = producer.claim()
        slot.array[...] = -1
        pipe.ask()


def saved(folder):
    """The JSON files of a folder by their sequences.  The folder may have only the files that these
    name."""
    described = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    named = {one["file"] for each in described for one in each["fields"].values()}
    assert named == {path.name for path in folder.iterdir() if path.suffix != ".json"}
    return {one["seq"]: one for one in described}


def tapped(name, folder, *options):
    done = command("tap", name, "--out", folder, "--timeout", 30, *options, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(saved(folder))
    return done


def test_npy_is_what_was_published_and_the_producer_never_waits(place, name, children, tmp_path):
    child = up(children(publish, name, place, OPTIONS))
    out = tmp_path / "new" / "folder"
    done = tapped(name, out, "--count", 5)
    child.send()
    child.result()  # a claim that had to wait would have raised
    frames = saved(out)
    assert len(frames) == 5
    assert f"5 frames of {name} saved in {out}" in done.stderr
    for seq, frame in frames.items():
        (field,) = frame["fields"].values()
        assert str(seq) in field["file"]
        array = np.load(out / field["file"], allow_pickle=False)
        assert (field["shape"], field["dtype"]) == ([3, 5], "int32")
        np.testing.assert_array_equal(array, picture(seq, (3, 5), "i4"))
        assert frame["ring"] == name
        assert frame["meta"] == {"pts": seq * 10, "box": [float(seq), "nan"], "tag": b"ab".hex()}
        assert frame["time_ns"] > 0
        assert frame["lost"] >= 0


@pytest.mark.slow
def test_every_nth_and_several_fields(name, children, tmp_path):
    pytest.importorskip("PIL", reason="gpuring[tools] is not installed")
    fields = {"y": ((4, 6), "u1"), "uv": ((2, 3, 2), "u1")}
    child = up(children(publish, name, HOST, {"slots": 4, "fields": fields}))
    tapped(name, tmp_path / "a", "--count", 4, "--every", 50)
    tapped(name, tmp_path / "b", "--count", 1, "--field", "y", "--format", "png")
    uv = command("tap", name, "--out", tmp_path / "c", "--format", "png")
    unknown = command("tap", name, "--out", tmp_path / "c", "--field", "z")
    child.finish()
    frames = saved(tmp_path / "a")
    seqs = sorted(frames)
    assert len(seqs) == 4
    assert min(np.diff(seqs)) >= 50
    for seq, frame in frames.items():
        assert frame["meta"] is None
        for field, (shape, dtype) in fields.items():
            array = np.load(tmp_path / "a" / frame["fields"][field]["file"])
            np.testing.assert_array_equal(array, picture(seq, shape, dtype))
    ((seq, frame),) = saved(tmp_path / "b").items()
    np.testing.assert_array_equal(
        opened(tmp_path / "b" / frame["fields"]["y"]["file"]), picture(seq, (4, 6), "u1")
    )
    assert uv.returncode == unknown.returncode == 1
    assert "field 'uv' is no picture (2 × 3 × 2 uint8)" in uv.stderr
    assert "--field" in uv.stderr
    assert "the ring has no field 'z'; it has y, uv" in unknown.stderr
    assert not list((tmp_path / "c").iterdir())


def opened(path):
    from PIL import Image

    with Image.open(path) as image:
        return np.array(image)


def copied(name, array, shape=None):
    """A frame as the tap copies it, of a ring whose slots have this shape."""
    with (
        gpuring.create(
            name, slots=4, shape=shape or array.shape, dtype=array.dtype, device="host"
        ) as ring,
        ring.producer() as producer,
        ring.consumer(start="oldest") as frames,
    ):
        with producer.claim(shape=shape and array.shape) as slot:
            slot.copy_from(array)
        with frames.acquire() as slot:
            return copier(RecordedRing.of(ring))(slot)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (5, 7, 4)], ids=str)
def test_png_has_the_very_bytes(name, tmp_path, shape):
    pytest.importorskip("PIL", reason="gpuring[tools] is not installed")
    array = picture(9, shape, "u1")
    writer = files.Writer(tmp_path, "cam", "ab" * 16, "png", ["array"])
    path, _ = writer.write(copied(name, array))
    assert path.name == "cam-abababab-000000000004.png"
    np.testing.assert_array_equal(opened(path), array)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("shape", "dtype"), [((5, 7), "f4"), ((5,), "u1"), ((5, 7, 2), "u1")])
def test_what_is_no_picture_is_refused_before_anything_is_saved(name, tmp_path, shape, dtype):
    pytest.importorskip("PIL", reason="gpuring[tools] is not installed")
    with gpuring.create(name, slots=2, shape=shape, dtype=dtype, device="host"):
        done = command("tap", name, "--out", tmp_path, "--format", "png")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "is no picture" in done.stderr
    assert "--format npy" in done.stderr
    smaller = copied(name, np.zeros(3, "u1"), (2, 3))  # than a slot that is a picture
    writer = files.Writer(tmp_path, "cam", "ab" * 16, "png", ["array"])
    with pytest.raises(CommandError, match="no picture"):
        writer.write(smaller)
    assert not list(tmp_path.iterdir())


def test_fields_may_be_called_anything():
    assert files._tags(["a"]) == {"a": ""}
    assert files._tags(["a/b", "../c"]) == {"a/b": ".a_b", "../c": ".___c"}
    assert files._tags(["a/b", "a.b"]) == {"a/b": ".0-a_b", "a.b": ".1-a_b"}


def test_metadata_of_every_kind_becomes_json():
    kinds = [
        ("i", "i8"),
        ("f", "f4"),
        ("c", "c8"),
        ("b", "?"),
        ("u", "U3"),
        ("s", "S3"),
        ("v", "V2"),
    ]
    kinds += [("t", "M8[s]"), ("n", [("x", "u1", (2, 2))])]
    record = np.zeros(1, kinds)[0]
    record["f"], record["c"], record["u"], record["s"] = np.inf, 1 + 2j, "ä", b"\xff"
    plain = files.plain(record)
    assert json.loads(json.dumps(plain, allow_nan=False)) == {
        "i": 0, "f": "inf", "c": [1.0, 2.0], "b": False, "u": "ä", "s": "ff", "v": "0000",
        "t": "1970-01-01T00:00:00", "n": {"x": [[0, 0], [0, 0]]},
    }  # fmt: skip


def test_a_rate_is_kept(monkeypatch):
    now, naps = [100.0], []
    monkeypatch.setattr(tap.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(tap.time, "sleep", naps.append)
    pace = tap._Pace(None, 4.0)
    pace.wait()
    pace.done(5)
    pace.wait()
    now[0] += 1
    pace.wait()
    assert naps == [0, 0.25, 0]


# ---- ends --------------------------------------------------------------------------------------


def _joined(name):
    """Waits until the tap has joined the ring."""
    with gpuring.attach(name) as ring:
        poll(lambda: any(peer.role == "consumer" for peer in ring.stats().peers), DEADLINE_S)


def test_a_killed_producer_ends_it_with_what_was_published(name, children, tmp_path):
    child = up(children(step, name))
    try:
        with running("tap", name, "--out", tmp_path, "--count", 0) as process:
            _joined(name)
            for seq in (4, 5, 6):
                child.send("one")
                assert process.stdout.readline().startswith(f"{seq}  ")
            child.send(None)
            child.receive()  # it is writing frame 7
            child.kill()
            _, errors = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 1
        assert f"3 frames of {name}" in errors
        assert "one of them died" in errors
        assert errors.endswith("A new producer starts the stream again\n")  # a tap has no reattach
        frames = saved(tmp_path)
        assert sorted(frames) == [4, 5, 6]
        for seq, frame in frames.items():
            array = np.load(tmp_path / frame["fields"]["array"]["file"])
            np.testing.assert_array_equal(array, picture(seq, (3, 5), "i4"))
    finally:
        child.kill()
        with contextlib.suppress(gpuring.RingNotFound):  # the tap was the last one in it
            gpuring.unlink(name)


@pytest.mark.slow
def test_the_end_of_the_stream_a_timeout_and_ctrl_c(name, tmp_path):
    with gpuring.create(name, **OPTIONS, device="host") as ring:
        with running("tap", name, "--out", tmp_path / "a") as process:
            _joined(name)
            with ring.producer() as producer:
                producer.claim().publish()
                assert process.stdout.readline().startswith("4  ")
            _, errors = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0
            assert "the stream has ended" in errors
        ended = command("tap", name, "--out", tmp_path / "b")
        assert (ended.returncode, "the stream has ended" in ended.stderr) == (0, True)
        with ring.producer():
            silent = command("tap", name, "--out", tmp_path / "b", "--timeout", 0.05)
            assert (silent.returncode, "no new frame within 0.05 s" in silent.stderr) == (1, True)
            for end in (signal.SIGINT, signal.SIGTERM):
                with running("tap", name, "--out", tmp_path / "c") as process:
                    _joined(name)
                    poll(lambda: any(peer.waiting for peer in ring.stats().peers))
                    process.send_signal(end)
                    _, errors = process.communicate(timeout=DEADLINE_S)
                    assert process.returncode == 0, errors
                    assert "interrupted" in errors
                    poll(lambda: len(ring.stats().peers) == 1)  # it has left cleanly
    missing = command("tap", name, "--out", tmp_path / "d", "--timeout", 0.05)
    assert (missing.returncode, "No ring or service named" in missing.stderr) == (1, True)
    assert not (tmp_path / "d").exists()


@pytest.mark.slow
def test_it_says_once_that_no_frame_comes_and_why(name, tmp_path):
    with (
        gpuring.create(name, **OPTIONS, device="host") as ring,
        ring.producer() as producer,
        running("tap", name, "--out", tmp_path, "--count", 1) as process,
    ):
        told = line_with(process, "no new frame within 2 s")
        assert "sequence 4 has not been published yet" in told
        assert "It waits on" in told
        poll(lambda: any(peer.waiting for peer in ring.stats().peers))
        assert [peer.label for peer in ring.stats().peers if peer.waiting] == ["tap"]
        producer.claim().publish()
        _, more = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, "no new frame" in more) == (0, False)
    assert sorted(saved(tmp_path)) == [4]


def test_it_waits_for_the_ring(name, tmp_path):
    with running("tap", name, "--out", tmp_path, "--count", 1, "--timeout", 30) as process:
        assert line_with(process, "waiting") == f"gpuring tap: waiting for {name}\n"
        with (
            gpuring.create(name, **OPTIONS, device="host") as ring,
            ring.producer() as producer,
        ):
            _joined(name)
            producer.claim().publish()
            assert process.wait(DEADLINE_S) == 0
    assert sorted(saved(tmp_path)) == [4]


def test_a_folder_that_cannot_be_made_is_one_line(name, tmp_path):
    (tmp_path / "file").touch()
    with gpuring.create(name, **OPTIONS, device="host"):
        done = command("tap", name, "--out", tmp_path / "file")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "cannot be made" in done.stderr


def test_a_frame_for_which_the_disk_has_no_room_leaves_no_file(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"), files._whole(tmp_path / "4.npy") as file:
            file.write(b"a header, which Python still has when the file is closed")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [*tmp_path.iterdir()]


def test_it_says_why_a_frame_cannot_be_written(name, tmp_path):
    frame = copied(name, np.zeros(100_000, "u1"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with pytest.raises(CommandError, match=r"cannot be written to .*: File too large"):
            files.Writer(tmp_path, "cam", "ab" * 16, "npy", ["array"]).write(frame)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# ---- torn frames -------------------------------------------------------------------------------


def test_a_frame_that_turns_out_torn_is_thrown_away_and_said_so(
    name, tmp_path, monkeypatch, capsys
):
    """Its producer dies after the frame was acquired and before the copy was complete."""
    ring = gpuring.create(name, **OPTIONS, device="host")
    seen = []

    def tearing(recorded):
        copy = copier(recorded)

        def tear_and_copy(slot):
            seen.append(slot.seq)
            if slot.seq == 5:
                tear(ring, 5, slot)
            return copy(slot)

        return tear_and_copy

    def produce():
        with ring.producer() as producer:
            poll(lambda: len(ring.stats().peers) == 2)
            for k in range(3):
                with producer.claim(20) as slot:
                    slot.array[...] = picture(slot.seq, (3, 5), "i4")
                poll(lambda k=k: len(seen) > k)

    monkeypatch.setattr(tap, "copier", tearing)
    monkeypatch.setattr(tap.signal, "signal", lambda *_: None)
    producing = threading.Thread(target=produce)
    with ring:
        producing.start()
        status = cli.main(["tap", name, "--out", str(tmp_path), "--count", "0"])
        producing.join()
    assert status == 0
    assert seen == [4, 5, 6]
    assert sorted(saved(tmp_path)) == [4, 6]
    assert "1 torn frame thrown away" in capsys.readouterr().err
