"""The objectives against pytorch-metric-learning, where it has them with the same definition."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from methods import objectives
from methods.angular import angular
from methods.arc_face import arc_face
from methods.circle import circle
from methods.cos_face import cos_face
from methods.lifted_structure import lifted_structure
from methods.n_pair import n_pair
from methods.smooth_ap import smooth_ap
from methods.snr import snr_distance, zero_mean
from methods.sup_con import sup_con

peer = pytest.importorskip("pytorch_metric_learning")
from pytorch_metric_learning import distances, losses, miners, regularizers  # noqa: E402

D, C = 12, 5
LABELS = torch.arange(20) % C

Objective = Callable[[Tensor, Tensor], Tensor]


def rows(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, D, generator=generator, dtype=torch.float64), dim=1)


def masks(references: Tensor | None = None) -> tuple[Tensor, Tensor]:
    if references is None:
        return objectives.pair_masks(LABELS, LABELS, same=True)
    return objectives.pair_masks(LABELS, references, same=False)


def agree(ours: Objective, theirs: Objective, count: int = C) -> None:
    """Values and gradients, on both sides of the matrix. They normalise by themselves, so here we do too."""
    results = []
    for loss in (lambda z, r: ours(F.normalize(z, dim=1), F.normalize(r, dim=1)), theirs):
        z, r = (1.7 * rows(number, seed) for seed, number in enumerate((len(LABELS), count)))
        z, r = z.requires_grad_(), r.requires_grad_()
        value = loss(z, r)
        gradients = torch.autograd.grad(value, (z, r), allow_unused=True)
        results.append((value, *gradients))
    for mine, other in zip(*results, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            assert torch.allclose(mine, other, rtol=1e-9, atol=1e-11)
    assert results[0][0] > 0 and results[0][1].abs().sum() > 0


def on_pairs(
    objective: Callable[..., Tensor], matrix: Callable[[Tensor, Tensor], Tensor], **settings: object
) -> Objective:
    return lambda z, r: objective(matrix(z, z), *masks(), **settings)


def test_contrastive() -> None:
    loss = losses.ContrastiveLoss(pos_margin=0.6, neg_margin=1.5)
    ours = on_pairs(objectives.contrastive, objectives.euclidean_distance, pos_margin=0.6, neg_margin=1.5)
    agree(ours, lambda z, r: loss(z, LABELS))


def test_triplet() -> None:
    loss = losses.TripletMarginLoss(margin=0.2, triplets_per_anchor="all")
    ours = on_pairs(objectives.triplet, objectives.euclidean_distance, margin=0.2, mining="all")
    agree(ours, lambda z, r: loss(z, LABELS))


@pytest.mark.parametrize("epsilon", [None, 0.1])
def test_multi_similarity(epsilon: float | None) -> None:
    loss = losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5)
    miner = miners.MultiSimilarityMiner(epsilon=epsilon) if epsilon is not None else None
    ours = on_pairs(objectives.multi_similarity, objectives.cosine_similarity, epsilon=epsilon)
    agree(ours, lambda z, r: loss(z, LABELS, miner(z, LABELS) if miner else None))


def test_fast_ap() -> None:
    loss = losses.FastAPLoss(num_bins=10)
    agree(on_pairs(objectives.fast_ap, objectives.euclidean_distance), lambda z, r: loss(z, LABELS))


def test_snr() -> None:
    loss = losses.SignalToNoiseRatioContrastiveLoss(pos_margin=0.3, neg_margin=1.7)
    agree(on_pairs(objectives.contrastive, snr_distance, pos_margin=0.3, neg_margin=1.7), lambda z, r: loss(z, LABELS))
    regularizer = regularizers.ZeroMeanRegularizer()
    agree(lambda z, r: zero_mean(z), lambda z, r: regularizer(F.normalize(z, dim=1)))


def test_n_pair_of_anchors_and_their_positives() -> None:
    """As the paper has it: two images of each class, the first of them the anchor."""
    loss = losses.NPairsLoss()
    pairs = torch.arange(C), torch.arange(C, 2 * C)
    negatives = torch.empty(0, dtype=torch.long)

    def ours(z: Tensor, r: Tensor) -> Tensor:
        positive = torch.eye(C, dtype=torch.bool)
        return n_pair(objectives.cosine_similarity(z[pairs[0]], z[pairs[1]]), positive, ~positive, scale=1.0)

    agree(ours, lambda z, r: loss(z, LABELS, (*pairs, negatives, negatives)))


def test_lifted_structure() -> None:
    ours = on_pairs(lifted_structure, objectives.euclidean_distance, margin=0.8)
    loss = losses.LiftedStructureLoss(neg_margin=0.8)
    agree(ours, lambda z, r: loss(z, LABELS))
    ours = on_pairs(lifted_structure, objectives.euclidean_distance, margin=0.8, form="anchors")
    generalized = losses.GeneralizedLiftedStructureLoss(neg_margin=0.8)
    agree(ours, lambda z, r: generalized(z, LABELS))


def test_sup_con() -> None:
    loss = losses.SupConLoss(temperature=0.2)
    agree(on_pairs(sup_con, objectives.cosine_similarity, temperature=0.2), lambda z, r: loss(z, LABELS))


def test_smooth_ap_with_the_query_in_its_own_list() -> None:
    """As theirs has it; theirs needs as many classes as images of each, in order, and is in torch's default type."""
    labels = torch.arange(16) // 4
    positive, negative = objectives.pair_masks(labels, labels, same=False)
    loss = losses.SmoothAPLoss(temperature=0.1)

    def ours(z: Tensor, r: Tensor) -> Tensor:
        return smooth_ap(objectives.cosine_similarity(z[:16], z[:16]), positive, negative, temperature=0.1)

    def theirs(z: Tensor, r: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        try:
            return loss(z[:16], labels)  # type: ignore[no-any-return]
        finally:
            torch.set_default_dtype(torch.float32)

    agree(ours, theirs)


def test_circle() -> None:
    """With logits below 20, from where on their softplus is the identity."""
    loss = losses.CircleLoss(m=0.3, gamma=5)
    ours = on_pairs(circle, objectives.cosine_similarity, margin=0.3, gamma=5)
    agree(ours, lambda z, r: loss(z, LABELS))


def test_angular() -> None:
    """They leave negatives as they are given, so they are given unit rows."""
    loss = losses.AngularLoss(alpha=35)
    ours = on_pairs(angular, objectives.cosine_similarity, degrees=35.0)
    agree(ours, lambda z, r: loss(F.normalize(z, dim=1), LABELS))


def test_margin_with_the_negatives_that_were_drawn() -> None:
    drawn: dict[str, Tensor] = {}

    def ours(z: Tensor, r: Tensor) -> Tensor:
        distance = objectives.euclidean_distance(z, z)
        generator = torch.Generator().manual_seed(3)
        drawn["counts"] = objectives._draw_negatives(
            distance.detach(), *masks(), D, float("inf"), "relative", torch.Generator().manual_seed(3)
        )
        return objectives.margin(distance, *masks(), dim=D, beta=1.1, alpha=0.3, generator=generator)

    def theirs(z: Tensor, r: Tensor) -> Tensor:
        anchors, positives = masks()[0].nonzero(as_tuple=True)
        negatives = torch.cat([torch.repeat_interleave(torch.arange(20), row) for row in drawn["counts"]])
        loss: Tensor = losses.MarginLoss(margin=0.3, beta=1.1)(z, LABELS, (anchors, positives, negatives))
        return loss

    agree(ours, theirs)


def with_proxies(loss: torch.nn.Module, name: str, transposed: bool = False) -> Objective:
    """Their loss as a function of embeddings and proxies."""

    def call(z: Tensor, r: Tensor) -> Tensor:
        delattr(loss, name)
        setattr(loss, name, r.T if transposed else r)
        return loss(z, LABELS)  # type: ignore[no-any-return]

    return call


@pytest.fixture(autouse=True)
def keep_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """They convert their proxies' data in place, which a tensor with a graph does not allow."""
    names = ("ProxyNCA", "ProxyAnchor", "SoftTriple", "NormalizedSoftmax", "CosFace", "ArcFace")
    for kind in (getattr(losses, f"{name}Loss") for name in names):
        monkeypatch.setattr(kind, "cast_types", lambda self, dtype, device: None)


def test_proxy_nca() -> None:
    loss = losses.ProxyNCALoss(C, D, softmax_scale=3)

    def ours(z: Tensor, r: Tensor) -> Tensor:
        squared = objectives.euclidean_distance(z, r).square()
        return objectives.proxy_nca(squared, *masks(torch.arange(C)), scale=3, include_positive=True)

    agree(ours, with_proxies(loss, "proxies"))


def test_proxy_anchor() -> None:
    loss = losses.ProxyAnchorLoss(C, D, margin=0.1, alpha=32)

    def ours(z: Tensor, r: Tensor) -> Tensor:
        return objectives.proxy_anchor(objectives.cosine_similarity(z, r), *masks(torch.arange(C)))

    agree(ours, with_proxies(loss, "proxies"))


def test_normalized_softmax() -> None:
    loss = losses.NormalizedSoftmaxLoss(C, D, temperature=0.05)

    def ours(z: Tensor, r: Tensor) -> Tensor:
        return objectives.normalized_softmax(objectives.cosine_similarity(z, r), *masks(torch.arange(C)))

    agree(ours, with_proxies(loss, "W", transposed=True))


def test_cos_face() -> None:
    loss = losses.CosFaceLoss(C, D, margin=0.3, scale=16)

    def ours(z: Tensor, r: Tensor) -> Tensor:
        return cos_face(objectives.cosine_similarity(z, r), *masks(torch.arange(C)), margin=0.3, scale=16)

    agree(ours, with_proxies(loss, "W", transposed=True))


def test_arc_face() -> None:
    """With a margin wide enough that it takes some angles beyond pi."""
    loss = losses.ArcFaceLoss(C, D, margin=math.degrees(1.5), scale=16)

    def ours(z: Tensor, r: Tensor) -> Tensor:
        similarity = objectives.cosine_similarity(z, r)
        own = similarity[torch.arange(len(z)), LABELS]
        assert 0 < (own < -math.cos(1.5)).sum() < len(z)
        return arc_face(similarity, *masks(torch.arange(C)), margin=1.5, scale=16)

    agree(ours, with_proxies(loss, "W", transposed=True))


def test_soft_triple() -> None:
    loss = losses.SoftTripleLoss(C, D, centers_per_class=3)
    centre_labels = torch.arange(C).repeat_interleave(3)

    def ours(z: Tensor, r: Tensor) -> Tensor:
        similarity = objectives.cosine_similarity(z, r)
        return objectives.soft_triple(similarity, *masks(centre_labels), centres_per_class=3)

    agree(ours, with_proxies(loss, "fc", transposed=True), 3 * C)


def test_the_distances_are_theirs() -> None:
    z = rows(20, 1)
    assert torch.allclose(objectives.euclidean_distance(z, z), distances.LpDistance()(z), atol=1e-7)
