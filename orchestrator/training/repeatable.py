"""The same numbers from the same seed on GPUs of one type: operations in a fixed order, the names of those without.

On a CPU every operation that trainings use has a fixed order for a given number of threads.
"""

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch

UNORDERED = re.compile(r"^(.+?) does not have a deterministic implementation")
"""The begin of torch's warning of an operation that adds up in the order in which threads arrive (atomics)."""
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextlib.contextmanager
def fixed_operations(device_type: str, *, deterministic: bool = True) -> Iterator[set[str]]:
    """In this block operations on a GPU run in a fixed order where they have one. Gives the names of those that ran and
    have none, as torch tells them. If not `deterministic`, cuDNN tries its algorithms on the first batch and takes the
    fastest one, and no names are given. On a CPU it changes nothing.

    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    operations: set[str] = set()
    if device_type != "cuda":
        yield operations
        return
    cudnn = torch.backends.cudnn
    if not deterministic:
        benchmark, cudnn.benchmark = cudnn.benchmark, True
        try:
            yield operations
        finally:
            cudnn.benchmark = benchmark
        return
    os.environ.setdefault(WORKSPACE, ":4096:8")  # cuBLAS reads it when its first product begins
    memory: Any = torch.utils.deterministic
    before = cudnn.deterministic, cudnn.benchmark, memory.fill_uninitialized_memory
    debug_mode = torch.get_deterministic_debug_mode()
    try:
        cudnn.deterministic, cudnn.benchmark, memory.fill_uninitialized_memory = True, False, False
        torch.set_deterministic_debug_mode("warn")
        with _note_warnings(operations):
            yield operations
    finally:
        torch.set_deterministic_debug_mode(debug_mode)
        cudnn.deterministic, cudnn.benchmark, memory.fill_uninitialized_memory = before


@contextlib.contextmanager
def _note_warnings(operations: set[str]) -> Iterator[None]:
    """Add the operations that torch warns of to `found`; other warnings are shown as before."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=UNORDERED.pattern)
        show = warnings.showwarning

        def note(message: Warning | str, *where: Any, **more: Any) -> None:
            if match := UNORDERED.match(str(message)):
                operations.add(match[1])
            else:
                show(message, *where, **more)

        warnings.showwarning = note
        yield
