"""Bridges, which carry the frames of a ring to another host."""
