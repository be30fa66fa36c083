"""A bridge compared with other ways to carry a ring to another process: `python -m bench.bridge`.

    ends.py       the producer at the near ring and the reader at the far one, who verify and time
    carriers.py   what carries frames from one to the other: short programs, each as lean as it can
                  be, and the bridge itself
    measure.py    one carrier at work: GB/s, CPU time, one-way time, in one setting
    relay.py      a link with a long round trip
    producers.py  what the producer of the near ring pays, with a bridge beside no bridge
    recovery.py   how long a bridge is silent when a part of it is killed
    table.py      a run as the table of docs/bridge.md

All is on one machine, over loopback.  So it shows what each way costs in CPU time and in copies.
It does not show a network card, a switch, or two machines that do not share their cores.
"""
