"""The memory that the tensors of a training take at once, and the memory that a network on a CPU keeps."""

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from orchestrator.evaluation.gpu import is_broken
from orchestrator.training.device import free_memory
from orchestrator.training.eager import leave_unmarked

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""Parameters of glibc's mallopt."""
AFTERWARDS = {MMAP_MAX: 65536, MMAP_THRESHOLD: 32 * 2**20, TRIM_THRESHOLD: 64 * 2**20}
"""What is set at the end. The last two grow up to here by themselves, but no longer once one of them was set."""

_blocks, _counting = 0, threading.Lock()
"""How many blocks of `freed_memory_kept` this process is in: it sets what holds for the whole process."""


@contextlib.contextmanager
def memory_given_back(device: torch.device) -> Iterator[None]:
    """At the end of this block of a training, memory of the GPU that torch only keeps for its next tensor is returned:
    the process may wait long for its next trial, or train a smaller network in it, and others may share the GPU."""
    try:
        yield
    finally:
        if device.type == "cuda" and not is_broken(device):
            free_memory()


@contextlib.contextmanager
def freed_memory_kept(device_type: str) -> Iterator[None]:
    """In this block, in which a network runs on a CPU, the memory of a freed tensor is used for the next one.

    At the end of the outermost block all of it is returned to the system.

    glibc gives a large block back to the system when it is freed, and gets it again page by page, each filled with
    zeros: that can take a third of a step. What is computed is the same. Without glibc, or on a GPU, nothing changes.

    Source: https://man7.org/linux/man-pages/man3/mallopt.3.html
    """
    library = ctypes.CDLL(None)
    if device_type != "cpu" or not hasattr(library, "mallopt"):
        yield
        return
    global _blocks
    with _counting:
        _blocks += 1
        if _blocks == 1:
            library.mallopt(MMAP_MAX, 0)
            library.mallopt(TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        with _counting:
            _blocks -= 1
            if _blocks == 0:
                for parameter, value in AFTERWARDS.items():
                    library.mallopt(parameter, value)
                library.malloc_trim(0)


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts, while it is entered, the bytes of all tensors that operations make: parameters, gradients, the state of
    the optimiser, what is kept for the backward pass, a method's own matrices.

    Views share their tensor's bytes and count once. Not counted: sparse tensors, the working space inside a kernel, the
    allocator's rounding, CUDA's context (hundreds of MB).

    Attributes:
        live: bytes of the tensors that exist now.
        peak: the most that existed at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if (
                isinstance(tensor, Tensor) and tensor.layout == torch.strided
            ):  # a sparse tensor has no storage of its own
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        place, size = storage._cdata, storage.nbytes()
        if place in self._known or not size:
            return
        self._known.add(place)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._remove, place, size)

    def _remove(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.live -= size


leave_unmarked(PeakMemory.__torch_dispatch__)
