"""IDML's metrics against slow float64 loops, written from the formulas; their limits and errors; then the method."""

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from scipy.special import ive
from support import references as slow
from torch import Generator, Tensor, nn

import methods.idml
from methods import objectives
from methods.idml import (
    IDML,
    introspective_distance,
    introspective_retrieval,
    introspective_similarity,
    relative_agreement,
    von_mises_fisher,
)
from methods.objectives import contrastive, euclidean_distance, pair_masks
from methods.uncertainty import gradient_weight
from orchestrator.data.samplers import rank_rows
from orchestrator.evaluation.metrics import evaluate_embeddings
from orchestrator.method import Batch, Embedded, InputError, Outputs, Task, unit


def reference_relative_uncertainty(s_q, u_q, s_r, u_r, gamma: float, norm: str) -> tuple[Tensor, Tensor]:
    a = (s_q - s_r).square().sum().sqrt()
    b = (u_q + u_r).square().sum().sqrt()
    if norm == "separate":
        b = u_q.square().sum().sqrt() + u_r.square().sum().sqrt()
    return a, (b + gamma) / a


def reference_matrix(kind: str, s_q, u_q, s_r, u_r, tau, gamma, norm) -> Tensor:
    rows = []
    for q in range(len(s_q)):
        row = []
        for r in range(len(s_r)):
            cosine = s_q[q] @ s_r[r] / s_q[q].square().sum().sqrt() / s_r[r].square().sum().sqrt()
            if torch.equal(s_q[q], s_r[r]):
                row.append(torch.zeros_like(cosine) if kind == "distance" else cosine)
                continue
            a, t = reference_relative_uncertainty(s_q[q], u_q[q], s_r[r], u_r[r], gamma, norm)
            certainty = (-t / tau).exp()
            row.append(
                {"distance": a * certainty, "sim": 1 - (1 - cosine) * certainty, "dis": cosine * certainty}[kind]
            )
        rows.append(torch.stack(row))
    return torch.stack(rows)


def drawn(seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """s and u of 5 queries and 4 references; two pairs share their semantic embedding."""
    generator = torch.Generator().manual_seed(seed)
    s_q, u_q, s_r, u_r = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((5, 6), (5, 3), (4, 6), (4, 3))
    )
    s_q, s_r = (torch.nn.functional.normalize(s, dim=1) for s in (s_q, s_r))
    s_r[1] = s_q[2]
    s_r[3] = s_q[0]
    return [x.to(dtype).requires_grad_() for x in (s_q, u_q, s_r, u_r)]


def gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def fast(kind, inputs, **kw) -> Tensor:
    if kind == "distance":
        return introspective_distance(*inputs, **kw)
    return introspective_similarity(*inputs, form=kind, **kw)


@pytest.mark.parametrize("norm", ["sum", "separate"])
@pytest.mark.parametrize(("tau", "gamma"), [(5, 0), (1, 2), (9, 0.5)])
@pytest.mark.parametrize("kind", ["distance", "sim", "dis"])
def test_matrices_and_gradients_agree_with_the_loops(kind, tau, gamma, norm):
    inputs = drawn(0)
    weights = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = fast(kind, inputs, tau=tau, gamma=gamma, norm=norm)
    s_q, u_q, s_r, u_r = inputs
    expected = reference_matrix(kind, s_q, u_q, s_r, u_r, tau, gamma, norm)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    for x, y in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


def test_equal_semantics_give_zero_distance_without_gradient_and_the_cosine():
    s, u = torch.tensor([[0.6, 0.8]]), torch.tensor([[3.0, 4.0]])
    inputs = [x.clone().requires_grad_() for x in (s, u, s, u)]
    distance = introspective_distance(*inputs, tau=5, gamma=2)
    distance.sum().backward()
    assert distance.item() == 0
    assert all(not gradient(x).any() for x in inputs)
    for form in ("sim", "dis"):
        assert introspective_similarity(s, u, s, u, tau=5, gamma=2, form=form).item() == pytest.approx(1)


def test_a_proxy_without_uncertainty_leaves_the_norm_of_the_sample():
    s_q, _, s_r, _ = drawn(0)
    u_q = torch.full((5, 4), 3.0, dtype=torch.float64)
    found = introspective_distance(s_q, u_q, s_r, torch.zeros(4, 4, dtype=torch.float64), tau=5, gamma=0)
    a = torch.cdist(s_q, s_r)
    expected = torch.where(a > 0, a * torch.exp(-6 / (5 * a)), 0)
    torch.testing.assert_close(found, expected)


def test_without_uncertainty_the_metrics_are_the_plain_ones():
    s_q, _, s_r, _ = drawn(0)
    zeros = torch.zeros(5, 2, dtype=torch.float64), torch.zeros(4, 2, dtype=torch.float64)
    distance = introspective_distance(s_q, zeros[0], s_r, zeros[1], tau=5, gamma=0)
    torch.testing.assert_close(distance, torch.cdist(s_q, s_r))
    torch.testing.assert_close(introspective_similarity(s_q, zeros[0], s_r, zeros[1], tau=5, gamma=0), s_q @ s_r.T)
    distance.sum().backward()
    assert torch.isfinite(gradient(s_q)).all()


@pytest.mark.parametrize("kind", ["distance", "sim", "dis"])
@pytest.mark.parametrize("gap", [0.0, 1e-38, 1e-20, 1e-12, 1e-6, 1e-3])
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e-6, 7.0, 1e4])
def test_float32_stays_finite_in_value_and_gradient(kind, gap, size):
    inputs = [
        torch.tensor(x, dtype=torch.float32).requires_grad_()
        for x in ([[0.0, 1.0]], [[size, 0.0]], [[gap, 1.0]], [[size, 0.0]])
    ]
    matrix = fast(kind, inputs, tau=5, gamma=0)
    matrix.sum().backward()
    assert torch.isfinite(matrix).all()
    assert all(torch.isfinite(gradient(x)).all() for x in inputs)


def test_float32_bfloat16_and_autocast_agree_with_float64():
    exact = introspective_distance(*drawn(0), tau=5, gamma=0)
    single = introspective_distance(*drawn(0, torch.float32), tau=5, gamma=0)
    torch.testing.assert_close(single.double(), exact, rtol=1e-5, atol=1e-6)
    for kind in ("distance", "sim", "dis"):
        half = drawn(0, torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = fast(kind, half, tau=5, gamma=0)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, fast(kind, [x.float() for x in half], tau=5, gamma=0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tau": 0}, "tau must be a positive number, got 0"),
        ({"gamma": -1}, "gamma must be at least 0, got -1"),
        ({"norm": "both"}, "norm must be 'sum' or 'separate', got 'both'"),
        ({"form": "similarity"}, "form must be 'sim' or 'dis', got 'similarity'"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        introspective_similarity(*drawn(0), **({"tau": 5, "gamma": 0} | change))


def reference_relative_agreement(first, second, anchors, neighbours):
    def cosine(x, y):
        return sum(a * b for a, b in zip(x, y, strict=True)) / math.hypot(*x) / math.hypot(*y)

    x, y = ([[cosine(z, space[a]) for a in anchors] for z in space] for space in (first, second))
    jaccard, reciprocal, cosines = 0.0, 0.0, 0.0
    items = range(len(x))
    for i in items:
        near_x = set(sorted(items, key=lambda j: -cosine(x[i], x[j]))[:neighbours])
        near_y = set(sorted(items, key=lambda j: -cosine(y[i], y[j]))[:neighbours])
        jaccard += len(near_x & near_y) / len(near_x | near_y)
        ranking = sorted(items, key=lambda j: -cosine(x[i], y[j]))
        rank = ranking.index(i) + 1
        reciprocal += 1 / rank if rank <= neighbours else 0
        cosines += cosine(x[i], y[i])
    return {"jaccard": jaccard / 12, "mean_reciprocal_rank": reciprocal / 12, "cosine": cosines / 12}


def test_relative_agreement_agrees_with_the_loops():
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(12, d, generator=generator, dtype=torch.float64) for d in (5, 3))
    anchors = torch.tensor([0, 3, 4, 7, 9, 11])
    found = relative_agreement(first, second, anchors, neighbours=4)
    assert found == pytest.approx(
        reference_relative_agreement(first.tolist(), second.tolist(), anchors.tolist(), 4), rel=1e-9
    )
    same = relative_agreement(first, 3 * first, anchors, neighbours=4)
    assert same == pytest.approx({"jaccard": 1, "mean_reciprocal_rank": 1, "cosine": 1})


# The method ------------------------------------------------------------------------------------------------

D, E, F, C = 6, 3, 5, 4
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


class Bench:
    """An IDML over a linear network whose images are vectors; it keeps what the network saw."""

    def __init__(self, seed: int = 0, **settings: Any) -> None:
        torch.manual_seed(seed)
        config = IDML.Config(**{"uncertainty_dim": E} | settings)
        self.method = IDML(config, Task(C, D, F)).double()
        self.weights = {"embedding": torch.randn(F, D), "uncertainty": torch.randn(F, E)}
        if config.random_uncertainty:
            del self.weights["uncertainty"]
        self.weights = {name: weight.double().requires_grad_() for name, weight in self.weights.items()}
        self.images = torch.randn(len(LABELS), F, dtype=torch.float64)
        self.seen: list[Tensor] = []

    def network(self, images: Tensor) -> Outputs:
        self.seen.append(images)
        outputs = {name: images @ weight for name, weight in self.weights.items()}
        return outputs | {"embedding": nn.functional.normalize(outputs["embedding"], dim=1)}

    def step(self, rng: Generator | None = None) -> dict[str, Tensor]:
        self.seen.clear()
        samples = torch.arange(len(LABELS))
        return self.method.step(
            Batch(self.images, LABELS[:, None], samples), self.network, rng or Generator().manual_seed(3)
        )

    def leaves(self) -> list[Tensor]:
        return [*self.weights.values(), *self.method.parameters()]

    def mixture(self) -> tuple[float, list[int]]:
        """lam and the partners, found in the mixed images: x_m - x_2 = lam (x_1 - x_2)."""
        originals, mixed = self.seen
        shares, partners = [], []
        for i, x_m in enumerate(mixed):
            fits = [i] if torch.allclose(x_m, originals[i], atol=1e-10) else []
            for j, x in enumerate(originals):
                along = originals[i] - x
                if j != i and not fits:
                    share = ((x_m - x) @ along / (along @ along)).item()
                    if torch.allclose(x_m - x, share * along, atol=1e-10):
                        fits.append(j)
                        shares.append(share)
            assert len(fits) == 1
            partners += fits
        assert max(shares, default=0) - min(shares, default=0) < 1e-6, "one lam per batch"
        return shares[0] if shares else 1.0, partners

    def slowly(self, runs: list[int], sets: list[set[int]], kind: str, tau: float, gamma: float, norm: str) -> Any:
        """Matrix and masks of these runs of the network against themselves, or against the proxies."""
        outputs = [self.network(self.seen[run]) for run in runs]
        s, u = (torch.cat([run[name] for run in outputs]) for name in ("embedding", "uncertainty"))
        if self.method.base.config.references == "batch":
            matrix = reference_matrix(kind, s, u, s, u, tau, gamma, norm)
            return matrix, *slow.masks(sets, sets, same=True)
        proxies = self.method.base.proxies()
        matrix = reference_matrix(kind, s, u, proxies, torch.zeros(len(proxies), E).double(), tau, gamma, norm)
        theirs = [{int(label)} for label in self.method.base.proxies.labels]
        return matrix, *slow.masks(sets, theirs, same=False)


def merging(bench: Bench) -> Tensor:
    loss: Tensor = slow.centre_merging(bench.method.base.proxies(), 10)
    return loss


# settings, what the matrix holds, and what is made of the matrix, by the papers' defaults
CASES: list[tuple[dict[str, Any], str, Any]] = [
    ({"objective": "contrastive"}, "distance", lambda d, p, n, _: slow.contrastive(d, p, n, 0.0, 0.5, "nonzero")),
    ({"objective": "triplet", "norm": "separate"}, "distance", lambda d, p, n, _: slow.triplet(d, p, n, 0.1)),
    ({"objective": "fast_ap"}, "distance", lambda d, p, n, _: slow.fast_ap(d, p, n, 10)),
    ({"objective": "proxy_nca"}, "distance", lambda d, p, n, _: slow.proxy_nca(d, p, n, 1.0, False)),
    (
        {"objective": "proxy_nca", "metric": "squared_euclidean"},
        "distance",
        lambda d, p, n, _: slow.proxy_nca(d**2, p, n, 1.0, False),
    ),
    ({"objective": "proxy_nca_plus_plus"}, "sim", lambda c, p, n, _: slow.proxy_nca(1 - c, p, n, 10.0, True)),
    ({"objective": "multi_similarity"}, "sim", lambda c, p, n, _: slow.multi_similarity(c, p, n, 2.0, 50.0, 0.5, 0.1)),
    (
        {"objective": "multi_similarity", "metric": "euclidean"},
        "distance",
        lambda d, p, n, _: slow.multi_similarity(-d, p, n, 2.0, 50.0, 0.5, 0.1),
    ),
    ({"objective": "proxy_anchor", "gamma": 2.0}, "sim", lambda c, p, n, _: slow.proxy_anchor(c, p, n, 32.0, 0.1)),
    ({"objective": "proxy_anchor", "form": "dis"}, "dis", lambda c, p, n, _: slow.proxy_anchor(c, p, n, 32.0, 0.1)),
    ({"objective": "normalized_softmax"}, "sim", lambda c, p, n, _: slow.normalized_softmax(c, p, n, 0.05)),
    (
        {"objective": "soft_triple", "tau": 2.0, "gamma": 1.0},
        "sim",
        lambda c, p, n, bench: slow.soft_triple(c, p, n, 10, 20.0, 0.1, 0.01) + 0.2 * merging(bench),
    ),
]


def agree(found: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    gradients = (torch.autograd.grad(value, leaves) for value in (found, expected))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize("mixup", [False, True])
@pytest.mark.parametrize(("settings", "kind", "objective"), CASES)
def test_the_loss_is_the_objective_over_the_introspective_matrix(settings, kind, objective, mixup):
    bench = Bench(**settings, mixup=mixup)
    (found,) = bench.step().values()
    sets = [{int(label)} for label in LABELS]
    if mixup:
        _, partners = bench.mixture()
        sets += [{int(LABELS[i]), int(LABELS[j])} for i, j in enumerate(partners)]
    runs = [0, 1] if mixup else [0]
    how = (settings.get("tau", 5.0), settings.get("gamma", 0.0), settings.get("norm", "sum"))
    agree(found, objective(*bench.slowly(runs, sets, kind, *how), bench), bench.leaves())


@pytest.mark.parametrize(("settings", "kind", "objective"), [CASES[0], CASES[3], CASES[8]])
def test_the_released_form_weighs_the_two_labels_of_mixed_images(settings, kind, objective):
    bench = Bench(**settings, mixup_loss="released", mixup_alpha=3.0)
    terms = bench.step()
    share, partners = bench.mixture()
    own, theirs = ([{int(label)} for label in labels] for labels in (LABELS, LABELS[partners]))
    gamma = settings.get("gamma", 0.0)
    parts = [
        objective(*bench.slowly(runs, sets, kind, 5.0, gamma, "sum"), bench)
        for runs, sets in (([0], own), ([1], own), ([1], theirs))
    ]
    assert terms["originals"].item() == pytest.approx(parts[0].item(), rel=1e-10)
    agree(sum(terms.values(), torch.zeros(())), parts[0] + share * parts[1] + (1 - share) * parts[2], bench.leaves())


def test_margin_draws_its_negatives_by_the_introspective_distance():
    bench = Bench(objective="margin", mixup=False, learn_beta="one")
    found = bench.step()["loss"]
    sets = [{int(label)} for label in LABELS]
    matrix, positive, negative = bench.slowly([0], sets, "distance", 5.0, 0.0, "sum")
    beta = bench.method.base.beta
    assert isinstance(beta, Tensor)
    expected = objectives.margin(matrix, positive, negative, dim=D, beta=beta, generator=Generator().manual_seed(3))
    agree(found, expected, bench.leaves())


def test_mixup_stays_inside_its_blocks_and_draws_anew():
    bench, rng = Bench(), Generator().manual_seed(0)
    shares, permutations = [], []
    for _ in range(60):
        bench.step(rng)
        share, partners = bench.mixture()
        shares.append(share)
        permutations.append(tuple(partners[:4]))
        assert sorted(partners[:4]) == [0, 1, 2, 3]
        assert partners[4:] == [4 + partner for partner in partners[:4]]
    assert 0 <= min(shares) < 0.2 and 0.8 < max(shares) <= 1
    assert sum(shares) / 60 == pytest.approx(0.5, abs=0.12)
    assert len(set(permutations)) > 12, "of the 24 there are"


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_mixed_images_do_not_depend_on_how_the_batch_is_shared_out(workers):
    whole = Bench(mixup_blocks=4)
    whole.step()
    for rank in range(workers):
        rows = rank_rows(len(LABELS), rank, workers, whole.method.batch_parts)
        mine = whole.images[rows]
        seen: list[Tensor] = []

        def network(images, seen=seen):
            seen.append(images)
            return whole.network(whole.images)

        batch = Batch(mine, LABELS[:, None], torch.arange(8))
        whole.method.step(batch, network, Generator().manual_seed(3))
        assert torch.equal(seen[1], whole.seen[1][rows])


def test_batches_that_cannot_be_cut_are_refused():
    with pytest.raises(ValueError, match="batch of 8 images cannot be cut into mixup_blocks=3"):
        Bench(mixup_blocks=3).step()
    bench = Bench(mixup_blocks=2)
    with pytest.raises(ValueError, match="worker's 2 of 8 images are not whole blocks of 4: .*=2"):
        bench.method.step(Batch(bench.images[:2], LABELS[:, None], LABELS), bench.network, Generator())


def test_a_drawn_uncertainty_repeats_with_the_generator_and_is_on_the_sphere():
    def value(seed: int, **settings: Any) -> float:
        bench = Bench(objective="contrastive", random_uncertainty=True, mixup=False, **settings)
        assert not bench.method.heads()
        return bench.step(Generator().manual_seed(seed))["loss"].item()

    assert value(0) == value(0) != value(1)
    bench = Bench(random_uncertainty=True)
    completed = bench.method._complete(bench.network(bench.images), Generator().manual_seed(0))
    norms = completed["uncertainty"].square().sum(1)
    torch.testing.assert_close(norms, torch.ones(8, dtype=torch.float64))
    assert completed["uncertainty"].shape == (8, D)


@pytest.mark.parametrize(("dim", "concentration"), [(3, 4.0), (8, 8.0), (512, 512.0), (5, 0.0)])
def test_what_is_drawn_lies_around_each_embedding_as_a_von_mises_fisher_does(dim, concentration):
    """The mean of mean . x is I_{D/2}(k) / I_{D/2-1}(k); around the mean no direction is preferred."""
    count = 4000
    means = nn.functional.normalize(
        torch.randn(4, dim, generator=Generator().manual_seed(1), dtype=torch.float64), dim=1
    )
    means[3] = torch.eye(dim)[0]  # the pole itself
    drawn = von_mises_fisher(means.repeat_interleave(count, 0), concentration, Generator().manual_seed(0))
    drawn = drawn.view(4, count, dim)
    torch.testing.assert_close(drawn.square().sum(2), torch.ones(4, count, dtype=torch.float64))
    along = (drawn * means[:, None]).sum(2)
    expected = ive(dim / 2, concentration) / ive(dim / 2 - 1, concentration) if concentration else 0.0
    assert (along.mean(1) - expected).abs().max() < 5 / math.sqrt(dim * count)
    across = drawn - along[:, :, None] * means[:, None]
    assert across.mean(1).abs().max() < 5 / math.sqrt(dim * count)


def test_a_distribution_around_nothing_is_refused():
    with pytest.raises(ValueError, match="needs a concentration of at least 0 and 2 dimensions, got 1 and 1"):
        von_mises_fisher(torch.ones(2, 1), 1.0, Generator())
    task = Task(C, D, F, batch_size=8)
    with pytest.raises(InputError, match="uncertainty_dim: 2: what is drawn around the embeddings has their size"):
        IDML(IDML.Config(random_uncertainty=True, uncertainty_dim=2), task)


def test_the_margins_of_equation_9_are_not_learned():
    method = Bench(objective="margin").method
    assert not list(method.base.parameters())
    assert IDML.Config(objective="margin").model_dump()["phi_form"] == "printed"


@pytest.mark.parametrize("name", sorted(IDML.Config.bases))
def test_every_objective_trains_and_its_parameters_keep_their_learning_rate(name):
    bench = Bench(objective=name)
    groups = bench.method.parameter_groups(0.01)
    assert [id(p) for group in groups for p in group["params"]] == [id(p) for p in bench.method.parameters()]
    multiplier = bench.method.config.base_config().proxy_lr_multiplier
    assert all(group["lr"] == pytest.approx(0.01 * multiplier) for group in groups)
    sum(bench.step().values(), torch.zeros(())).backward()
    assert all(leaf.grad is not None and torch.isfinite(leaf.grad).all() for leaf in bench.leaves())
    assert gradient(bench.weights["uncertainty"]).abs().sum() > 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"references": "memory"}, "references: 'memory': IDML compares with the batch or with proxies"),
        ({"objective": "contrastive", "references": "batch+memory"}, r"references: 'batch\+memory': IDML compares"),
        ({"memory_size": 3}, "Extra inputs"),
        ({"objective": "triplet", "form": "dis"}, "form: 'dis': is a form of the cosine, but triplet has metric=eucli"),
        ({"introspective_test": True, "random_uncertainty": True}, "introspective_test: a drawn uncertainty"),
        ({"objective": "arcface"}, "'proxy_anchor', 'multi_similarity'"),
        ({"objective": "fast_ap", "metric": "cosine"}, "metric: 'cosine'"),
        ({"objective": "triplet", "epsilon": 0.1}, "epsilon: triplet has no such hyperparameter"),
        ({"tau": 0.0}, "greater than 0"),
        ({"mixup_blocks": 0}, "greater than or equal to 1"),
    ],
)
def test_bad_settings_are_refused(given, says):
    with pytest.raises(ValidationError, match=says):
        IDML.Config(**given)


# Diagnostics -----------------------------------------------------------------------------------------------


def embedded(count: int, seed: int = 0) -> Embedded:
    generator = torch.Generator().manual_seed(seed)
    s, u = (torch.randn(count, size, generator=generator, dtype=torch.float64) for size in (D, E))
    labels = torch.arange(count) % 5
    return Embedded(
        {"embedding": nn.functional.normalize(s, dim=1), "uncertainty": u}, labels, 100 + torch.arange(count)
    )


def test_diagnostics_tell_the_window_since_the_last_ones():
    bench, rng = Bench(objective="contrastive"), Generator().manual_seed(0)
    gradients, levels = [], []
    for _ in range(3):
        runs: list[Outputs] = []

        def network(images, runs=runs):
            runs.append(bench.network(images))
            return runs[-1]

        terms = bench.method.step(Batch(bench.images, LABELS[:, None], LABELS), network, rng)
        for run in runs:
            run["embedding"].retain_grad()
        (1000 * terms["loss"]).backward()  # as fp16 scales it
        rows = torch.cat([gradient(run["embedding"]) for run in runs])
        gradients.append(sum(math.hypot(*row) for row in rows.tolist()) / 16000)
        levels.append(sum(math.hypot(*row) for row in runs[1]["uncertainty"].tolist()) / 8)
    trained, held_out = embedded(30), embedded(20, seed=1)
    found = bench.method.diagnostics(trained, held_out)
    assert found.scalars["gradient_norm"] == pytest.approx(sum(gradients) / 3)
    assert found.scalars["uncertainty_mixed"] == pytest.approx(sum(levels) / 3)
    own = [math.hypot(*row) for row in held_out.outputs["uncertainty"].tolist()]
    assert found.scalars["uncertainty_held_out"] == pytest.approx(sum(own) / 20)
    assert found.tables["uncertainty"]["uncertainty"] == pytest.approx(own)
    assert found.tables["uncertainty"]["sample"] == list(range(100, 120))
    assert found.tables["uncertainty"]["label"] == [0, 1, 2, 3, 4] * 4
    anchors = torch.arange(20)  # fewer than a hundred: all of them, in any order
    expected = relative_agreement(held_out.outputs["embedding"], held_out.outputs["uncertainty"], anchors)
    for name, value in expected.items():
        assert found.scalars[f"agreement_held_out_{name}"] == pytest.approx(value)
        assert f"agreement_trained_{name}" in found.scalars
    again = bench.method.diagnostics(trained, held_out).scalars
    assert "gradient_norm" not in again and "uncertainty_mixed" not in again, "the window is over"
    assert again["uncertainty_trained"] == found.scalars["uncertainty_trained"]
    assert set(Bench(random_uncertainty=True).method.diagnostics(None, held_out).scalars) == set()


def slow_weight(a: float, b: float, tau: float, gamma: float) -> float:
    """dD/da of D = a exp(-(b + gamma) / (a tau)), by central differences."""

    def distance(at: float) -> float:
        return at * math.exp(-(b + gamma) / (at * tau))

    step = 1e-6 * a
    return (distance(a + step) - distance(a - step)) / (2 * step)


def test_the_weight_of_a_gradient_is_the_slope_of_the_distance():
    a, b = torch.rand(40, dtype=torch.float64) + 0.05, 9 * torch.rand(40, dtype=torch.float64)
    for tau, gamma in ((5.0, 0.0), (1.0, 2.0)):
        found = gradient_weight(a, b, tau=tau, gamma=gamma).tolist()
        expected = [slow_weight(x, y, tau, gamma) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-9)
    edges = gradient_weight(torch.tensor([0.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 0.0]))
    assert edges.tolist() == [0, 1, 1]
    with pytest.raises(ValueError, match="tau must be positive"):
        gradient_weight(a, b, tau=0)


def test_weights_of_a_run_s_pairs_lie_on_the_curve_of_figure_6():
    held_out = embedded(20, seed=1)
    method = Bench(tau=3, gamma=0.5).method
    found = method.diagnostics(None, held_out)
    table = found.tables["gradient_weights_held_out"]
    assert sum(n for axis, n in zip(table["axis"], table["pairs"], strict=True) if axis == "uncertainty") == 190
    s, u = held_out.outputs["embedding"].tolist(), held_out.outputs["uncertainty"].tolist()
    pairs = [
        (math.dist(s[i], s[j]), math.hypot(*(x + y for x, y in zip(u[i], u[j], strict=True))))
        for i in range(20)
        for j in range(i)
    ]
    weights = [slow_weight(a, b, 3, 0.5) for a, b in pairs]
    assert found.scalars["gradient_weight_held_out"] == pytest.approx(sum(weights) / 190, rel=1e-5)
    alone = method.diagnostics(None, embedded(1))
    assert "gradient_weight_held_out" not in alone.scalars and alone.tables["gradient_weights_held_out"]["pairs"] == []
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    for row in (row for row in rows if row["axis"] == "relative_uncertainty"):
        own = [
            w
            for w, (a, b) in zip(weights, pairs, strict=True)
            if row["low"] - 1e-9 < (b + 0.5) / a < row["high"] + 1e-9
        ]
        assert (len(own), row["weight"]) == (row["pairs"], pytest.approx(sum(own) / len(own), rel=1e-5))
    falling = [row["weight"] for row in rows if row["axis"] == "relative_uncertainty"]
    assert falling == sorted(falling, reverse=True)


def test_certain_pairs_of_uncertain_images_are_those_of_figure_8():
    held_out = embedded(20, seed=1)
    table = Bench().method.diagnostics(None, held_out).tables["certain_pairs"]
    u = dict(zip(held_out.samples.tolist(), held_out.outputs["uncertainty"].tolist(), strict=True))
    middle = sorted(math.hypot(*row) for row in u.values())[9]  # torch's median is the lower one
    high = [sample for sample, row in u.items() if math.hypot(*row) > middle]
    levels = {
        frozenset((x, y)): math.hypot(*(p + q for p, q in zip(u[x], u[y], strict=True)))
        for place, x in enumerate(high)
        for y in high[:place]
    }
    told = [frozenset(pair) for pair in zip(table["sample_1"], table["sample_2"], strict=True)]
    assert told == sorted(levels, key=levels.__getitem__)[:50]
    assert table["uncertainty"] == pytest.approx([levels[pair] for pair in told])
    assert table["level_1"] == pytest.approx([math.hypot(*u[sample]) for sample in table["sample_1"]])


def test_the_baseline_of_figure_10_is_the_base_objective():
    """`tau` without end and no Mixup: the loss and the gradient on s are the objective's own."""
    bench = Bench(objective="contrastive", tau=1e9, mixup=False)
    runs: list[Outputs] = []

    def network(images):
        runs.append(bench.network(images))
        return runs[-1]

    terms = bench.method.step(Batch(bench.images, LABELS[:, None], LABELS), network, Generator().manual_seed(0))
    s = runs[0]["embedding"]
    matrix = euclidean_distance(s, s)
    positive, negative = pair_masks(LABELS, LABELS, same=True)
    expected = contrastive(matrix, positive, negative)
    assert terms["loss"].item() == pytest.approx(expected.item(), rel=1e-6)
    (own,) = torch.autograd.grad(expected, s)
    recorded = bench.method.diagnostics(embedded(8), None).scalars["gradient_norm"]
    assert recorded == pytest.approx(torch.linalg.vector_norm(own, dim=1).mean().item(), rel=1e-5)


def test_agreement_does_not_depend_on_the_blocks_it_is_computed_in(monkeypatch):
    items = embedded(50).outputs
    anchors = torch.arange(0, 50, 3)
    whole = relative_agreement(items["embedding"], items["uncertainty"], anchors)
    monkeypatch.setattr(methods.idml, "ROWS", 7)
    assert relative_agreement(items["embedding"], items["uncertainty"], anchors) == pytest.approx(whole, rel=1e-12)


def test_introspective_retrieval_agrees_with_the_loops(monkeypatch):
    monkeypatch.setattr(methods.idml, "ROWS", 7)
    items = embedded(23)
    s, u = items.outputs["embedding"], items.outputs["uncertainty"]
    labels = torch.cat([items.labels[:-2], torch.tensor([7, 8])])  # two items alone
    recall, r_precision, average = 0.0, 0.0, 0.0
    for q in range(21):
        distances = reference_matrix("distance", s[q : q + 1], u[q : q + 1], s, u, 2.0, 0.5, "separate")[0].tolist()
        order = sorted((j for j in range(23) if j != q), key=lambda j: (distances[j], j))
        hits = [bool(labels[j] == labels[q]) for j in order]
        relevant = sum(hits)
        recall += hits[0]
        r_precision += sum(hits[:relevant]) / relevant
        average += sum(sum(hits[: k + 1]) / (k + 1) for k in range(relevant) if hits[k]) / relevant
    found = introspective_retrieval(s, u, labels, tau=2.0, gamma=0.5, norm="separate")
    expected = {"recall_at_1": recall / 21, "r_precision": r_precision / 21, "map_at_r": average / 21}
    assert found == pytest.approx(expected)
    with pytest.raises(ValueError, match="two items of one label, found none among 23"):
        introspective_retrieval(s, u, torch.arange(23))


def test_the_introspective_test_is_told_for_the_test_only_and_is_the_plain_one_without_uncertainty():
    method = Bench(introspective_test=True).method
    items = embedded(40)
    items.outputs["uncertainty"].zero_()
    found = method.diagnostics(None, items).scalars
    plain = evaluate_embeddings(items.outputs["embedding"], items.labels, clustering=False)
    for name in ("recall_at_1", "r_precision", "map_at_r"):
        assert found[f"introspective_{name}"] == pytest.approx(plain[name])
    assert not any(name.startswith("introspective") for name in method.diagnostics(items, items).scalars)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_gradient_that_is_recorded_is_the_step_s_and_is_computed_once_but_in_half_precision(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    method = IDML(IDML.Config(mixup=False), Task(3, 4, 4)).to(torch.promote_types(dtype, torch.float32))
    s, u = (torch.randn(6, 4, generator=Generator().manual_seed(seed)).to(dtype) for seed in (1, 2))
    s = unit(s).to(dtype)
    outputs = {"embedding": s.requires_grad_(), "uncertainty": u.requires_grad_()}
    batch = Batch(torch.empty(0), torch.tensor([0, 0, 1, 1, 2, 2])[:, None], torch.arange(6))
    leaves = [s, u, *method.base.parameters()]
    (found,) = method.step(batch, lambda images: outputs, Generator()).values()
    assert (type(found.grad_fn).__name__ == "_WithGradientBackward") == (dtype == torch.float64)
    plain = method._objective(outputs, batch.labels, Generator())
    assert torch.equal(found, plain)
    gradients = [torch.autograd.grad(3 * value, leaves) for value in (found, plain)]
    for ours, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=0)
    assert method.totals[1].item() == pytest.approx(float(gradients[1][0].double().norm(dim=1).mean()) / 3, rel=1e-2)
