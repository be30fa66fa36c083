"""Processes that die, are stopped or fork, and what the others see of it."""
