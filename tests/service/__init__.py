"""Requests and responses."""
