"""Frames outside of their rings.

    message.py       a frame's copy, and how it is laid out
    places.py        the GPU of a ring whose frames are copied to the host
"""
