"""The optimiser of a learner: parameter groups, schedules, clipping."""

from typing import Any, Literal

import torch
from torch import nn

from orchestrator.config.intervals import parse_steps
from orchestrator.config.lr_schedules import lr_schedule_of
from orchestrator.config.lr_schedules.base import Moment
from orchestrator.config.optimizers import optimizer_of
from orchestrator.config.training import Training
from orchestrator.errors import InputError
from orchestrator.training.eager import spare_compiler, step_plainly
from orchestrator.training.learner import Learner


def build_optimizer(learner: Learner, training: Training) -> torch.optim.Optimizer:
    """The chosen optimiser over the network and the method's own groups; every parameter in exactly one."""
    groups = network_groups(learner, training)
    fused = groups[0]["params"][0].is_cuda  # one kernel for all parameters, on a GPU
    groups += learner.method.parameter_groups(training.lr)
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    for name, parameter in learner.named_parameters():
        trained = parameter.requires_grad and parameter.numel()  # without proxies there is nothing to optimise
        if trained and grouped.count(id(parameter)) != 1:
            raise InputError(
                f"method '{learner.method.name}': parameter {name} is in {grouped.count(id(parameter))} "
                "optimiser groups, it should be in one: see parameter_groups"
            )
    spare_compiler()
    optimizer = optimizer_of(training.optimizer).build(groups, training, fused)
    step_plainly(optimizer)
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    return optimizer


def network_groups(learner: Learner, training: Training) -> list[dict[str, Any]]:
    """The network's trained parameters by their learning rate.

    Heads have `lr`; layer i of the backbone, counted from 0 at its top, lr * backbone_lr_multiplier * layer_decay**i.
    """
    backbone = learner.network.backbone
    depths = backbone.depths() if training.layer_decay != 1 else dict.fromkeys(backbone.parameters(), 0)
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in learner.network.parameters():
        factor = 1.0
        if parameter in depths:
            factor = training.backbone_lr_multiplier * training.layer_decay ** depths[parameter]
        if parameter.requires_grad:
            groups.setdefault(factor, []).append(parameter)
    return [{"params": parameters, "lr": training.lr * factor} for factor, parameters in groups.items()]


class LearningRates:
    """The learning rates of an optimiser's groups: linear warm-up, schedule, and what follows the validations' scores.

    lr = base_lr * min(1, (step + 1) / warmup) * factor, with steps from 0
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        training: Training,
        steps_per_epoch: int,
        mode: Literal["max", "min"] = "max",
    ) -> None:
        self.optimizer, self.training = optimizer, training
        self.warmup = parse_steps(training.lr_warmup, steps_per_epoch) if training.lr_warmup else 0
        self.total = training.epochs * steps_per_epoch
        self.schedule = lr_schedule_of(training.lr_schedule)
        self.follower = self.schedule.follower(training, mode) if self.schedule.follower else None

    def set(self, step: int, epoch: int) -> None:
        """Those of a step."""
        factor = self.schedule.factor(self.training, Moment(epoch, step, self.warmup, self.total))
        if self.follower is not None:
            factor *= float(self.follower.get_last_lr()[0])
        if step < self.warmup:
            factor *= (step + 1) / self.warmup
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor

    def take_score(self, score: float) -> None:
        """A validation has given this score."""
        if self.follower is not None:
            self.follower.step(score)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {} if self.follower is None else self.follower.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        if self.follower is not None:
            self.follower.load_state_dict(state)
            self.follower.optimizer.param_groups[0]["lr"] = self.follower.get_last_lr()[0]


def clip_gradients(learner: Learner, training: Training) -> None:
    """Clip by value, then by norm, as configured."""
    if training.clip_value is not None:
        nn.utils.clip_grad_value_(learner.parameters(), training.clip_value)
    if training.clip_norm is not None:
        nn.utils.clip_grad_norm_(learner.parameters(), training.clip_norm)
