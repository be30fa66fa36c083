"""The exporter: it listens beside the near ring, and sends its frames to importers.

supervisor.py          keeps each importer's subscription while the worker is started again
worker.py              the worker's loop, and what it answers to importers
callers.py             the importers at the other ends of the connections
link.py, links.py      an importer's subscription, its frames on their way, its session; all of
                       them, and for how long each is kept
listener.py            the socket, and how it sends
connection_limits.py   who may stay connected; send_backlog.py: what they have not read
refusals.py            what those hear that are not served
ring_lookup.py         the near ring, while it is not there
"""
