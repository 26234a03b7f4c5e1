"""HIB and PEL against slow versions: one pair, one draw at a time."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from methods import hib
from methods.hib import (
    HIB,
    Gaussians,
    draw,
    log_match_probabilities,
    soft_contrastive,
    standard_normal_divergence,
)
from methods.mixup import label_sets, mix, mixup_partners
from methods.objectives import cosine_similarity, pair_masks, proxy_anchor
from methods.pel import PEL
from orchestrator.check.subject import TRAIN_ROWS, Subject, terms_of
from orchestrator.errors import InputError
from orchestrator.method import Batch, Embedded, Task

ROWS = TRAIN_ROWS[:24:2]


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=Generator().manual_seed(seed))


def slow_match(queries: Tensor, references: Tensor, a: float, b: float) -> Tensor:
    """The probability of a match, (Q, R)."""
    found = [
        [sum(1 / (1 + math.exp(a * float((z - w).norm()) - b)) for z in first for w in second) for second in references]
        for first in queries
    ]
    return torch.tensor(found, dtype=torch.float64) / (queries.shape[1] * references.shape[1])


@pytest.mark.parametrize("block", [hib.BLOCK, 30])
def test_the_probability_of_a_match_is_the_mean_over_pairs_of_draws(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hib, "BLOCK", block)
    queries, references = made(5, 3, 4).requires_grad_(), made(4, 2, 4, seed=1).requires_grad_()
    a, b = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (0.7, 2.0))
    match, mismatch = log_match_probabilities(queries, references, a=a, b=b)
    wanted = slow_match(queries.detach(), references.detach(), 0.7, 2.0)
    torch.testing.assert_close(match.exp(), wanted)
    torch.testing.assert_close(mismatch.exp(), 1 - wanted)
    assert torch.autograd.gradcheck(
        lambda *given: log_match_probabilities(given[0], given[1], a=given[2], b=given[3]),
        (queries, references, a, b),
    )


def test_certain_pairs_stay_finite_in_single_precision() -> None:
    points = torch.tensor([[[0.0, 0.0]], [[0.0, 0.0]], [[300.0, 0.0]]], requires_grad=True)
    logs = log_match_probabilities(points, points, a=10.0, b=5.0)
    loss = soft_contrastive(*logs, *pair_masks(torch.tensor([0, 1, 0]), torch.tensor([0, 1, 0]), same=True))
    (gradient,) = torch.autograd.grad(loss, points)
    assert torch.stack(logs).isfinite().all() and gradient.isfinite().all()


def test_matches_and_mismatches_weigh_the_same() -> None:
    labels = torch.tensor([0, 0, 1, 2])
    match = slow_match(made(4, 2, 3), made(4, 2, 3), 1.0, 1.0)
    positive = [-math.log(match[i, j]) for i in range(4) for j in range(4) if i != j and labels[i] == labels[j]]
    negative = [-math.log(1 - match[i, j]) for i in range(4) for j in range(4) if labels[i] != labels[j]]
    wanted = (sum(positive) / 2 + sum(negative) / 10) / 2
    found = soft_contrastive(match.log(), (1 - match).log(), *pair_masks(labels, labels, same=True))
    torch.testing.assert_close(found.item(), wanted)
    none = torch.zeros(4, 4, dtype=torch.bool)
    assert soft_contrastive(match.log(), match.log(), none, none) == 0


def test_the_divergence_is_that_of_torch() -> None:
    images = Gaussians(made(5, 3), made(5, 3, seed=1))
    normal = torch.distributions.Normal(images.mean, (images.log_variance / 2).exp())
    standard = torch.distributions.Normal(torch.zeros(3).double(), torch.ones(3).double())
    wanted = torch.distributions.kl_divergence(normal, standard).sum(1)
    torch.testing.assert_close(standard_normal_divergence(images), wanted)


def test_draws_have_the_mean_and_the_variance_of_their_image() -> None:
    images = Gaussians(made(2, 3), made(2, 3, seed=1))
    points = draw(images, 20_000, Generator().manual_seed(0))
    assert points.shape == (2, 20_000, 3)
    torch.testing.assert_close(points.mean(1), images.mean, atol=0.05, rtol=0)
    torch.testing.assert_close(points.var(1), images.log_variance.exp(), atol=0, rtol=0.05)


def test_the_terms_of_hib_are_the_formula() -> None:
    subject = Subject(HIB, {"draws": 3, "beta": 0.1, "slope": 0.5, "offset": 2.0})
    learner, batch = subject.learner(), subject.batch(ROWS)
    found = terms_of(learner, batch)
    outputs = learner.network(batch.images)
    assert torch.equal(learner.outputs(batch.images)["embedding"], outputs["embedding"])  # means, not normalised
    images = Gaussians(outputs["embedding"].detach(), outputs["log_variance"].detach())
    points = draw(images, 3, Generator().manual_seed(0))
    match = slow_match(points, points, 0.5, 2.0)
    wanted = soft_contrastive(match.log(), (1 - match).log(), *pair_masks(batch.labels, batch.labels, same=True))
    torch.testing.assert_close(found["match"], wanted)
    torch.testing.assert_close(found["divergence"], 0.2 * standard_normal_divergence(images).mean())


@pytest.mark.parametrize("mixup", [False, True])
def test_the_terms_of_pel_are_the_formula(mixup: bool) -> None:
    subject = Subject(PEL, {"draws": 2, "divergence_weight": 0.1, "mixup": mixup})
    learner, batch = subject.learner(), subject.batch(ROWS)
    found = terms_of(learner, batch)
    rng, labels, images = Generator().manual_seed(0), batch.labels, batch.images
    if mixup:
        mixed = mix(batch, 1.0, 2, rng)
        images, labels = torch.cat([images, mixed.images]), label_sets(labels, mixed.labels)
    outputs = learner.network(images)
    gaussians = Gaussians(outputs["embedding"].detach(), outputs["log_variance"].detach())
    points = draw(gaussians, 2, rng)
    method = learner.method
    assert isinstance(method, PEL)
    proxies = method.base.proxies
    masks = pair_masks(labels, proxies.labels, same=False)
    losses = [proxy_anchor(cosine_similarity(F.normalize(z), proxies()), *masks) for z in points.unbind(1)]
    torch.testing.assert_close(found["loss"], sum(losses) / 2)
    torch.testing.assert_close(found["divergence"], 0.1 * standard_normal_divergence(gaussians).mean())


def test_each_held_out_image_has_its_uncertainty() -> None:
    deviation = torch.tensor([[1.0, 4.0], [9.0, 9.0]])
    outputs = {"embedding": made(2, 2), "log_variance": 2 * deviation.log()}
    held_out = Embedded(outputs, torch.tensor([3, 4]), torch.tensor([7, 8]))
    for method in (HIB(HIB.Config(), Task(2, 2, 2)), PEL(PEL.Config(), Task(2, 2, 2))):
        found: Any = method.diagnostics(None, held_out)
        assert found.scalars["deviation_held_out"] == pytest.approx((2 + 9) / 2)
        assert found.tables["uncertainty"]["sample"] == [7, 8]
        assert found.tables["uncertainty"]["uncertainty"] == pytest.approx([2, 9])


def test_pel_keeps_what_its_objective_reports() -> None:
    subject = Subject(PEL, {"draws": 1})
    method, labels = subject.learner().method, torch.arange(7)
    assert isinstance(method, PEL)
    size = method.task.embedding_dim
    trained = Embedded({"embedding": made(7, size), "log_variance": made(7, size)}, labels, labels)
    own, found = method.base.diagnostics(trained, None), method.diagnostics(trained, None)
    assert own.arrays and found.arrays.keys() == own.arrays.keys()
    assert found.scalars.keys() == own.scalars.keys() | {"deviation_trained"}


def test_blocks_of_mixup_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 9 images cannot be cut into mixup_blocks=2 equal blocks"):
        mixup_partners(9, 2, Generator())
    with pytest.raises(InputError, match="mixup_blocks: 2: a batch of 9 images"):
        PEL(PEL.Config(mixup=True), Task(3, 4, 4, batch_size=9))
    images = torch.zeros(3, 1, 2, 2)
    with pytest.raises(
        ValueError, match="images are not whole blocks of 6: batch_parts of the method must be mixup_blocks=1"
    ):
        mix(Batch(images, torch.zeros(6, 1), torch.arange(6)), 1.0, 1, Generator())
