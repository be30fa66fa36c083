"""Names in /dev/shm: the files of rings, who may use them, waiting for a name, and what a header
says to people."""
