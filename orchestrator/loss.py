"""A method as the loss of a PyTorch loop of one's own."""

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import ValidationError
from torch import Generator, Tensor, nn

from orchestrator.errors import InputError
from orchestrator.method import Batch, Method, Outputs, Task, find_method, total
from orchestrator.problems import complaints, suggestion


class Loss(nn.Module):
    """`loss(embeddings, labels)`: a method's loss of a batch, a scalar, the sum of its terms.

        loss = Loss("proxy_anchor", num_classes=100, embedding_dim=128, alpha=32.0)
        optimizer = torch.optim.AdamW([{"params": network.parameters()}, *loss.parameter_groups(lr=1e-4)], lr=1e-4)
        loss(network(images), labels).backward()

    Embeddings (B, D) are as the network gives them: the method normalises them, also those that are ranked:
    `loss.normalize(embeddings)`. Labels (B,) are whole numbers below `num_classes`, or (B, L) label sets, padded with
    -1. Proxies, memories, random draws and the count of steps are in its `state_dict`. On several processes gather the
    embeddings with their gradients first. `terms` holds the last call's terms.

    Args:
        method: its name, as `orchestrator methods` lists them.
        super_classes: the number of the super-class of each class, for methods that read it.
        batch_size, total_steps: of the training, for methods that read them.
        seed: of the random draws in a step; proxies are drawn by torch's own generator.
        hyperparameters: the method's, as `orchestrator methods NAME` lists them.

    Raises:
        InputError: the method or a hyperparameter is unknown or invalid; or the method is more than a function of
            embeddings, labels and parameters of its own; later: embeddings or labels of another shape.
    """

    def __init__(
        self,
        method: str,
        *,
        num_classes: int,
        embedding_dim: int,
        super_classes: Sequence[int] = (),
        batch_size: int = 0,
        total_steps: int = 0,
        seed: int = 0,
        **hyperparameters: Any,
    ) -> None:
        super().__init__()
        kind = find_method(method)
        if unknown := sorted(hyperparameters.keys() - kind.Config.model_fields.keys()):
            fields, see = kind.Config.model_fields, f"orchestrator methods {method}"
            hints = {key: suggestion(key, fields, see) for key in unknown}
            raise InputError(*(f"{key}: no such hyperparameter of '{method}'{hint}" for key, hint in hints.items()))
        try:
            config = kind.Config(**hyperparameters)
        except ValidationError as error:
            raise InputError(*complaints(error)) from None
        task = Task(
            num_classes=num_classes,
            embedding_dim=embedding_dim,
            feature_dim=embedding_dim,
            batch_size=batch_size,
            total_steps=total_steps,
            super_classes=tuple(super_classes),
        )
        self.method = kind(config, task)
        if (reason := more_than_a_loss(self.method)) is not None:
            raise InputError(f"method '{method}' {reason}: run it by orchestrator.train")
        self.terms: dict[str, Tensor] = {}
        self.steps = 0
        self.rng = Generator().manual_seed(seed)

    def forward(self, embeddings: Tensor, labels: Tensor, samples: Tensor | None = None) -> Tensor:
        """The loss of a batch. `samples` (B,) number the images, where some come again: a memory leaves out an image's
        own earlier embedding. By default every one is another image."""
        task = self.method.task
        if embeddings.ndim != 2 or embeddings.shape[1] != task.embedding_dim:
            raise InputError(f"embeddings: {tuple(embeddings.shape)} should be (B, {task.embedding_dim})")
        size = len(embeddings)
        if labels.ndim not in (1, 2) or len(labels) != size or labels.is_floating_point():
            raise InputError(f"labels: {tuple(labels.shape)} {labels.dtype} should be ({size},) whole numbers")
        labels = labels[:, None] if labels.ndim == 1 else labels
        if self.steps == 0 and not (int(labels.min()) >= -1 and int(labels.max()) < task.num_classes):
            raise InputError(f"labels: {int(labels.min())} to {int(labels.max())} should be below {task.num_classes}")

        def network(images: Tensor) -> Outputs:
            if images is not embeddings:
                raise InputError(f"method '{self.method.name}' changes the images, with these hyperparameters")
            return {"embedding": self.normalize(embeddings), **({"raw": embeddings} if self.method.reads_raw else {})}

        if samples is None:
            samples = torch.arange(self.steps * size, (self.steps + 1) * size, device=embeddings.device)
        terms = self.method.step(Batch(embeddings, labels, samples, step=self.steps), network, self.rng)
        self.steps += 1
        self.terms = {name: term.detach() for name, term in terms.items()}
        return total(terms)

    def normalize(self, embeddings: Tensor) -> Tensor:
        """As the method normalises them, to be ranked."""
        return self.method.normalize(embeddings)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """The optimiser's groups over proxies and the like, at the method's own multiple of the network's rate."""
        return self.method.parameter_groups(lr)

    def get_extra_state(self) -> dict[str, Any]:
        """What is not a parameter or a buffer."""
        return {"steps": self.steps, "rng": self.rng.get_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.steps = state["steps"]
        self.rng.set_state(state["rng"])


def more_than_a_loss(method: Method) -> str | None:
    """Why a method is more than a function of embeddings, labels and parameters of its own; None if it is one."""
    reasons = {
        "update": "has a training step of its own",
        "bind": "needs the network",
        "begin": "reads the training images before the first step",
        "after_validation": "follows the validations",
    }
    for hook, reason in reasons.items():
        if getattr(type(method), hook) is not getattr(Method, hook):
            return reason
    if len(method.heads()):
        return "has heads on the network's features"
    return f"takes {method.views} views of each image" if method.views > 1 else None
