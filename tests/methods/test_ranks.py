"""Losses on ranks: Smooth-AP, ROADMAP and the recall@k surrogate as methods, and what is their own."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from support import references
from torch import Generator, Tensor

from methods import reductions
from methods.baselines import Baseline
from methods.ranks import positive_ranks
from methods.recall_at_k import recall_at_k_surrogate, virtual_examples
from methods.roadmap import calibration, rank_step, sup_ap
from methods.smooth_ap import smooth_ap
from orchestrator.method import Batch, Task, registry

slow: Any = references

D, C = 6, 4
LABELS = torch.tensor([[0, -1], [0, 1], [1, -1], [1, -1], [2, -1], [2, 0], [2, -1], [3, -1]])
SETS = [{int(label) for label in row if label >= 0} for row in LABELS]
MASKS = slow.masks(SETS, SETS, same=True)


def build(name: str, **settings: Any) -> Baseline:
    method = registry()[name]
    assert issubclass(method, Baseline)
    torch.manual_seed(0)
    return method(method.Config(**settings), Task(C, D, D)).double()


def batch(seed: int = 1) -> Tensor:
    generator = Generator().manual_seed(seed)
    return F.normalize(torch.randn(len(LABELS), D, dtype=torch.float64, generator=generator), dim=1).requires_grad_()


def loss(method: Baseline, z: Tensor, seed: int = 5) -> Tensor:
    given = Batch(torch.empty(0), LABELS, torch.arange(len(z)))
    (term,) = method.step(given, lambda images: {"embedding": z}, Generator().manual_seed(seed)).values()
    return term


def assert_same(found: Tensor, wanted: Tensor, z: Tensor) -> None:
    """Values and gradients."""
    assert found.item() == pytest.approx(wanted.item(), rel=1e-10)
    gradients = [torch.autograd.grad(value, z, retain_graph=True)[0] for value in (found, wanted)]
    assert gradients[1].abs().sum() > 0
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["smooth_ap", "roadmap", "sup_recall", "recall_at_k_surrogate"])
def test_a_method_is_its_objective_over_the_batch(name: str) -> None:
    """By the slow references, with the settings written out; samples have several labels."""
    by_hand: dict[str, Any] = {
        "smooth_ap": lambda s: slow.smooth_ap(s, *MASKS, 0.1),
        "roadmap": lambda s: 0.7 * slow.sup_ap(s, *MASKS, 0.1, 30.0, 0.2) + 0.3 * slow.calibration(s, *MASKS, 0.9, 0.6),
        "sup_recall": lambda s: (
            0.7 * slow.sup_recall(s, *MASKS, (1, 3), 0.8, 0.1, 30.0, 0.2) + 0.3 * slow.calibration(s, *MASKS, 0.9, 0.6)
        ),
        "recall_at_k_surrogate": lambda s: slow.recall_at_k_surrogate(s, *MASKS, (1, 2, 4, 8, 16), 1.0, 0.1),
    }
    settings: dict[str, dict[str, Any]] = {
        "smooth_ap": {"temperature": 0.1},
        "roadmap": {"tau": 0.1, "rho": 30.0, "delta": 0.2, "calibration_weight": 0.3},
        "sup_recall": {
            "tau": 0.1,
            "rho": 30.0,
            "delta": 0.2,
            "calibration_weight": 0.3,
            "ks": "1,3",
            "k_temperature": 0.8,
        },
        "recall_at_k_surrogate": {"rank_temperature": 0.1},
    }
    z = batch()
    assert_same(loss(build(name, **settings[name]), z), by_hand[name](z @ z.T), z)


def test_the_released_formula_has_the_query_in_its_own_list() -> None:
    """As a further positive, whose rank counts; of the recall@k surrogate as one of the others."""
    z, itself = batch(), torch.eye(len(LABELS), dtype=torch.bool)
    with_it, apart = (MASKS[0] | itself, MASKS[1]), (MASKS[0], MASKS[1] | itself)
    s = z @ z.T
    of_steps: dict[str, Any] = {"tau": 0.1, "rho": 30.0, "delta": 0.2, "calibration_weight": 0.3}
    calibrated = 0.3 * slow.calibration(s, *MASKS, 0.9, 0.6)
    wanted = {
        "smooth_ap": slow.smooth_ap(s, *with_it, 0.1),
        "roadmap": 0.7 * slow.sup_ap(s, *with_it, 0.1, 30.0, 0.2) + calibrated,
        "sup_recall": 0.7 * slow.sup_recall(s, *with_it, (1, 3), 0.8, 0.1, 30.0, 0.2) + calibrated,
        "recall_at_k_surrogate": slow.recall_at_k_surrogate(s, *apart, (1, 2, 4, 8, 16), 1.0, 0.1),
    }
    settings: dict[str, dict[str, Any]] = {
        "smooth_ap": {"temperature": 0.1},
        "roadmap": of_steps,
        "sup_recall": of_steps | {"ks": "1,3", "k_temperature": 0.8},
        "recall_at_k_surrogate": {"rank_temperature": 0.1},
    }
    for name, value in wanted.items():
        assert_same(loss(build(name, formula="released", **settings[name]), z), value, z)
        assert value != loss(build(name, **settings[name]), z)
    settings["roadmap"] = {"formula": "released", "references": "memory"}
    with pytest.raises(ValidationError, match="formula: 'released': needs references: batch, not memory"):
        registry()["roadmap"].Config(**settings["roadmap"])
    with pytest.raises(ValueError, match=r"needs the queries as references, got \(8, 7\)"):
        smooth_ap(s[:, 1:], MASKS[0][:, 1:], MASKS[1][:, 1:], formula="released")


def row(positives: list[float], negatives: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """One query's similarities to its positives and negatives."""
    matrix = torch.tensor([positives + negatives], dtype=torch.float64)
    positive = torch.arange(matrix.shape[1])[None] < len(positives)
    return matrix, positive, ~positive


def test_the_limits_are_average_precision_and_recall() -> None:
    """Positives at ranks 1, 3 and 4 of 6, far apart."""
    case = row([0.9, 0.5, 0.3], [0.7, 0.1, -0.1])
    precision = (1 + 2 / 3 + 3 / 4) / 3
    assert smooth_ap(*case).item() == pytest.approx(1 - precision, abs=1e-8)
    sharp: dict[str, Any] = {"k_temperature": 1e-3, "rank_temperature": 1e-3}
    # a rank equal to k counts half, so the k lie between the ranks
    recalls = [recall_at_k_surrogate(*case, ks=(k,), **sharp).item() for k in (2, 5)]
    assert recalls == pytest.approx([1 - 1 / 2, 0], abs=1e-8)
    # ten at one place, of which each counts almost half: no more than k
    assert recall_at_k_surrogate(*row([0.5] * 10, [0.1]), ks=(1,), k_temperature=100.0) == 0
    # the negative at 0.7 stands 0.2 above one positive and 0.4 above another: 100 (t - 0.05) + sigmoid(5) + 1/2
    bounds = [15 + 1 / (1 + 2.718281828459045**-5) + 0.5, 35 + 1 / (1 + 2.718281828459045**-5) + 0.5]
    bounded = (1 + 2 / (2 + bounds[0]) + 3 / (3 + bounds[1])) / 3
    assert sup_ap(*case).item() == pytest.approx(1 - bounded, abs=1e-6)
    assert sup_ap(*case) > smooth_ap(*case)
    assert calibration(*case).item() == pytest.approx((0.4 + 0.6) / 2 + 0.1)


def test_the_step_of_roadmap_bounds_the_count_and_does_not_jump_at_delta() -> None:
    t = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    assert (rank_step(t) >= (t > 0).double()).all()
    below, above = rank_step(torch.tensor([0.05, 0.05 + 1e-12], dtype=torch.float64))
    assert (above - below).item() == pytest.approx(0, abs=1e-8)


def test_the_tiles_of_pairs_are_no_larger_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are positives of each other: 8 x 7 pairs, 3 at a time."""
    sizes: list[int] = []

    def step(gaps: Tensor, _: Tensor) -> Tensor:
        sizes.append(gaps.numel())
        return torch.sigmoid(gaps)

    z = batch()
    monkeypatch.setattr(reductions, "BLOCK", 3 * len(z))
    everyone = torch.ones(len(z), len(z), dtype=torch.bool).fill_diagonal_(False)
    _, among, overall = positive_ranks(z @ z.T, everyone, torch.zeros_like(everyone), step)
    torch.autograd.grad(overall.sum(), z)
    assert len(among) == 56 and sum(sizes) == 2 * 56 * len(z) and max(sizes) <= 3 * len(z)


# SiMix -----------------------------------------------------------------------------------------------------


def test_virtual_examples_lie_between_the_positives_and_have_the_labels_of_both() -> None:
    z, positive = batch().detach(), MASKS[0]
    mixed, labels = virtual_examples(z, LABELS, Generator().manual_seed(3))
    pairs = [(i, j) for i in range(len(z)) for j in range(i + 1, len(z)) if positive[i, j]]
    shares = torch.rand(len(pairs), generator=Generator().manual_seed(3), dtype=torch.float64)
    wanted = torch.stack([a * z[i] + (1 - a) * z[j] for a, (i, j) in zip(shares, pairs, strict=True)])
    torch.testing.assert_close(mixed, wanted)
    assert [{int(label) for label in row if label >= 0} for row in labels] == [SETS[i] | SETS[j] for i, j in pairs]
    alone, _ = virtual_examples(z[[0, 2, 4]], LABELS[[0, 2, 4]], Generator())
    assert alone.shape == (0, D)


def test_simix_adds_the_virtual_examples_as_queries_and_to_the_lists() -> None:
    z = batch()
    mixed, labels = virtual_examples(z, LABELS, Generator().manual_seed(5))
    both = torch.cat([z, mixed])
    sets = SETS + [{int(label) for label in row if label >= 0} for row in labels]
    masks = slow.masks(sets, sets, same=True)
    wanted = slow.recall_at_k_surrogate(both @ both.T, *masks, (1, 2), 1.0, 0.1)
    settings: dict[str, Any] = {"ks": "1, 2", "rank_temperature": 0.1}
    assert_same(loss(build("recall_at_k_surrogate", simix=True, **settings), z), wanted, z)
    assert loss(build("recall_at_k_surrogate", **settings), z) != wanted


@pytest.mark.parametrize("given", ["", "0", "1,,2", "1;2", "-1", "1.5"])
def test_values_of_k_that_cannot_be_read_are_refused(given: str) -> None:
    with pytest.raises(ValidationError, match="should be whole numbers from 1 on, separated by commas"):
        build("recall_at_k_surrogate", ks=given)


@pytest.mark.parametrize("source", ["batch", "proxies", "memory", "batch+memory"])
@pytest.mark.parametrize("name", ["smooth_ap", "roadmap", "recall_at_k_surrogate"])
def test_all_references_train(name: str, source: str) -> None:
    simix = {"simix": True} if name == "recall_at_k_surrogate" else {}
    memory = {"memory_start": 0, "memory_size": 20} if "memory" in source else {}
    method = build(name, references=source, **memory, **simix)
    for step in range(2):
        z = batch(step)
        given = Batch(torch.empty(0), LABELS, torch.arange(len(z)) + 8 * step)
        found = method.step(given, lambda images, z=z: {"embedding": z}, Generator())  # type: ignore[misc]
    total = torch.stack(list(found.values())).sum()
    (gradient,) = torch.autograd.grad(total, z)
    assert torch.isfinite(total) and torch.isfinite(gradient).all() and gradient.abs().sum() > 0
