"""Every objective with inputs, and comparisons with its slow reference."""

import functools
from typing import Any

import numpy as np
import torch

from methods import objectives
from methods.arc_face import arc_face
from methods.circle import circle
from methods.cos_face import cos_face
from methods.lifted_structure import lifted_structure
from methods.n_pair import n_pair
from methods.objectives import cosine_similarity, euclidean_distance, pair_masks
from methods.recall_at_k import recall_at_k_surrogate
from methods.roadmap import calibration, sup_ap
from methods.sigmoid_pairs import sigmoid_pairs
from methods.smooth_ap import smooth_ap
from methods.sup_con import sup_con

IN_OWN_FILES = (
    arc_face,
    calibration,
    circle,
    cos_face,
    lifted_structure,
    n_pair,
    recall_at_k_surrogate,
    sigmoid_pairs,
    smooth_ap,
    sup_ap,
    sup_con,
)


OWN_FILES = {function.__name__: function for function in IN_OWN_FILES}


def objective(name):
    return OWN_FILES.get(name) or getattr(objectives, name)


def unit(rows, dim, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(rows, dim, generator=generator, dtype=dtype), dim=1)


def assert_close(actual, wanted, rtol=1e-7, atol=1e-9):
    # numpy's: torch.testing.assert_close first imports torch.distributed and sympy, which takes seconds.
    np.testing.assert_allclose(actual.detach().numpy(), wanted.detach().numpy(), rtol=rtol, atol=atol)


def value_and_gradient(function, matrix, *arguments, **hyperparameters):
    leaf = matrix.detach().clone().requires_grad_()
    value = function(leaf, *arguments, **hyperparameters)
    # A reference without a single term is a bare zero.
    (value + leaf[:0].sum()).backward()
    return value.detach(), leaf.grad


def assert_agrees(function, reference, matrix, positive, negative, **hyperparameters):
    value, gradient = value_and_gradient(function, matrix, positive, negative, **hyperparameters)
    wanted, wanted_gradient = value_and_gradient(reference, matrix, positive, negative, **hyperparameters)
    assert_close(value, wanted, rtol=1e-10, atol=1e-12)
    assert_close(gradient, wanted_gradient, rtol=1e-9, atol=1e-11)


# Every objective but margin, which draws: name, what the matrix holds, hyperparameters.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("contrastive", "d", {}),
    ("contrastive", "d", {"pos_margin": 0.9, "neg_margin": 1.3}),
    ("contrastive", "d", {"pos_margin": 0.3, "neg_margin": 1.2, "average": "all"}),
    ("contrastive", "1 - s", {"average": "query"}),
    ("triplet", "d", {}),
    ("triplet", "d", {"margin": 0.5, "mining": "all"}),
    ("multi_similarity", "s", {}),
    ("multi_similarity", "s", {"alpha": 14.35, "beta": 75.83, "base": 0.66, "epsilon": 0.3}),
    ("multi_similarity", "s", {"epsilon": None}),
    ("proxy_nca", "d", {}),
    ("proxy_nca", "-s", {"scale": 10.0, "include_positive": True}),
    ("proxy_anchor", "s", {}),
    ("proxy_anchor", "s", {"alpha": 8.0, "margin": 0.3}),
    ("normalized_softmax", "s", {}),
    ("normalized_softmax", "s", {"temperature": 0.5}),
    ("cos_face", "s", {"scale": 8.0}),
    ("arc_face", "s", {"scale": 4.0, "margin": 1.2}),
    ("n_pair", "s", {"scale": 4.0}),
    ("lifted_structure", "d", {}),
    ("lifted_structure", "d", {"margin": 0.4, "form": "anchors"}),
    ("sup_con", "s", {"temperature": 0.3}),
    ("sigmoid_pairs", "s", {"scale": 3.0, "bias": -1.0}),
    ("soft_triple", "s", {"centres_per_class": 2}),
    ("soft_triple", "s", {"centres_per_class": 3, "la": 17.69, "gamma": 19.18, "margin": 0.3588}),
    ("soft_triple", "s", {"centres_per_class": 1, "gamma": 0.05}),
    ("fast_ap", "d", {}),
    ("fast_ap", "d", {"num_bins": 3}),
    ("circle", "s", {}),
    ("circle", "s", {"margin": 0.1, "gamma": 5.0}),
    ("smooth_ap", "s", {}),
    ("smooth_ap", "s", {"temperature": 0.2}),
    ("sup_ap", "s", {}),
    ("sup_ap", "s", {"tau": 0.3, "rho": 3.0, "delta": 0.2}),
    ("calibration", "s", {"alpha": 0.6, "beta": -0.1}),
    ("recall_at_k_surrogate", "s", {}),
    ("recall_at_k_surrogate", "s", {"ks": (1, 2), "k_temperature": 0.5, "rank_temperature": 0.2}),
]


IDS = [f"{name}-{'-'.join(f'{k}={v}' for k, v in hyper.items()) or 'defaults'}" for name, _, hyper in CASES]


MARGIN = functools.partial(objectives.margin, dim=8)


EVERY = [
    *((objective(name), kind, hyper) for name, kind, hyper in CASES),
    (MARGIN, "d", {}),
]


EVERY_IDS = [*IDS, "margin-defaults"]


def matrix_of(kind, queries, other):
    if kind == "d":
        return euclidean_distance(queries, other)
    similarity = cosine_similarity(queries, other)
    return {"s": similarity, "-s": -similarity, "1 - s": 1 - similarity}[kind]


def batch_case(kind, labels, seed=0, dim=8, dtype=torch.float64):
    """A batch against itself; the centres of SoftTriple are columns, so its classes come in runs."""
    labels = torch.tensor(labels)
    embeddings = unit(len(labels), dim, seed, dtype)
    return matrix_of(kind, embeddings, embeddings), *pair_masks(labels, labels, same=True)


def proxy_case(kind, labels, classes, per_class, seed=0, dim=8, dtype=torch.float64):
    labels, of_proxy = torch.tensor(labels), torch.arange(classes).repeat_interleave(per_class)
    proxies = unit(len(of_proxy), dim, seed + 100, dtype)
    masks = pair_masks(labels, of_proxy, same=False)
    return matrix_of(kind, unit(len(labels), dim, seed, dtype), proxies), *masks
