"""Every byte of video and audio, from a pipeline to Python and from Python to a pipeline."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gpuring
from tests.gstreamer.pictures import pictures, planes_of
from tests.helpers.processes import PATIENCE_S, poll

META = [("pts", "i8"), ("duration", "i8"), ("caps", "S512")]
FORMATS = ("NV12", "NV21", "I420", "YV12", "RGB", "BGR", "RGBA", "BGRx", "GRAY8", "GRAY16_LE")
FRAME_NS = 40_000_000
SIZES = [(64, 36), (325, 241)]
"""Rows without gaps in a file, and with gaps.  filesink writes one picture of the second size at
once, and several of the first one."""


def video(form, width, height, frames=12):
    caps = f"video/x-raw,format={form},width={width},height={height},framerate=25/1"
    return f"videotestsrc num-buffers={frames} ! {caps}"


def read_all(name):
    """Yields each frame: its arrays by the names of their fields, and its metadata."""
    with gpuring.attach(name, timeout=PATIENCE_S) as ring, ring.consumer() as frames:
        names = [field.name for field in ring.spec.fields]
        for slot in frames:
            if len(names) == 1:
                arrays = {names[0]: slot.array.copy()}
            else:
                arrays = {each: slot[each].copy() for each in names}
            yield arrays, slot.meta.copy()


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("size", SIZES, ids=["dense", "gaps"])
@pytest.mark.parametrize("form", FORMATS)
def test_pictures_of_a_pipeline_in_python(form, size, name, launch, tmp_path):
    file = tmp_path / "in.raw"
    source = launch(
        f"{video(form, *size)} ! tee name=t ! queue ! gpuringsink ring={name} readers=1 "
        f"t. ! queue ! filesink location={file}"
    )
    read = list(read_all(name))
    source.end()
    expected = list(pictures(file.read_bytes(), planes_of(form, *size)))
    assert len(read) == len(expected) == 12
    for k, ((arrays, meta), picture) in enumerate(zip(read, expected, strict=True)):
        same(arrays, picture)
        assert (meta["pts"], meta["duration"]) == (k * FRAME_NS, FRAME_NS)
        assert f"format=(string){form}" in meta["caps"].decode()


@pytest.mark.parametrize("size", SIZES, ids=["dense", "gaps"])
@pytest.mark.parametrize("form", [*FORMATS, "I420 reversed", "YV12 reversed"])
def test_pictures_of_python_in_a_pipeline(form, size, name, launch, tmp_path):
    """Two pipelines read them: one writes them to a file, where planes lie as in GStreamer, and the
    other into a ring, which takes them as they lie in slots.  Fields in another order are found by
    their names."""
    form, _, order = form.partition(" ")
    file, width, height = tmp_path / "out.raw", *size
    planes = planes_of(form, width, height)
    fields = {plane.name: (plane.shape, plane.dtype) for plane in planes}
    if order:
        fields = dict(reversed(fields.items()))
    caps = f"video/x-raw,format={form},width={width},height={height},framerate=25/1"
    dice = np.random.default_rng(1)
    sent = [
        {n: dice.integers(0, 250, shape).astype(dtype) for n, (shape, dtype) in fields.items()}
        for _ in range(30)
    ]
    with gpuring.create(f"{name}-a", slots=8, fields=fields, meta=META, device="host") as ring:
        to_file = launch(f"gpuringsrc ring={name}-a ! filesink location={file}")
        to_ring = launch(f"gpuringsrc ring={name}-a ! gpuringsink ring={name}-b readers=1")
        poll(lambda: ring.stats().subscriptions and len(ring.stats().subscriptions) == 2)
        with ring.producer() as producer:
            for k, picture in enumerate(sent[:1]):
                put(producer, k, picture, caps)
            read = read_all(f"{name}-b")
            received = [next(read)]  # the pipeline waits for this reader
            for k, picture in enumerate(sent[1:], 1):
                put(producer, k, picture, caps)
                received.append(next(read))
        received += read
        to_file.end()
        to_ring.end()
    for (arrays, meta), picture in zip(received, sent, strict=True):
        same(arrays, picture)
        assert meta["duration"] == FRAME_NS
    assert [meta["pts"] for _, meta in received] == [7 + k * FRAME_NS for k in range(30)]
    for picture, expected in zip(pictures(file.read_bytes(), planes), sent, strict=True):
        same(picture, expected)


def put(producer, k, picture, caps):
    with producer.claim(PATIENCE_S) as slot:
        for field, array in picture.items():
            (slot.array if len(picture) == 1 else slot[field])[:] = array
        slot.meta["pts"], slot.meta["duration"] = 7 + k * FRAME_NS, FRAME_NS
        slot.meta["caps"] = caps.encode()


@pytest.mark.parametrize(("names", "order"), [("yuv", "yuv"), ("abc", "yvu")])
def test_planes_are_written_where_their_names_say(names, order, name, launch, tmp_path):
    """With other names they lie in the order of the format."""
    file = tmp_path / "in.raw"
    shapes = [(36, 64), (18, 32), (18, 32)]
    fields = {each: (shape, "u1") for each, shape in zip(names, shapes, strict=True)}
    with gpuring.create(
        name, slots=2, fields=fields, meta=META, device="host"
    ) as ring, ring.consumer() as frames:  # fmt: skip
        source = launch(
            f"{video('YV12', 64, 36, 1)} ! tee name=t ! queue "
            f"! gpuringsink ring={name} create=false t. ! queue ! filesink location={file}"
        )
        with frames.acquire(PATIENCE_S) as slot:
            read = {to: slot[each].copy() for each, to in zip(names, order, strict=True)}
        source.end()
    (expected,) = pictures(file.read_bytes(), planes_of("YV12", 64, 36))
    same(read, expected)


@pytest.mark.parametrize(("form", "dtype"), [("F32LE", "<f4"), ("S16LE", "<i2")])
def test_audio_of_a_pipeline_in_python_and_back(form, dtype, name, launch, tmp_path):
    """A buffer has more samples than a slot has room for, and the last one fewer."""
    first, last = tmp_path / "in.raw", tmp_path / "out.raw"
    caps = f"audio/x-raw,format={form},rate=44100,channels=2"
    source = launch(
        f"audiotestsrc num-buffers=40 samplesperbuffer=1500 ! {caps} ! tee name=t "
        f"! queue ! gpuringsink ring={name}-a readers=1 t. ! queue ! filesink location={first}"
    )
    with gpuring.create(
        f"{name}-b", slots=4, shape=(1024, 2), dtype=dtype, meta=META, device="host"
    ) as ring, ring.producer() as producer:  # fmt: skip
        target = launch(f"gpuringsrc ring={name}-b ! filesink location={last}")
        poll(lambda: ring.stats().subscriptions)
        samples, read = 0, []
        for arrays, meta in read_all(f"{name}-a"):
            array = arrays["array"]
            with producer.claim(PATIENCE_S, shape=array.shape) as slot:
                slot.array[:] = array
                for each in meta.dtype.names:
                    slot.meta[each] = meta[each]
            assert abs(meta["pts"] - samples * 1e9 / 44100) < 2
            samples += len(array)
            read.append(array)
    source.end()
    target.end()
    assert {len(array) for array in read} == {1024, 476}
    assert np.concatenate(read).tobytes() == first.read_bytes() == last.read_bytes()


STEREO = "audio/x-raw,format=S16LE,rate=8000,channels=2"


@pytest.mark.parametrize(
    ("fields", "taken", "what"),
    [
        (
            {"y": ((4, 8), "u1"), "uv": ((2, 4, 2), "u1")},
            "video/x-raw,format=I420",
            "NV12.* Put videoconvert and videoscale behind gpuringsrc",
        ),
        (
            {"array": ((64, 2), "f4")},
            "audio/x-raw,rate=8000",
            "rate=.*48000.* Put audioconvert and audioresample behind gpuringsrc",
        ),
    ],
    ids=["format", "rate"],
)
def test_elements_that_take_others_are_told_what_converts_them(fields, taken, what, name, launch):
    with gpuring.create(name, slots=2, fields=fields, device="host") as ring:
        target = launch(f"gpuringsrc ring={name} ! {taken} ! fakesink")
        poll(lambda: ring.stats().subscriptions)
        with ring.producer() as producer:
            producer.claim(PATIENCE_S).publish()
        said = target.end(1)
    assert re.search(f"do not accept .*{what}", said)


@pytest.mark.parametrize("create", ["true", "false"])
def test_buffers_without_caps_are_no_frames(create, name, launch):
    other = f"{name}-other"  # a sink with create=true makes that one
    with gpuring.create(
        name, slots=2, shape=(4, 8), dtype="u1", meta=[("caps", "S512")], device="host"
    ):
        ring = other if create == "true" else name
        source = f"filesrc location={__file__}"
        said = launch(f"{source} ! gpuringsink ring={ring} create={create}").end(1)
    assert "the buffers have no caps" in said


def test_a_frame_of_more_channels_than_its_shape_has_is_told_of(name, launch):
    """Two channels of its 2048 rows would end behind the slot."""
    meta = [("caps", "S512")]
    with gpuring.create(
        name, slots=2, shape=(1024, 2), dtype="i2", meta=meta, device="host"
    ) as ring:
        target = launch(f"gpuringsrc ring={name} ! fakesink")
        poll(lambda: ring.stats().subscriptions)
        with ring.producer() as producer:
            for shape in ((512, 2), (2048,)):
                with producer.claim(PATIENCE_S, shape=shape) as slot:
                    slot.meta["caps"] = f"{STEREO},layout=interleaved".encode()
        said = target.end(1)
    assert f"the shape of frame {slot.seq} is not that of audio of 2 channels" in said


@pytest.mark.parametrize(
    ("shape", "dtype", "given", "told"),
    [
        ((4, 8), "u1", "", "format=(string)GRAY8, width=(int)8, height=(int)4"),
        ((4, 8, 3), "u1", "", "format=(string)RGB, width=(int)8, height=(int)4"),
        ((4, 8, 4), "u1", "", "format=(string)RGBA, width=(int)8, height=(int)4"),
        ((4, 8), "u2", "", "format=(string)GRAY16_LE, width=(int)8, height=(int)4"),
        ((4, 8, 3), "u1", "video/x-raw,format=BGR,framerate=9/1",
         "format=(string)BGR, framerate=(fraction)9/1, width=(int)8, height=(int)4"),
        ((6, 8), "u1", "video/x-raw,format=NV12",
         "format=(string)NV12, width=(int)8, height=(int)4"),
        ((5, 2), "f4", "audio/x-raw,rate=8000",
         "rate=(int)8000, format=(string)F32LE, channels=(int)2"),
        ((5, 2), "i2", "", "format=(string)S16LE, rate=(int)48000, channels=(int)2"),
    ],
)  # fmt: skip
def test_shape_and_dtype_tell_the_caps(shape, dtype, given, told, name, launch, tmp_path):
    file = tmp_path / "out.raw"
    with gpuring.create(name, slots=2, shape=shape, dtype=dtype, device="host") as ring:
        caps = f"caps={given}" if given else ""
        target = launch(f"gpuringsrc ring={name} {caps} ! filesink location={file}", "-v")
        poll(lambda: ring.stats().subscriptions)
        sent = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
        with ring.producer() as producer, producer.claim(PATIENCE_S) as slot:
            slot.array[:] = sent
        assert told in target.end()
    assert file.read_bytes() == sent.tobytes()


@pytest.mark.parametrize(
    ("shape", "dtype", "given", "guess"),
    [
        ((4, 8, 2), "u1", "", "GRAY8 pictures of 8 x 4 do not fill array (4, 8, 2) |u1"),
        ((4, 8, 3), "u2", "", "GRAY16_LE pictures of 8 x 4 do not fill array (4, 8, 3) <u2"),
        ((2, 4, 8, 3), "u1", "", "GRAY8 pictures of 4 x 2 do not fill array (2, 4, 8, 3) |u1"),
        ((4, 8, 3), "u1", "video/x-raw,format=GRAY8",
         "GRAY8 pictures of 8 x 4 do not fill array (4, 8, 3) |u1"),
    ],
)  # fmt: skip
def test_a_shape_that_does_not_tell_the_caps_asks_for_them(
    shape, dtype, given, guess, name, launch
):
    with gpuring.create(name, slots=2, shape=shape, dtype=dtype, device="host") as ring:
        caps = f"caps={given}" if given else ""
        target = launch(f"gpuringsrc ring={name} {caps} ! fakesink")
        poll(lambda: ring.stats().subscriptions)
        with ring.producer() as producer:
            producer.claim(PATIENCE_S).publish()
        assert f"{guess}. Say with caps= what the slots hold" in target.end(1)


@pytest.mark.parametrize(
    ("written", "told"),
    [(b"video/x-h264", "video/x-h264"), (b"\x1b[2J\xff", r"\033[2J\377")],
)
def test_caps_that_are_no_raw_video_are_told_as_they_were_given(written, told, name, launch):
    """Those of the metadata are another program's bytes."""
    meta = [("caps", "S512")]
    with gpuring.create(
        name, slots=2, shape=(4, 8, 2), dtype="u1", meta=meta, device="host"
    ) as ring:
        target = launch(f"gpuringsrc ring={name} ! fakesink")
        poll(lambda: ring.stats().subscriptions)
        with ring.producer() as producer, producer.claim(PATIENCE_S) as slot:
            slot.meta["caps"] = written
        assert f"are not caps of raw video or audio: {told}\n" in target.end(1)


@pytest.mark.parametrize(
    ("timebase", "dtype", "times"),
    [("1/50", "i8", ["060000000", "080000000"]), ("0/1", "i8", [])],
)
def test_a_pts_of_python_has_the_unit_that_is_given(timebase, dtype, times, name, launch):
    with gpuring.create(
        name, slots=4, shape=(4, 8), dtype="u1", meta=[("pts", dtype)], device="host"
    ) as ring:
        target = launch(
            f"gpuringsrc ring={name} timebase={timebase} ! fakesink silent=false sync=false", "-v"
        )
        poll(lambda: ring.stats().subscriptions)
        with ring.producer() as producer:
            for pts in (3, 4):
                with producer.claim(PATIENCE_S) as slot:
                    slot.meta["pts"] = pts
        said = target.end()
    told = re.findall(r"pts: 0:00:00\.(\d+)", said)
    if times:
        assert told == times
    else:  # the times of arrival
        assert len({*told, "000000000"}) == 3


def test_an_encoder_that_looks_far_ahead_gets_its_frames(name, launch, tmp_path):
    """The encoder keeps dozens of buffers, and the ring has four slots."""
    file = tmp_path / "out.mkv"
    target = launch(f"gpuringsrc ring={name} ! x264enc ! matroskamux ! filesink location={file}")
    launch(f"{video('I420', 64, 36, 200)} ! gpuringsink ring={name} slots=4 readers=1").end()
    target.end()
    raw = tmp_path / "out.raw"
    launch(f"filesrc location={file} ! matroskademux ! avdec_h264 ! filesink location={raw}").end()
    assert raw.stat().st_size == 200 * 64 * 36 * 3 // 2


def test_a_reader_that_collects_small_buffers_gets_all(name, launch, tmp_path):
    """filesink writes 64 KiB at once, and keeps the buffers until then."""
    first, last = tmp_path / "in.raw", tmp_path / "out.raw"
    target = launch(f"gpuringsrc ring={name} ! filesink location={last}")
    launch(
        f"{video('GRAY8', 64, 36, 300)} ! tee name=t ! queue ! gpuringsink ring={name} slots=4 "
        f"readers=1 t. ! queue ! filesink location={first}"
    ).end()
    target.end()
    assert first.read_bytes() == last.read_bytes()
    assert first.stat().st_size == 300 * 64 * 36
