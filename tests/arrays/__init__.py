"""Slots as arrays, copies into them, and the streams that they are used on."""
