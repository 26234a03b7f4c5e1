"""What a method may see of its training after a validation."""

import math
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from orchestrator.data.pipeline import Reader
from orchestrator.data.store import Store
from orchestrator.errors import TrainingFailed
from orchestrator.method import Embedded, Scope
from orchestrator.training.embed import run_network
from orchestrator.training.learner import Learner
from orchestrator.training.splits import LabelledImages


def build_scope(
    learner: Learner,
    optimizer: torch.optim.Optimizer,
    store: Store,
    images: LabelledImages,
    rng: Generator,
    device: torch.device,
    stops: list[bool],
    reader: Reader | None = None,
) -> Scope:
    """What a method's `begin` and `after_validation` may do."""

    def class_embeddings(n: int, rng: Generator) -> Tensor:
        rows = []
        for label in range(int(images.labels.max()) + 1):
            members = images.samples[images.labels == label]
            # a class with fewer images than requested repeats some
            order = [torch.randperm(len(members), generator=rng) for _ in range(math.ceil(n / len(members)))]
            rows.append(members[torch.cat(order)[:n].numpy()])
        raw = run_network(learner, store, np.concatenate(rows), device, reader, normalized=False)["embedding"]
        return raw.view(len(rows), n, -1)

    def embed(samples: Tensor | None = None) -> Embedded:
        places = np.arange(len(images.samples)) if samples is None else _positions(samples)
        result = run_network(learner, store, images.samples[places], device, reader)
        outputs = {name: output.cpu() for name, output in result.items()}
        return Embedded(outputs, torch.from_numpy(images.labels[places]), torch.from_numpy(images.samples[places]))

    def _positions(samples: Tensor) -> np.ndarray[Any, Any]:
        numbers, order = torch.as_tensor(samples).cpu().numpy(), np.argsort(images.samples)
        places = np.searchsorted(images.samples, numbers, sorter=order).clip(max=len(order) - 1)
        positions: np.ndarray[Any, Any] = order[places]
        unknown = numbers[images.samples[positions] != numbers]
        if len(unknown):
            raise TrainingFailed(f"{learner.method.name}: sample {unknown[0]} is no training image: see Scope.embed")
        return positions

    def reset_moments(parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            optimizer.state.pop(parameter, None)

    def moments(parameters: list[nn.Parameter]) -> list[Tensor]:
        copies, names = [], _moments_of(optimizer)
        for parameter in parameters:
            state, zeros = optimizer.state.get(parameter, {}), torch.zeros_like(parameter)
            copies += [torch.as_tensor(state.get("step", 0.0))]
            copies += [state.get(name, zeros) for name in (*names, "", "")[:2]]
        return [moment.detach().clone() for moment in copies]

    def set_moments(parameters: list[nn.Parameter], moments: list[Tensor]) -> None:
        optimised = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        names, steps = _moments_of(optimizer), [state["step"] for state in optimizer.state.values() if "step" in state]
        for index, parameter in enumerate(parameters):
            if id(parameter) not in optimised or not optimizer.state:  # a frozen one; before the first step
                continue
            step, *rest = moments[3 * index : 3 * index + 3]
            # in the parameter's memory layout, which a fused optimiser assumes
            state: dict[str, Any] = {
                name: torch.empty_like(parameter.detach()).copy_(moment)
                for name, moment in zip(names, rest, strict=False)
            }
            if steps:
                whole = isinstance(steps[0], int)
                state["step"] = int(step) if whole else step.detach().to(parameter.device, torch.float32, copy=True)
            optimizer.state[parameter] = state

    return Scope(rng, class_embeddings, embed, reset_moments, moments, set_moments, lambda: stops.append(True))


def _moments_of(optimizer: torch.optim.Optimizer) -> list[str]:
    """The names of an optimiser's moments, two at most; none before its first step."""
    names = sorted({name for state in optimizer.state.values() for name in state if isinstance(state[name], Tensor)})
    names = [name for name in names if name != "step"]
    if len(names) > 2:
        raise TrainingFailed(
            f"{type(optimizer).__name__} keeps {len(names)} moments of a parameter, a method may ask for two: take "
            "another optimizer"
        )
    return names
