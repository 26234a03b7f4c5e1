"""From a reader to the device: batches whose copying a GPU does beside its computation."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orchestrator.data.pipeline import Reader, Request, as_float
from orchestrator.evaluation.gpu import is_broken, keep

IN_FLIGHT = 2
"""Batches that the host may be ahead of a GPU; more would only hold memory."""

Arrays = Sequence[np.ndarray[Any, Any]]


def feed(
    reader: Reader,
    requests: Iterable[Request],
    device: torch.device,
    *,
    dtype: torch.dtype = torch.float32,
    layout: torch.memory_format = torch.contiguous_format,
    beside: Callable[[Request], Arrays] = lambda request: (),
) -> Iterator[tuple[Request, Tensor, list[Tensor]]]:
    """Each request with its images, (n, C, H, W) in [0, 1], and with the arrays `beside` it, all on the device.

    A GPU copies a batch on a stream of its own while it computes with the ones before, and converts it from bytes
    itself. The host never waits for its newest work, only for what was queued IN_FLIGHT batches before.
    """
    if device.type == "cpu":
        for request, images in reader.read(requests):
            yield request, as_float(images, dtype, layout), [torch.from_numpy(array) for array in beside(request)]
        return
    backend = torch.get_device_module(device)
    copying = backend.Stream(device)
    used: deque[Any] = deque()
    try:
        for request, images in reader.read(requests):
            host = [images, *(torch.from_numpy(array) for array in beside(request))]
            computing = backend.current_stream(device)
            with backend.stream(copying):
                pinned = [tensor if tensor.is_pinned() else pinned_copy(tensor) for tensor in host]
                images, *arrays = (tensor.to(device, non_blocking=True) for tensor in pinned)
            computing.wait_stream(copying)
            for tensor in (images, *arrays):
                tensor.record_stream(computing)  # its memory is not used again before the computation has read it
            yield request, as_float(images, dtype, layout), arrays
            used.append(backend.Event(blocking=True))  # sleeps while it waits: cores are for the readers
            used[-1].record(backend.current_stream(device))
            if len(used) > IN_FLIGHT:
                used.popleft().synchronize()
    finally:
        if is_broken(device):
            keep(locals())


def pinned_copy(tensor: Tensor) -> Tensor:
    """In pinned memory, from which a GPU copies without the host's help."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
