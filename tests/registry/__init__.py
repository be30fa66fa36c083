"""Names in /dev/shm: who makes, finds, replaces and cleans them."""
