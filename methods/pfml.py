"""Potential field metric learning (PFML) and its contrastive form (CPML).

Bhatnagar and Ahuja, "Potential Field Based Deep Metric Learning", CVPR 2025. Every point, an embedding
of the batch or a class proxy, attracts the points of its class and repels the others; the loss is the
potential energy of all points together, not a sum over mined pairs.

Shapes: B embeddings, P proxies, N = B + P points, D dimensions, K listed pairs. Points are used as given:
callers pass unit rows.
"""

import math
import warnings
from itertools import islice
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from methods.derivatives import differentiable_once
from methods.distances import full_precision
from methods.potentials import InversePower, Potential, SquaredHinge
from methods.proxies import PROXY_SETTINGS, Proxies, ProxySettings
from orchestrator.method import Diagnostics, Embedded, InputError, Method, Outputs, Task

TILE = 1024  # points per side of the block of the distance matrix that is in memory at a time
# Pairs closer than this share of the largest norm are measured by true differences, not by a matrix product.
CLOSE = {torch.float32: 0.2, torch.float64: 0.01}
FEW, SPARSE = 2**10, 1 / 256  # so many pairs of a block, or this share, are listed: cheaper, exact
CROWD = 2**15  # more close pairs than this are not listed
PAIR_ELEMENTS = 2**16  # numbers in one list of differences, to stay in the cache
ONCE = "potential_energy and contrastive_potential_energy"  # have no second derivative


def potential_energy(
    embeddings: Tensor,
    labels: Tensor,
    proxies: Tensor,
    proxy_labels: Tensor,
    *,
    delta: float,
    alpha: float,
    delta_rep: float | None = None,
    share: tuple[int, int] = (0, 1),
    kernels: str | None = None,
) -> Tensor:
    """The potential energy of a batch and all proxies, PFML's loss (Eq. 6).

    U = sum over all ordered pairs (r, a) of points of psi(||r - a||), each point with itself included, where

    - in one class psi(d) = -1/delta^alpha if d < delta, else -1/d^alpha (attraction, Eq. 1);
    - across classes psi(d) = 1/d^alpha if d < delta_rep, else 1/delta_rep^alpha (repulsion, Eq. 2).

    The repulsion is singular at d = 0. Below d0 = 0.01 it continues as d0^-alpha + alpha d0^(-alpha-1)(d0 - d),
    so that its force stays constant and finite; a delta_rep below d0 cuts this line off, which keeps psi
    continuous. Points that coincide exert no force on each other.

    Energy and gradient are computed together in blocks: memory grows linearly with the number of points, the
    backward pass only scales what the forward pass stored. Close pairs are measured by true differences in
    float64, since a float32 distance from a matrix product is off by percents at d = 0.01.

    Args:
        embeddings: (B, D) points of the batch; B may be 0.
        labels: (B,) integer classes, only compared for equality.
        proxies: (P, D) points of all proxies; P may be 0, that is no proxies.
        proxy_labels: (P,) integer classes.
        delta: radius inside which the attraction is constant, > 0.
        alpha: exponent of the decay, >= 0; 0 leaves a constant potential without any force, with a warning.
        delta_rep: radius beyond which the repulsion is constant, > 0; None means delta.
        share: (i, n) for the i-th of n parts, 0 <= i < n, which together are U: about a n-th of the work each.
        kernels: "triton" for one fused kernel on a GPU, in float32; None for torch.

    Returns:
        U, a scalar in float64 whatever the inputs: with 20,000 points it reaches 5e14, where float32 steps by
        3e7. NaN, as its gradient, if a point is not finite. Gradients come in the inputs' types;
        differentiating them again raises RuntimeError.

    Raises:
        ValueError: if a shape, a type of labels, delta, alpha, delta_rep, share or kernels is not as above.
    """
    potential = _inverse_power(delta, delta_rep, alpha)
    return _energy(embeddings, labels, proxies, proxy_labels, potential, share, kernels)


def contrastive_potential_energy(
    embeddings: Tensor,
    labels: Tensor,
    proxies: Tensor,
    proxy_labels: Tensor,
    *,
    delta: float,
    delta_rep: float | None = None,
    share: tuple[int, int] = (0, 1),
    kernels: str | None = None,
) -> Tensor:
    """The energy of CPML, the paper's comparison whose forces grow with distance (supplement, Eq. 8).

    As `potential_energy`, with psi(d) = delta^2 if d < delta, else d^2 in one class (so each point's own term
    is delta^2), and psi(d) = (delta_rep - d)^2 if d < delta_rep, else 0 across classes.

    Arguments, result and errors are those of `potential_energy`, without alpha.
    """
    potential = SquaredHinge(float(delta), _check_radii(delta, delta_rep))
    return _energy(embeddings, labels, proxies, proxy_labels, potential, share, kernels)


def proxy_wasserstein_distance(
    proxies: Tensor, proxy_labels: Tensor, embeddings: Tensor, labels: Tensor, *, order: float = 2
) -> float:
    """How far the proxies lie from the embeddings they stand for: W_order, averaged over classes (Table 3).

    In a class with M proxies and n embeddings, min(M, n) distinct proxies are assigned to as many distinct
    embeddings such that the mean of distance^order is smallest; the class counts the 1/order-th root of that
    mean. Classes without embeddings (or without proxies) are left out. `order=1` is the form that the
    supplement prints.

    Args:
        proxies: (P, D). proxy_labels: (P,) integers. embeddings: (B, D). labels: (B,) integers.
        order: exponent, > 0.

    Raises:
        ValueError: if no class has both proxies and embeddings, or an argument is not as above.
    """
    _check_points(embeddings, labels, proxies, proxy_labels)
    if not (order > 0 and math.isfinite(order)):
        raise ValueError(f"order must be a positive number, got {order}")
    shared = set(proxy_labels.tolist()) & set(labels.tolist())
    if not shared:
        raise ValueError("proxy_wasserstein_distance needs a class with both proxies and embeddings, found none")
    from scipy.optimize import linear_sum_assignment  # takes a second to import; most trainings never get here

    total = 0.0
    for label in sorted(shared):
        p = proxies[proxy_labels == label].detach().double()
        z = embeddings[labels == label].detach().double()
        distance = torch.cdist(p, z, compute_mode="donot_use_mm_for_euclid_dist").cpu().numpy()
        cost = distance**order
        total += float(cost[linear_sum_assignment(cost)].mean()) ** (1 / order)
    return total / len(shared)


def proxy_diagnostics(proxies: Proxies, trained: Embedded | None) -> Diagnostics:
    """W2 between proxies and the training embeddings of their class (Table 3), and the proxies' similarities; nothing
    without proxies or a training."""
    if trained is None or not len(proxies.weight):
        return Diagnostics()
    distance = proxy_wasserstein_distance(
        proxies().detach().cpu().float(), proxies.labels.cpu(), trained.outputs["embedding"].float(), trained.labels
    )
    return Diagnostics(scalars={"proxy_wasserstein_distance": distance}, arrays=proxies.similarities())


def _energy(
    embeddings: Tensor,
    labels: Tensor,
    proxies: Tensor,
    proxy_labels: Tensor,
    potential: Potential,
    share: tuple[int, int],
    kernels: str | None,
) -> Tensor:
    _check_points(embeddings, labels, proxies, proxy_labels)
    if kernels not in (None, "triton"):
        raise ValueError(f"kernels must be None or 'triton', got {kernels!r}")
    if not 0 <= share[0] < share[1]:
        raise ValueError(f"share must be (i, n) with 0 <= i < n, got {share}")
    point_labels = torch.cat([labels, proxy_labels])
    needs_gradient = torch.is_grad_enabled() and (embeddings.requires_grad or proxies.requires_grad)
    energy: Tensor = _PairEnergy.apply(embeddings, proxies, point_labels, potential, share, needs_gradient, kernels)
    return energy


class _PairEnergy(torch.autograd.Function):
    """Energy of all pairs; its gradient is computed on the way and kept, (N, D) numbers."""

    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        proxies: Tensor,
        labels: Tensor,
        potential: Potential,
        share: tuple[int, int],
        needs_gradient: bool,
        kernels: str | None,
    ) -> Tensor:
        dtype = torch.promote_types(torch.promote_types(embeddings.dtype, proxies.dtype), torch.float32)
        points = torch.cat([embeddings.to(dtype), proxies.to(dtype)])
        if kernels == "triton":
            from methods.kernels.energy import excess_energy

            energy, gradient = excess_energy(points, labels, potential, share, needs_gradient)
            energy = energy + _resting_energy(labels, potential) if share[0] == 0 else energy
        else:
            with full_precision(points.device):
                energy, gradient = _sum_over_pairs(points, labels, potential, share, needs_gradient)
        if gradient is not None:
            ctx.save_for_backward(gradient, embeddings, proxies)
        ctx.split = len(embeddings), len(proxies)
        ctx.dtypes = embeddings.dtype, proxies.dtype
        return energy

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        gradient, *points = ctx.saved_tensors
        gradient = differentiable_once(gradient, *points, what=ONCE)
        parts = torch.split(gradient, ctx.split)
        on_points = (
            (part * scale).to(dtype) if requires_gradient else None
            for part, dtype, requires_gradient in zip(parts, ctx.dtypes, ctx.needs_input_grad, strict=False)
        )
        return *on_points, None, None, None, None, None


def _sum_over_pairs(
    points: Tensor, labels: Tensor, potential: Potential, share: tuple[int, int], needs_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """U and dU/dpoints in float64. Each unordered pair is visited once, in blocks of the upper triangle.

    Nearly all pairs of a trained model are constant (one class inside delta, two classes beyond delta_rep).
    Their energy is known from the number of pairs, so only the excess of the others is summed; most blocks
    cost nothing beyond their distances.
    """
    count = len(points)
    energy = points.new_zeros((), dtype=torch.float64)
    gradient = torch.zeros_like(points, dtype=torch.float64) if needs_gradient else None
    if count == 0:
        return energy, gradient
    largest = points.square().sum(1).max().item()
    if not math.isfinite(largest):  # comparisons with NaN would silently leave the pairs out
        return energy.fill_(math.nan), None if gradient is None else gradient.fill_(math.nan)

    index, shares = share
    if index == 0:
        energy += _resting_energy(labels, potential)
    blocks = ((first, second) for first in range(0, count, TILE) for second in range(first, count, TILE))
    for first, second in islice(blocks, index, None, shares):
        rows, columns = slice(first, first + TILE), slice(second, second + TILE)
        energy += _add_block(points, labels, rows, columns, points.dtype, largest, potential, gradient)
    return energy, gradient


def _resting_energy(labels: Tensor, potential: Potential) -> Tensor:
    """U where no pair exerts a force: all of one class in one point, those of others beyond delta_rep. A float64."""
    attraction, repulsion = potential.constants()
    ordered = labels.sort().values  # not torch.unique, for whose size the host waits for a GPU
    own_class = torch.searchsorted(ordered, ordered, right=True) - torch.searchsorted(ordered, ordered)
    same_pairs = own_class.sum()
    return same_pairs.double() * attraction + (len(labels) ** 2 - same_pairs).double() * repulsion


def _add_block(
    points: Tensor,
    labels: Tensor,
    rows: slice,
    columns: slice,
    dtype: torch.dtype,
    largest: float,
    potential: Potential,
    gradient: Tensor | None,
) -> Tensor:
    """Excess energy of the block's pairs, twice for the lower triangle; adds their forces to `gradient`.

    Three ways, by the number of interacting pairs: a few are listed one by one, from true differences; otherwise
    the close ones are listed and the rest are matrix products; and where too many are close to be listed, as in a
    collapsed batch, the products are in float64.
    """
    x, y = points[rows].to(dtype), points[columns].to(dtype)
    squared = torch.addmm(y.square().sum(1), x, y.T, alpha=-2).add_(x.square().sum(1)[:, None])
    rounding = 16 * torch.finfo(dtype).eps * largest  # of `squared`
    same = labels[rows, None] == labels[columns]
    active = torch.where(same, squared >= potential.delta**2 - rounding, squared < potential.delta_rep**2 + rounding)
    if rows == columns:
        active.triu_(1)
    interacting = int(active.count_nonzero())
    energy = points.new_zeros((), dtype=torch.float64)
    if interacting == 0:
        return energy
    few = max(FEW, SPARSE * active.numel())
    listed = active if interacting <= few else active & (squared <= CLOSE[dtype] ** 2 * largest)
    close = interacting if listed is active else int(listed.count_nonzero())
    if dtype == torch.float32 and close > few:
        return _add_block(points, labels, rows, columns, torch.float64, largest, potential, gradient)
    if close > max(CROWD, few):  # nearly all in one point: rounding must not become a direction
        squared = torch.where(squared > rounding, squared, 0)
    else:
        energy += _add_listed(points, labels, listed.nonzero(), rows.start, columns.start, potential, gradient)
        active &= ~listed
        interacting -= close
    if interacting:
        excess, rate = potential(squared, same)
        energy += 2 * torch.where(active, excess, 0).sum(dtype=torch.float64)
        if gradient is not None:
            rate = torch.where(active, rate, 0).mul_(2)
            gradient[rows] += rate.sum(1)[:, None] * x - rate @ y
            gradient[columns] += rate.sum(0)[:, None] * y - rate.T @ x
    return energy


def _add_listed(
    points: Tensor,
    labels: Tensor,
    pairs: Tensor,
    first_row: int,
    first_column: int,
    potential: Potential,
    gradient: Tensor | None,
) -> Tensor:
    """Excess energy of the pairs (K, 2) of a block, from true differences in float64; adds their forces."""
    energy = points.new_zeros((), dtype=torch.float64)
    for part in torch.split(pairs, max(1, PAIR_ELEMENTS // max(1, points.shape[1]))):
        first, second = part[:, 0] + first_row, part[:, 1] + first_column
        difference = points[first].double().sub_(points[second])
        excess, rate = potential(difference.square().sum(1), labels[first] == labels[second])
        energy += 2 * excess.sum()
        if gradient is not None:
            force = difference.mul_(2 * rate[:, None])
            gradient.index_add_(0, first, force)
            gradient.index_add_(0, second, force, alpha=-1)
    return energy


def _check_radii(delta: float, delta_rep: float | None) -> float:
    radius = delta if delta_rep is None else delta_rep
    for name, value in (("delta", delta), ("delta_rep", radius)):
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a positive number, got {value}")
    return float(radius)


def _inverse_power(delta: float, delta_rep: float | None, alpha: float) -> InversePower:
    radius = _check_radii(delta, delta_rep)
    if not (alpha >= 0 and math.isfinite(alpha)):
        raise ValueError(f"alpha must be a finite number of at least 0, got {alpha}")
    if alpha == 0:
        warnings.warn("alpha = 0 makes PFML's potential constant: it exerts no force", stacklevel=3)
    return InversePower(float(delta), radius, float(alpha))


def _check_points(embeddings: Tensor, labels: Tensor, proxies: Tensor, proxy_labels: Tensor) -> None:
    for name, points, labels_name, classes in (
        ("embeddings", embeddings, "labels", labels),
        ("proxies", proxies, "proxy_labels", proxy_labels),
    ):
        if points.ndim != 2 or not points.is_floating_point():
            raise ValueError(f"{name} must be floats of shape (number, D), got {points.dtype} {tuple(points.shape)}")
        if classes.shape != points.shape[:1] or classes.is_floating_point():
            raise ValueError(
                f"{labels_name} must be integers of shape ({len(points)},), one per row of {name}, "
                f"got {classes.dtype} {tuple(classes.shape)}"
            )
    if embeddings.shape[1] != proxies.shape[1]:
        raise ValueError(f"proxies have {proxies.shape[1]} dimensions, the embeddings {embeddings.shape[1]}")


class PotentialConfig(ProxySettings):
    """What every potential field is made of."""

    proxies_per_class: int = Field(15, ge=0, le=10_000, description="proxies per class M; 0: the batch alone")
    delta: float = Field(0.2, gt=0, le=2, description="radius inside which attraction is constant")
    delta_rep: float | None = Field(None, gt=0, le=2, description="radius of the repulsion; null: delta")

    def idle(self) -> dict[str, tuple[str, ...]]:
        return dict.fromkeys(() if self.proxies_per_class else PROXY_SETTINGS, ("proxies_per_class",))


class PotentialField(Method, abstract=True):
    """The energy U of a batch and all proxies, not divided by anything; a subclass gives the potential.

    The loss has two terms: `constant`, what U is where no pair exerts a force, by far the larger one and the same
    whatever the model, and `interaction`, what the pairs have beyond it.
    """

    Config: ClassVar[type[PotentialConfig]] = PotentialConfig
    config: PotentialConfig

    def __init__(self, config: PotentialConfig, task: Task) -> None:
        super().__init__(config, task)
        self.proxies = Proxies(task, config.proxies_per_class, config.proxy_init)
        self.potential()  # refuses radii that do not go together
        self._kernels: str | None = None

    def use_kernels(self, kernels: str) -> None:
        """The energy of all pairs, and its gradient."""
        from methods.kernels.energy import check_potential

        try:
            check_potential(self.potential())
        except ValueError as error:
            raise InputError(f"kernels: {kernels!r}: {error}: leave kernels out") from None
        self._kernels = kernels

    def potential(self) -> Potential:
        """psi by the configuration, in one class and across classes."""
        raise NotImplementedError

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return self.proxies.group(lr, self.config.proxy_lr_multiplier, self.config.proxy_weight_decay)

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        z, proxies, potential = outputs["embedding"], self.proxies(), self.potential()
        batch_labels, proxy_labels = labels[:, 0], self.proxies.labels
        energy = self.shared_sum(
            lambda index, shares: _energy(
                z, batch_labels, proxies, proxy_labels, potential, (index, shares), self._kernels
            )
        )
        constant = _resting_energy(torch.cat([batch_labels, proxy_labels]), potential).to(energy.dtype)
        return {"interaction": energy - constant, "constant": constant}

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        """`proxy_diagnostics` of the last batches."""
        return proxy_diagnostics(self.proxies, trained)


class PFML(PotentialField):
    """Potential-field metric learning: the energy of a batch and all proxies.

    U = sum over all ordered pairs (r, a) of psi(||r - a||): attraction -1/max(d, delta)^alpha in one class, repulsion
    1/min(d, delta_rep)^alpha across classes. Bhatnagar and Ahuja, CVPR 2025, Eq. 6.

    The loss is this sum, not divided by the number of points. Its terms: `constant` is what U is where no pair exerts a
    force, whatever the model; `interaction` is the rest. Proxies have the training's weight_decay like the network, the
    paper's; with Adam it is added to their gradient, which a division of U would make small beside it.
    """

    name = "pfml"
    paper = "Bhatnagar and Ahuja, Potential Field Based Deep Metric Learning, CVPR 2025"
    latex = r"""
    U = \sum_{(r, a)} \psi(\left\lVert r - a\right\rVert)

    \psi(d) = \begin{cases} -1 / \max(d, \delta)^{\alpha} & \text{in one class} \\
    1 / \min(d, \delta_{\mathrm{rep}})^{\alpha} & \text{across classes} \end{cases}
    """

    class Config(PotentialConfig):
        schedulable = frozenset({"alpha", "delta", "proxy_lr_multiplier"})
        alpha: float = Field(4.0, ge=0, le=6, description="decay of the potential; 0: no force at all")

        def idle(self) -> dict[str, tuple[str, ...]]:
            return super().idle() | dict.fromkeys(() if self.alpha else ("delta", "delta_rep"), ("alpha",))

    config: Config

    def potential(self) -> Potential:
        return _inverse_power(self.config.delta, self.config.delta_rep, self.config.alpha)


class CPML(PotentialField):
    """Contrastive-potential metric learning, PFML's comparison: its forces grow with distance instead of decaying.

    U = sum over all ordered pairs (r, a) of psi(||r - a||): attraction max(d, delta)^2 in one class, repulsion
    max(delta_rep - d, 0)^2 across classes. Bhatnagar and Ahuja, CVPR 2025, supplement Eq. 8.

    Loss, terms and the proxies' weight decay are as those of pfml.
    """

    name = "cpml"
    paper = PFML.paper
    latex = r"""
    U = \sum_{(r, a)} \psi(\left\lVert r - a\right\rVert)

    \psi(d) = \begin{cases} \max(d, \delta)^2 & \text{in one class} \\
    \max(\delta_{\mathrm{rep}} - d, 0)^2 & \text{across classes} \end{cases}
    """

    def potential(self) -> Potential:
        return SquaredHinge(self.config.delta, _check_radii(self.config.delta, self.config.delta_rep))
