"""The optimiser of a learner: parameter groups, schedules, clipping."""

from typing import Any

import torch
from torch import nn

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
            groups.setdefault(training.lr * factor, []).append(parameter)
    return [{"params": parameters, "lr": lr} for lr, parameters in groups.items()]


def set_learning_rates(optimizer: torch.optim.Optimizer, training: Training, epoch: int) -> None:
    """Apply the step schedule: a function of the epoch alone, so it has no state to save."""
    factor = training.lr_gamma ** (epoch // training.lr_step_epochs) if training.lr_step_epochs else 1.0
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def clip_gradients(learner: Learner, training: Training) -> None:
    """Clip by value, then by norm, as configured."""
    if training.clip_value is not None:
        nn.utils.clip_grad_value_(learner.parameters(), training.clip_value)
    if training.clip_norm is not None:
        nn.utils.clip_grad_norm_(learner.parameters(), training.clip_norm)
