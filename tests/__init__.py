"""The tests, in folders: each is called as the part of the package that it tests.

native     the C core, its device order, and their binding; `programs` are in C and C++
registry   names in /dev/shm: who makes, finds, replaces and cleans them; strangers, containers
memory     where slots lie, on hosts and GPUs
arrays     slots as arrays of NumPy, CuPy and others; copies; streams
ring       rings as their users see them: verbs, waits, ends, `align`, batches, Ctrl-C
service    requests and responses
bridge     rings of two hosts
recording  what is recorded of rings, and rings that are made of it
torch      DataLoader, beside torch's own
gstreamer  pipelines at one end of a ring, and Python at the other
cli        the commands
benchmarks the programs of `bench`

kill       deaths, at every fault point and in real processes, and what the others see
model      the executable specification, explored
storm      programs that torment processes for hours, and short runs of them
gpu        what only a GPU can show
docs       the pages, their promises and programs
mutants    changes of the code that a test has to notice

helpers    what several folders use; what one folder uses lies there

What each of them can find, and has found in code that was broken on purpose:

* `model` tries every order of steps in small configurations, and a kill before any step.  It has a
  mutant for each hole of docs/holes.md.  native/test_machine.py runs the C core beside it.
* `mutants` has changes of the C code and of the Python around it, each with the test that fails
  then, and a program that makes each of them and runs its test.
* native/programs are C, for sanitizers: load (stress, device_stress), threads of one peer that
  leaves (threads), lost wake-ups that would hang (wakeups), hostile words, drivers and clients
  (fuzz, device_fuzz, fuzz_offer), and a death at every GR_FAULT (kill, kill_device, link).
  schedules stops two actors at each of their steps, in every order with two switches: the holes
  that lie between two steps.
  fake_cuda.c is a driver whose GPU does its work later and in any order.
* native/api has a program in C at one end of a ring and Python at the other (puppet).  Compiled
  with fault points, it is stopped or killed at each step of an attach, a create and a close.
* helpers/fake_driver.py is a driver for Python's tests of the order of GPU work (native/device,
  ring/batch): it notes its calls, refuses some, and finishes work when a test says so.
* native/stranger has a client in C that was written from docs/abi.md alone, beside Python programs.
* native/test_failing_calls.py has each call to the system fail in turn.
* `storm` kills, stops and interrupts processes of every role at random, for as long as you say.
* service/test_service_signals.py raises at every place where Python runs signal handlers, and
  torch/test_loader_deaths.py does so in torch's loader, too.  A run of the tests tries some of
  these places.  With step 1 in `signals()` it tries all of them, which takes minutes.
* registry/test_name_races.py tries kills, and two operations on one name, at each line.
  registry/strangers acts as another user, with a /dev/shm that is full or read-only, and
  registry/containers.py makes namespaces.  bridge/links.py makes two hosts and a link that fails.
  These need root.
* `gpu` has kernels that hold a stream or check a frame, deaths with GPU work pending, containers
  (root) and two GPUs.  Times that are to be kept need the GPU to themselves:
  GPURING_FIGURES=figures.jsonl pytest tests/gpu/test_gpu_death.py.
* native/test_layout.py and `docs` hold the pages to the code: the tables of fields, links,
  programs, and that everything public is in the reference.
"""

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
