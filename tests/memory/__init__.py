"""Where slots lie, on hosts and GPUs."""
