"""Pipelines of real processes in which one process is planted that keeps all others waiting.

Each is a function of PLANTED.  It gets `children` and a name for its ring, and ends when the
processes end.  It returns who is to blame.

    python -m tests.cli.planted       plants one of them at random; you have to find out which one
"""

import importlib
import importlib.util

from tests.cli.planted import rings, services
from tests.cli.planted.blame import PLANTED, Blame, blamed, look

if importlib.util.find_spec("zmq"):
    importlib.import_module("tests.cli.planted.bridges")

__all__ = ["PLANTED", "Blame", "blamed", "look", "rings", "services"]
