"""`reduction="rows"`: what each query adds to an objective."""

import functools
import math

import pytest
import torch
from support.objective_cases import EVERY, EVERY_IDS, assert_close, proxy_case, unit

from methods import objectives, reductions
from methods.lifted_structure import lifted_structure
from methods.row_weights import Focal, SelfPaced, easiest, focal_weights
from orchestrator.method import Batch, Task

BY_ROWS = [(*case, name) for case, name in zip(EVERY, EVERY_IDS, strict=True) if not name.startswith("proxy_anchor")]


def case_of(kind, hyper):
    """Rows of both kinds of pairs, of one, and of none."""
    matrix, positive, negative = proxy_case(kind, [4, 0, 0, 2, 1, 2, 3], 5, hyper.get("centres_per_class", 2))
    positive[1] = negative[2] = positive[5] = negative[5] = False
    return matrix, positive, negative


@pytest.mark.parametrize("numbers", [None, 1])
@pytest.mark.parametrize(("function", "kind", "hyper"), [case[:3] for case in BY_ROWS], ids=[c[3] for c in BY_ROWS])
def test_shares_have_the_scalar_as_their_mean_and_are_of_their_own_rows(monkeypatch, function, kind, hyper, numbers):
    matrix, positive, negative = case_of(kind, hyper)
    if numbers:
        monkeypatch.setattr(reductions, "BLOCK", numbers)
        for module in (reductions, objectives):
            monkeypatch.setattr(module, "CACHED", numbers)

    def of(matrix, **reduction):
        draws = {"generator": torch.Generator().manual_seed(3)} if isinstance(function, functools.partial) else {}
        return function(matrix, positive, negative, **hyper, **draws, **reduction)

    leaf = matrix.clone().requires_grad_()
    scalar = of(leaf)
    (whole,) = torch.autograd.grad(scalar, leaf)
    shares = of(leaf, reduction="rows")
    assert shares.shape == (len(matrix),)
    assert_close(shares.mean(), scalar, rtol=1e-12)
    assert shares[5] == 0  # it has no pairs
    assert torch.equal(leaf, matrix)  # as it was given
    slopes = torch.stack([torch.autograd.grad(share, leaf, retain_graph=True)[0] for share in shares])
    assert_close(slopes.mean(0), whole, rtol=1e-9, atol=1e-12)
    if function is not lifted_structure or hyper:  # whose pairs have the negatives of their columns too
        others = ~torch.eye(len(matrix), dtype=torch.bool)
        assert not slopes[others].any()


@pytest.mark.parametrize("reduction", ["rows", "mean"])
def test_an_empty_batch_has_attached_zeros(reduction):
    matrix = torch.zeros(0, 3).requires_grad_()
    found = objectives.contrastive(matrix, matrix > 1, matrix > 1, reduction=reduction)
    assert found.requires_grad and found.shape == ((0,) if reduction == "rows" else ())


def test_an_unknown_reduction_is_refused():
    matrix, positive, negative = case_of("d", {})
    with pytest.raises(ValueError, match='contrastive: reduction must be "mean" or "rows", got \'sum\''):
        objectives.contrastive(matrix, positive, negative, reduction="sum")  # type: ignore[arg-type]


# Weights on the shares --------------------------------------------------------------------------------------


def method_of(kind, total_steps=100, **settings):
    torch.manual_seed(0)
    return kind(kind.Config(**settings), Task(4, 6, 6, batch_size=8, total_steps=total_steps)).double()


def loss_of(method, z, labels, step=0):
    batch = Batch(z, labels[:, None], torch.arange(len(z)), step=step)
    return method.step(batch, lambda images: {"embedding": images}, torch.Generator().manual_seed(0))["loss"]


LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


@pytest.mark.parametrize("focus", [0.0, 0.5, 2.0])
def test_focal_weighting_of_a_softmax_is_the_focal_loss(focus):
    method, z = method_of(Focal, focus=focus, temperature=0.3), unit(8, 6, 0).requires_grad_()

    def slow(z):
        p = (z @ method.base.proxies().T / 0.3).exp()
        own = torch.stack([row[label] / row.sum() for row, label in zip(p, LABELS, strict=True)])
        return -((1 - own) ** focus * own.log()).mean()

    found, wanted = loss_of(method, z, LABELS), slow(z)
    assert_close(found, wanted)
    assert_close(*(torch.autograd.grad(value, z)[0] for value in (found, wanted)))


def test_focal_weights_at_the_edge():
    shares = torch.tensor([0.0, -0.5, 1e-30, 50.0], dtype=torch.float64, requires_grad=True)
    (focal_weights(shares, 0.5) * shares).sum().backward()
    assert shares.grad is not None and torch.isfinite(shares.grad).all() and not shares.grad[:2].any()
    with pytest.raises(ValueError, match="gamma must be at least 0"):
        focal_weights(shares, -1.0)


def test_the_easiest_images_count_alike():
    shares = torch.tensor([3.0, 1.0, 2.0, 1.0, 5.0])
    assert easiest(shares, 0.01).tolist() == [0, 0.5, 0, 0.5, 0], "equal ones count together"
    assert_close(easiest(shares, 0.6), torch.tensor([0, 1, 1, 1, 0]) / 3)
    assert_close(easiest(shares, 1.0), torch.full((5,), 0.2))
    assert easiest(shares[:0], 0.5).shape == (0,)


@pytest.mark.parametrize(("step", "total_steps", "counted"), [(0, 100, 2), (20, 100, 5), (40, 100, 8), (0, 0, 8)])
def test_self_paced_learning_takes_in_more_images_with_time(step, total_steps, counted):
    method, z = method_of(SelfPaced, total_steps, easy_share=0.25, growth=0.4), unit(8, 6, 0)
    p = (z @ method.base.proxies().detach().T / method.config.base_config().temperature).softmax(1)
    losses = sorted(-math.log(row[label]) for row, label in zip(p, LABELS, strict=True))
    assert loss_of(method, z, LABELS, step).item() == pytest.approx(sum(losses[:counted]) / counted)
