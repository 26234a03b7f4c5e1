"""How much too high the best of several trials is on the classes that chose it."""

import math

import numpy as np
from numpy.typing import NDArray

from orchestrator.evaluation.claims import FEWEST_CLASSES
from orchestrator.storage.events import Excess

Floats = NDArray[np.float64]

SHARE = 0.2
"""Of the classes, that a draw leaves out."""
DRAWS = 400


def expected_excess(values_CN: Floats, counts_C: Floats, draws: int = DRAWS, seed: int = 0) -> Excess | None:
    """The expected value of the best of N trials on these C classes less that of the same trial on other classes.

    Of the classes a fifth (one at least), L of them, is left out again and again; the best on the others is compared
    with itself on those left out, each less the mean of all trials there, which chooses nothing and takes out how hard
    the classes are:

        excess = sqrt((C - L) / C) mean of ((best - mean) on the others - (best - mean) on those left out).

    This assumes nothing on how the trials differ; the root is the excess of C classes over that of C - L where trials
    are alike, and more than it where they differ. Means are over queries. None with fewer than FEWEST_CLASSES classes
    or two trials.

    Source: the bias of a choice by cross-validation, Varma and Simon, Bias in error estimation when using
    cross-validation for model selection, BMC Bioinformatics 2006; here over classes.
    """
    classes, trials = values_CN.shape
    if classes < FEWEST_CLASSES or trials < 2:
        return None
    out = max(1, round(SHARE * classes))
    order_BC = np.argsort(np.random.default_rng(seed).random((draws, classes)), axis=1)
    if out == 1:
        order_BC = np.argsort(np.eye(classes), axis=1)[:, ::-1]  # each class once
    left_BC = np.zeros((len(order_BC), classes))
    np.put_along_axis(left_BC, order_BC[:, :out], 1.0, axis=1)
    apart_CN = (values_CN - values_CN.mean(axis=1, keepdims=True)) * counts_C[:, None]
    inside, outside = ((w @ apart_CN) / (w @ counts_C)[:, None] for w in (1 - left_BC, left_BC))
    rows, best = np.arange(len(inside)), inside.argmax(axis=1)
    lost = float((inside[rows, best] - outside[rows, best]).mean())
    value = max(0.0, lost * math.sqrt((classes - out) / classes))
    return Excess(value=value, trials=trials, classes=classes)
