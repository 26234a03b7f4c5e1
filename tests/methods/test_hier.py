"""HIER: its triplets and its loss against slow versions, one triplet and one hierarchical proxy at a time."""

import math
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from methods.hier import HIER, _Triplets, ancestors, chosen, hierarchy_loss, reciprocal_triplets
from methods.hyperbolic import Hyperbolic, exponential_map, hyperbolic_distance
from methods.objectives import cosine_similarity, multi_similarity, pair_masks
from orchestrator.method import Batch, Task

N, P, D, C = 9, 6, 4, 3


def points(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, D, dtype=torch.float64, generator=Generator().manual_seed(seed))


def test_columns_are_drawn_from_the_mask_with_equal_chances() -> None:
    mask = torch.tensor([[False, True, False, True, True], [True, False, False, False, False]])
    found = chosen(mask, 3000, Generator().manual_seed(0))
    shares = torch.stack([(found == column).double().mean(1) for column in range(5)], 1)
    wanted = mask / mask.sum(1, keepdim=True)
    torch.testing.assert_close(shares, wanted.double(), rtol=0, atol=0.03)
    assert chosen(torch.zeros(2, 3, dtype=torch.bool), 4, Generator()).max() < 3


def test_triplets_are_of_reciprocal_neighbours_and_of_points_that_are_none() -> None:
    closeness = 1 / (1 + torch.cdist(points(N), points(N)))
    neighbours = 4
    nearest = [{j for j in range(N) if sum(closeness[i] > closeness[i, j]) < neighbours} for i in range(N)]
    related = [{j for j in range(N) if j != i and j in nearest[i] and i in nearest[j]} for i in range(N)]
    triplets, counted = reciprocal_triplets(closeness.clone(), neighbours, 40, Generator().manual_seed(0))
    assert counted.tolist() == [len(found) > 1 for found in related] and 0 < counted.sum() < N
    for i in range(N):
        drawn = triplets[i].tolist()
        assert {row[0] for row in drawn} == {i}
        assert not related[i] or {row[1] for row in drawn} == related[i]
        assert {row[2] for row in drawn} == set(range(N)) - related[i] - {i}
    # half of all at most, so that some point is no neighbour
    all_of_them, _ = reciprocal_triplets(closeness.clone(), 100, 40, Generator())
    assert all((row[:, 1:] != i).all() for i, row in enumerate(all_of_them) if counted[i])


def test_ancestors_follow_their_softmax_and_have_its_gradient() -> None:
    distance = torch.tensor([[0.3, 0.1, 0.5]], dtype=torch.float64).repeat(6000, 1).requires_grad_()
    which, soft = ancestors(distance, 0.2, Generator().manual_seed(0))
    shares = torch.stack([(which == p).double().mean() for p in range(3)])
    torch.testing.assert_close(shares, torch.softmax(-distance[0].detach() / 0.2, 0), rtol=0, atol=0.02)
    assert torch.equal(which, soft.argmax(1)) and torch.allclose(soft.sum(1), torch.ones(6000, dtype=torch.float64))
    (slope,) = torch.autograd.grad(soft[:, 1].sum(), distance)
    assert (slope[:, 1] < 0).all() and (slope[:, 0] > 0).all()


def slow_tree(distance: Tensor, triplets: Tensor, counted: Tensor, margin: float, tau: float, rng: Generator) -> Tensor:
    """As the released code, with torch's noise drawn beforehand: those of all pairs, then those of all triplets, of the
    rows that are counted."""
    triplets, counted = triplets[counted], counted[counted]
    size, count = triplets.shape[:2]
    noise = [
        -torch.log(-torch.log(torch.rand(size * count, distance.shape[1], generator=rng)).double()) for _ in range(2)
    ]
    terms = []
    for number in range(size * count):
        if not counted[number // count]:
            continue
        rows = [distance[index] for index in triplets[number // count, number % count].tolist()]
        weights, which = [], []
        for seen, drawn in ((rows[:2], noise[0]), (rows, noise[1])):
            farthest = torch.stack([max(column, key=lambda d: float(d.detach())) for column in zip(*seen, strict=True)])
            logits = -farthest / tau + drawn[number]
            soft = logits.exp() / logits.exp().sum()
            shares = soft.tolist()
            which.append(shares.index(max(shares)))
            hard = torch.tensor([float(p == which[-1]) for p in range(len(soft))], dtype=torch.float64)
            weights.append(hard - soft.detach() + soft)
        (ia, ja, ka), (ib, jb, kb) = ([(row * part).sum() for row in rows] for part in weights)
        hinges = [ia - ib + margin, ja - jb + margin, kb - ka + margin]
        terms.append(sum(h if h > 0 else h * 0 for h in hinges) if which[0] != which[1] else ia * 0)
    return torch.stack(terms).mean()  # type: ignore[arg-type]


@pytest.mark.parametrize("reach", [_Triplets.REACH, -1])
@pytest.mark.parametrize("block", [2**18, 4 * P])
def test_the_loss_of_triplets_and_its_gradient(block: int, reach: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all at a time, and of four; the noise of the latter is drawn in turns. By weights, and by distances."""
    monkeypatch.setattr(_Triplets, "BLOCK", block)
    monkeypatch.setattr(_Triplets, "REACH", reach)
    distance = hyperbolic_distance(0.5 * points(N), 0.5 * points(P, 1), 0.1).detach().requires_grad_()
    triplets = torch.randint(N, (N, 5, 3), generator=Generator().manual_seed(2))
    counted = torch.arange(N) % 3 > 0
    rng = [Generator().manual_seed(3) for _ in range(2)]
    found = hierarchy_loss(distance, triplets, counted, margin=0.2, temperature=0.3, rng=rng[0])
    if block == 4 * P:
        rows = torch.split(triplets[counted].flatten(0, 1), 4)
        parts = [slow_tree(distance, part[:, None], part[:, 0] >= 0, 0.2, 0.3, rng[1]) * len(part) for part in rows]
        wanted = torch.stack(parts).sum() / (5 * counted.sum())
    else:
        wanted = slow_tree(distance, triplets, counted, 0.2, 0.3, rng[1])
    assert wanted > 0 and found.item() == pytest.approx(wanted.item(), rel=1e-12)
    slopes = [torch.autograd.grad(value, distance)[0] for value in (found, wanted)]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)
    none = hierarchy_loss(distance, triplets, counted & False, margin=0.2, temperature=0.3, rng=rng[0])
    assert none == 0 and none.requires_grad


def test_the_terms_are_the_objective_on_unit_rows_and_both_trees() -> None:
    settings: dict[str, Any] = {"objective": "multi_similarity", "hierarchical_proxies": 7, "neighbours": 4}
    settings |= {"triplets": 3, "tau": 0.4, "hierarchy_weight": 0.7, "hierarchy_margin": 0.3, "curvature": 0.2}
    torch.manual_seed(0)
    method = HIER(HIER.Config(**settings), Task(C, D, D)).double()
    assert float(method.inner.detach().norm(dim=1).mean()) == pytest.approx(0.9 * 2.3, rel=0.3)
    labels, raw = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])[:, None], 2 * points(N)
    z = method.normalize(raw.requires_grad_())
    batch = Batch(torch.empty(0), labels, torch.arange(N))
    found = method.step(batch, lambda images: {"embedding": z}, Generator().manual_seed(4))

    torch.testing.assert_close(z, exponential_map(raw, 0.2, 2.3))
    unit = torch.stack([row / row.norm() for row in z])
    wanted = multi_similarity(cosine_similarity(unit, unit), *pair_masks(labels, labels, same=True))
    torch.testing.assert_close(found["loss"], wanted)
    inner, rng, trees = exponential_map(method.inner, 0.2, 2.3), Generator().manual_seed(4), []
    for own, kinds in ((z, labels[:, 0].tolist()), (inner, list(range(7)))):
        apart = hyperbolic_distance(own, own, 0.2).detach()
        same = torch.tensor([[float(a == b) for b in kinds] for a in kinds], dtype=torch.float64)
        triplets, counted = reciprocal_triplets(torch.exp(-apart) + same, 4, 3, rng)
        trees.append(slow_tree(hyperbolic_distance(own, inner, 0.2), triplets, counted, 0.3, 0.4, rng))
    assert min(trees) > 0
    torch.testing.assert_close(found["tree"], 0.7 * (trees[0] + trees[1]))
    leaves = [raw, method.inner]
    pairs = (
        torch.autograd.grad(value, leaves, retain_graph=True) for value in (found["tree"], 0.7 * (trees[0] + trees[1]))
    )
    for mine, other in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, other)


def test_images_are_ranked_as_by_hyp_vit_and_inner_points_learn_faster() -> None:
    task = Task(C, D, D)
    method, other = HIER(HIER.Config(), task), Hyperbolic(Hyperbolic.Config(), task)
    rows = {"embedding": method.normalize(points(5))}
    for mine, theirs in zip(method.retrieval(rows), other.retrieval(rows), strict=True):
        assert torch.equal(mine, theirs)
    rates = {id(value): group["lr"] for group in method.parameter_groups(0.1) for value in group["params"]}
    assert rates[id(method.inner)] == pytest.approx(5.0) and len(rates) == 2
    assert HIER.Config(hierarchy_weight=0.0).idle()["tau"] == ("hierarchy_weight",)
    assert math.isclose(float(method.inner.detach().square().sum(1).mean()), (0.9 * 2.3) ** 2, rel_tol=0.1)


def test_far_points_keep_their_ancestors_in_float32() -> None:
    """Where e^(-d / temperature) of the nearest would be zero beside that of others."""
    distance = (100 * torch.rand(N, P, generator=Generator().manual_seed(0)) + 50).requires_grad_()
    distance.data[0] -= 50
    triplets = torch.randint(N, (N, 5, 3), generator=Generator().manual_seed(2))
    found = hierarchy_loss(distance, triplets, torch.ones(N) > 0, margin=0.2, temperature=0.1, rng=Generator())
    wanted = hierarchy_loss(
        distance.double(), triplets, torch.ones(N) > 0, margin=0.2, temperature=0.1, rng=Generator()
    )
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert torch.autograd.grad(found, distance)[0].isfinite().all()
