"""Who waits for whom, over all rings of the host, and who is at the end of the chain.

    records.py  a step is one wait in one ring, and says whose move it is.  That process may wait
                itself, in another ring: that is the next step.  A jam is such a chain with its
                culprit, who could go on and does not
    waits.py    the steps that there are
    chains.py   which step comes after which, and where a chain ends

All of it is found in the records of stats.py.  Their headers were read one after the other, so a
chain that moves can look like a jam for a moment.  `Jam.age_s` says how long nothing has moved.
"""

from gpuring.registry.jams.chains import STUCK_S, jams, of_full_rings
from gpuring.registry.jams.records import Culprit, Jam, Step, all_wait, key_of, named

__all__ = [
    "STUCK_S",
    "Culprit",
    "Jam",
    "Step",
    "all_wait",
    "jams",
    "key_of",
    "named",
    "of_full_rings",
]
