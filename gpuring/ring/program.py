"""Whether this program is being ended.  shutdown.py says so, and ends of slots go by it."""

ending = False
"""Whether SIGTERM has come, after `exit_on_sigterm`."""
