"""Descriptors that a program has closed."""

from __future__ import annotations

import os
import socket

from support import Pipe, Segment, open_files, poll

import gpuring
from offer import PATIENCE_S, opened, slots


def listens_itself(_pipe: Pipe, path: str) -> int:
    """Its own socket gets the number of the ring's, as after a daemon has closed all its
    descriptors.  Returns how many of those who connect there it does not get to know."""
    before = set(open_files())
    header = opened(path)
    header.offer(slots())
    files = open_files()
    (at,) = [fd for fd in set(files) - before if files[fd].startswith("socket")]
    with socket.socket() as made:
        os.dup2(made.fileno(), at)
    mine = socket.socket(fileno=at)
    mine.bind(("127.0.0.1", 0))
    mine.listen()
    mine.setblocking(False)
    other = Segment(2)
    other.producer()
    missed = 0
    for turn in range(1, 9):
        with socket.create_connection(mine.getsockname(), PATIENCE_S):
            other.producer().header.disown()  # as its death does
            poll(lambda turn=turn: other.creator.reaps == turn)  # the watchdog has been there
            try:
                mine.accept()[0].close()
            except BlockingIOError:
                missed += 1
    return missed


def test_a_daemons_own_socket_is_not_taken_for_that_of_a_ring(ring, children):
    assert children(listens_itself, ring.path).result() == 0
    gpuring.clean()
