"""Tests that need a GPU.  `pytest -m gpu` runs them."""
