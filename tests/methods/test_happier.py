"""HAPPIER and SupNDCG against their formulas, one pair at a time, and where there are no super-classes."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import references
from torch import Generator, Tensor

from methods.happier import HAPPIER, hierarchical_ap
from methods.levels import RankedByLevel
from methods.roadmap import sup_ap
from methods.sup_ndcg import SupNDCG, sup_ndcg
from orchestrator.method import Task

slow: Any = references

D, C = 6, 5
KINDS = (0, 1, 0, 1, 2)  # the super-class of each class
LABELS = torch.tensor([[0, -1], [0, -1], [1, -1], [2, -1], [2, 3], [3, -1], [4, -1], [1, -1], [2, -1], [2, -1]])
SETS = [{int(label) for label in row if label >= 0} for row in LABELS]
LEVELS = [
    [2 if a & b else int(bool({KINDS[i] for i in a} & {KINDS[i] for i in b})) for b in SETS] for a in SETS
]  # the last class has one image and no relatives
H: dict[str, Any] = {"tau": 0.1, "rho": 3.0, "delta": 0.2}


def embeddings(seed: int = 1) -> Tensor:
    generator = Generator().manual_seed(seed)
    return F.normalize(torch.randn(len(LABELS), D, dtype=torch.float64, generator=generator), dim=1).requires_grad_()


def slow_loss(s: Tensor, alpha: float) -> Tensor:
    rows = []
    for q in range(len(s)):
        listed = [j for j in range(len(s)) if j != q]
        level = {j: LEVELS[q][j] for j in listed}
        size = {depth: sum(1 for j in listed if level[j] == depth) for depth in (1, 2)}
        r = {j: (level[j] / 2) ** alpha / size[level[j]] for j in listed if level[j]}
        if not r:
            continue
        found = []
        for k in r:
            above = [j for j in listed if j != k and s[q, j] >= s[q, k]]
            hierarchical = r[k] + sum(min(r[k], r[j]) for j in above if j in r)
            rank = 1 + sum(1 for j in above if level[j] >= level[k])
            lower = [s[q, j] - s[q, k] for j in listed if level[j] < level[k]]
            found.append(hierarchical / (rank + slow.total([slow.rank_step(t, **H) for t in lower])))
        rows.append(1 - slow.total(found) / sum(r.values()))
    lost: Tensor = slow.mean(rows)
    return lost


def slow_gain(s: Tensor) -> Tensor:
    rows = []
    for q in range(len(s)):
        listed = [j for j in range(len(s)) if j != q]
        level = {j: LEVELS[q][j] for j in listed}
        gains = {k: 2.0 ** level[k] - 1 for k in listed if level[k]}
        if not gains:
            continue
        found = []
        for k, gain in gains.items():
            rank = 1 + sum(1 for j in listed if j != k and s[q, j] >= s[q, k] and level[j] >= level[k])
            lower = [s[q, j] - s[q, k] for j in listed if level[j] < level[k]]
            found.append(gain / torch.log2(1 + rank + slow.total([slow.rank_step(t, **H) for t in lower])))
        best = sum(gain / math.log2(2 + place) for place, gain in enumerate(sorted(gains.values(), reverse=True)))
        rows.append(1 - slow.total(found) / best)
    lost: Tensor = slow.mean(rows)
    return lost


def build(super_classes: tuple[int, ...], kind: type[RankedByLevel] = HAPPIER, **settings: Any) -> RankedByLevel:
    torch.manual_seed(0)
    return kind(kind.Config(**H | settings), Task(C, D, D, super_classes=super_classes)).double()


@pytest.mark.parametrize("alpha", [1.0, 3.0, None])
def test_the_method_is_its_formula(alpha: float | None) -> None:
    own: dict[str, Any] = {"kind": SupNDCG} if alpha is None else {"alpha": alpha}
    z, method = embeddings(), build(KINDS, **own, proxy_weight=0.3, temperature=0.2)
    found = method.loss({"embedding": z}, LABELS)
    s, proxies = z @ z.T, F.normalize(method.proxies.weight, dim=1)
    masks = slow.masks(SETS, [{c} for c in range(C)], same=False)
    wanted = {
        "ranked": 0.7 * (slow_gain(s) if alpha is None else slow_loss(s, alpha)),
        "proxies": 0.3 * slow.normalized_softmax(z @ proxies.T, *masks, temperature=0.2),
    }
    for name, term in found.items():
        assert term.item() == pytest.approx(wanted[name].item(), rel=1e-10)
        torch.testing.assert_close(
            *(torch.autograd.grad(value, z, retain_graph=True)[0] for value in (term, wanted[name])),
            rtol=1e-9,
            atol=1e-12,
        )


def test_without_super_classes_it_is_average_precision() -> None:
    z = embeddings()
    positive, negative = slow.masks(SETS, SETS, same=True)
    found = build(()).loss({"embedding": z}, LABELS)["ranked"]
    assert found.item() == pytest.approx(0.9 * sup_ap(z @ z.T, positive, negative, **H).item(), rel=1e-12)


def test_a_relative_in_the_place_of_an_image_of_the_class_costs_less_than_a_stranger() -> None:
    """One query; of 4 items one is of its class, one a relative: lists in all orders that matter."""
    own, relative = torch.tensor([[True, False, False, False]]), torch.tensor([[True, True, False, False]])

    def lost(*similarities: float) -> float:
        matrix = torch.tensor([similarities], dtype=torch.float64)
        return hierarchical_ap(matrix, [relative, own], ~relative, tau=1e-3, rho=0.0, delta=9.0).item()

    assert lost(0.9, 0.7, 0.5, 0.3) == pytest.approx(0)
    # H^- is 3/2 beyond 0. The relative first: r is 1 and 1/2, H-rank_own = 1 + 1/2, rank_own = 1 + 3/2
    assert lost(0.7, 0.9, 0.5, 0.3) == pytest.approx(1 - (1.5 / 2.5 + 0.5) / 1.5)
    assert lost(0.7, 0.5, 0.9, 0.3) == pytest.approx(1 - (1 / 2.5 + 1 / 3.5) / 1.5)
    assert 0 < lost(0.7, 0.9, 0.5, 0.3) < lost(0.7, 0.5, 0.9, 0.3)


def test_the_best_order_of_levels_has_all_of_the_gain() -> None:
    """One query; of 4 items one is of its class, two are relatives: gains of 3, 1 and 1."""
    own, related = torch.tensor([[False, True, False, False]]), torch.tensor([[True, True, False, True]])

    def lost(*similarities: float) -> float:
        matrix = torch.tensor([similarities], dtype=torch.float64)
        return sup_ndcg(matrix, [related, own], ~related, tau=1e-3, rho=0.0, delta=9.0).item()

    assert lost(0.7, 0.9, 0.3, 0.5) == pytest.approx(0)
    best = 3 + 1 / math.log2(3) + 1 / 2
    # H^- is 3/2 beyond 0: the relative first makes the rank of the own class's 5/2
    assert lost(0.9, 0.7, 0.3, 0.5) == pytest.approx(1 - (1 + 3 / math.log2(3.5) + 1 / 2) / best)


def test_an_embedding_alone_has_a_loss_of_zero_and_a_gradient() -> None:
    z = embeddings()[[6]]
    terms = build(KINDS).loss({"embedding": z}, LABELS[[6]])
    assert terms["ranked"].item() == 0 and terms["ranked"].requires_grad
