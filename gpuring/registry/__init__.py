"""Names in /dev/shm, and what a header says to people.

segment.py      what files are called, and how they come and go
directory.py    a ring by its name: who may look at it and open it
sockets.py      where slots are handed on
users.py        who uses what cannot be read
new_names.py    waiting for a name               leftovers.py    what the dead have left
stats.py        what a ring is doing             survey.py       looks that find that out
subscriptions.py, labels.py   what names of subscriptions and peers say
diagnosis.py    the errors of refused verbs      no_room.py      no memory, no room
in_the_way.py   who keeps the next claim waiting jams/           who waits for whom, over all rings
processes.py    those of containers              importers.py    the command of an importer
"""
