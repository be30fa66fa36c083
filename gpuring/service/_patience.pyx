# cython: cdivision=True
"""How long an engine waits for a batch to fill, learned from its last batches.

Two things are learned, and both fade with time.

* What a batch costs beside its calls.  The time between two takes is what the engine did with a batch.  A straight line through
  these times, over the sizes of the batches, meets size 0 at the fixed cost.  That is what one batch instead of two saves.
* How large a batch would be if the engine waited.  Every request says when it was published.  So the next batch tells which
  calls would have come in time for the last one.  This is known without having waited.  Calls that came after an answer to the
  last batch do not count, because they may have come for that answer only.

An engine waits if it expects at least half a call more, until it has what it expects, and for a quarter of the fixed cost at
most.  Where calls come one at a time it expects no other one, and never waits.

Nothing here looks at a clock.  All times are those of time.monotonic_ns().
"""
from libc.stdint cimport int64_t

cdef double KEPT = 15.0 / 16  # of what is known about costs, when a batch is added to it
cdef double NEW = 1.0 / 8     # the weight of the last batch in how many calls are likely
cdef double SHARE = 1.0 / 4   # of the fixed cost: the longest wait
cdef double ALIKE = 0.01      # the variance of sizes below which they do not tell what a batch costs beside its calls
cdef double OUTLIER = 4.0     # times the mean: a cost that is higher counts as this


cdef class Patience:
    """What an engine has learned of its batches.

    For each batch `begin`, `open` when its first calls are there, `came` for each of these, `close` when it is handed out, and
    `answered` with the first answer."""

    # likely: how many calls a batch has if the engine waits
    # fixed_ns: what a batch costs beside its calls
    # n, sizes, costs, squares, products: of the batches so far, their number and sums, faded
    # until: when the wait of the last batch was over, or would have been
    # handed_out: when the engine got the last batch.  0: its cost is known, or there was none.
    # size, reach, most: of the last batch; how many calls it would have had at `until`; and how many it may have had
    # seen: how many batches there were.  The first one does not tell what batches cost: it may have had to prepare things.

    def __init__(self):
        self.likely = 1

    @property
    def max_wait_s(self):
        """How long a batch waits at most now.  0 if no other call is expected."""
        return SHARE * self.fixed_ns / 1e9 if self.likely > 1.5 else 0.0

    cpdef begin(self, int64_t now):
        """The engine asks for a batch: it is done with the last one."""
        if self.handed_out:
            if self.seen > 1:
                self._learn_cost(self.size, now - self.handed_out)
            self.handed_out = 0

    cdef _learn_cost(self, double size, double cost):
        cdef double mean, variance, slope = 0
        if self.n > 0:
            cost = min(cost, OUTLIER * self.costs / self.n)
        self.n = KEPT * self.n + 1
        self.sizes = KEPT * self.sizes + size
        self.costs = KEPT * self.costs + cost
        self.squares = KEPT * self.squares + size * size
        self.products = KEPT * self.products + size * cost
        mean, cost = self.sizes / self.n, self.costs / self.n
        variance = self.squares / self.n - mean * mean
        if variance < ALIKE:
            # Half of it, until batches of another size come.  If they do not come, nothing is waited for.
            slope = cost / mean / 2
        else:
            slope = (self.products / self.n - mean * cost) / variance
        self.fixed_ns = cost - min(max(slope, 0.0), cost / mean) * mean

    cpdef came(self, int64_t published):
        """A call of the new batch was published then.  Called before `open`."""
        if published < self.until and self.reach < self.most:
            self.reach += 1

    cpdef open(self, int64_t now, Py_ssize_t most):
        """The first calls of a batch are there."""
        if self.seen:
            self.likely += NEW * (self.reach - self.likely)
        self.most = most
        self.until = now + <int64_t>(SHARE * self.fixed_ns)

    cpdef bint expects(self, Py_ssize_t size):
        """Whether a batch that has `size` calls so far is expected to get another one before `until`."""
        return size < self.most and size < self.likely - 0.5

    cpdef close(self, int64_t now, Py_ssize_t size):
        """The engine gets the batch."""
        self.size = self.reach = size
        self.handed_out = now
        self.seen += 1

    cpdef answered(self, int64_t now):
        """The engine has answered a call of its last batch."""
        if now < self.until:
            self.until = now
