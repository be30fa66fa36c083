"""Rings of two hosts."""
