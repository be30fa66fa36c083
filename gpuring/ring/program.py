"""Whether this program is being ended.  shutdown.py sets it, and the end of slots depends on it."""

ending = False
"""Whether SIGTERM has come, after `exit_on_sigterm`."""
