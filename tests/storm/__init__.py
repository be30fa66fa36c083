"""Programs that kill, stop and interrupt processes for as long as one likes, and check what those
wrote down.

    python -m tests.storm rings      every role over host rings, which are replaced meanwhile
    python -m tests.storm bridge     two hosts, a bridge, and a link that fails
    python -m tests.storm services   engines and clients of every kind
    python -m tests.storm clients    hundreds of clients of one service
    python -m tests.storm soak       peers of one ring that come and go; nothing may grow
    python -m tests.storm calls      many calls of one service; nothing may grow

    harness.py   a seed, signals, the course of a storm, the verdict: what they have in common
    paper.py     what processes write down while they live

A seed gives the same signals.  It need not give the same failure, for the timing differs.  The
tests here run short storms.
"""
