"""`reduction="rows"`: what each query adds to an objective."""

import functools

import pytest
import torch

from methods import objectives, reductions
from methods.lifted_structure import lifted_structure
from tests.test_objectives import EVERY, EVERY_IDS, assert_close, proxy_case

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
        objectives.contrastive(matrix, positive, negative, reduction="sum")
