"""The importer: it connects to an exporter, and fills the far ring with what comes.

supervisor.py    makes and owns the far ring
worker.py        the worker's loop, and when it connects again
connection.py    one connection, which is one session
ring_writer.py   claims the slots of the far ring, and publishes frames in order
near_clock.py    the clock of the near host, as it is measured here
"""
