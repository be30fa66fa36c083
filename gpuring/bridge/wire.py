"""What the two sides of a bridge say to each other.  Pure functions: bytes in, records out."""

MAX_PART = 1 << 20
"""The most bytes of a frame in one message.  Others are never longer behind it than it takes."""

MAX_OFFER = 1 << 20
"""The most bytes of an offer (engine.Receiver.open)."""
