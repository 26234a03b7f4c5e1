"""Rows that are searched on GPUs; and what an error of CUDA means: too little memory, or a GPU that this process can no
longer use."""

import ctypes
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from orchestrator.evaluation.rows import Floats, Integers

SearchOfRows = Callable[[torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
"""(queries, rows, count) on one GPU -> the nearest rows of each query: values and indices, (Q, count) each."""

NO_MEMORY = re.compile(
    r"alloc fail type .*cudaMalloc"  # faiss
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|CUBLAS_STATUS_NOT_INITIALIZED when calling `cublas(Lt)?Create"  # its workspace did not fit
    r"|CUDA error: out of memory",  # a context, or pinned memory
    re.S,
)
"""What torch and faiss say, as a RuntimeError, where memory of a GPU is missing that torch's own allocator did not ask
for."""


def in_use() -> bool:
    """Whether this process has used CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def is_broken(device: torch.device) -> bool:
    """Whether this process can no longer use a GPU. After an assertion in a kernel, an access to memory that is not
    there, or an error of the memory itself, every further call of the process fails.

    Source: https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html, "the process must be terminated"
    """
    if device.type != "cuda" or not in_use():
        return False
    for _ in range(2):  # an error that passes is told once, by the call after it
        try:
            torch.cuda.synchronize(device)
            return False
        except RuntimeError:
            pass
    return True


def keep(*values: object) -> None:
    """Never free these, nor what they refer to. torch ends the process where it frees a tensor of a broken GPU that a
    second stream has used, before anybody could be told why."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(values))


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that memory of a GPU is missing. cuBLAS says the same of a broken GPU: ask `is_broken`."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and NO_MEMORY.search(str(error)) is not None
    )


class RowsOnGPUs:
    """Rows in float32, as many on each GPU, compared with every query by faiss, or another search.

    Each GPU holds its rows (4 G D / GPUs bytes), a chunk of queries and their neighbours, and faiss's scratch memory:
    two blocks of distances of at most 512 MiB each (1 GiB in all), as faiss chooses them. What exceeds its own memory
    faiss frees after each search, for which CUDA waits for the GPU: so each GPU has a thread.
    """

    def __init__(
        self,
        count: int,
        width: int,
        devices: Sequence[torch.device],
        by_product: bool,
        search: Callable[[bool], SearchOfRows],
    ) -> None:
        """`search` gives a search for one thread, by products or by distances."""
        self.by_product = by_product
        share = -(-count // len(devices))
        if any(device.type == "cuda" for device in devices):
            torch.cuda.empty_cache()  # faiss asks CUDA for memory, and not torch
        self.starts = range(0, count, share)
        self.shards = [
            torch.empty((min(share, count - start), width), device=device)
            for start, device in zip(self.starts, devices, strict=False)  # fewer rows than GPUs: some have none
        ]
        self.filled = 0
        self.searches = [search(by_product) for _ in self.shards]

    def add(self, rows: NDArray[np.float32]) -> None:
        """The next rows, (N, D)."""
        new = torch.from_numpy(rows)
        for start, shard in zip(self.starts, self.shards, strict=True):
            first, last = max(self.filled, start), min(self.filled + len(new), start + len(shard))
            if first < last:
                shard[first - start : last - start] = new[first - self.filled : last - self.filled]
        self.filled += len(new)

    def search(self, queries: NDArray[np.float32], count: int) -> tuple[Floats, Integers]:
        """The nearest rows of each query: squared distances, ascending, or products, descending, and indices.
        (Q, D) -> (Q, count) twice

        `count`: at most MAX_ON_GPU, and at most the rows.
        """
        query_rows = torch.from_numpy(queries)

        def in_shard(search: SearchOfRows, shard: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return search(query_rows.to(shard.device), shard, min(count, len(shard)))

        with ThreadPoolExecutor(len(self.shards)) as threads:
            results = list(threads.map(in_shard, self.searches, self.shards))
        first = self.shards[0].device
        squared = torch.cat([part.to(first) for part, _ in results], dim=1)
        index = torch.cat(
            [part.to(first) + start for (_, part), start in zip(results, self.starts, strict=True)], dim=1
        )
        if len(results) > 1:
            squared, place = squared.topk(count, largest=self.by_product)
            index = index.gather(1, place)
        return squared.cpu().numpy(), index.cpu().numpy()
