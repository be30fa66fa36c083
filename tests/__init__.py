"""The tests, one folder a room: each is called as the part of the package that it tests.

native     the C core, its device order, and their binding; `core` has the programs in C
registry   names in /dev/shm: who makes, finds, replaces and cleans them; strangers, containers
memory     where slots lie, on hosts and GPUs
arrays     slots as arrays of NumPy, CuPy and others; copies; streams
ring       rings as their users see them: verbs, waits, ends, `align`, batches, Ctrl-C
service    requests and responses
bridge     rings of two hosts
cli        the commands
benchmarks the programs of `bench`

kill       deaths, at every fault point and in real processes, and what the others see
model      the executable specification, explored
storm      programs that torment processes for hours, and short runs of them
gpu        what only a GPU can show
docs       the pages, their promises and programs, and the lists of mutants

helpers    what several rooms use; what one room uses lies there
"""

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
