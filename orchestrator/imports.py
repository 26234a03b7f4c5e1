"""Imports of large libraries without Python's search for garbage, which finds none and takes a sixth of their time."""

import contextlib
import gc
from collections.abc import Iterator

USUAL, SELDOM = (700, 10, 10), (50_000, 10, 10)
"""Python's thresholds of new objects and of collections, and those while modules are imported."""


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """A block of imports. Afterwards garbage is searched for as before, or as usual where the whole program does it
    seldom: what follows may hold a GPU's memory in it."""
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*(USUAL if before == SELDOM else before))
