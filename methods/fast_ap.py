"""FastAP: average precision from soft histograms.

Cakir et al., "Deep Metric Learning to Rank", CVPR 2019.
"""

from typing import Literal

from pydantic import Field

from methods import objectives
from methods.baselines import Baseline, ReferencesConfig


class FastAP(Baseline):
    """FastAP: average precision from soft histograms of squared distances.

    L = 1 - mean over rows of sum_b h+_b H+_b / H_b / N+, h the histogram and H its cumulative sum.
    """

    name = "fast_ap"
    paper = "Cakir et al., Deep Metric Learning to Rank, CVPR 2019"
    latex = r"L = 1 - \underset{\text{rows}}{\mathrm{mean}}\,\sum_b \frac{h^+_b H^+_b}{H_b N^+}"
    reads = "distance"
    function = objectives.fast_ap

    class Config(ReferencesConfig):
        metric: Literal["euclidean"] = Field("euclidean", description="squared by the objective itself")
        num_bins: int = Field(10, ge=1, le=10_000, description="bins of the histogram on [0, 4]")
