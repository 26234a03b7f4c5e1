"""Second derivatives of the methods' pure functions: right, or refused by name."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from methods import (
    angular,
    anti_collapse,
    arc_face,
    baselines,
    ccp,
    circle,
    cos_face,
    covering,
    dada,
    distances,
    happier,
    hib,
    hier,
    hist,
    ibc,
    idml,
    lifted_structure,
    mean_field,
    mixup,
    n_pair,
    nir,
    objectives,
    pfml,
    recall_at_k,
    reductions,
    roadmap,
    s2sd,
    sigmoid_pairs,
    smooth_ap,
    snr,
    sup_con,
    sup_ndcg,
    sup_recall,
    uncertainty,
    vmf,
    vmf_softmax,
)
from methods.anti_collapse import coding_rate, language_guidance, mean_coding_rate
from methods.ccp import lipschitz_normalize, proximal_term
from methods.idml import introspective_distance, introspective_similarity
from methods.objectives import centre_merging, cosine_similarity, euclidean_distance, pair_masks
from methods.pfml import contrastive_potential_energy, potential_energy
from methods.recall_at_k import virtual_examples
from methods.roadmap import rank_step
from orchestrator.check.subject import Subject, rows_of_step, terms_of
from orchestrator.method import Method, total

Q, R, D, CENTRES = 5, 8, 4, 2
LABELS = torch.tensor([0, 0, 1, 2, 5])  # class 5 has no reference
OTHERS = torch.arange(R // CENTRES).repeat_interleave(CENTRES)
POSITIVE, NEGATIVE = pair_masks(LABELS, OTHERS, same=False)
NEGATIVE[:, -1] = False  # neither


def rows(count: int, seed: int, dim: int = D) -> Tensor:
    return F.normalize(torch.randn(count, dim, dtype=torch.float64, generator=Generator().manual_seed(seed)))


X, Y, U, V = (rows(*of) for of in ((Q, 0), (R, 1), (Q, 2, 3), (R, 3, 3)))
TRIPLETS: Tensor = torch.tensor([[[0, 1, 2], [0, 1, 3]], [[1, 0, 4], [1, 0, 2]]])
BETAS = torch.full((Q,), 0.9, dtype=torch.float64)


def on_distances(name: str, module: Any = objectives, **given: Any) -> Callable[..., Tensor]:
    return lambda x, y: getattr(module, name)(euclidean_distance(x, y), POSITIVE, NEGATIVE, **given)


def on_similarities(name: str, module: Any = objectives, **given: Any) -> Callable[..., Tensor]:
    return lambda x, y: getattr(module, name)(cosine_similarity(x, y), POSITIVE, NEGATIVE, **given)


def margin(x: Tensor, y: Tensor, beta: Tensor) -> Tensor:
    generator = Generator().manual_seed(0)
    distance = euclidean_distance(x, y)
    return objectives.margin(distance, POSITIVE, NEGATIVE, dim=D, beta=beta, generator=generator)


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "euclidean_distance": (euclidean_distance, (X, Y)),
    "cosine_similarity": (cosine_similarity, (X, Y)),
    "contrastive": (on_distances("contrastive", pos_margin=0.1, neg_margin=1.5), (X, Y)),
    "triplet": (on_distances("triplet", margin=0.3), (X, Y)),
    "triplet, all": (on_distances("triplet", margin=0.3, mining="all"), (X, Y)),
    "margin": (margin, (X, Y, BETAS)),
    "multi_similarity": (on_similarities("multi_similarity"), (X, Y)),
    "multi_similarity, all": (on_similarities("multi_similarity", beta=5.0, epsilon=None), (X, Y)),
    "fast_ap": (on_distances("fast_ap"), (X, Y)),
    "proxy_nca": (on_distances("proxy_nca", scale=3.0), (X, Y)),
    "proxy_nca, all": (on_distances("proxy_nca", scale=3.0, include_positive=True), (X, Y)),
    "proxy_anchor": (on_similarities("proxy_anchor", alpha=4.0), (X, Y)),
    "normalized_softmax": (on_similarities("normalized_softmax", temperature=0.5), (X, Y)),
    "soft_triple": (on_similarities("soft_triple", centres_per_class=CENTRES, la=3.0, gamma=0.3), (X, Y)),
    "cos_face": (on_similarities("cos_face", cos_face, scale=4.0), (X, Y)),
    "arc_face": (on_similarities("arc_face", arc_face, scale=4.0), (X, Y)),
    "angular_margin": (lambda x, y: arc_face.angular_margin(cosine_similarity(x, y), 0.5), (X, Y)),
    "snr_distance": (snr.snr_distance, (X, Y)),
    "zero_mean": (snr.zero_mean, (X,)),
    "n_pair": (on_similarities("n_pair", n_pair, scale=3.0), (X, Y)),
    "lifted_structure": (on_distances("lifted_structure", lifted_structure), (X, Y)),
    "lifted_structure, anchors": (on_distances("lifted_structure", lifted_structure, form="anchors"), (X, Y)),
    "sup_con": (on_similarities("sup_con", sup_con, temperature=0.5), (X, Y)),
    "sigmoid_pairs": (
        lambda x, y, t, b: sigmoid_pairs.sigmoid_pairs(
            cosine_similarity(x, y), POSITIVE, NEGATIVE, scale=t.sum(), bias=b.sum()
        ),
        (X, Y, BETAS, -BETAS),
    ),
    "smooth_ap": (on_similarities("smooth_ap", smooth_ap, temperature=0.5), (X, Y)),
    "sup_ap": (on_similarities("sup_ap", roadmap, tau=0.5, rho=2.0, delta=0.2), (X, Y)),
    "rank_step": (lambda x: rank_step(x, tau=0.5, rho=2.0, delta=0.2), (X,)),
    "calibration": (on_similarities("calibration", roadmap, alpha=0.8, beta=-0.2), (X, Y)),
    "recall_at_k_surrogate": (
        on_similarities("recall_at_k_surrogate", recall_at_k, ks=(1, 2), rank_temperature=0.5),
        (X, Y),
    ),
    "roadmap": (on_similarities("roadmap", roadmap, tau=0.5, rho=2.0, delta=0.2, alpha=0.8, beta=-0.2), (X, Y)),
    "supremum_ranks": (
        lambda x, y: roadmap.supremum_ranks(cosine_similarity(x, y), POSITIVE, NEGATIVE, tau=0.5, rho=2.0, delta=0.2)[
            2
        ],
        (X, Y),
    ),
    "sup_recall": (
        on_similarities("sup_recall", sup_recall, ks=(1, 2), tau=0.5, rho=2.0, delta=0.2, alpha=0.8, beta=-0.2),
        (X, Y),
    ),
    "angular": (lambda x: angular.angular(x @ x.T, *pair_masks(LABELS, LABELS, same=True), degrees=30.0), (X,)),
    "mean_over_fields": (lambda x: mean_field.mean_over_fields(cosine_similarity(x, x)), (X,)),
    "penalty_of_fields": (lambda x: mean_field.penalty_of_fields(x, torch.exp), (X,)),
    "class_wise_multi_similarity": (
        on_similarities("class_wise_multi_similarity", mean_field, alpha=0.5, beta=3.0, base=0.2),
        (X, Y),
    ),
    "nuclear_discrepancy": (dada.nuclear_discrepancy, (X, Y[:Q])),
    "hierarchical_ap": (
        lambda x, y: happier.hierarchical_ap(
            cosine_similarity(x, y), [~NEGATIVE, POSITIVE], NEGATIVE, tau=0.5, rho=2.0, delta=0.2
        ),
        (X, Y),
    ),
    "sup_ndcg": (
        lambda x, y: sup_ndcg.sup_ndcg(
            cosine_similarity(x, y), [~NEGATIVE, POSITIVE], NEGATIVE, tau=0.5, rho=2.0, delta=0.2
        ),
        (X, Y),
    ),
    "ancestors": (lambda x: hier.ancestors(x, 0.5, Generator().manual_seed(0))[1], (X,)),
    "smoothed_cross_entropy": (lambda x, y: ibc.smoothed_cross_entropy(x @ y.T, POSITIVE, 0.1), (X, Y)),
    "draw": (lambda x, v: hib.draw(hib.Gaussians(x, v), 2, Generator().manual_seed(0)), (X, X.flip(0))),
    "standard_normal_divergence": (lambda x, v: hib.standard_normal_divergence(hib.Gaussians(x, v)), (X, X.flip(0))),
    "log_match_probabilities": (
        lambda x, y: hib.log_match_probabilities(x[:, None], y[:, None], a=0.7, b=1.0)[1],
        (X, Y),
    ),
    "soft_contrastive": (lambda x, y: hib.soft_contrastive(x @ y.T, -x @ y.T, POSITIVE, NEGATIVE), (X, Y)),
    "virtual_examples": (lambda x: virtual_examples(x, LABELS[:, None], Generator().manual_seed(0))[0], (X,)),
    "class_distances": (hist.class_distances, (X, Y, Y.flip(0))),
    "hypergraph_mean": (lambda x, y: hist.hypergraph_mean(x, y.square(), POSITIVE.any(0)[:D]), (X, X.flip(0))),
    "mean_directions": (lambda y: vmf.mean_directions(2 * y, Y), (Y,)),
    "mean_length": (lambda k: vmf_softmax.mean_length(k, 6), (5 * BETAS,)),
    "log_normalizer_ratio": (lambda k, a: vmf_softmax.log_normalizer_ratio(k, a, 6), (5 * BETAS, BETAS)),
    "angles": (lambda k: vmf_softmax.angles(k, BETAS[:, None], 6), (5 * BETAS,)),
    "draws": (lambda x, k: vmf_softmax.draws(x, k, 2, Generator().manual_seed(0)), (X, 5 * BETAS)),
    "non_isotropy": (lambda x: nir.non_isotropy(x, x.sum(1)), (X,)),
    "centre_merging": (lambda y: centre_merging(y, CENTRES), (Y,)),
    "introspective_distance": (introspective_distance, (X, U, Y, V)),
    "introspective_similarity": (introspective_similarity, (X, U, Y, V)),
    "coding_rate": (coding_rate, (X,)),
    "mean_coding_rate": (lambda x: mean_coding_rate(x, LABELS), (X,)),
    "language_guidance": (lambda x: language_guidance(x, U), (X,)),
    "proximal_term": (lambda x: proximal_term([x], [Y[:Q]]), (X,)),
    "lipschitz_normalize": (lambda x: lipschitz_normalize(2 * x), (X,)),
}
ONCE: dict[str, Callable[..., Tensor]] = {
    "circle": on_similarities("circle", circle, gamma=5.0),
    "potential_energy": lambda x, y: potential_energy(x, LABELS, y, OTHERS, delta=0.2, alpha=2.0, delta_rep=1.9),
    "contrastive_potential_energy": lambda x, y: contrastive_potential_energy(x, LABELS, y, OTHERS, delta=0.2),
    "similarity_divergence": lambda x, y: s2sd.similarity_divergence(x, y[:Q], 0.5) + 0 * y.sum(),
    "hierarchy_loss": lambda x, y: hier.hierarchy_loss(
        2 - x @ y.T,
        TRIPLETS,
        TRIPLETS[:, 0, 0] >= 0,
        margin=0.5,
        temperature=0.5,
        rng=Generator().manual_seed(0),
    ),
}


NO_GRADIENT = {
    "at_or_above",
    "chosen",
    "reciprocal_triplets",
    "von_mises_fisher",
    "pair_masks",
    "greedy_k_center",
    "gradient_weight",
    "mixup_partners",
    "label_sets",
    "similarity_histograms",
    "read_texts",
    "encode_texts",
}


def test_every_pure_function_is_here() -> None:
    shared = (distances, objectives, anti_collapse, baselines, ccp, idml, pfml, recall_at_k, roadmap, smooth_ap)
    modules = (
        *shared,
        angular,
        arc_face,
        circle,
        cos_face,
        covering,
        dada,
        happier,
        hib,
        hier,
        hist,
        ibc,
        lifted_structure,
        mean_field,
        mixup,
        n_pair,
        nir,
        s2sd,
        sigmoid_pairs,
        snr,
        sup_con,
        sup_ndcg,
        sup_recall,
        uncertainty,
        vmf,
        vmf_softmax,
    )
    public = {
        name
        for module in modules
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
        if "Tensor" in str(inspect.signature(function).return_annotation)
    }
    assert public == {name.split(",")[0] for name in FUNCTIONS} | ONCE.keys() | NO_GRADIENT


def leaves(points: tuple[Tensor, ...]) -> list[Tensor]:
    return [point.clone().requires_grad_() for point in points]


WHOLE = [pytest.param(name, False, id=name) for name in FUNCTIONS]
ON_MATRICES = {*vars(objectives), "smooth_ap", "sup_ap", "recall_at_k_surrogate"}
IN_BLOCKS = [pytest.param(name, True, id=f"{name}, in blocks") for name in FUNCTIONS if name in ON_MATRICES]


@pytest.mark.parametrize(("name", "in_blocks"), WHOLE + IN_BLOCKS)
def test_second_derivatives_are_right(name: str, in_blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if in_blocks:
        monkeypatch.setattr(reductions, "BLOCK", 2 * R)
        for module in (reductions, objectives):
            monkeypatch.setattr(module, "CACHED", 2 * R)
        monkeypatch.setattr(distances._EuclideanDistance, "TILE", (2, 3))
    function, points = FUNCTIONS[name]
    assert torch.autograd.gradgradcheck(function, leaves(points), fast_mode=True)
    # the gradient is the same, whether it is to be differentiated or not
    own = leaves(points)
    once, twice = (torch.autograd.grad(function(*own).sum(), own, create_graph=again) for again in (False, True))
    torch.testing.assert_close(once, twice, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ONCE)
def test_what_cannot_be_differentiated_twice_says_so(name: str) -> None:
    own = leaves((X, Y))
    once = torch.autograd.grad(ONCE[name](*own), own, create_graph=True)
    torch.testing.assert_close(once, torch.autograd.grad(ONCE[name](*own), own), rtol=0, atol=0)
    penalty = torch.stack([part.square().sum() for part in once]).sum()
    with pytest.raises(RuntimeError, match=rf"\b{name}\b.* can be differentiated once"):
        torch.autograd.grad(penalty, own)


@pytest.mark.parametrize(("method", "name"), [(ibc.IBC, "ibc"), (s2sd.S2SD, "similarity_divergence")])
def test_so_does_a_method_that_cannot(method: type[Method], name: str) -> None:
    learner = (subject := Subject(method, {})).learner()
    loss = total(terms_of(learner, subject.batch(rows_of_step(0))))
    weight = learner.network.head.weight
    (slope,) = torch.autograd.grad(loss, weight, create_graph=True)
    with pytest.raises(RuntimeError, match=rf"\b{name}\b.* can be differentiated once"):
        torch.autograd.grad(slope.square().sum(), weight)


def test_second_derivatives_in_float32_of_points_that_are_close_or_coincide() -> None:
    """A gradient penalty on a distance of 1e-3, beside one of 0."""
    close = torch.stack([X[0], X[0] + 1e-3 * X[1], X[2]])
    found = []
    for dtype in (torch.float32, torch.float64):
        # the float32 numbers in both, so that only the arithmetic differs
        points = close.float().to(dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(euclidean_distance(points, points.detach()).sum(), points, create_graph=True)
        found.append(torch.autograd.grad((gradient * X[:3].to(dtype)).sum(), points)[0].double())
    assert torch.isfinite(found[0]).all()
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3 * float(found[1].abs().max()))
