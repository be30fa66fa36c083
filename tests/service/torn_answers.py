"""An answer whose GPU work died with its engine."""

from __future__ import annotations

from tests.helpers.processes import poll, up
from tests.helpers.words import set_fence, written_by_gpu
from tests.service.services import answer, send, serve


def answers_and_hangs(pipe, name):
    with serve(name) as server:
        pipe.send("up")
        (call,) = server.take(timeout=20)
        answer(call)
        pipe.ask("answered")


class Torn:
    """An engine that dies before its GPU has written the answer, as far as the header tells."""

    def __init__(self, name, client, children):
        self.client = client
        self.engine = up(children(answers_and_hangs, name))
        self.call = send(client, 0)
        assert self.engine.receive() == "answered"
        answers = client._mailbox._ring
        written_by_gpu(answers, answers._header.slots)

    def sticks(self, index=0):
        """Makes the engine's GPU work on a slot look undone.  By default it is the slot of the
        first answer."""
        ring = self.client._mailbox._ring
        (peer,) = [each for each in ring.stats().producers if each.pid == self.engine.pid]
        set_fence(ring, peer.number, index, 1)

    def dies(self):
        ring = self.client._mailbox._ring
        self.engine.kill()
        poll(lambda: ring._header.reap() or ring._header.reaps)
