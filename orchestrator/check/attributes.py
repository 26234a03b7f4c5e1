"""The check that all that changes in a method is in its buffers and parameters, and that nothing keeps a graph."""

import random
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Generator, Tensor, nn

from orchestrator.check.subject import Run, Subject, check, require
from orchestrator.method import Method, Task

ITEMS, DEPTH = 10_000, 6
"""The maximum number of items of a container, and of nested containers, that are examined."""
OF_TORCH = frozenset(vars(nn.Module())) | {"config", "task", "shared_sum"}


@check
def attributes(subject: Subject) -> None:
    """Steps and validations change parameters and saved buffers, no other attribute; nothing keeps a graph."""
    run = Run(subject, begun=True)
    trained = {id(part) for part in (*run.learner.modules(), *run.learner.parameters(), *run.learner.buffers())}
    before = _attributes(run.method, trained)
    buffers = _find_unsaved(run.method)
    run.begin()
    run.step()
    for name, buffer in run.method.named_buffers():
        require(not buffer.requires_grad, f"buffer {name} keeps the graph of a step: detach() what is kept")
    after = _attributes(run.method, trained)
    for name, (_, tensor) in after.items():
        keeps = tensor is not None and tensor.grad_fn is not None
        require(not keeps, f"attribute {name} keeps the graph of a step: memory grows; detach(), into a buffer")
    for _ in range(2):
        run.validate()
        run.step()
    after = _attributes(run.method, trained)
    for name in sorted(before.keys() | after.keys()):
        (was, _), (now, _) = (values.get(name, ("absent", None)) for values in (before, after))
        require(was == now, f"attribute {name} was {was}, then {now}: it is in no checkpoint; what changes is a buffer")
    for name, (_, tensor) in after.items():
        require(
            tensor is None, f"attribute {name} is a tensor, but no parameter and no buffer: it is not saved or moved"
        )
    for name, value in _find_unsaved(run.method).items():
        same = name in buffers and torch.equal(value, buffers[name])
        require(same, f"buffer {name} changes, but is in no checkpoint: persistent=False is for constants")


def _find_unsaved(method: Method) -> dict[str, Tensor]:
    """Copies of the buffers that no checkpoint contains."""
    saved = method.state_dict().keys()
    return {name: buffer.detach().clone() for name, buffer in method.named_buffers() if name not in saved}


def _attributes(method: Method, trained: set[int]) -> dict[str, tuple[str, Tensor | None]]:
    """What the attributes of a method, of its parts and of its classes hold: by name, in words; tensors as they are."""
    values: dict[str, tuple[str, Tensor | None]] = {}
    for place, module in method.named_modules():
        for name, value in vars(module).items():
            if name in OF_TORCH or isinstance(getattr(type(module), name, None), cached_property):
                continue
            values.update(_describe(f"{place}.{name}".lstrip("."), value, trained, DEPTH))
    for kind in type(method).__mro__[: type(method).__mro__.index(Method)]:
        for name, value in vars(kind).items():
            if not name.startswith("__") and not isinstance(value, type) and name != "_abstract":
                values.update(_describe(f"{kind.__name__}.{name}", value, trained, DEPTH))
    return values


def _describe(name: str, value: Any, trained: set[int], depth: int) -> Iterator[tuple[str, tuple[str, Tensor | None]]]:
    """A line for the value, and one for each value in it."""
    if id(value) in trained or isinstance(value, BaseModel | Task | FunctionType | MethodType | ModuleType | type):
        return
    if isinstance(value, Tensor):
        numbers = value.detach().cpu()
        digest = f", sum {float(numbers.double().sum()):.17g}" if numbers.numel() else ""
        yield name, (f"a tensor {tuple(value.shape)}{digest}", value)
    elif isinstance(value, nn.Module):
        for part, tensor in (*value.named_parameters(), *value.named_buffers()):
            if id(tensor) not in trained:
                yield from _describe(f"{name}.{part}", tensor, trained, depth)
    elif isinstance(value, np.ndarray):
        yield name, (f"an array {value.shape}, {hash(value.tobytes()):x}", None)
    elif isinstance(value, Generator):
        yield name, (f"a generator, {hash(value.get_state().numpy().tobytes()):x}", None)
    elif isinstance(value, np.random.Generator | random.Random):
        state = value.getstate() if isinstance(value, random.Random) else value.bit_generator.state
        yield name, (f"a generator, {hash(str(state)):x}", None)
    elif isinstance(value, str | bytes | int | float | complex | bool | None):
        yield name, (repr(value)[:60], None)
    elif depth == 0:
        return
    elif isinstance(value, Mapping | Sequence | Set) or (hasattr(value, "__len__") and hasattr(value, "__iter__")):
        yield name, (f"a {type(value).__name__} of {len(value)}", None)
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for index, (key, item) in enumerate(items):
            if index == ITEMS:
                break
            yield from _describe(f"{name}[{key!r}]", item, trained, depth - 1)
    elif hasattr(value, "__dict__"):
        for part, value_held in vars(value).items():
            yield from _describe(f"{name}.{part}", value_held, trained, depth - 1)
