"""CCP against slow loops, written from Algorithms 1 and 2 and the formulas; its problems in real trainings."""

import copy
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Pair
from pydantic import ValidationError
from support import references as slow
from support.training_loops import train, weights
from torch import Tensor, nn

from methods.baselines import Contrastive, ProxyAnchor, Triplet
from methods.ccp import (
    CCP,
    covering_radius,
    greedy_k_center,
    lipschitz_normalize,
    mean_covering_radius,
    proximal_term,
)
from methods.covering import class_spread
from orchestrator.config.files import find_search, read_yaml
from orchestrator.config.optimizers import OPTIMIZERS, optimizer_of
from orchestrator.config.presets import find_preset, presets
from orchestrator.config.resolve import resolve_search
from orchestrator.config.training import Training
from orchestrator.data.splits import class_split, train_labels
from orchestrator.data.store import Store
from orchestrator.data.transforms import augment
from orchestrator.method import Batch, Embedded, Outputs, Scope, Task
from orchestrator.storage.trial_folder import BEST, CHECKPOINT
from orchestrator.training.checkpoint import load_checkpoint
from orchestrator.training.model_file import load_learner
from orchestrator.training.scope import build_scope


def reference_k_center(pool: list[list[float]], proxies: list[list[float]], k: int) -> list[int]:
    centres, taken = list(proxies), []
    for _ in range(k):
        best, best_distance = -1, -1.0
        for i, point in enumerate(pool):
            nearest = min((math.dist(point, centre) for centre in centres), default=math.inf)
            if i not in taken and nearest > best_distance:
                best, best_distance = i, nearest
        taken.append(best)
        centres.append(pool[best])
    return taken


def reference_covering_radius(points: list[list[float]], centres: list[list[float]]) -> float:
    return max(min(math.dist(point, centre) for centre in centres) for point in points)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("num_proxies", [0, 1, 4])
@pytest.mark.parametrize("seed", range(5))
def test_k_center_agrees_with_the_loop(seed, num_proxies):
    pool, proxies = drawn(12, 3, seed=seed), drawn(num_proxies, 3, seed=seed + 100)
    for k in (0, 1, 5, 12):
        found = greedy_k_center(pool, proxies, k)
        assert found.dtype == torch.long
        assert found.tolist() == reference_k_center(pool.tolist(), proxies.tolist(), k)


def test_k_center_breaks_ties_by_index_and_takes_no_index_twice():
    grid = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1], [1, 0], [1, 0]])
    centre = torch.zeros(1, 2)
    assert greedy_k_center(grid, centre, 6).tolist() == [0, 1, 2, 3, 4, 5]
    assert greedy_k_center(torch.ones(4, 2), torch.ones(1, 2), 4).tolist() == [0, 1, 2, 3]
    assert greedy_k_center(torch.ones(3, 2), torch.zeros(0, 2), 3).tolist() == [0, 1, 2]


def test_k_center_tells_close_points_apart_in_float32():
    pool = torch.ones(4, 64)
    pool[2, 0] += 1e-6
    assert greedy_k_center(pool, torch.ones(1, 64), 1).tolist() == [2]


@pytest.mark.parametrize("k", [-1, 4])
def test_k_center_refuses_an_impossible_number(k):
    with pytest.raises(ValueError, match=f"between 0 and the size of the pool, 3, got {k}"):
        greedy_k_center(torch.zeros(3, 2), torch.zeros(1, 2), k)


def test_proximal_term_is_half_the_squared_distance():
    parameters = [drawn(3, 4).requires_grad_(), drawn(5, seed=1).requires_grad_()]
    anchor = [drawn(3, 4, seed=2).requires_grad_(), drawn(5, seed=3)]
    term = proximal_term(iter(parameters), iter(anchor))
    expected = sum(
        (x - y) ** 2
        for p, a in zip(parameters, anchor, strict=True)
        for x, y in zip(p.flatten().tolist(), a.flatten().tolist(), strict=True)
    )
    assert term.item() == pytest.approx(expected / 2)
    term.backward()
    for parameter, best in zip(parameters, anchor, strict=True):
        torch.testing.assert_close(parameter.grad, (parameter - best).detach())
    assert anchor[0].grad is None
    assert proximal_term([], []) == 0


def test_proximal_term_refuses_another_network():
    with pytest.raises(ValueError, match=r"anchor has shape \(1,\) for a parameter \(3,\)"):
        proximal_term([torch.zeros(3)], [torch.zeros(1)])
    with pytest.raises(ValueError):
        proximal_term([torch.zeros(3)], [])


def test_lipschitz_normalize_shrinks_long_rows_only():
    v = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.6, 0.8], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    found = lipschitz_normalize(v)
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.6, 0.8], [0, 0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found[:, 0].sum(), v)
    torch.testing.assert_close(gradient[0], torch.tensor([0.128, -0.096], dtype=torch.float64))
    torch.testing.assert_close(gradient[1], torch.tensor([1.0, 0], dtype=torch.float64))
    torch.testing.assert_close(gradient[3], torch.tensor([1.0, 0], dtype=torch.float64))
    x, y = 2 * drawn(2, 50, 4)
    moved = (lipschitz_normalize(x) - lipschitz_normalize(y)).norm(dim=1)
    assert (moved <= (x - y).norm(dim=1) + 1e-12).all()
    large = lipschitz_normalize(torch.full((2, 8), 6e4, dtype=torch.float16))
    torch.testing.assert_close(large.norm(dim=1), torch.ones(2))


def test_covering_radius_is_the_mean_over_classes():
    points, labels = drawn(20, 3), torch.arange(20) % 3
    centres, centre_labels = drawn(7, 3, seed=1), torch.arange(7) % 4  # class 3 has no points
    expected = sum(
        reference_covering_radius(points[labels == c].tolist(), centres[centre_labels == c].tolist()) for c in range(3)
    )
    assert covering_radius(points, labels, centres, centre_labels) == pytest.approx(expected / 3)
    assert covering_radius(points, labels, points, labels) == 0
    with pytest.raises(ValueError, match="class 2 has points but no centre"):
        covering_radius(points, labels, centres, centre_labels.clamp(max=1))
    with pytest.raises(ValueError, match="at least one point"):
        covering_radius(points[:0], labels[:0], centres, centre_labels)


def test_class_spread_is_the_mean_over_pairs_then_classes():
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0], [7.0, 7.0], [0.0, 1.0]])
    labels = torch.tensor([0, 0, 1, 2, 1])  # the third has one point: it is left out
    assert class_spread(points, labels) == (5 + 1) / 2
    assert class_spread(torch.ones(4, 2), torch.tensor([0, 0, 1, 1])) == 0
    three = torch.tensor([[0.0], [1.0], [3.0]])
    assert class_spread(three, torch.zeros(3, dtype=torch.long)) == pytest.approx((1 + 3 + 2) / 3)
    with pytest.raises(ValueError, match="no class has them"):
        class_spread(points[:1], labels[:1])


def test_mean_covering_radius_agrees_with_the_loop():
    points, labels = drawn(15, 3), torch.tensor([0] * 8 + [1] * 6 + [2])
    means = []
    for c in range(3):
        own = points[labels == c].tolist()
        order = reference_k_center(own, [], len(own))
        radii = [reference_covering_radius(own, [own[i] for i in order[: k + 1]]) for k in range(len(own))]
        means.append(sum(radii) / len(radii))
    assert means[0] > means[2] == 0
    assert mean_covering_radius(points, labels) == pytest.approx(sum(means) / 3)
    with pytest.raises(ValueError, match="at least one point"):
        mean_covering_radius(points[:0], labels[:0])


# The loss --------------------------------------------------------------------------------------------------

D, C, M = 5, 4, 2
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 2, 3])
IMAGES = drawn(8, 6, seed=11)


def build(network: nn.Module | None = None, **settings: Any) -> CCP:
    torch.manual_seed(0)
    method = CCP(CCP.Config(**{"proxies_per_class": M} | settings), Task(C, D, D))
    if network is not None:
        method.bind(network)
    return method.double()


def made_network() -> nn.Module:
    """Some of its rows are longer than one and some shorter; its last bias is frozen."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, D)).double()
    network[2].bias.requires_grad_(False)
    return network


def shortened(rows: Tensor) -> Tensor:
    return torch.stack([row / row.norm() if row.norm() >= 1 else row for row in rows])


def terms_of(method: CCP, network: nn.Module) -> dict[str, Tensor]:
    def run(images: Tensor) -> Outputs:
        return {"embedding": method.normalize(network(images))}

    return method.step(Batch(IMAGES, LABELS[:, None], torch.arange(8)), run, torch.Generator())


MS = {"alpha": 2.0, "beta": 40.0, "base": 0.5, "epsilon": None}
CASES: dict[str, tuple[dict[str, Any], bool, Callable[..., Tensor]]] = {
    "C1": ({}, False, lambda d, p, n: slow.contrastive(d, p, n, 0.0, 0.5, "nonzero")),
    "C1 as XBM": (
        {"metric": "cosine", "average": "query"},
        True,
        lambda s, p, n: slow.contrastive(1 - s, p, n, 0.0, 0.5, "query"),
    ),
    "C2": (
        {"pos_margin": 0.2652, "neg_margin": 0.5409},
        False,
        lambda d, p, n: slow.contrastive(d, p, n, 0.2652, 0.5409, "nonzero"),
    ),
    "triplet": ({"objective": "triplet"}, False, lambda d, p, n: slow.triplet(d.T, p.T, n.T, 0.0961, "all")),
    "multi-similarity": (
        {"objective": "multi_similarity"},
        True,
        lambda s, p, n: slow.multi_similarity(s, p, n, **MS),
    ),
    "proxy-anchor": ({"objective": "proxy_anchor"}, True, lambda s, p, n: slow.proxy_anchor(s, p, n, 32.0, 0.1)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_loss_is_its_objective_on_proxies_near_the_last_solution(case: str) -> None:
    settings, similarity, objective = CASES[case]
    network = made_network()
    method = build(network, proximal_weight=0.7, pair_weight=0.1, **settings)
    with torch.no_grad():
        method.proxies.weight.mul_(0.4)
    lengths = torch.cat([network(IMAGES), method.proxies.weight]).norm(dim=1)
    assert (lengths > 1).any() and (lengths < 1).any()
    anchor = [drawn(*p.shape, seed=20 + i) for i, p in enumerate(network.parameters())]
    method.anchor.take(anchor)
    method.problem.fill_(2)

    def value(z: Tensor, r: Tensor, theirs: list[int], same: bool) -> Tensor:
        masks = slow.masks([{int(label)} for label in LABELS], [{label} for label in theirs], same)
        return objective(z @ r.T if similarity else slow.distances(z, r), *masks)

    z, r = shortened(network(IMAGES)), shortened(method.proxies.weight)
    proximal = [(p - a).square().sum() for p, a in zip(network.parameters(), anchor, strict=True) if p.requires_grad]
    expected = {
        "proxy": value(z, r, [c for c in range(C) for _ in range(M)], False),
        "proximal": 0.7 / 2 * torch.stack(proximal).sum(),
        "pair": 0.1 * value(z, z, LABELS.tolist(), True),
    }
    found = terms_of(method, network)
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].item() == pytest.approx(expected[name].item(), rel=1e-9), name
        assert expected[name] > 0
    learned = [p for p in network.parameters() if p.requires_grad] + [method.proxies.weight]
    assert len(learned) == 4
    gradients = torch.autograd.grad(torch.stack(list(found.values())).sum(), learned)
    slowly = torch.autograd.grad(torch.stack(list(expected.values())).sum(), learned)
    for ours, theirs in zip(gradients, slowly, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)


def test_the_first_problem_has_nothing_to_stay_near_to() -> None:
    network = made_network()
    method, free = build(network, proximal_weight=100.0), build(network, proximal_weight=0.0)
    method.anchor.take([torch.zeros_like(p) for p in network.parameters()])
    first = terms_of(method, network)
    assert first["proximal"] == 0 and not first["proximal"].requires_grad
    assert terms_of(free, network).keys() == {"proxy"}
    assert terms_of(free, network)["proxy"] == first["proxy"]
    method.problem += 1
    assert terms_of(method, network)["proximal"] > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "soft_triple"}, "'contrastive', 'triplet', 'multi_similarity' or 'proxy_anchor'"),
        ({"objective": "triplet", "neg_margin": 0.4}, "triplet has no such hyperparameter"),
        ({"references": "memory"}, "Extra inputs"),
        ({"problems": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CCP.Config(**settings)


# Algorithm 1 -----------------------------------------------------------------------------------------------


class Run:
    """CCP over a small network with batch norm (its scale frozen), trained by made gradients, judged by made scores."""

    def __init__(self, *, optimizer: str = "adam", fused: bool = False, **settings: Any) -> None:
        torch.manual_seed(2)
        self.network = nn.Sequential(nn.Linear(6, D), nn.BatchNorm1d(D)).double()
        self.method = build(self.network, **settings)
        self.network[1].weight.requires_grad_(False)
        self.trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        groups = [{"params": self.trained}, *self.method.parameter_groups(0.1)]
        groups[0]["lr"] = 0.1
        training = Training(optimizer=optimizer, weight_decay=0.0)
        self.optimizer = optimizer_of(optimizer).build(groups, training, fused)
        self.stops: list[bool] = []
        self.drawn: list[Tensor] = []
        rng, nothing = torch.Generator().manual_seed(3), None
        scope = build_scope(nothing, self.optimizer, nothing, nothing, rng, torch.device("cpu"), self.stops)  # type: ignore[arg-type]
        self.scope: Scope = dataclasses.replace(scope, class_embeddings=self.embed)
        self.noise = torch.Generator().manual_seed(4)

    def embed(self, n: int, rng: torch.Generator) -> Tensor:
        """Depends on the network, so that embedding before it went back would be seen."""
        linear, norm = self.network
        assert isinstance(linear, nn.Linear) and isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None
        level = linear.weight.sum().detach() + norm.running_mean.sum()
        self.drawn.append(level + torch.randn(C, n, D, generator=rng, dtype=torch.float64))
        return self.drawn[-1]

    def steps(self, count: int) -> None:
        for _ in range(count):
            terms_of(self.method, self.network)
            for parameter in (*self.trained, self.method.proxies.weight):
                parameter.grad = torch.randn(parameter.shape, generator=self.noise, dtype=torch.float64)
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        assert len(self.optimizer.state_dict()["state"]) <= 4, "none of the frozen one"
        moments = [self.optimizer.state[parameter] for parameter in self.trained]
        whole = {"network": self.network.state_dict(), "moments": moments, "proxies": self.method.proxies.weight.data}
        return copy.deepcopy(whole)


def algorithm(scores: list[float], patience: int, stop_after: int, problems: int | None) -> list[tuple[str, int]]:
    """What follows each validation, and which one the state goes back to."""
    events: list[tuple[str, int]] = []
    begun, number = 0, 1
    for now in range(len(scores)):
        best = begun + scores[begun : now + 1].index(max(scores[begun : now + 1]))
        overall = scores[: now + 1].index(max(scores[: now + 1]))
        if now - overall >= stop_after or (now - best >= patience and number == problems):
            return [*events, ("stop", best)]
        if now - best >= patience:
            events.append(("next", best))
            begun, number = now + 1, number + 1
        else:
            events.append(("go on", now))
    return events


def same(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(same(a, b) for a, b in zip(first, second, strict=True))
    return torch.equal(torch.as_tensor(first), torch.as_tensor(second))


@pytest.mark.parametrize(
    ("patience", "stop_after", "problems"), [(3, 60, None), (1, 60, None), (2, 5, None), (2, 60, 1), (2, 60, 3)]
)
@pytest.mark.parametrize("seed", range(4))
def test_problems_follow_each_other_as_in_algorithm_1(
    seed: int, patience: int, stop_after: int, problems: int | None
) -> None:
    scores = (torch.randint(0, 12, (20,), generator=torch.Generator().manual_seed(seed)) / 12).tolist()  # with ties
    events = algorithm(scores, patience, stop_after, problems)
    run = Run(patience=patience, stop_after=stop_after, problems=problems, pool_size=3, proximal_weight=0.1)
    method = run.method
    method.begin(run.scope)
    assert torch.equal(method.proxies.weight.view(C, M, D), run.drawn[0])
    before: list[dict[str, Any]] = []
    number, steps = 1, 0
    for now, (event, best) in enumerate(events):
        run.steps(1 + now % 2)
        steps += 1 + now % 2
        assert (int(method.problem), int(method.steps)) == (number, steps)
        before.append(run.state())
        pools = len(run.drawn)
        method.after_validation(scores[now], run.scope)
        after = run.state()
        assert same(after["network"], before[best]["network"])
        assert same(after["moments"], before[best]["moments"])
        if event != "next":
            assert same(after, before[best])
            assert len(run.drawn) == pools and bool(run.stops) == (event == "stop")
            assert run.method.proxies.weight in run.optimizer.state
            continue
        assert not run.stops
        number, steps = number + 1, 0
        assert run.method.proxies.weight not in run.optimizer.state
        assert same(list(method.anchor.buffers()), [parameter.data for parameter in run.network.parameters()])
        (pool,) = run.drawn[pools:]
        old = before[best]["proxies"].view(C, M, D)
        chosen = [reference_k_center(pool[c].tolist(), old[c].tolist(), M) for c in range(C)]
        assert torch.equal(after["proxies"].view(C, M, D), torch.stack([pool[c][chosen[c]] for c in range(C)]))
    assert problems is None or events[-1][0] == "stop"


def test_random_first_proxies_stay_as_they_were_drawn() -> None:
    run = Run(patience=1, first_proxies="random", proxies_per_class=M)
    before = run.method.proxies.weight.detach().clone()
    run.method.begin(run.scope)
    assert torch.equal(run.method.proxies.weight, before) and not run.drawn
    for score in (0.5, 0.4):
        run.steps(1)
        run.method.after_validation(score, run.scope)
    assert len(run.drawn) == 1, "the next ones are chosen among embeddings"


def test_the_cases_of_algorithm_1_are_all_met() -> None:
    """By hand: an equal score is no improvement, a new problem begins without a best, and all problems count."""
    scores = [0.5, 0.6, 0.6, 0.1, 0.2, 0.3, 0.3, 0.2, 0.1]
    assert algorithm(scores, 2, 60, None) == [
        ("go on", 0),
        ("go on", 1),
        ("go on", 2),
        ("next", 1),
        ("go on", 4),
        ("go on", 5),
        ("go on", 6),
        ("next", 5),
        ("go on", 8),
    ]
    assert algorithm(scores, 2, 4, None)[4:] == [("go on", 4), ("stop", 5)]
    assert algorithm(scores, 2, 60, 1)[3:] == [("stop", 1)]
    assert algorithm(scores, 2, 60, 2)[7:] == [("stop", 5)]


@pytest.mark.parametrize(("pool_size", "size"), [(1, 4), (3, 12), (4, 4), (7, 7)])
def test_a_pool_is_never_smaller_than_the_proxies_it_gives(pool_size: int, size: int) -> None:
    run = Run(patience=1, pool_size=pool_size, proxies_per_class=4)
    run.method.begin(run.scope)
    for score in (0.5, 0.4):
        run.steps(1)
        run.method.after_validation(score, run.scope)
    assert [pool.shape[1] for pool in run.drawn] == [4, size]


@pytest.mark.parametrize(("optimizer", "fused"), [("adam", True), *((optimizer, False) for optimizer in OPTIMIZERS)])
def test_moments_that_are_put_back_train_on_the_same(optimizer: str, fused: bool) -> None:
    run = Run(optimizer=optimizer, fused=fused)
    (network,) = run.method._network
    parameters = list(network.parameters())
    assert all((moment == 0).all() for moment in run.scope.moments(parameters))
    run.scope.set_moments(parameters, run.scope.moments(parameters))  # steps of zero: as if there was none
    untouched = Run(optimizer=optimizer, fused=fused)
    for each in (run, untouched):
        each.steps(2)
    assert same(run.state(), untouched.state())
    kept, weights_then = run.scope.moments(parameters), [parameter.data.clone() for parameter in parameters]
    run.noise.manual_seed(5)
    run.steps(2)
    first = run.state()
    with torch.no_grad():
        for parameter, weight in zip(parameters, weights_then, strict=True):
            parameter.copy_(weight)
    run.scope.set_moments(parameters, kept)
    run.noise.manual_seed(5)
    run.steps(2)
    assert same(run.state()["moments"], first["moments"])
    assert all(same(run.state()["network"][name], first["network"][name]) for name in ("0.weight", "0.bias", "1.bias"))


def test_diagnostics_measure_the_covering_of_what_was_trained_on() -> None:
    run = Run()
    run.steps(3)
    run.method.problem.fill_(2)
    z, held_out = shortened(drawn(8, D, seed=6)), shortened(drawn(8, D, seed=7))
    seen = [Embedded({"embedding": rows}, LABELS, torch.arange(8)) for rows in (z, held_out)]
    found = run.method.diagnostics(*seen).scalars
    proxies = shortened(run.method.proxies.weight.detach()).view(C, M, D)
    radii = [reference_covering_radius(z[c == LABELS].tolist(), proxies[c].tolist()) for c in range(C)]
    assert found["covering_radius"] == pytest.approx(sum(radii) / C)
    pairs = [float((own[a] - own[b]).norm()) for own in proxies.double() for a in range(M) for b in range(M) if a != b]
    assert found["proxy_spread"] == pytest.approx(sum(pairs) / len(pairs))
    assert found["mean_covering_radius"] == mean_covering_radius(held_out, LABELS) > 0
    assert (found["problem"], found["problem_steps"]) == (2, 3)
    assert run.method.diagnostics(None, seen[1]).scalars.keys() == {"mean_covering_radius"}
    assert run.method.diagnostics(None, None).scalars == {}


# In the loop -----------------------------------------------------------------------------------------------

SHORT: dict[str, Any] = {
    "method": "ccp",
    "patience": 1,
    "proximal_weight": 0.1,
    "proxies_per_class": 2,
    "pool_size": 4,
    "validate_every": "1 step",
    "lr": 0.01,
}


def problems(validations: list[Any]) -> list[int]:
    return [int(metrics["diagnostics/problem"]) for _, _, _, metrics, _ in validations]


@pytest.mark.slow
def test_problems_are_the_same_on_one_process_and_two(data_folder: Path, tmp_path: Path, pair: Pair) -> None:
    one = train(tmp_path / "one", data_folder, SHORT, stop_after=8)
    two = pair.run(train, tmp_path / "two", data_folder, SHORT, 8)
    assert problems(one)[-1] > 2
    assert two[0] == two[1]
    for ours, theirs in zip(one, two[0], strict=True):
        assert ours[3] == pytest.approx(theirs[3], abs=1e-9, rel=1e-12)
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in first:
        assert torch.allclose(first[name], second[name], rtol=0, atol=1e-10), name


def test_a_training_goes_on_from_anywhere_in_a_problem(data_folder: Path, tmp_path: Path) -> None:
    settings = SHORT | {"precision": "float32", "patience": 2, "lr": 0.03}
    whole = train(tmp_path / "whole", data_folder, settings, stop_after=7)
    renewed = problems(whole).index(2)
    assert 2 < renewed < 5
    last = weights(tmp_path / "whole")
    for take in (renewed - 1, renewed, renewed + 1):  # right before, right after new proxies were drawn, and later
        folder = tmp_path / str(take)
        assert train(folder, data_folder, settings, stop_after=7, take=take) == whole[:take]
        assert train(folder, data_folder, settings, stop_after=7) == whole
        assert same(weights(folder), last)


def test_a_single_problem_ends_the_training_on_its_best(data_folder: Path, tmp_path: Path) -> None:
    validations = train(tmp_path, data_folder, SHORT | {"problems": 1}, stop_after=20)
    assert problems(validations) == [1] * len(validations)
    assert 1 < len(validations) < 20 and validations[-1][4]
    scores = [metrics["val/map_at_r"] for _, _, _, metrics, _ in validations]
    assert scores[-1] <= max(scores[:-1])
    best = load_checkpoint(tmp_path / BEST)["learner"]
    here = weights(tmp_path)
    assert all(torch.equal(here[name], best[name]) for name in here if name.startswith("network."))
    assert torch.equal(here["method.proxies.weight"], best["method.proxies.weight"])


def test_the_first_proxies_are_raw_embeddings_of_samples_of_their_classes(
    data_folder: Path, tmp_path: Path, glyphs: Store
) -> None:
    train(tmp_path, data_folder, SHORT | {"lr": 1e-12}, stop_after=1)
    learner, _ = load_learner(tmp_path / CHECKPOINT, glyphs)
    rows = class_split(glyphs, validation_share=0.3, seed=0).train
    labels = torch.from_numpy(train_labels(glyphs, rows))
    with torch.no_grad():
        embeddings = learner.network(augment(glyphs.images(rows), rows, recipe="none", seed=0, epoch=0).double())
    assert isinstance(learner.method, CCP)
    for proxy, label in zip(learner.method.proxies.weight, learner.method.proxies.labels, strict=True):
        distance = (embeddings["embedding"] - proxy).norm(dim=1)
        assert distance[labels == label].min() < 1e-6 * distance.max()


def test_runs_over_samples_have_the_covering_radius_too() -> None:
    """Figure 2 of the supplement compares them with CCP's."""
    task = Task(5, D, 0, batch_size=8)
    generator = torch.Generator().manual_seed(0)
    z = torch.nn.functional.normalize(torch.randn(30, D, generator=generator, dtype=torch.float64), dim=1)
    held_out = Embedded({"embedding": z}, torch.arange(30) % 5, torch.arange(30))
    expected = mean_covering_radius(z, held_out.labels)
    for method, settings in ((Contrastive, {}), (Triplet, {}), (ProxyAnchor, {}), (CCP, {"objective": "contrastive"})):
        found = method(method.Config(**settings), task).diagnostics(None, held_out).scalars  # type: ignore[arg-type]
        assert found["mean_covering_radius"] == pytest.approx(expected)


UNDER_MLRC = [
    name
    for name, preset in presets().items()
    if preset.settings.get("protocol") == "mlrc" and not name.startswith("pfml/")
]


@pytest.mark.parametrize("name", UNDER_MLRC)
def test_the_batch_sizes_of_the_supplement_are_a_grid_for_all_that_it_compares(name: str) -> None:
    path, preset = find_search("ccp_batch_size"), find_preset(name)
    of_classes = preset.settings["method"] in ("proxy_anchor", "proxy_nca_plus_plus", "soft_triple")
    assert preset.settings["images_per_class"] == (1 if of_classes else 4)
    more = {"images_per_class": 4} if of_classes else {}
    found = resolve_search(read_yaml(path), name="x", source=path.name, preset=preset, overrides=more, seeds=5)
    trained = [found.experiment(point) for point in found.space.grid()]
    assert [one.training.batch_size for one in trained] == [16, 32, 64, 128] * 5
    stated = {key: value for key, value in (preset.settings | more).items() if key not in ("classes_per_batch", "seed")}
    expected = stated | {"selection_metric": None}  # a search chooses by its objective
    for number, one in enumerate(trained):
        flat = one.flat()
        assert {key: flat[key] for key in expected} == expected and flat["seed"] == number // 4
