"""The memory of slots, on hosts and on GPUs."""
