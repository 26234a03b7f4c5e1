"""A small method that passes every check."""

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from orchestrator.method import Diagnostics, Embedded, Method, MethodConfig, Outputs, Scope, Task


class Good(Method):
    """Pulls embeddings to their class's centre, and a head's output to zero.

    L = mean of |z - c_y|^2 + weight mean of a^2.
    """

    name = "good"
    paper = "unpublished"
    needs_validation = True

    class Config(MethodConfig):
        weight: float = Field(0.1, ge=0, description="weight of the head's term")

    config: Config
    steps: Tensor
    validations: Tensor

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self.centres = nn.Parameter(torch.randn(task.num_classes, task.embedding_dim))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("validations", torch.zeros((), dtype=torch.long))

    def heads(self) -> nn.ModuleDict:
        return nn.ModuleDict({"amount": nn.Linear(self.task.feature_dim, 1)})

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        self.steps += 1
        pull = (outputs["embedding"] - self.centres[labels[:, 0]]).square().sum(1)
        return {"pull": self._mean(pull, labels), "amount": self.config.weight * outputs["amount"].square().mean()}

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return pull.mean()

    def after_validation(self, score: float, scope: Scope) -> None:
        self.validations += 1
        points = F.normalize(scope.class_embeddings(2, scope.rng).mean(1), dim=-1)
        with torch.no_grad():
            self.centres.copy_(0.5 * self.centres + 0.5 * points)
        scope.reset_moments([self.centres])

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        shown = {"trained": trained, "held_out": held_out}
        sizes = {name: float(len(part.labels)) for name, part in shown.items() if part is not None}
        return Diagnostics(scalars=sizes, arrays={"centres": self.centres.detach().cpu().numpy()})
