"""A torch function on a stream of its own answers batches.  It sees the requests of its batch and
no earlier ones, and its answers are sent when they are written."""

from __future__ import annotations

import pytest

from tests.gpu import library
from tests.helpers.places import ON_GPU
from tests.helpers.promise import promise
from tests.service.services import answer_of, content, in_thread, send, serve

pytestmark = pytest.mark.gpu
CALLS, DEPTH = 24, 5


@promise(
    "services.md",
    "The array is CuPy's or NumPy's. `torch.from_dlpack(images)` makes a tensor of it without a "
    "copy. The function may return what `slot.copy_from` takes, so a torch tensor goes back as it "
    "is.",
)
@pytest.mark.parametrize("place", ON_GPU, ids=lambda place: place.name)
def test_a_torch_function_answers_a_batch(place, name):
    import gpuring

    torch = pytest.importorskip("torch")
    with (
        serve(name, place, slots=8, response_meta=None) as server,
        gpuring.connect(name, calls=DEPTH) as client,
    ):
        sizes = []

        @server.batch(max_batch=DEPTH, warm_up=True)
        def answer(requests):
            tensor = torch.from_dlpack(requests)
            assert tensor.data_ptr() == library.span(requests)[0]
            sizes.append(len(requests))
            torch.cuda._sleep(20_000_000)  # the GPU is busy for about 10 ms
            return answer_of(tensor)

        def run():
            with torch.cuda.stream(torch.cuda.Stream()):
                server.run()

        flying = [send(client, k, place) for k in range(DEPTH)]
        ended = in_thread(run)
        for k in range(CALLS):
            with flying.pop(0).result(20) as slot:
                assert (place.read(slot) == answer_of(content(client.id, k))).all()
            if k + DEPTH < CALLS:
                flying.append(send(client, k + DEPTH, place))
        server.stop()
        ended()
        assert max(sizes) > 1
        assert (server.counts.answered, server.counts.failed) == (CALLS, 0)
