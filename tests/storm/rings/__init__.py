"""Storms: many processes of every role over host rings, tormented by signals; then their books.

    program.py   a process: its signals, its progress, what it does when it is interrupted
    readers.py   ways to take frames            writers.py   ways to make them
    cast.py      the roles
    books.py     what must be so of all that was written down
    storm.py     who starts, torments and judges them

`python -m tests.storm rings` is the command; test_storms.py runs short ones.
"""
