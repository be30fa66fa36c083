"""A ring with several fields, of which a pipeline reads one."""

from __future__ import annotations

import numpy as np
import pytest

import gpuring
from tests.helpers.processes import PATIENCE_S, poll


@pytest.mark.parametrize("copy", ["true", "false"])
@pytest.mark.parametrize(
    ("field", "told"), [("image", "format=(string)RGB"), ("depth", "format=(string)GRAY16_LE")]
)
def test_one_field_of_several(field, told, copy, name, launch, tmp_path):
    """With copy=false, buffers lie in slots.  Buffers that came back are used again, and have to
    show the right field, too."""
    file = tmp_path / "out.raw"
    fields = {"image": ((4, 8, 3), "u1"), "depth": ((4, 8), "u2")}
    dice = np.random.default_rng(1)
    with gpuring.create(name, slots=8, fields=fields, device="host") as ring:
        target = launch(
            f"gpuringsrc ring={name} field={field} copy={copy} "
            f"! filesink location={file} buffer-mode=unbuffered",
            "-v",
        )
        poll(lambda: ring.stats().subscriptions)
        sent = []
        with ring.producer() as producer:
            for _ in range(20):
                with producer.claim(PATIENCE_S) as slot:
                    for each, (shape, dtype) in fields.items():
                        slot[each][:] = dice.integers(0, 250, shape).astype(dtype)
                    sent.append(slot[field].tobytes())
        assert told in target.end()
    assert file.read_bytes() == b"".join(sent)


def test_audio_beside_a_picture(name, launch, tmp_path):
    file = tmp_path / "out.raw"
    fields = {"image": ((4, 8, 3), "u1"), "sound": ((5, 2), "i2")}
    with gpuring.create(name, slots=2, fields=fields, device="host") as ring:
        target = launch(f"gpuringsrc ring={name} field=sound ! filesink location={file}")
        poll(lambda: ring.stats().subscriptions)
        with ring.producer() as producer, producer.claim(PATIENCE_S) as slot:
            slot["image"][:] = 1
            slot["sound"][:] = np.arange(10).reshape(5, 2)
        target.end()
    assert file.read_bytes() == np.arange(10, dtype="i2").tobytes()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("field=lef", "has no field 'lef': its slots hold left (6, 16) |u1, sound (6) <i2"),
        # Six rows of 16 bytes would be two rows of 16 pixels in BGR. They are not such a picture.
        ("field=left caps=video/x-raw,format=BGR", "not BGR pictures of 16 x 6"),
        ("", "its slots hold left (6, 16) |u1, sound (6) <i2, not NV12 pictures of 16 x 6. Several "
         "fields are taken for the planes of one picture"),
        ("field=left caps=image/jpeg", "are not caps of raw video or audio: image/jpeg"),
        # Two channels of six samples would end behind the slot.
        ("field=sound caps=audio/x-raw,format=S16LE,channels=2",
         "its slots hold sound (6) <i2, not S16LE audio of 2 channels"),
        ("field=left timebase=1/1000", "its metadata has no `pts` of dtype <i8"),
        ("field=left caps=video/x-raw(memory:CUDAMemory)",
         "is in host memory, and caps= says memory:CUDAMemory. Leave that out"),
    ],
    ids=["field", "cut", "planes", "encoded", "audio", "timebase", "memory"],
)  # fmt: skip
def test_what_the_ring_cannot_give_is_told_before_its_first_frame(asked, told, name, launch):
    fields, meta = {"left": ((6, 16), "u1"), "sound": ((6,), "i2")}, [("pts", "f8")]
    with gpuring.create(name, slots=2, fields=fields, meta=meta, device="host") as ring:
        source = launch(f"gpuringsrc ring={name} {asked} ! fakesink")
        poll(lambda: ring.stats().subscriptions or source.process.poll() is not None)
        assert not ring.stats().subscriptions
        assert told in source.end(1)
