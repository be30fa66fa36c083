"""Names in /dev/shm, and what a header says to people.

segment.py      which files belong to a ring     directory.py    the rings of this host
locks.py        bytes that are held locked       sockets.py      where slots are handed on
new_names.py    waiting for a name               leftovers.py    what the dead have left
stats.py        what a ring is doing             survey.py       looks that find that out
diagnosis.py    the errors of refused verbs      no_room.py      no memory, no room
in_the_way.py   who keeps the next claim waiting
"""
