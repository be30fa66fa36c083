"""Where host order meets device order: promises, fences, torn marks.  `protocol.py` calls these.

With `clocks=False` (most explorations) there are none of these steps.  With `clocks=True` the CPU
stores the fence itself (`sync="host"`).  With `clocks="device"` somebody else stores it later
(`sequential.py`, `device.py`).
"""

from .steps import enqueue, load, owner, store, wait
from .words import MARKING


class Order:
    def _promise(self, me, i, s):
        """-> v, which `work` has before the operation is enqueued, and `fence` when it is done.  No
        value comes twice.

        0: nothing is promised.  A process that uses the slots by the CPU has done its work.
        """
        if not self.clocks or me.cpu:
            return 0
        v = s << 16
        if self.fix("G7"):
            v = max(v, (yield load(self.work[me.p][i])) + 1)
        yield store(self.work[me.p][i], v)
        if self.clocks == "device":
            yield enqueue("set", self.fence[me.p][i], v)
        else:
            yield store(self.fence[me.p][i], v)
        return v

    def _order_after_all(self, me, i, last):  # two clocks
        """Before a write: after every peer, me too, that owes work on slot i."""
        if not self.clocks:
            return
        for p in range(self.peers):
            needed = self.fix("G2") or p == last or p in (yield from self._takers(i))
            if needed and (p != me.p or self.fix("G12")):
                v = yield load(self.work[p][i])
                yield from self._wait_for_fence(self.fence[p][i], v)

    def _takers(self, i):
        """The draft ordered a claim after the previous producer and the last takers only."""
        takers = ()
        for u in range(self.subs):
            takers += (owner((yield load(self.take[u][i]))),)
        return takers

    def _order_after_producer(self, me, s, p):  # two clocks
        """Before a read: after its producer p, and after myself (another of my streams)."""
        if not self.clocks:
            return
        i = s % self.slots
        if self.fix("G12"):
            v = yield load(self.work[me.p][i])
            yield from self._wait_for_fence(self.fence[me.p][i], v)
        me.producer, me.producer_id = p, (yield load(self.rec_producer[i]))
        me.value = yield load(self.rec[i])
        yield from self._wait_for_fence(self.fence[p][i], me.value)

    def torn(self, i, p, producer_id, value):
        """Whether the GPU work that `value` stands for was never done, because that owner of p died
        before.

        It is asked when fence[p][i] >= value was seen.  Then the fence was reached, or was raised
        after the mark had been made.
        """
        row = p if self.fix("T1") else 0
        if value == 0:  # a CPU has written it
            return False
        mark = yield load(self.tear[row][i])
        x = mark & ~MARKING
        if not self.fix("T3"):
            return mark != 0 and value > (yield load(self.reached[row][i]))
        if x != producer_id:
            return x > producer_id  # a later owner's: the mark for ours, if there was one, is gone
        if mark != x:  # being written: the fence is not raised yet
            return False
        if not self.fix("T2"):
            return True
        reached = yield load(self.reached[row][i])
        if value > reached:
            return True
        return self.fix("T5") and (yield load(self.tear[row][i])) & ~MARKING != x

    def _wait_for_fence(self, a, v):
        if (yield load(a)) < v:
            if self.clocks == "device":
                yield enqueue("wait", a, v)
            else:
                yield from self._until_fence(a, v)

    def _until_fence(self, a, v):
        """The host waits."""
        while True:
            reached = yield load(a)
            if reached >= v:
                return
            yield wait((a, reached))
