"""What the `schedule` of a training changes while it runs."""

from typing import Any

import torch

from orchestrator.config.training import Experiment
from orchestrator.contract import MethodConfig
from orchestrator.plugins import own_config
from orchestrator.training.engine import Engine
from orchestrator.training.learner import Learner
from orchestrator.training.optimizer import build_optimizer


class Stages:
    """The stages of a training: what its optimiser, its engine and its method have from some validations on.

    Which stage a step belongs to follows from the step alone, so a checkpoint keeps nothing of it: a resumed training
    sets again what its stage has.
    """

    def __init__(self, experiment: Experiment, learner: Learner, optimizer: torch.optim.Optimizer) -> None:
        """To be made before a warm-up has frozen anything: groups are those of the parameters that are trained."""
        self.learner, self.optimizer = learner, optimizer
        self.stages = experiment.stages()
        self.current = 0
        self.configs: dict[int, MethodConfig] = {}
        self.groups: dict[int, list[dict[str, Any]]] = {}
        if len(self.stages) == 1:
            return
        first = learner.method.config
        for start, stage in self.stages.items():
            learner.method.config = self.configs[start] = own_config(stage.method, stage.config)
            groups = build_optimizer(learner, stage.training).param_groups
            self.groups[start] = [{k: value for k, value in group.items() if k != "params"} for group in groups]
        learner.method.config = first

    def enter(self, validations: int, engine: Engine) -> None:
        """Before a step that follows so many validations: set what its stage has, if that is another one."""
        start = max(start for start in self.stages if start <= validations)
        if start != self.current:
            self.current = start
            self.learner.method.config = self.configs[start]
            engine.training = self.stages[start].training
            for group, values in zip(self.optimizer.param_groups, self.groups[start], strict=True):
                group.update(values)
