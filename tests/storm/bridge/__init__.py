"""A bridge between two hosts in a storm: who takes part, what they write down, and their books.

    roles.py   the near producer and the far readers, which write down what they do
    books.py   what must be so of all that they have written
    storm.py   the two hosts, the link between them, who is killed, and the verdict
    strangers.py   another one: what comes from the network is rubbish; rubbish.py makes it

`python -m tests.storm bridge` is the command; test_storm_bridge.py runs a short one.
"""
