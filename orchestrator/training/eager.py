"""torch's optimisers, its data parallel module and its modes without its compiler.

`torch.optim` imports `torch._dynamo` (4 to 5 s of a processor) at the first step of every optimiser, only to mark where
a compiled graph must end; a step that nobody compiles needs no mark. `DistributedDataParallel` imports it to ask for a
setting of the compiler and to mark its forward pass, a dispatch mode to mark its method. What they compute is torch's,
to the same bits.
"""

import contextlib
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch.optim import Optimizer

MARKED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
"""The methods of every optimiser that the compiler leaves out."""


def spare_compiler() -> None:
    """Let torch's optimisers be made, saved and loaded without its compiler.

    Each marked method asks its plain function for the form that the compiler leaves out, and imports the compiler to
    make it where there is none; the plain function itself is that form while nothing is compiled.
    """
    for name in MARKED:
        leave_unmarked(getattr(Optimizer, name))


def leave_unmarked(method: Any) -> None:
    """Let a method that torch marks for its compiler run without it."""
    plain = inspect.unwrap(method)
    if isinstance(plain, FunctionType):
        plain.__dict__.setdefault("__dynamo_disable", plain)


@contextlib.contextmanager
def no_compiler(data_parallel: Any) -> Iterator[None]:
    """Where `DistributedDataParallel`, as given, is made: torch's compiler, if it is not loaded, answers as it does by
    default."""
    leave_unmarked(data_parallel._inside_ddp_forward)
    if "torch._dynamo" in sys.modules:
        yield
        return
    stand_in = SimpleNamespace(utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"))
    torch.__dict__["_dynamo"] = stand_in
    try:
        yield
    finally:
        if torch.__dict__["_dynamo"] is stand_in:
            del torch.__dict__["_dynamo"]


def step_plainly(optimizer: Optimizer) -> None:
    """Let an optimiser of torch step without its compiler; another one, or a differentiable one, stays as it is."""
    kind = type(optimizer)
    if kind.__module__.startswith("torch.optim.") and not optimizer.defaults.get("differentiable", True):
        optimizer.__class__ = _plain(kind)  # type: ignore[arg-type]  # a class is hashable


@cache
def _plain(kind: type[Optimizer]) -> type[Optimizer]:
    """The same optimiser; `step` without gradients, between its hooks, and with no mark for the compiler."""
    step = Optimizer.profile_hook_step(torch.no_grad()(inspect.unwrap(kind.step)))
    step.__dict__["hooked"] = True  # loading a state would put hooks around a step without them
    members: dict[str, Any] = {"step": step, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), members)
