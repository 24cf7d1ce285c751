"""Loaded by Python itself before the program of a launch: aims its fault, after the `sitecustomize` that this one hides."""

import importlib.machinery
import importlib.util
import os
import sys
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent

hidden = importlib.machinery.PathFinder.find_spec("sitecustomize", [place for place in sys.path if Path(place).resolve() != HERE])
if hidden is not None and hidden.loader is not None:
    hidden.loader.exec_module(importlib.util.module_from_spec(hidden))

try:
    from tests.faults import aim

    aim.arm()
except Exception:  # Python would print it and start the program unaimed
    traceback.print_exc()
    os._exit(70)
