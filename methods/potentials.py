"""The potentials between two points: of PFML, an inverse power, and of CPML, a squared hinge."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

CORE_RADIUS = 0.01  # below this distance the repulsion of PFML continues linearly, with constant force


class Potential(Protocol):
    """psi of a pair, constant inside `delta` in one class and beyond `delta_rep` across classes."""

    @property
    def delta(self) -> float: ...

    @property
    def delta_rep(self) -> float: ...

    def constants(self) -> tuple[float, float]:
        """psi at distance 0 in one class, and at infinity across classes."""
        ...

    def __call__(self, squared: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
        """From d^2 and whether the classes agree: psi less its constant, and psi'(d)/d, of the same shape.

        psi'(d)/d times r - a is the gradient of psi on r; it is 0 where psi is constant, and at d = 0.
        """
        ...


@dataclass(frozen=True)
class InversePower:
    delta: float
    delta_rep: float
    alpha: float

    def constants(self) -> tuple[float, float]:
        slope = self.alpha * CORE_RADIUS ** (-self.alpha - 1)
        repulsion = max(self.delta_rep, CORE_RADIUS) ** -self.alpha + slope * max(CORE_RADIUS - self.delta_rep, 0)
        return -(self.delta**-self.alpha), repulsion

    def __call__(self, squared: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
        attraction, repulsion = self.constants()
        core = CORE_RADIUS**2
        near, far = self.delta**2, self.delta_rep**2
        clamped = torch.where(same, squared.clamp_min(near), squared.clamp(core, max(far, core)))
        energy = (
            clamped.reciprocal()
            .pow_(self.alpha / 2)
            .mul_(torch.where(same, squared.new_full((), -1), squared.new_full((), 1)))
        )
        rate = (energy / clamped).mul_(-self.alpha).mul_(torch.where(same, squared >= near, squared < far))
        excess = energy.sub_(torch.where(same, squared.new_full((), attraction), squared.new_full((), repulsion)))
        inside = ~same if far < core else ~same & (squared < core)
        if inside.any():
            distance = squared[inside].clamp_min(0).sqrt()
            depth = CORE_RADIUS - distance.clamp_max(self.delta_rep)
            excess[inside] += self.alpha * CORE_RADIUS ** (-self.alpha - 1) * depth.clamp_min(0)
            rate[inside] *= torch.where(distance > 0, CORE_RADIUS / distance, 0)
        return excess, rate


@dataclass(frozen=True)
class SquaredHinge:
    delta: float
    delta_rep: float

    def constants(self) -> tuple[float, float]:
        return self.delta**2, 0.0

    def __call__(self, squared: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
        distance = squared.clamp_min(0).sqrt()
        attraction = (squared - self.delta**2).clamp_min(0)
        overlap = (self.delta_rep - distance).clamp_min(0)
        pull = torch.where(squared >= self.delta**2, 2, 0).to(squared.dtype)
        push = torch.where(distance > 0, -2 * overlap / distance, 0)
        return torch.where(same, attraction, overlap.square()), torch.where(same, pull, push)
