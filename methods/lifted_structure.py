"""Lifted structure: every positive pair against all negatives of its two ends.

Oh Song et al., "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR 2016; the form by anchors is from
Hermans, Beyer and Leibe, "In Defense of the Triplet Loss for Person Re-Identification", arXiv 2017.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from methods.baselines import Baseline, ReferencesConfig
from methods.reductions import Reduction, any_of, kept_terms, log_sum_exp, mean_of_terms, objective, reduce_sums


@objective
def lifted_structure(
    matrix: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    margin: float = 1.0,
    form: Literal["pairs", "anchors"] = "pairs",
    reduction: Reduction = "mean",
) -> Tensor:
    """Lifted structure loss on d (Q, R). `form` "pairs", the first paper's: the mean over positive pairs of J^2 / 2,

        J_ij = [log(sum over negatives k of row i of e^(margin - d_ik)
                  + sum over negatives l of column j of e^(margin - d_lj)) + d_ij]+

    In a batch against itself the column of j holds the negatives of j, and each pair is counted from both ends, which
    changes nothing in the mean. A pair without negatives counts 0. "anchors", the generalised one: the mean over rows
    with positives and negatives of

        [log sum over positives p of e^(d_ip) + log sum over negatives n of e^(margin - d_in)]+

    ValueError for any other form.

    Oh Song et al., Deep Metric Learning via Lifted Structured Feature Embedding, CVPR 2016, Eq. 4; Hermans et al., In
    Defense of the Triplet Loss for Person Re-Identification, arXiv 2017 (a sum over anchors there).
    """
    if form not in ("pairs", "anchors"):
        raise ValueError(f'lifted_structure: form must be "pairs" or "anchors", got {form!r}')

    if form == "anchors":

        def terms(matrix: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
            complete = any_of(positive, 1) & any_of(negative, 1)
            reach = log_sum_exp(matrix, positive, 1) + log_sum_exp(margin - matrix, negative, 1)
            return kept_terms(reach.relu(), complete)

        return mean_of_terms(terms, matrix, positive, negative, reduction=reduction)

    i, j = positive.nonzero(as_tuple=True)
    rows, columns = (log_sum_exp(margin - matrix, negative, dim) for dim in (1, 0))
    reach = torch.stack([rows[i], columns[j]]).logsumexp(0) + matrix[i, j]
    near = any_of(negative, 1)[i] | any_of(negative, 0)[j]
    terms_of_pairs = torch.where(near, reach.relu().square() / 2, 0)
    sums = matrix.new_zeros(len(matrix)).index_add(0, i, terms_of_pairs)
    return reduce_sums(sums[:, None], positive.sum(1)[:, None], reduction)


class LiftedStructure(Baseline):
    """Lifted structure loss: every positive pair against all negatives of its two ends.

    L = mean over positive pairs (i, j) of J_ij^2 / 2, J_ij = [log(sum over negatives k of i of e^(margin - d_ik) + sum
    over negatives l of j of e^(margin - d_jl)) + d_ij]+; with `form: anchors` the mean over images i of
    [log sum over positives p of e^(d_ip) + log sum over negatives n of e^(margin - d_in)]+.
    """

    name = "lifted_structure"
    paper = "Oh Song et al., Deep Metric Learning via Lifted Structured Feature Embedding, CVPR 2016"
    latex = r"""
    L = \underset{(i, j)}{\mathrm{mean}}\,\frac{J_{ij}^2}{2}

    J_{ij} = \left[\log\left(\sum_k e^{\mathrm{margin} - d_{ik}} + \sum_l e^{\mathrm{margin} - d_{jl}}\right)
    + d_{ij}\right]_+

    L_{\mathrm{anchors}} = \underset{i}{\mathrm{mean}}\,\left[\log \sum_p e^{d_{ip}}
    + \log \sum_n e^{\mathrm{margin} - d_{in}}\right]_+
    """
    reads = "distance"
    function = lifted_structure

    class Config(ReferencesConfig):
        margin: float = Field(1.0, ge=0, description="distance that negatives are pushed beyond, alpha in the paper")
        form: Literal["pairs", "anchors"] = Field(
            "pairs", description="the paper's, by positive pairs, or the one generalised to anchors"
        )
