"""PFML's energies against slow float64 loops, written from the formulas; then their limits, costs and errors."""

import math
import os
import subprocess
import sys
import warnings
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import process_memory
import pytest
import torch
from torch import Tensor

from methods import pfml
from methods.baselines import ProxyAnchor, ProxyNCA, SoftTriple, Triplet
from methods.pfml import CPML, PFML, contrastive_potential_energy, potential_energy, proxy_wasserstein_distance
from orchestrator.method import Embedded, Task

CORE = 0.01


def reference_psi(distance: Tensor, same: bool, delta: float, delta_rep: float, alpha: float) -> Tensor:
    if same:
        return -distance.new_tensor(delta**-alpha) if distance < delta else -(distance**-alpha)
    cut = distance if distance < delta_rep else distance.new_tensor(delta_rep)
    if cut < CORE:
        line: Tensor = CORE**-alpha + alpha * CORE ** (-alpha - 1) * (CORE - cut)
        return line
    return cut**-alpha


def reference_contrastive_psi(distance: Tensor, same: bool, delta: float, delta_rep: float) -> Tensor:
    if same:
        return distance.new_tensor(delta**2) if distance < delta else distance**2
    return (delta_rep - distance) ** 2 if distance < delta_rep else distance.new_tensor(0.0)


def reference_energy(points: Tensor, labels: Tensor, psi) -> Tensor:
    """Every ordered pair, one after the other; a pair at distance 0 gives a value and no gradient."""
    total = points.new_zeros(())
    for r in range(len(points)):
        for a in range(len(points)):
            difference = points[r] - points[a]
            if r == a or not difference.any():
                distance = points.new_zeros(())
            else:
                distance = difference.square().sum().sqrt()
            total = total + psi(distance, bool(labels[r] == labels[a]))
    return total


def reference_wasserstein(proxies, proxy_labels, embeddings, labels, order):
    """Tries every assignment."""
    roots = []
    for label in np.unique(proxy_labels):
        p, z = proxies[proxy_labels == label], embeddings[labels == label]
        if len(z) == 0:
            continue
        if len(p) > len(z):
            p, z = z, p
        roots.append(
            min(
                np.mean([np.linalg.norm(p[i] - z[j]) ** order for i, j in enumerate(chosen)])
                for chosen in permutations(range(len(z)), len(p))
            )
            ** (1 / order)
        )
    return float(np.mean(roots))


def unit(*shape: int, spread: float = 1.0, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Unit rows around one direction: a small spread makes them close to each other."""
    generator = torch.Generator().manual_seed(seed)
    rows = spread * torch.randn(*shape, generator=generator, dtype=torch.float64)
    rows[:, 0] += 1
    return torch.nn.functional.normalize(rows, dim=1).to(dtype)


def value_and_gradients(function, embeddings: Tensor, labels: Tensor, proxies: Tensor, proxy_labels: Tensor, **kw):
    embeddings = embeddings.detach().clone().requires_grad_()
    proxies = proxies.detach().clone().requires_grad_()
    energy = function(embeddings, labels, proxies, proxy_labels, **kw)
    energy.backward()
    return energy.detach(), embeddings.grad, proxies.grad


def check_against_reference(function, psi, embeddings, labels, proxies, proxy_labels, rtol=1e-9, **kw):
    energy, *gradients = value_and_gradients(function, embeddings, labels, proxies, proxy_labels, **kw)
    points = torch.cat([embeddings, proxies]).detach().double().requires_grad_()
    expected = reference_energy(points, torch.cat([labels, proxy_labels]), psi)
    expected_gradient = torch.zeros_like(points)
    if expected.requires_grad:
        (expected_gradient,) = torch.autograd.grad(expected, points)
    torch.testing.assert_close(energy, expected.detach(), rtol=rtol, atol=0)
    gradient = torch.cat(gradients).double()
    scale = expected_gradient.abs().max().item()
    torch.testing.assert_close(gradient, expected_gradient, rtol=rtol, atol=rtol * scale)


LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 2])
PROXY_LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 5])


@pytest.mark.parametrize(
    ("few", "crowd"), [(0, 0), (0, 10), (1000, 0)], ids=["products", "close-pairs-listed", "all-listed"]
)
@pytest.mark.parametrize("delta_rep", [None, 0.1, 0.6])
@pytest.mark.parametrize("alpha", [0.5, 1, 4, 6])
def test_potential_energy_agrees_with_the_loops(monkeypatch, alpha, delta_rep, few, crowd):
    monkeypatch.setattr(pfml, "FEW", few)
    monkeypatch.setattr(pfml, "CROWD", crowd)
    embeddings, proxies = unit(7, 4, spread=0.12), unit(7, 4, spread=0.12, seed=1)
    radius = 0.2 if delta_rep is None else delta_rep

    def psi(d, same):
        return reference_psi(d, same, 0.2, radius, alpha)

    distance = torch.cdist(embeddings, proxies)
    assert distance.min() < 0.2 < distance.max()  # both branches are met
    check_against_reference(
        potential_energy,
        psi,
        embeddings,
        LABELS,
        proxies,
        PROXY_LABELS,
        delta=0.2,
        alpha=alpha,
        delta_rep=delta_rep,
    )


@pytest.mark.parametrize("delta_rep", [None, 0.1, 0.6])
def test_contrastive_potential_energy_agrees_with_the_loops(delta_rep):
    embeddings, proxies = unit(7, 4, spread=0.12), unit(7, 4, spread=0.12, seed=1)
    radius = 0.2 if delta_rep is None else delta_rep

    def psi(d, same):
        return reference_contrastive_psi(d, same, 0.2, radius)

    check_against_reference(
        contrastive_potential_energy,
        psi,
        embeddings,
        LABELS,
        proxies,
        PROXY_LABELS,
        delta=0.2,
        delta_rep=delta_rep,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("delta", "delta_rep"), [(0.2, 0.2), (0.004, 0.004), (0.05, 0.01), (0.15, 0.008)])
@pytest.mark.parametrize("gap", [1e-4, 5e-3, 0.0099, 0.012, 0.05])
def test_close_pairs_and_small_radii(gap, delta, delta_rep, dtype):
    """The core of the repulsion, and radii inside it; float32 points are exact here, only the method rounds."""
    embeddings = unit(4, 16).to(dtype)
    shift = torch.zeros(4, 16, dtype=dtype)
    shift[:, 3] = gap
    proxies = embeddings + shift

    def psi(d, same):
        return reference_psi(d, same, delta, delta_rep, 4)

    for proxy_labels in (torch.tensor([1, 1, 0, 0]), torch.tensor([0, 0, 1, 1])):
        check_against_reference(
            potential_energy,
            psi,
            embeddings,
            torch.tensor([0, 0, 1, 1]),
            proxies,
            proxy_labels,
            rtol=1e-9 if dtype == torch.float64 else 1e-5,
            delta=delta,
            delta_rep=delta_rep,
            alpha=4,
        )


def test_float32_agrees_with_float64_on_many_points():
    labels, proxy_labels = torch.arange(60) % 10, torch.arange(300) % 10
    embeddings, proxies = unit(60, 512, spread=0.008), unit(300, 512, spread=0.008, seed=1)
    for function, kw in ((potential_energy, {"alpha": 6}), (contrastive_potential_energy, {})):
        exact = value_and_gradients(
            function, embeddings.float().double(), labels, proxies.float().double(), proxy_labels, delta=0.2, **kw
        )
        single = value_and_gradients(
            function, embeddings.float(), labels, proxies.float(), proxy_labels, delta=0.2, **kw
        )
        torch.testing.assert_close(single[0], exact[0], rtol=1e-6, atol=0)
        for found, expected in zip(single[1:], exact[1:], strict=True):
            assert found.dtype == torch.float32
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("spread", [0.05, 0.01, 1e-3, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_collapsed_batches_are_exact_though_not_listed_pair_by_pair(monkeypatch, dtype, spread):
    points = torch.cat([unit(120, 8, spread=spread, dtype=dtype), unit(1, 8, dtype=dtype).expand(20, 8)])
    labels = torch.arange(140) % 20
    kw: dict[str, Any] = {"delta": 0.2, "delta_rep": 0.4, "alpha": 4}
    arguments = (potential_energy, points[:60], labels[:60], points[60:], labels[60:])
    monkeypatch.setattr(pfml, "FEW", 10**6)
    listed = value_and_gradients(*arguments, **kw)
    monkeypatch.setattr(pfml, "FEW", 0)
    for crowd in (2**15, 0):
        monkeypatch.setattr(pfml, "CROWD", crowd)
        for found, expected in zip(value_and_gradients(*arguments, **kw), listed, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * expected.abs().max().item())


def test_a_crowd_in_one_point_exerts_no_force(monkeypatch):
    monkeypatch.setattr(pfml, "FEW", 0)
    monkeypatch.setattr(pfml, "CROWD", 0)
    points = unit(1, 64, dtype=torch.float32).expand(40, 64)
    labels = torch.arange(40)
    energy, *gradients = value_and_gradients(
        potential_energy, points[:20], labels[:20], points[20:], labels[20:], delta=0.2, alpha=4
    )
    assert energy.item() == pytest.approx(40 * 39 * 5 * CORE**-4 - 40 * 0.2**-4, rel=1e-9)
    assert not any(gradient.any() for gradient in gradients)


def test_result_is_float64_and_gradients_keep_their_types():
    energy, on_embeddings, on_proxies = value_and_gradients(
        potential_energy,
        unit(7, 4, dtype=torch.bfloat16),
        LABELS,
        unit(7, 4, seed=1, dtype=torch.float32),
        PROXY_LABELS,
        delta=0.2,
        alpha=4,
    )
    assert (energy.dtype, on_embeddings.dtype, on_proxies.dtype) == (
        torch.float64,
        torch.bfloat16,
        torch.float32,
    )


@pytest.mark.parametrize("alpha", [1, 4, 6])
def test_coinciding_points_have_the_core_energy_and_no_force(alpha):
    point = unit(1, 8, dtype=torch.float32)
    energy, on_embeddings, on_proxies = value_and_gradients(
        potential_energy, point, torch.tensor([0]), point, torch.tensor([1]), delta=0.2, alpha=alpha
    )
    expected = 2 * (CORE**-alpha * (1 + alpha) - 0.2**-alpha)
    assert energy.item() == pytest.approx(expected, rel=1e-12)
    assert not on_embeddings.any()
    assert not on_proxies.any()


def test_one_step_down_the_gradient_parts_two_classes_and_joins_one():
    embeddings, proxies = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1e-4]])
    for label, wanted in ((1, 1), (0, 0)):
        _, on_embeddings, on_proxies = value_and_gradients(
            potential_energy, embeddings, torch.tensor([0]), proxies, torch.tensor([label]), delta=0.2, alpha=4
        )
        assert (on_embeddings[0, 1] > 0) == (wanted == 1)
        torch.testing.assert_close(on_embeddings, -on_proxies)
    far = torch.tensor([[1.0, 0.5]])
    _, on_embeddings, _ = value_and_gradients(
        potential_energy, embeddings, torch.tensor([0]), far, torch.tensor([0]), delta=0.2, alpha=4
    )
    assert on_embeddings[0, 1] < 0  # attracted upwards
    assert on_embeddings[0, 1].item() == pytest.approx(-2 * 4 * 0.5**-5, rel=1e-6)


def test_forces_stay_finite_and_square_in_float32():
    point = unit(1, 64, dtype=torch.float32)
    cloud = point + 1e-6 * torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    energy, on_embeddings, on_proxies = value_and_gradients(
        potential_energy, cloud[:50], torch.arange(50), cloud[50:], torch.arange(50, 200), delta=0.1, alpha=6
    )
    assert torch.isfinite(energy)
    assert on_embeddings.abs().max() > 1e12
    for gradient in (on_embeddings, on_proxies):
        assert torch.isfinite(gradient.square()).all()


def test_no_force_inside_delta_nor_beyond_delta_rep():
    embeddings, proxies = torch.eye(3), torch.eye(3) + 0.01
    for function, kw in ((potential_energy, {"alpha": 4}), (contrastive_potential_energy, {})):
        energy, on_embeddings, on_proxies = value_and_gradients(
            function, embeddings, torch.arange(3), proxies, torch.arange(3), delta=0.2, **kw
        )
        expected = 12 * -(0.2**-4) + 24 * 0.2**-4 if kw else 12 * 0.2**2
        assert energy.item() == pytest.approx(expected, rel=1e-9)
        assert not on_embeddings.any()
        assert not on_proxies.any()


def test_alpha_zero_warns_and_exerts_no_force():
    with pytest.warns(UserWarning, match="alpha = 0"):
        energy, on_embeddings, on_proxies = value_and_gradients(
            potential_energy, unit(7, 4), LABELS, unit(7, 4, seed=1), PROXY_LABELS, delta=0.2, alpha=0
        )
    same = (torch.cat([LABELS, PROXY_LABELS])[:, None] == torch.cat([LABELS, PROXY_LABELS])).sum().item()
    assert energy.item() == 14 * 14 - 2 * same
    assert not on_embeddings.any()
    assert not on_proxies.any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        potential_energy(unit(7, 4), LABELS, unit(7, 4), PROXY_LABELS, delta=0.2, alpha=1)


def test_no_proxies_no_embeddings_one_class_and_negative_labels():
    none, no_labels = torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, dtype=torch.long)
    points = unit(7, 4, spread=0.2)

    def psi(d, same):
        return reference_psi(d, same, 0.2, 0.2, 4)

    for labels in (LABELS, torch.zeros(7, dtype=torch.long), -LABELS):
        check_against_reference(potential_energy, psi, points, labels, none, no_labels, delta=0.2, alpha=4)
        check_against_reference(potential_energy, psi, none, no_labels, points, labels, delta=0.2, alpha=4)
    energy, *gradients = value_and_gradients(potential_energy, none, no_labels, none, no_labels, delta=0.2, alpha=4)
    assert energy == 0
    assert all(gradient.shape == (0, 4) for gradient in gradients)


def test_order_of_points_and_names_of_classes_do_not_matter():
    embeddings, proxies = unit(7, 4, spread=0.2), unit(7, 4, spread=0.2, seed=1)
    first = value_and_gradients(potential_energy, embeddings, LABELS, proxies, PROXY_LABELS, delta=0.2, alpha=4)
    order = torch.tensor([3, 1, 6, 0, 5, 2, 4])
    second = value_and_gradients(
        potential_energy,
        embeddings[order],
        100 - LABELS[order],
        proxies,
        100 - PROXY_LABELS,
        delta=0.2,
        alpha=4,
    )
    torch.testing.assert_close(second[0], first[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(second[1], first[1][order], rtol=1e-10, atol=1e-9)
    torch.testing.assert_close(second[2], first[2], rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("tile", [1, 5, 64])
def test_block_size_does_not_matter(monkeypatch, tile):
    embeddings, proxies = unit(13, 8, spread=0.1), unit(26, 8, spread=0.1, seed=1)
    labels, proxy_labels = torch.arange(13) % 3, torch.arange(26) % 4
    whole = value_and_gradients(
        potential_energy, embeddings, labels, proxies, proxy_labels, delta=0.2, delta_rep=0.4, alpha=4
    )
    monkeypatch.setattr(pfml, "TILE", tile)
    monkeypatch.setattr(pfml, "PAIR_ELEMENTS", 16)
    parts = value_and_gradients(
        potential_energy, embeddings, labels, proxies, proxy_labels, delta=0.2, delta_rep=0.4, alpha=4
    )
    for found, expected in zip(parts, whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10 * expected.abs().max().item())


@pytest.mark.parametrize("shares", [1, 2, 3, 20])
@pytest.mark.parametrize(("function", "kw"), [(potential_energy, {"alpha": 4}), (contrastive_potential_energy, {})])
def test_shares_add_up_and_none_looks_at_the_pairs_of_another(monkeypatch, function, kw, shares):
    embeddings, proxies = unit(13, 8, spread=0.1), unit(26, 8, spread=0.1, seed=1)
    arguments = function, embeddings, torch.arange(13) % 3, proxies, torch.arange(26) % 4
    kw = kw | {"delta": 0.2, "delta_rep": 0.4}
    whole = value_and_gradients(*arguments, **kw)
    monkeypatch.setattr(pfml, "TILE", 8)
    seen: list[set[tuple[int, int]]] = []
    add_block = pfml._add_block

    def counted(points, labels, rows, columns, *rest):
        seen[-1].add((rows.start, columns.start))
        return add_block(points, labels, rows, columns, *rest)

    monkeypatch.setattr(pfml, "_add_block", counted)
    parts = []
    for index in range(shares):
        seen.append(set())
        parts.append(value_and_gradients(*arguments, **kw, share=(index, shares)))
    for found, expected in zip(zip(*parts, strict=True), whole, strict=True):
        torch.testing.assert_close(sum(found), expected, rtol=1e-10, atol=1e-10 * expected.abs().max().item())
    assert len(set.union(*seen)) == sum(map(len, seen)) == 15  # 39 points are 5 tiles
    assert max(map(len, seen)) - min(map(len, seen)) <= 1


def test_points_need_not_be_unit():
    embeddings, proxies = 50 * unit(7, 4, spread=0.01), 50 * unit(7, 4, spread=0.01, seed=1)

    def psi(d, same):
        return reference_psi(d, same, 0.5, 0.7, 4)

    kw = {"delta": 0.5, "delta_rep": 0.7, "alpha": 4}
    check_against_reference(potential_energy, psi, embeddings, LABELS, proxies, PROXY_LABELS, **kw)
    check_against_reference(
        potential_energy, psi, embeddings.float(), LABELS, proxies.float(), PROXY_LABELS, rtol=1e-5, **kw
    )


def test_gradient_reaches_only_what_asks_for_it():
    embeddings, proxies = unit(7, 4, spread=0.2), unit(7, 4, spread=0.2, seed=1)
    full = value_and_gradients(potential_energy, embeddings, LABELS, proxies, PROXY_LABELS, delta=0.2, alpha=4)
    leaf = proxies.clone().requires_grad_()
    (3 * potential_energy(embeddings, LABELS, leaf, PROXY_LABELS, delta=0.2, alpha=4)).backward()
    torch.testing.assert_close(leaf.grad, 3 * full[2])
    assert not potential_energy(embeddings, LABELS, proxies, PROXY_LABELS, delta=0.2, alpha=4).requires_grad
    with torch.no_grad():
        assert not potential_energy(embeddings, LABELS, leaf, PROXY_LABELS, delta=0.2, alpha=4).requires_grad


def test_autocast_and_fast_matrix_products_change_nothing():
    embeddings, proxies = unit(7, 64, dtype=torch.float32), unit(7, 64, seed=1, dtype=torch.float32)
    plain = value_and_gradients(potential_energy, embeddings, LABELS, proxies, PROXY_LABELS, delta=0.2, alpha=4)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = value_and_gradients(potential_energy, embeddings, LABELS, proxies, PROXY_LABELS, delta=0.2, alpha=4)
        assert torch.get_float32_matmul_precision() == "medium"
        if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # torch 2.9
            assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"  # type: ignore[attr-defined]
    finally:
        torch.set_float32_matmul_precision("highest")
    for found, expected in zip(mixed, plain, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_point_that_is_not_finite_shows_in_value_and_gradient(bad):
    embeddings = unit(7, 4)
    embeddings[2, 1] = bad
    energy, on_embeddings, _ = value_and_gradients(
        potential_energy, embeddings, LABELS, unit(7, 4), PROXY_LABELS, delta=0.2, alpha=4
    )
    assert energy.isnan()
    assert on_embeddings.isnan().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": 0}, "delta must be a positive number, got 0"),
        ({"delta": math.nan}, "delta must be a positive number, got nan"),
        ({"delta_rep": -0.1}, "delta_rep must be a positive number, got -0.1"),
        ({"alpha": -1}, "alpha must be a finite number of at least 0, got -1"),
        ({"share": (2, 2)}, r"share must be \(i, n\) with 0 <= i < n, got \(2, 2\)"),
        ({"labels": torch.zeros(6, dtype=torch.long)}, r"labels must be integers of shape \(7,\)"),
        ({"labels": torch.zeros(7)}, "labels must be integers .* got torch.float32"),
        ({"proxy_labels": torch.zeros(7, 1, dtype=torch.long)}, "proxy_labels must be integers"),
        ({"embeddings": torch.zeros(7)}, r"embeddings must be floats of shape \(number, D\)"),
        ({"proxies": torch.zeros(7, 4, dtype=torch.long)}, "proxies must be floats"),
        ({"proxies": torch.zeros(7, 5)}, "proxies have 5 dimensions, the embeddings 4"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(change, message):
    arguments = {
        "embeddings": unit(7, 4),
        "labels": LABELS,
        "proxies": unit(7, 4),
        "proxy_labels": PROXY_LABELS,
        "delta": 0.2,
        "alpha": 4,
    }
    with pytest.raises(ValueError, match=message) as caught:
        potential_energy(**(arguments | change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_wasserstein_distance_tries_all_assignments(order):
    generator = np.random.default_rng(0)
    proxies, embeddings = generator.normal(size=(9, 3)), generator.normal(size=(9, 3))
    proxy_labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 3])  # class 2: more proxies than embeddings; 3: none
    labels = np.array([0, 0, 0, 0, 0, 1, 1, 2, 7])  # class 7: no proxies
    found = proxy_wasserstein_distance(
        *(torch.from_numpy(array) for array in (proxies, proxy_labels, embeddings, labels)), order=order
    )
    expected = reference_wasserstein(proxies, proxy_labels, embeddings, labels, order)
    assert isinstance(found, float)
    assert found == pytest.approx(expected, rel=1e-12)


def test_wasserstein_distance_refuses_nothing_to_compare():
    points, labels = unit(3, 4), torch.arange(3)
    with pytest.raises(ValueError, match="needs a class with both"):
        proxy_wasserstein_distance(points, labels, points, labels + 10)
    with pytest.raises(ValueError, match="order must be a positive number, got 0"):
        proxy_wasserstein_distance(points, labels, points, labels, order=0)
    assert proxy_wasserstein_distance(points, labels, points, labels) == 0


# As methods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta_rep", [None, 0.9])
@pytest.mark.parametrize("proxies_per_class", [0, 2])
@pytest.mark.parametrize("kind", [PFML, CPML])
def test_the_loss_is_the_energy_by_the_loops_undivided(kind, proxies_per_class, delta_rep):
    torch.manual_seed(0)
    config = kind.Config(delta=0.5, delta_rep=delta_rep, proxies_per_class=proxies_per_class)
    method = kind(config, Task(num_classes=3, embedding_dim=4, feature_dim=4)).double()
    weight, radius = method.proxies.weight, 0.5 if delta_rep is None else delta_rep

    def psi(d, same):
        if kind is PFML:
            return reference_psi(d, same, 0.5, radius, 4)
        return reference_contrastive_psi(d, same, 0.5, radius)

    z = unit(7, 4, spread=0.5).requires_grad_()
    terms = method.loss({"embedding": z}, LABELS[:, None])
    loss = torch.stack(list(terms.values())).sum()
    points = torch.cat([z, weight / weight.square().sum(1, keepdim=True).sqrt()])
    labels = torch.cat([LABELS, torch.arange(3).repeat_interleave(proxies_per_class)])
    expected = reference_energy(points, labels, psi)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    at_rest = sum(psi(loss.new_tensor(0.0 if same else 2.0), same) for same in (labels[:, None] == labels).flatten())
    assert terms["constant"].item() == pytest.approx(float(at_rest), rel=1e-12)
    leaves = [z, weight] if proxies_per_class else [z]
    for found, slow in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves), strict=True):
        assert slow.abs().max() > 0
        torch.testing.assert_close(found, slow, rtol=1e-9, atol=1e-9 * slow.abs().max().item())


@pytest.mark.parametrize("kind", [PFML, CPML, ProxyAnchor, ProxyNCA, SoftTriple, Triplet])
def test_methods_tell_how_far_their_proxies_lie_from_what_they_stand_for(kind):
    task = Task(num_classes=3, embedding_dim=4, feature_dim=4)
    references = {"references": "proxies"} if kind is Triplet else {}
    method = kind(kind.Config(proxies_per_class=2, **references), task).double()
    z = unit(7, 4)
    trained = Embedded({"embedding": z}, LABELS, torch.arange(7))
    told = method.diagnostics(trained, None).scalars
    arrays = (method.proxies().detach().numpy(), method.proxies.labels.numpy(), z.numpy(), LABELS.numpy())
    assert told == {"proxy_wasserstein_distance": pytest.approx(reference_wasserstein(*arrays, 2), rel=1e-5)}
    assert method.diagnostics(trained, None).arrays["proxy_similarity"].shape == (6, 6)
    assert method.diagnostics(None, trained).scalars.keys() == (
        set() if kind in (PFML, CPML) else {"mean_covering_radius"}
    )
    without = {"references": "batch"} if kind is Triplet else {"proxies_per_class": 0}
    if kind in (PFML, CPML, Triplet):
        assert kind(kind.Config(**without), task).diagnostics(trained, None).scalars == {}
    (group,) = method.parameter_groups(1e-3)
    assert group["params"] == [method.proxies.weight]
    assert group["lr"] == pytest.approx(1e-3 * method.config.proxy_lr_multiplier)


# Cost ------------------------------------------------------------------------------------------------------


def extra_memory(num_classes: int, proxies_per_class: int, dim: int) -> float:
    """GB by which the peak of a fresh process grows during forward and backward on proxies and a batch of 180."""
    script = f"""
import torch
from process_memory import peak_memory
from methods.pfml import potential_energy
torch.manual_seed(0)
classes = torch.arange({num_classes})
proxies = torch.nn.functional.normalize(torch.randn({num_classes * proxies_per_class}, {dim})).requires_grad_()
embeddings = torch.nn.functional.normalize(torch.randn(180, {dim})).requires_grad_()
labels, proxy_labels = classes[:45].repeat(4), classes.repeat_interleave({proxies_per_class})
(embeddings @ embeddings.T).sum().backward()
before = peak_memory()
potential_energy(embeddings, labels, proxies, proxy_labels, delta=0.2, alpha=4).backward()
print(peak_memory() - before)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(process_memory.__file__).parent)}
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return int(output) / 1e9


def test_memory_is_far_below_one_distance_matrix():
    points = 10_000 + 180
    assert extra_memory(5_000, 2, 16) < points**2 * 4 / 2 / 1e9


@pytest.mark.slow
def test_memory_at_the_size_of_stanford_online_products():
    assert extra_memory(11_318, 2, 512) < 2
