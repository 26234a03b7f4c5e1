"""The device of a training: choice, form of the images, random numbers, memory."""

import contextlib
import gc
import traceback
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from orchestrator.config.training import Training
from orchestrator.errors import InputError, OutOfMemory
from orchestrator.evaluation.gpu import in_use, is_broken, lacks_memory

NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"
"""The text of torch's RuntimeError where others raise MemoryError."""
SUBNORMAL = 1e-39
"""Below the least normal number of float32, 1.2e-38 (of float64: 2.2e-308)."""


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is a GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device: 'cuda' is not available here: use 'cpu' or 'auto'")
    return torch.device(name)


def own_device(device: torch.device) -> torch.device:
    """The one GPU that this process trains on, with its number: others that it sees may be other processes'."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


def name_of(device: torch.device) -> str:
    """The type of GPU, or of device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def random_state(device: torch.device) -> list[Tensor]:
    """The state of torch's global generators: of the CPU, and of the GPU in use."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_random_state(state: list[Tensor], device: torch.device) -> None:
    """Restore a `random_state`."""
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


def form_of_images(training: Training) -> tuple[torch.dtype, torch.memory_format]:
    """Type and layout of the images that the network takes."""
    layout = torch.channels_last if training.channels_last else torch.contiguous_format
    return torch.float64 if training.precision == "float64" else torch.float32, layout


def flushes_subnormals() -> bool:
    """Whether subnormal numbers count as 0 in this thread."""
    return (torch.tensor(SUBNORMAL) * 1).item() == 0


@contextlib.contextmanager
def subnormals_flushed() -> Iterator[None]:
    """In this block subnormal numbers count as 0, in this thread and in those that it starts.

    The weights of a channel that has died decay to subnormal numbers. With these a processor's products take many times
    as long (benchmarks/README.md, A training step).

    Source: https://docs.pytorch.org/docs/stable/generated/torch.set_flush_denormal.html
    """
    flushed = flushes_subnormals()
    for kind in (np.float32, np.float64):
        np.finfo(kind)  # numpy below 2.4 warns if these are first asked for in such a block
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)


@contextlib.contextmanager
def memory_faults(training: Training, *, validating: bool = False) -> Iterator[None]:
    """Raise OutOfMemory if the GPU or the machine runs out of memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        on_gpu = lacks_memory(error)
        if not on_gpu and not isinstance(error, MemoryError) and NO_MEMORY not in str(error):
            raise
        if on_gpu and is_broken(torch.device("cuda")):
            raise
        fault = "out of GPU memory" if on_gpu else "out of memory"
        fault += " in a validation" if validating else f" with a batch of {training.batch_size} images"
        if on_gpu and torch.cuda.is_available():
            free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
            fault += f" ({free:.1f} of {total:.1f} GiB are free)"
        raise OutOfMemory(fault, of_batch=not validating) from error


def free_memory(error: BaseException | None = None) -> None:
    """Free memory that is no longer referenced, or is referenced only by the traceback of this error, which it loses: a
    frame keeps what its function took from around it, as a lambda's."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__
    gc.collect()
    if in_use():
        with contextlib.suppress(RuntimeError):  # of a broken GPU
            torch.cuda.empty_cache()
