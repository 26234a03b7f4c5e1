"""Deep metric learning with chance constraints (CCP): proxy problems solved one after the other.

Gurbuz, Can and Alatan, "Deep Metric Learning with Chance Constraints", WACV 2024. Each problem starts from proxies
that cover their classes better than the last ones (Algorithm 2) and stays near the last solution (Algorithm 1).

Shapes: N points, b points of a class's pool, P centres, D dimensions.
"""

from collections.abc import Iterable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Generator, Tensor, nn

from methods.baselines import Contrastive, MultiSimilarity, ProxyAnchor, Triplet
from methods.bases import OverConfig
from methods.covering import class_spread
from methods.covering import covering_radius as covering_radius
from methods.covering import greedy_k_center as greedy_k_center
from methods.covering import mean_covering_radius as mean_covering_radius
from methods.objectives import pair_masks
from methods.proxies import PROXY_SETTINGS, Proxies
from orchestrator.method import Batch, Diagnostics, Embedded, Method, Network, Scope, Task


def proximal_term(parameters: Iterable[Tensor], anchor: Iterable[Tensor]) -> Tensor:
    """Half the squared distance of the network's parameters to the last problem's best, 1/2 ||theta - theta*||^2.

    Its gradient on each parameter is theta - theta*; `anchor` gets none. Proxies are not part of theta.

    Args:
        parameters, anchor: equally many tensors, pairwise of the same shape.

    Raises:
        ValueError: if numbers or shapes differ.
    """
    pairs = list(zip(parameters, anchor, strict=True))
    for parameter, best in pairs:
        if parameter.shape != best.shape:
            raise ValueError(f"anchor has shape {tuple(best.shape)} for a parameter {tuple(parameter.shape)}")
    # one pass forward and one backward, without a copy of the differences
    terms = [F.mse_loss(parameter, best.detach(), reduction="sum") for parameter, best in pairs]
    return torch.stack(terms).sum() / 2 if terms else torch.zeros(())


def lipschitz_normalize(v: Tensor) -> Tensor:
    """v / ||v|| where ||v|| >= 1, else v, along the last dimension: a projection that is 1-Lipschitz.

    Returns the shape of v, at least float32.
    """
    norm: Tensor = torch.linalg.vector_norm(v, dim=-1, keepdim=True, dtype=torch.promote_types(v.dtype, torch.float32))
    return v / norm.clamp_min(1)


# The method ------------------------------------------------------------------------------------------------


class Snapshot(nn.Module):
    """Copies of tensors as buffers: part of every checkpoint, moved and cast with the method."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        for number, tensor in enumerate(tensors):
            self.register_buffer(f"tensor_{number}", tensor.detach().clone())

    @torch.no_grad()
    def take(self, tensors: Iterable[Tensor]) -> None:
        """Copy these tensors, of the same shapes as those that it was made of."""
        for buffer, tensor in zip(self.buffers(), tensors, strict=True):
            buffer.copy_(tensor)

    @torch.no_grad()
    def put_back(self, tensors: Iterable[Tensor]) -> None:
        """Copy what was taken into these tensors."""
        for buffer, tensor in zip(self.buffers(), tensors, strict=True):
            tensor.copy_(buffer)


_ELSEWHERE = ("references", "proxies_per_class", *PROXY_SETTINGS, "memory_size", "memory_start")
"""Settings of a base objective that the method decides."""


class CCP(Method):
    """Chance constraints: a sequence of proxy problems, each from better proxies and near the last one's solution.

    L = objective(batch vs proxies) + (proximal_weight / 2) ||theta - theta*||^2 + pair_weight objective(batch vs batch)

    theta are the network's parameters, theta* its best ones in the last problem; the first problem has none. A problem
    ends when MAP@R on held-out classes has not improved for `patience` validations. Then network and proxies go back to
    their best in this problem, and new proxies are chosen among `pool_size` random samples of each class: greedily
    those that the old ones cover worst (k-center on raw embeddings). The first proxies are random samples, which
    presumes a pre-trained network: with random weights the embeddings, and so the proxies, of all classes are alike;
    `first_proxies: random` is for that. Embeddings and proxies are shortened to unit length where they are longer; s
    is their plain product. Triplets have proxies as anchors. Defaults are the paper's on CUB.
    """

    name = "ccp"
    paper = "Gurbuz, Can and Alatan, Deep Metric Learning with Chance Constraints, WACV 2024"
    latex = r"""
    L = \mathrm{objective}(\text{batch vs proxies})
    + \frac{\mathrm{proximal\_weight}}{2} \left\lVert\theta - \theta^{*}\right\rVert^2
    + \mathrm{pair\_weight}\,\mathrm{objective}(\text{batch vs batch})
    """
    needs_validation = True

    class Config(
        OverConfig,
        over={
            Contrastive: {},
            Triplet: {"margin": 0.0961, "mining": "all"},
            MultiSimilarity: {"beta": 40.0, "epsilon": None},
            ProxyAnchor: {"references": "batch"},
        },
        fixed=_ELSEWHERE,
    ):
        proximal_weight: float = Field(
            2e-4, ge=0, description="pull to the last problem's best network, lambda in the paper; 0: none"
        )
        proxies_per_class: int = Field(8, ge=1, le=10_000, description="proxies per class M")
        pool_size: int = Field(
            12,
            ge=1,
            le=1_000_000,
            description="samples per class b that new proxies are chosen from; b below M: b M samples",
        )
        patience: int = Field(3, ge=1, le=1_000_000, description="validations without improvement that end a problem")
        stop_after: int = Field(
            60, ge=1, le=1_000_000, description="validations without improvement, over all problems: the end"
        )
        problems: int | None = Field(
            None,
            ge=1,
            le=1_000_000,
            description="problems that are solved at most; null: any number, 1: a single proxy problem",
        )
        first_proxies: Literal["embeddings", "random"] = Field(
            "embeddings",
            description="what the first problem's proxies are: random samples' embeddings, or random vectors for a "
            "network with random weights, which does not tell classes apart yet",
        )
        pair_weight: float = Field(0.0, ge=0, description="weight of the objective of the batch against itself")
        proxy_lr_multiplier: float = Field(1.0, gt=0, description="learning rate of proxies over the network's")

        schedulable = frozenset({"proximal_weight", "pair_weight", "proxy_lr_multiplier"})

        def idle(self) -> dict[str, tuple[str, ...]]:
            names = ("pool_size", "proximal_weight") if self.problems == 1 else ()
            idle: dict[str, tuple[str, ...]] = super().idle()
            return idle | dict.fromkeys(names, ("problems",))

    config: Config

    problem: Tensor
    steps: Tensor
    best_score: Tensor
    waited: Tensor
    best_score_overall: Tensor
    waited_overall: Tensor

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self.base = config.base_objective(task)
        self.proxies = Proxies(task, config.proxies_per_class)
        self._network: tuple[nn.Module, ...] = ()  # a tuple, so that the network is not part of the method
        # the current problem: its number from 1, its steps, its best score and the validations since
        self.register_buffer("problem", torch.ones((), dtype=torch.long))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("best_score", torch.full((), -torch.inf, dtype=torch.float64))
        self.register_buffer("waited", torch.zeros((), dtype=torch.long))
        # the same over all problems
        self.register_buffer("best_score_overall", torch.full((), -torch.inf, dtype=torch.float64))
        self.register_buffer("waited_overall", torch.zeros((), dtype=torch.long))

    def bind(self, network: nn.Module) -> None:
        self._network = (network,)
        parameters = list(network.parameters())
        self.anchor = Snapshot(parameters)
        self.best_network = Snapshot(network.state_dict().values())
        self.best_proxies = Snapshot([self.proxies.weight])
        self.best_moments = Snapshot(
            moment for p in parameters for moment in (torch.zeros(()), torch.zeros_like(p), torch.zeros_like(p))
        )

    def normalize(self, embedding: Tensor) -> Tensor:
        return lipschitz_normalize(embedding)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return self.proxies.group(lr, self.config.proxy_lr_multiplier)

    # The loss

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        outputs = network(batch.images)
        self.steps += 1
        matrix = self.base.measure(outputs, {"embedding": lipschitz_normalize(self.proxies.weight)})
        positive, negative = pair_masks(batch.labels, self.proxies.labels, same=False)
        if self.config.objective == "triplet":  # the anchors are the rows
            matrix, positive, negative = matrix.T, positive.T, negative.T
        terms = {"proxy": self.base.objective(matrix, positive, negative, batch.labels, rng)}
        if self.config.proximal_weight:
            terms["proximal"] = terms["proxy"].new_zeros(())
            if int(self.problem) > 1:
                pairs = zip(self._parameters_of_network(), self.anchor.buffers(), strict=True)
                trained = [(parameter, best) for parameter, best in pairs if parameter.requires_grad]
                penalty = proximal_term((parameter for parameter, _ in trained), (best for _, best in trained))
                terms["proximal"] = self.config.proximal_weight * penalty
        if self.config.pair_weight:
            terms["pair"] = self.config.pair_weight * self.base.compare(outputs, batch.labels, rng)
        return terms

    # Algorithm 1

    def begin(self, scope: Scope) -> None:
        if self.config.first_proxies == "embeddings":
            self._set_proxies(scope.class_embeddings(self.config.proxies_per_class, scope.rng))

    def after_validation(self, score: float, scope: Scope) -> None:
        self.waited += 1
        self.waited_overall += 1
        if score > self.best_score_overall:
            self.best_score_overall.fill_(score)
            self.waited_overall.zero_()
        if score > self.best_score:
            self.best_score.fill_(score)
            self.waited.zero_()
            self._keep(scope)
        ends = int(self.waited_overall) >= self.config.stop_after
        if not ends and int(self.waited) < self.config.patience:
            return
        self._go_back(scope)
        if ends or int(self.problem) == self.config.problems:
            scope.stop()
        else:
            self._next_problem(scope)

    def _keep(self, scope: Scope) -> None:
        """Store the best state of this problem so far."""
        (network,) = self._network
        self.best_network.take(network.state_dict().values())
        self.best_moments.take(scope.moments(self._parameters_of_network()))
        self.best_proxies.take([self.proxies.weight])

    def _go_back(self, scope: Scope) -> None:
        """Restore network (with its moments and its batch norm's statistics) and proxies as they were at their best."""
        (network,) = self._network
        self.best_network.put_back(network.state_dict().values())
        scope.set_moments(self._parameters_of_network(), list(self.best_moments.buffers()))
        self.best_proxies.put_back([self.proxies.weight])

    def _next_problem(self, scope: Scope) -> None:
        """Start from the last problem's best: it becomes theta*, and Algorithm 2 chooses the proxies."""
        self.anchor.take(self._parameters_of_network())
        per_class, size = self.config.proxies_per_class, self.config.pool_size
        size = size if size >= per_class else size * per_class
        pools = scope.class_embeddings(size, scope.rng)
        proxies = self.proxies.weight.detach().view(-1, per_class, self.task.embedding_dim).cpu()
        centres = [
            pool[greedy_k_center(pool, class_proxies, per_class)]
            for pool, class_proxies in zip(pools.cpu(), proxies, strict=True)
        ]
        self._set_proxies(torch.stack(centres))
        scope.reset_moments([self.proxies.weight])
        self.problem += 1
        self.steps.zero_()
        self.waited.zero_()
        self.best_score.fill_(-torch.inf)

    @torch.no_grad()
    def _set_proxies(self, embeddings: Tensor) -> None:
        self.proxies.weight.copy_(embeddings.flatten(0, 1))

    def _parameters_of_network(self) -> list[nn.Parameter]:
        return [parameter for network in self._network for parameter in network.parameters()]

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        """`covering_radius` of the last batches by the proxies, normalised, and how diverse those are: `proxy_spread`,
        where a class has several; `mean_covering_radius` of held-out images; the `problem` and its `problem_steps` so
        far: a problem's last value is how long it took (Fig. 4)."""
        scalars: dict[str, float] = {}
        if trained is not None:
            proxies = lipschitz_normalize(self.proxies.weight.detach()).cpu()
            labels = self.proxies.labels.cpu()
            scalars["covering_radius"] = covering_radius(trained.outputs["embedding"], trained.labels, proxies, labels)
            if self.config.proxies_per_class > 1:
                scalars["proxy_spread"] = class_spread(proxies, labels)
            scalars |= {"problem": float(self.problem), "problem_steps": float(self.steps)}
        if held_out is not None:
            scalars["mean_covering_radius"] = mean_covering_radius(held_out.outputs["embedding"], held_out.labels)
        return Diagnostics(scalars, self.proxies.similarities())
