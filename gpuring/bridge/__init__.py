"""A ring on another host: a bridge carries the frames of a ring there, into a ring of its own."""
