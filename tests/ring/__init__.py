"""Rings, tested through the public API."""
