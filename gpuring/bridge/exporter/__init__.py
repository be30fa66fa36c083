"""The exporter: it listens beside the near ring, and sends its frames to importers.

supervisor.py          keeps each importer's subscription while the worker is started again
worker.py              the worker's loop, and what it answers to importers
callers.py             the importers at the other ends of the connections: each message comes
                       from the listener's router socket and goes to its importer's link
link.py, links.py      an importer's subscription, its frames on their way, its session; all of
                       them, and for how long each is kept
listener.py            the router socket is made here, and sends here
connection_limits.py   which callers may stay connected; send_backlog.py: what they have not read
refusals.py            the answers to callers that are not served
ring_lookup.py         the near ring, while it is not there
"""
