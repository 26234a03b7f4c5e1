"""Checks of the Triton kernels against the float64 functions of the methods: in Triton's interpreter, or on a GPU.

    TRITON_INTERPRET=1 python tests/support/kernels.py [FOLDER]

prints JSON: for each case the largest error, over what it may be; with a folder, the same for each of PLANTED, bugs in
copies of the kernels that are written there; and facts.
"""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from methods import objectives, pfml
from methods.kernels import energy, log_sums, proxy_losses
from methods.kernels.tiles import Tile
from methods.potentials import InversePower, Potential, SquaredHinge
from orchestrator.method import Batch, Task, find_method

SMALL = Tile(rows=16, others=16, depth=16, width=16, warps=4)
WALK = Tile(rows=16, others=16, depth=16, width=16, warps=4, programs=1)
ROUNDING = 1e-5
"""Of float32, what a value or a gradient may be off by, as a share of the largest one."""


def unit(count: int, dimensions: int, spread: float, seed: int = 0) -> Tensor:
    """Unit rows around one direction, float32."""
    rows = spread * torch.randn(count, dimensions, generator=torch.Generator().manual_seed(seed))
    rows[:, 0] += 1
    return torch.nn.functional.normalize(rows, dim=1)


def off(found: Tensor, expected: Tensor, least: float = 0.0) -> float:
    """The largest difference over what it may be; infinite if one of the two is not a number."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    if not expected.numel():
        return 0.0
    scale = max(float(expected.abs().max()), least) or 1e-30
    error = float((found - expected).abs().max()) / (ROUNDING * scale)
    return error if error == error else float("inf")


# The energy ------------------------------------------------------------------------------------------------------

POWER = InversePower(0.2, 0.6, 4.0)
ENERGIES: dict[str, tuple[Tensor, int, Potential, Tile]] = {
    "ragged": (unit(21, 18, 0.3), 4, POWER, SMALL),
    "one part": (unit(21, 6, 0.3), 4, POWER, WALK),
    "close": (unit(19, 7, 0.02), 4, POWER, WALK),
    "small radii": (unit(20, 5, 0.002), 4, InversePower(0.004, 0.004, 6.0), SMALL),
    "radius in the core": (unit(9, 5, 0.002), 4, InversePower(0.15, 0.008, 0.5), SMALL),
    "one class": (unit(9, 5, 0.4), 1, POWER, SMALL),
    "one point": (unit(1, 3, 0.4), 1, POWER, SMALL),
    "long rows": (50 * unit(9, 4, 0.01), 3, InversePower(0.5, 0.7, 4.0), SMALL),
    "hinge": (unit(20, 5, 0.3), 4, SquaredHinge(0.2, 0.5), WALK),
    "close hinge": (unit(9, 5, 0.02), 4, SquaredHinge(0.01, 0.5), SMALL),
}


def energy_error(name: str, module: Any = energy, device: str = "cpu", tile: Tile | None = None) -> float:
    """Of energy and gradient, in two shares; points 0 and 1 are the same, of two classes, and 2 and 6 of one."""
    points, classes, potential, small = ENERGIES[name]
    if len(points) > 6:
        points = points.clone()
        points[1], points[6] = points[0], points[2]
    labels = torch.arange(len(points)) % classes
    expected, gradient = pfml._sum_over_pairs(points.double(), labels, potential, (0, 1), True)
    expected = expected - pfml._resting_energy(labels, potential)
    assert gradient is not None
    points, labels, value, total = points.to(device), labels.to(device), torch.zeros(()), torch.zeros_like(points)
    for index in range(2):
        part, forces = module.excess_energy(points, labels, potential, (index, 2), True, tile or small)
        value, total = value + part.cpu(), total + forces.cpu()
    alone, none = module.excess_energy(points, labels, potential, (0, 1), False, tile or small)
    assert none is None
    return max(off(value, expected), off(alone, expected), off(total, gradient))


# The losses on proxies -------------------------------------------------------------------------------------------

LOSSES: dict[str, dict[str, Any]] = {
    "proxy_nca": {"scale": 3.0, "include_positive": False},
    "proxy_nca including": {"scale": 10.0, "include_positive": True},
    "normalized_softmax": {"temperature": 0.05},
    "proxy_anchor": {"alpha": 32.0, "margin": 0.1},
}
SIZES = {  # batch, proxies, dimensions, classes, labels of a sample, tile
    "ragged": (18, 21, 17, 5, 1, SMALL),
    "one part": (18, 35, 5, 40, 1, WALK),
    "label sets": (6, 9, 4, 9, 2, SMALL),
    "one class": (5, 7, 3, 1, 1, SMALL),
}


def loss_error(
    size: str, loss: str, metric: str, module: Any = proxy_losses, device: str = "cpu", tile: Tile | None = None
) -> float:
    """Of the loss and its gradients; a sample and two proxies of two classes coincide."""
    batch, count, dimensions, classes, sets, small = SIZES[size]
    z, p = unit(batch, dimensions, 1.0), unit(count, dimensions, 1.0, seed=1)
    p[0] = p[1] = z[0]
    generator = torch.Generator().manual_seed(2)
    labels, of_proxies = torch.randint(0, classes, (batch, sets), generator=generator), torch.arange(count) % classes
    labels[1:, 1:][::2] = -1
    of_proxies[-1] = of_proxies[-1] if sets == 1 else -1  # a proxy of no class
    settings, name = LOSSES[loss], loss.split()[0]

    exact = [part.double().requires_grad_() for part in (z, p)]
    s = exact[0] @ exact[1].T if metric == "cosine" else -(exact[0][:, None] - exact[1]).square().sum(2)
    positive, negative = objectives.pair_masks(labels, of_proxies, same=False)
    matrix = s if name != "proxy_nca" else 1 - s if metric == "cosine" else -s
    expected = getattr(objectives, name)(matrix, positive, negative, **settings)
    expected.backward()

    z, p = (part.to(device).requires_grad_() for part in (z, p))
    marks = labels.to(device), of_proxies.to(device)
    value = module.LOSSES[name](z, marks[0], p, marks[1], metric=metric, tile=tile or small, **settings)
    if value.requires_grad:
        value.backward()
    errors = [off(value, expected, least=1.0)]
    for found, wanted in zip((z, p), exact, strict=True):
        assert found.grad is not None and wanted.grad is not None
        errors.append(off(found.grad, wanted.grad, least=1e-3))
    return max(errors)


def cases() -> Iterator[tuple[str, Callable[..., float]]]:
    """All, by name."""
    for name in ENERGIES:
        yield f"energy, {name}", partial(energy_error, name)
    for size in SIZES:
        for loss in LOSSES:
            for metric in ("cosine", "squared_euclidean"):
                yield f"{loss}, {metric}, {size}", partial(loss_error, size, loss, metric)


# The methods that take them --------------------------------------------------------------------------------------

METHODS: dict[str, dict[str, Any]] = {
    "pfml": {"proxies_per_class": 2, "delta_rep": 0.9},
    "cpml": {"proxies_per_class": 2},
    "proxy_nca": {},
    "proxy_nca_plus_plus": {},
    "proxy_anchor": {"proxies_per_class": 2},
    "normalized_softmax": {"metric": "squared_euclidean"},
}


def method_error(name: str, device: str = "cpu") -> float:
    """Of a method's terms and gradients, after `use_kernels`; its torch terms are the expected ones."""
    method: Any = find_method(name)(find_method(name).Config(**METHODS[name]), Task(3, 6, 6)).to(device)
    rows, labels = unit(9, 6, 0.5, seed=3).to(device), torch.arange(9, device=device)[:, None] % 3
    found = []
    for kernels in (None, "triton"):
        if kernels:
            method.use_kernels(kernels)
        z = rows.clone().requires_grad_()
        terms = method.step(Batch(z, labels, labels[:, 0]), lambda images: {"embedding": images}, torch.Generator())
        sum(terms.values(), torch.zeros((), device=device)).backward()
        weight = method.proxies.weight
        found.append([*terms.values(), z.grad, weight.grad.clone()])
        weight.grad = None
    return max(off(ours, theirs) for theirs, ours in zip(*found, strict=True))


# What else must hold ---------------------------------------------------------------------------------------------


def facts() -> dict[str, Any]:
    """Of memory, of points that are not numbers, of a second derivative."""
    points, labels = unit(48, 4, 0.3), torch.arange(48) % 4
    with torch.autograd.profiler.profile(profile_memory=True) as made:
        energy.excess_energy(points, labels, POWER, (0, 1), True, WALK)
        z = points.clone().requires_grad_()
        proxy_losses.proxy_anchor(
            z, labels[:, None], z, labels, metric="cosine", alpha=2.0, margin=0.1, tile=WALK
        ).backward()
    bad = points[:5].clone()
    bad[3, 1] = torch.nan
    value, gradient = energy.excess_energy(bad, labels[:5], POWER, (0, 1), True, SMALL)
    apart, forces = energy.excess_energy(torch.eye(8), torch.arange(8), POWER, (0, 1), True, SMALL)
    refused = []
    for loss in (
        lambda z: pfml.potential_energy(z, labels[:5], z[:0], labels[:0], delta=0.2, alpha=4, kernels="triton"),
        lambda z: proxy_losses.normalized_softmax(z, labels[:5, None], z, labels[:5], metric="cosine", temperature=1.0),
    ):
        z = points[:5].clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(z), z, create_graph=True)
        with suppress(RuntimeError):
            first.sum().backward()
            refused.append("differentiated twice")
    assert gradient is not None and forces is not None
    return {
        "largest tensor": max(event.self_cpu_memory_usage for event in made.function_events),
        "not a number": bool(value.isnan() and gradient.isnan().all()),
        "without force": float(apart) == 0 and not forces.any(),
        "second derivatives": refused,
    }


# Planted bugs ----------------------------------------------------------------------------------------------------

PLANTED: dict[str, tuple[ModuleType, str, str, str]] = {
    "an exponent": (energy, "-0.5 * alpha", "-0.49 * alpha", "energy, one part"),
    "the last point": (energy, "other_in = others < end", "other_in = others < end - 1", "energy, one part"),
    "pairs counted once": (energy, "tl.where(active, 2 * rate,", "tl.where(active, rate,", "energy, one part"),
    "close pairs by products": (energy, "(squared <= close * largest)", "(squared < 0 * largest)", "energy, close"),
    "the core's slope": (energy, "size + slope * depth", "size + depth", "energy, small radii"),
    "the own row's share": (energy, "pulled += tl.sum(rate, 1)", "pulled = tl.sum(rate, 1)", "energy, one part"),
    "a part's end": (log_sums, "at_in = at < end", "at_in = at < end - 1", "proxy_nca, cosine, ragged"),
    "past the end": (log_sums, "(positive == 0) & at_in[None, :]", "(positive == 0)", "proxy_nca, cosine, ragged"),
    "the maximum": (log_sums, "total * tl.exp(high - base)", "total", "proxy_anchor, cosine, one part"),
    "a slope": (log_sums, "* slope * share", "* share", "proxy_anchor, cosine, label sets"),
    "no label": (log_sums, "& (row_label >= 0)[:, None]", "", "proxy_anchor, cosine, label sets"),
}
"""Each with the kernel that it is in, what it replaces, and the case that must see it."""


def planted(name: str, folder: Path) -> float:
    """The error of the case that looks for this bug, with it."""
    module, old, new, case = PLANTED[name]
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert old in source, f"{name}: nothing to plant: {old}"
    wrong = loaded(source.replace(old, new), folder / f"{name.replace(' ', '_')}.py")
    if module is log_sums:
        losses = Path(str(proxy_losses.__file__)).read_text(encoding="utf-8")
        sys.modules["planted_log_sums"] = wrong
        losses = losses.replace("methods.kernels.log_sums", "planted_log_sums")
        wrong = loaded(losses, folder / f"{name.replace(' ', '_')}_losses.py")
    return dict(cases())[case](module=wrong)


def loaded(source: str, path: Path) -> ModuleType:
    """A module of this source; Triton reads a kernel's from its file."""
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    torch.set_num_threads(1)
    errors = {name: case() for name, case in cases()} | {name: method_error(name) for name in METHODS}
    wrong = {name: planted(name, Path(folder)) for folder in sys.argv[1:] for name in PLANTED}
    print(json.dumps({"errors": errors, "planted": wrong, "facts": facts()}))
