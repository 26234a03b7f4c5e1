"""HIST and vMF against slow versions of their formulas, on label sets, and on degenerate batches."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from methods.hist import HIST, class_distances, hypergraph_mean
from methods.vmf import VMF, mean_directions
from orchestrator.method import Batch, Method, Task

D, C = 5, 4
LABELS = torch.tensor([[0, -1], [0, 1], [1, -1], [2, -1], [2, 0], [-1, -1]])
SETS = [{int(label) for label in row if label >= 0} for row in LABELS]


def unit(rows: int, seed: int) -> Tensor:
    generator = Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, D, dtype=torch.float64, generator=generator), dim=1)


def build(kind: type[Method], **settings: Any) -> Any:
    torch.manual_seed(0)
    return kind(kind.Config(**settings), Task(C, D, D)).double()


def terms(method: Method, z: Tensor, labels: Tensor = LABELS) -> dict[str, Tensor]:
    batch = Batch(torch.empty(0), labels, torch.arange(len(z)))
    return method.step(batch, lambda images: {"embedding": z}, Generator().manual_seed(0))


def cross_entropy(logits: list[list[Tensor]], sets: list[set[int]]) -> Tensor:
    rows = []
    for row, own in zip(logits, sets, strict=True):
        if own:
            shares = [torch.exp(value) for value in row]
            rows.append(-torch.log(torch.stack([shares[c] for c in own]).sum() / torch.stack(shares).sum()))
    return torch.stack(rows).mean()


def slow_distances(method: Any, z: Tensor) -> list[list[Tensor]]:
    found = []
    for point in z:
        row = []
        for mean, log_variance in zip(method.means, method.log_variances, strict=True):
            mu = mean / (mean**2).sum().sqrt()
            variances = [torch.exp(min(max(v, v * 0), v * 0 + 6)) for v in log_variance]
            row.append(torch.stack([(point[m] - mu[m]) ** 2 / variances[m] for m in range(D)]).sum())
        found.append(row)
    return found


def slow_tuplets(method: Any, z: Tensor, distances: list[list[Tensor]]) -> Tensor:
    alpha, present = method.config.alpha, sorted(set().union(*SETS))
    one = torch.ones((), dtype=torch.float64)
    incidence = [
        [one if c in own else torch.exp(-alpha * row[c]) for c in present]
        for own, row in zip(SETS, distances, strict=True)
    ]
    nodes = [torch.stack(row).sum() for row in incidence]
    edges = [torch.stack([row[e] for row in incidence]).sum() for e in range(len(present))]

    def smooth(features: list[Tensor]) -> list[Tensor]:
        smoothed = []
        for i in range(len(z)):
            parts = []
            for j in range(len(z)):
                shared = [incidence[i][e] * incidence[j][e] / edges[e] for e in range(len(present))]
                parts.append(torch.stack(shared).sum() / (nodes[i] * nodes[j]).sqrt() * features[j])
            smoothed.append(torch.stack(parts).sum(0))
        return smoothed

    hidden = torch.stack(smooth([method.first.weight @ point + method.first.bias for point in z]))
    columns = []
    for k, column in enumerate(hidden.unbind(1)):
        spread = ((column - column.mean()) ** 2).mean()
        columns.append((column - column.mean()) / torch.sqrt(spread + 1e-5) * method.gain[k] + method.shift[k])
    rectified = [torch.stack([v if v > 0 else 0.1 * v for v in row]) for row in torch.stack(columns, 1)]
    logits = smooth([method.second.weight @ row + method.second.bias for row in rectified])
    return cross_entropy([list(row) for row in logits], SETS)


def test_hist_is_the_slow_one_in_value_and_every_gradient() -> None:
    method, z = build(HIST, tau=5.0, alpha=1.1, tuplet_weight=0.7, hidden=6), unit(len(SETS), 1).requires_grad_()
    with torch.no_grad():
        method.log_variances[0] = 40 * method.log_variances[0].abs()  # some beyond both of its bounds
        method.shift.uniform_(-0.5, 0.5)
    distances = slow_distances(method, z)
    wanted = {
        "distributions": cross_entropy([[-5.0 * d for d in row] for row in distances], SETS),
        "tuplets": 0.7 * slow_tuplets(method, z, distances),
    }
    found, leaves = terms(method, z), [z, *method.parameters()]
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].item() == pytest.approx(value.item(), rel=1e-10)
        gradients = (
            torch.autograd.grad(part, leaves, retain_graph=True, allow_unused=True) for part in (found[name], value)
        )
        for mine, other in zip(*gradients, strict=True):
            none = torch.zeros(())
            assert torch.allclose(none if mine is None else mine, none if other is None else other, 1e-9, 1e-11)


@pytest.mark.parametrize("kind", [HIST, VMF])
@pytest.mark.parametrize("labels", [[-1, -1, -1], [0, 0, 0], [0, 1, 2], [3, -1, -1]])
def test_batches_without_labels_of_one_class_or_of_equal_images_are_finite(
    kind: type[Method], labels: list[int]
) -> None:
    for rows in (unit(3, 0), unit(1, 0).repeat(3, 1), unit(1, 0)):
        method, z = build(kind).float(), rows.float().requires_grad_()
        found = terms(method, z, torch.tensor(labels)[: len(z), None])
        torch.stack(list(found.values())).sum().backward()  # type: ignore[no-untyped-call]
        assert z.grad is not None and z.grad.isfinite().all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())
        assert all(value.isfinite() and (max(labels[: len(z)]) >= 0 or value == 0) for value in found.values())


def test_distances_to_a_distribution_at_its_mean_are_zero_and_a_node_in_no_hyperedge_is_left_out() -> None:
    mean = unit(1, 0)
    assert class_distances(mean, mean, torch.ones(1, D).double()).abs() < 1e-12
    incidence = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    smoothed = hypergraph_mean(torch.eye(3), incidence, torch.tensor([True, False]))
    assert torch.allclose(smoothed, torch.tensor([[0.5, 0, 0.5], [0, 0, 0], [0.5, 0, 0.5]]))


def test_vmf_classifies_by_its_centres_and_moves_them_to_the_mean_directions_every_period() -> None:
    method, batches = build(VMF, kappa=3.0, period=2), [unit(len(SETS), seed).requires_grad_() for seed in range(3)]
    centres, first = method.centres, method.centres.clone()
    for step, z in enumerate(batches):
        (found,) = terms(method, z).values()
        wanted = cross_entropy([[3.0 * (point * centre).sum() for centre in centres] for point in z], SETS)
        assert found.item() == pytest.approx(wanted.item(), rel=1e-10)
        (mine,), (other,) = (torch.autograd.grad(value, z) for value in (found, wanted))
        assert torch.allclose(mine, other, rtol=1e-10, atol=1e-12)
        if step == 0:
            assert torch.equal(method.centres, first)
        if step == 1:
            rows = []
            for c in range(C):
                own = [z[i].detach() for z in batches[:2] for i in range(len(SETS)) if c in SETS[i]]
                total = torch.stack(own).sum(0) if own else first[c]
                rows.append(total / math.sqrt((total**2).sum()) if own else total)
            centres = torch.stack(rows)
            assert torch.allclose(method.centres, centres, atol=1e-12) and (method.sums == 0).all()
    assert torch.equal(mean_directions(torch.zeros(C, D), first), first)
