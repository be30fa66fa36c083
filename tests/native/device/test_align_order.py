"""align on a GPU: frames that waited are ordered on the stream of the step that hands them out."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.fake_driver import C, D, P, follows


@pytest.mark.parametrize("named", [False, True], ids=["the current stream", "stream="])
def test_a_frame_that_waited_is_ordered_on_the_stream_of_its_step(rig, named):
    one, other = rig(), rig()
    ours = one.ring(C)
    consumers = [one.consumer(ring=ours), other.consumer()]
    first, second = one.producer(P), other.producer(P)
    stream = {"stream": C} if named else {}
    aligned = gpuring.align(consumers, timeout=0, **stream)
    first.claim(0).publish()
    with pytest.raises(gpuring.RingTimeout):
        next(aligned)
    assert one.told()[-1] == ("wait", C, one.work(first, 0)), "it was acquired already"
    # CUDA would crash on the handle of a stream that its owner has destroyed meanwhile.
    assert [frame.stream for frame in aligned._streams[0].held] == [None if named else ours.current]
    ours.current.ptr = D
    second.claim(0).publish()
    left, right = next(aligned)
    assert one.told() == ([] if named else follows(D, C))
    assert left._streams == ((C,) if named else (C, D))
    assert right._streams == (C,)
    aligned.close()
