"""The only door to torch.distributed: the process group, a gather, a sum and a mean with exact gradients (of gradients
too).

Each is exact for shares of any sizes: a loss is that of the whole batch, computed by every process from all rows. So a
gradient is weighted by images, not by processes, and the mean over the processes is that of one process.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.errors import InputError
from orchestrator.training.eager import no_compiler

Answer = TypeVar("Answer")

_place: tuple[int, int] | None = None
"""Rank and size of the group that this process does not leave."""
_max_size: int | None = None
"""The most processes that the training may go on with, where their number may change."""
_notes: list[str] = []
"""What of the training depends on the number of its processes."""


def rank() -> int:
    """This process's index in the group, 0 without one."""
    if _place is not None:
        return _place[0]
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    """The number of processes in the group, 1 without one."""
    if _place is not None:
        return _place[1]
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def max_world_size() -> int:
    """The most processes that the training may have: those of the group, unless it goes on with others."""
    return world_size() if _max_size is None else max(_max_size, world_size())


def note_dependence(text: str) -> None:
    """Note what of the training depends on the number of its processes."""
    if world_size() > 1 and text not in _notes:
        _notes.append(text)


def notes() -> tuple[str, ...]:
    """What was noted since this process took part in its group."""
    return tuple(_notes)


@contextmanager
def membership(max_size: int | None = None) -> Iterator[None]:
    """Within this context, this process stays a member of its group, even if the group is destroyed. `max_size`: of the
    groups in which the training may go on, where their sizes may differ.

    Ray Train destroys it, from another thread, when a rank is lost. Without this the others would see themselves as a
    group of one and go on, each as rank 0, on their own blocks of the batch; so they fail where they need the others.
    """
    global _place, _max_size
    _place, _max_size = (rank(), world_size()), max_size
    _notes.clear()
    try:
        yield
    finally:
        _place = _max_size = None


@contextmanager
def process_group(rank: int, world_size: int, rendezvous: Path, backend: str = "gloo") -> Iterator[None]:
    """A process group over a shared file, for plain processes on one machine (tests, debugging)."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        backend,
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=120),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


NOTICE = "orchestrator/notice"
"""Where the group's store has the notice of a process that is to end."""
NO_STORE = (AttributeError, RuntimeError, ValueError)
"""Where torch has no such function, or the group is gone: then the end of other processes is not announced."""


def write_notice(text: str) -> None:
    """Tell the group's first process, without waiting for it."""
    with suppress(*NO_STORE):
        dist.distributed_c10d._get_default_store().set(NOTICE, text)


def read_notice() -> str | None:
    """What a process of the group told the first one."""
    with suppress(*NO_STORE):
        store = dist.distributed_c10d._get_default_store()
        return store.get(NOTICE).decode() if store.check([NOTICE]) else None
    return None


class _Gather(torch.autograd.Function):
    """(n_r, ...) on each of W ranks -> (sum of n_r, ...) on all of them; backward sums the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, block: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes, most = sizes, max(sizes)
        if len(block) < most:  # gloo gathers blocks of one size
            block = torch.cat([block, block.new_zeros(most - len(block), *block.shape[1:])])
        blocks = [torch.empty_like(block) for _ in sizes]
        dist.all_gather(blocks, block.contiguous())
        return torch.cat([one[:size] for one, size in zip(blocks, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _OwnBlockOfSum.apply(gradients[0], ctx.sizes), None


class _OwnBlockOfSum(torch.autograd.Function):
    """(sum of n_r, ...) on each of W ranks -> this rank's block (n_r, ...) of their sum; the adjoint of `_Gather`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes, total = sizes, rows.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return torch.split(total, sizes)[rank()]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(gradients[0], ctx.sizes), None


def gather(block: Tensor, sizes: list[int] | None = None) -> Tensor:
    """The blocks of all ranks, concatenated in rank order, (n_r, ...) -> (sum of n_r, ...); differentiable. `sizes`:
    n_r of each rank; None where all have as many.

    Every rank computes the same loss on the gathered rows, so the backward pass sums W identical gradients,
    and DDP's mean over the W ranks divides by W again: the result is exactly the one-process gradient.
    """
    if world_size() == 1:
        return block
    return _Gather.apply(block, sizes or [len(block)] * world_size())  # type: ignore[no-any-return]


class _Sum(torch.autograd.Function):
    """A part () on each of W ranks -> their sum on all of them; backward sums the ranks' gradients of it."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # a gradient of this gradient may differ between the ranks
            return _Sum.apply(gradients[0])  # type: ignore[no-any-return]
        return gradients[0] * world_size()  # each rank has the same


def sum_over_shares(part: Callable[[int, int], Tensor]) -> Tensor:
    """The sum of part(0, W), ..., part(W - 1, W); each of the W ranks computes its own part. Differentiable.

    The parts have the same shape and type; only one number of each is sent. Every rank computes the same loss from
    the sum, whose gradient on a part is W times the one-process gradient: DDP's mean over the ranks, each of which
    knows its own part only, divides by W again.
    """
    part_here = part(rank(), world_size())
    if world_size() == 1:
        return part_here
    return _Sum.apply(part_here)  # type: ignore[no-any-return]


class _Mean(torch.autograd.Function):
    """The mean over the ranks, on all of them; it is its own adjoint."""

    @staticmethod
    def forward(ctx: Any, block: Tensor) -> Tensor:
        total = block.clone()
        dist.all_reduce(total)
        return total / world_size()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _Mean.apply(gradients[0])  # type: ignore[no-any-return]


def mean(gradients: Sequence[Tensor]) -> list[Tensor]:
    """The mean over the ranks of each tensor; differentiable. One message for all of one type."""
    if world_size() == 1:
        return list(gradients)
    means: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        places = [index for index, gradient in enumerate(gradients) if gradient.dtype == dtype]
        flat = torch.cat([gradients[index].reshape(-1) for index in places])
        parts = _Mean.apply(flat).split([gradients[index].numel() for index in places])
        means |= {index: part.view_as(gradients[index]) for index, part in zip(places, parts, strict=True)}
    return [means[index] for index in range(len(gradients))]


@torch.no_grad()
def as_on_first(tensors: Iterable[Tensor]) -> None:
    """Give every rank the first one's values of these tensors."""
    if world_size() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def broadcast_object(value: Any) -> Any:
    """Rank 0's value on every rank."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


def on_first(function: Callable[[], Answer]) -> Answer:
    """What a function gives on rank 0, on every rank; the others do not call it. They fail where it fails."""
    if world_size() == 1:
        return function()
    result, problems = None, None
    try:
        if rank() == 0:
            result = function()
    except Exception as error:
        problems = error.problems if isinstance(error, InputError) else (f"{type(error).__name__}: {error}",)
        raise
    finally:
        result, problems = broadcast_object((result, problems))
    if problems is not None:
        raise InputError(*problems)
    return cast(Answer, result)


def alike(value: str) -> bool:
    """Whether this value is the same on all ranks."""
    values: list[Any] = [value] * world_size()
    if world_size() > 1:
        dist.all_gather_object(values, value)
    return len(set(values)) == 1


def data_parallel(module: nn.Module, *, unsynchronised: list[str]) -> nn.Module:
    """`module` under DDP (or as it is in one process).

    `unsynchronised` names parameters and buffers that are equal on all ranks by construction and hence are
    never sent: a memory queue, say, would otherwise be broadcast at every step.
    """
    if world_size() == 1:
        return module
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, unsynchronised)  # type: ignore[no-untyped-call]
    device = next(module.parameters()).device
    with no_compiler(DistributedDataParallel):
        return DistributedDataParallel(module, device_ids=[device] if device.type == "cuda" else None)
