"""What only a GPU can show.  `pytest -m gpu` runs it."""
