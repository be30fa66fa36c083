"""Rings as their users see them."""
