"""Names in /dev/shm, and what a header says to people.

segment.py      what files are called, and how a file gets, loses or takes over a name
directory.py    a ring by its name: who may open, replace or remove it, and in which order
locks.py        bytes that are held locked       sockets.py      where slots are handed on
new_names.py    waiting for a name               leftovers.py    what the dead have left
earlier.py      what rings that were replaced still owe to durable subscriptions
stats.py        what a ring is doing             survey.py       looks that find that out
subscriptions.py, labels.py   what names of subscriptions and peers say
diagnosis.py    the errors of refused verbs      no_room.py      no memory, no room
in_the_way.py   who keeps the next claim waiting jams/           who waits for whom, over all rings
"""
