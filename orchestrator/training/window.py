"""What a training did since its last validation, known without waiting for the device."""

import contextlib
import math
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from orchestrator.errors import TrainingFailed
from orchestrator.method import Batch, Embedded, Outputs

LAG = 2
"""Steps after which a GPU is asked for a step's loss terms: it has computed them, and has later steps to go on with."""


class StepTerms(NamedTuple):
    """The loss terms of a step, on their way to the host."""

    step: int
    epoch: int
    names: tuple[str, ...]
    values: Tensor
    copied: Any

    def problem(self) -> str | None:
        """What is wrong with the values that have arrived."""
        values = self.values.tolist()
        if math.isfinite(sum(values)):
            return None
        terms = ", ".join(f"{name} {value:g}" for name, value in zip(self.names, values, strict=True))
        return f"the loss is not finite at step {self.step}, epoch {self.epoch} ({terms})"


class HasFirst(Protocol):
    first: dict[str, Tensor]


def _values(terms: dict[str, Tensor]) -> Tensor:
    return torch.stack([term.detach().double().reshape(()) for term in terms.values()])


class Window:
    """The training since the last validation: mean loss terms, outputs for the diagnostics.

    On a GPU the loss terms travel to the host on their own and are looked at LAG steps later; outputs stay where they
    are until they are asked for.
    """

    def __init__(self, keep_outputs: bool) -> None:
        self.keep_outputs = keep_outputs
        self.waiting: deque[StepTerms] = deque()
        self.clear()

    def clear(self) -> None:
        """Start again."""
        self.steps = 0
        self.sums: dict[str, float] = {}
        self.batches: list[Embedded] = []

    def add(self, step: int, epoch: int, terms: dict[str, Tensor], seen: list[Outputs], batch: Batch) -> None:
        """Add one step. Only the first run of the network belongs to the batch's own images.

        Raises TrainingFailed if the loss is not finite: of this step on a CPU, of one LAG steps before on a GPU.
        """
        values = _values(terms)
        on_cpu, copied = values.device.type == "cpu", None
        if not on_cpu:
            backend = torch.get_device_module(values.device)
            # zeros: what has not arrived accuses no step
            values = torch.zeros(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
            copied = backend.Event(blocking=True)
            copied.record(backend.current_stream())
        self.waiting.append(StepTerms(step, epoch, tuple(terms), values, copied))
        if self.keep_outputs and seen:
            outputs = {name: output.float() for name, output in seen[0].items()}
            self.batches.append(Embedded(outputs, batch.labels[:, 0], batch.samples))
        self.settle(0 if on_cpu else LAG)

    def settle(self, lag: int = 0) -> None:
        """Look at the loss terms of all steps but the last `lag`. Raises TrainingFailed if they are not finite."""
        while len(self.waiting) > lag:
            step = self.waiting.popleft()
            if step.copied is not None:
                step.copied.synchronize()
            if (problem := step.problem()) is not None:
                raise TrainingFailed(problem)
            self.steps += 1
            for name, value in zip(step.names, step.values.tolist(), strict=True):
                self.sums[name] = self.sums[name] + value if name in self.sums else value

    def state(self) -> dict[str, Any]:
        """What a checkpoint within the window keeps. Waits for the device; what has come is judged where it would have
        been."""
        waiting = []
        for step in self.waiting:
            if step.copied is not None:
                step.copied.synchronize()
            waiting.append([step.step, step.epoch, list(step.names), step.values])
        batches = [[batch.outputs, batch.labels, batch.samples] for batch in self.batches]
        return {"steps": self.steps, "sums": dict(self.sums), "waiting": waiting, "batches": batches}

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        """Go on from a `state`."""
        if not state:
            return
        self.steps, self.sums = state["steps"], dict(state["sums"])
        self.waiting = deque(
            StepTerms(step, epoch, tuple(names), values, None) for step, epoch, names, values in state["waiting"]
        )
        for outputs, labels, samples in state["batches"]:
            there = {name: output.to(device) for name, output in outputs.items()}
            self.batches.append(Embedded(there, labels.to(device), samples.to(device)))

    @contextlib.contextmanager
    def first_cause(self, step: int, epoch: int, current: "HasFirst") -> Iterator[None]:
        """A step that fails after one whose loss was not finite, or after its own was not, is reported as that one.

        `current` is what makes this step; its `first` are the terms that it has so far."""
        try:
            yield
        except Exception as error:
            there = {name: term for name, term in current.first.items() if term.device.type == "cpu"}
            here = StepTerms(step, epoch, tuple(there), _values(there), None) if there else None
            for pending in (
                *self.waiting,
                *([here] if here else []),
            ):  # no waiting: a GPU with a failed kernel is silent
                if (problem := pending.problem()) is not None:
                    raise TrainingFailed(problem) from error
            raise

    def means(self) -> dict[str, float]:
        """`train/loss` and `train/<term>`. Raises TrainingFailed if a loss is not finite."""
        self.settle()
        means = {name: total / self.steps for name, total in self.sums.items()}
        metrics = {"train/loss": sum(means.values())}
        if len(means) > 1 or "loss" not in means:
            metrics |= {f"train/{name}": value for name, value in means.items()}
        return metrics

    def collect(self) -> Embedded | None:
        """All batches together, on the CPU; None if they are not kept."""
        if not self.batches:
            return None
        names = self.batches[0].outputs
        return Embedded(
            {name: torch.cat([batch.outputs[name] for batch in self.batches]).cpu() for name in names},
            torch.cat([batch.labels for batch in self.batches]).cpu(),
            torch.cat([batch.samples for batch in self.batches]).cpu(),
        )
