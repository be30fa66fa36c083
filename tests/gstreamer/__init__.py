"""Pipelines at one end of a ring, and Python at the other."""
