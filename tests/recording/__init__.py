"""Recordings of rings, and rings of recordings.  They need mcap."""
