"""Traces: what all processes of some rings do, on one time line, as a file for Perfetto.

`gpuring trace` makes them.  The page "Traces" describes it in full.  Needs `gpuring[trace]`.

    collector.py  turns the tracing of rings on, and collects what their peers write (core/trace.h)
    who.py        what is known of a ring's peers: their names, those who died
    timeline.py   from events to slices, arrows and counters: calls.py for services, tracks.py for
                  what has a row of its own
    state.py      what is going on in the rings at one moment
    gpu_work.py   what was pending on the GPU then; fences.py: when it was done
    culprits.py   what a wait is for, in words
    hops.py       frames that a bridge carries from one ring to another one
    perfetto.py   writes them as a file
    hosts.py      what a trace says of its host; join.py puts traces of several hosts together
    longest.py    which waits were the longest, and for whom, as text for a terminal
"""
