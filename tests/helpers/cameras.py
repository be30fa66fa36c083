"""Processes that publish in a ring, as a camera's does, and that tests kill and start again."""

from __future__ import annotations

import gpuring
from tests.helpers.rings import publish

OPTIONS = {"slots": 4, "shape": 4, "dtype": "i8", "device": "host"}


def owns_and_publishes(pipe, name, values):
    with gpuring.create(name, **OPTIONS) as ring, ring.producer() as producer:
        publish(producer, *values)
        pipe.ask("published")


def joins_and_publishes(pipe, name, value):
    producer = gpuring.attach(name, timeout=10).producer()
    publish(producer, value)
    pipe.ask("published")
