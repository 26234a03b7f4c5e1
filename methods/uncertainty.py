"""What uncertainty embeddings do: the weights of gradients, and pairs that are certain though both images are not.

Wang et al., "Introspective Deep Metric Learning", TPAMI 2024, Figures 6 and 8. alpha = ||s_1 - s_2|| is the semantic
distance of a pair, beta = ||u_1 + u_2|| its uncertainty (`methods.idml`).

Shapes: N items.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

BINS = 20
"""Of each axis of the gradient's weights, with as many pairs each."""
EXAMPLES = 50
Table = dict[str, list[float | int | str]]


def gradient_weight(distance: Tensor, uncertainty: Tensor, *, tau: float = 5.0, gamma: float = 0.0) -> Tensor:
    """H = d D_IN / d alpha = exp(-t / tau) (1 + t / tau), t = (beta + gamma) / alpha (Eq. 20): what the introspective
    distance multiplies a pair's gradient with, 1 without uncertainty and less with it.

    Args:
        distance: alpha, of any shape. uncertainty: beta, of the same shape, >= 0.
        tau: temperature, > 0. gamma: uncertainty that every pair has, >= 0.

    Returns:
        The same shape, float64, in [0, 1]; its limit where alpha = 0: 0, or 1 without any uncertainty.

    Raises:
        ValueError: if tau or gamma is not as above.
    """
    if not (tau > 0 and gamma >= 0):
        raise ValueError(f"tau must be positive and gamma at least 0, got {tau} and {gamma}")
    level = uncertainty.double() + gamma
    share = torch.where(level > 0, level / (tau * distance.double()), 0.0)  # infinite where alpha = 0
    weight = torch.exp(-share) * (1 + share)
    return torch.where(share.isinf(), 0.0, weight)


def gradient_weights(alpha: Tensor, beta: Tensor, *, tau: float, gamma: float) -> Table:
    """H of all pairs of N items against each axis of Figure 6: pairs in BINS bins of equal size, in the order of the
    semantic distance, of the uncertainty and of the relative uncertainty t.

    Args:
        alpha, beta: (N, N), of which each pair of two items counts once.

    Returns:
        Columns `axis`, `low` and `high` (the bin's ends), `value` (the mean on the axis), `weight` and `deviation`
        (mean and standard deviation of H), `pairs`.
    """
    first, second = torch.triu_indices(len(alpha), len(alpha), 1, device=alpha.device)
    a, b = alpha[first, second].double(), beta[first, second].double()
    weight = gradient_weight(a, b, tau=tau, gamma=gamma)
    axes = {"semantic_distance": a, "uncertainty": b, "relative_uncertainty": (b + gamma) / a}
    table: Table = {name: [] for name in ("axis", "low", "high", "value", "weight", "deviation", "pairs")}
    for axis, values in axes.items():
        finite = values.isfinite()
        values, weights = values[finite], weight[finite]
        order = values.argsort(stable=True)
        for rows in torch.tensor_split(order, BINS):
            if not len(rows):
                continue
            inside, of = values[rows], weights[rows]
            numbers = (inside[0], inside[-1], inside.mean(), of.mean(), of.std(correction=0))
            for name, number in zip(("low", "high", "value", "weight", "deviation"), numbers, strict=True):
                table[name].append(number.item())
            table["axis"].append(axis)
            table["pairs"].append(len(rows))
    return table


def certain_pairs_of_uncertain_items(beta: Tensor, level: Tensor, items: Mapping[str, Tensor]) -> Table:
    """Figure 8: the EXAMPLES pairs with the lowest uncertainty among those of which both items are uncertain, that is
    above the median of the levels; lowest first, ties in the order of the items.

    Args:
        beta: (N, N). level: (N,) ||u|| of each item. items: (N,) each, what else is told of both, such as `sample`.

    Returns:
        Columns `<name>_1`, `<name>_2` of each of `items`, `level_1`, `level_2`, `uncertainty`.
    """
    first, second = torch.triu_indices(len(beta), len(beta), 1, device=beta.device)
    high = level > level.median()
    both = high[first] & high[second]
    first, second = first[both], second[both]
    order = beta[first, second].argsort(stable=True)[:EXAMPLES]
    first, second = first[order], second[order]
    table: Table = {}
    for name, values in (*items.items(), ("level", level)):
        table |= {f"{name}_1": values[first].tolist(), f"{name}_2": values[second].tolist()}
    return table | {"uncertainty": beta[first, second].tolist()}
