"""Who dies, is stopped or forks, and what the others see of it."""
