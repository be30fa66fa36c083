"""Traces: events in a ring's header, and the files for Perfetto that are made of them."""
