"""gpuring bench."""
