"""What a claim's verdict says, and what it keeps: errors and power of every kind by simulation.

    python benchmarks/claim_errors.py [errors] [--claims 10000]
    python benchmarks/claim_errors.py precision

Every kind is simulated with all its comparisons: the arms' values are drawn, and `contrast_values` and `decisions` say
what the product would after each pair of seeds. It is looked at after each pair from the third to the last.
`false holds`: how often a claim that is not true (at the edge: no effect, or one of the margin's size) is said to hold;
`false fails`: how often a claim that is true by its smallest effect is said not to hold. `holds` is the power.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.claims.design import Contrast, contrasts
from orchestrator.claims.hypothesis import Arm, Hypothesis
from orchestrator.claims.outputs import Kind
from orchestrator.claims.sequential import (
    FAILS,
    HOLDS,
    PRECISION,
    Floats,
    Intervals,
    confidence_sequence,
    decisions,
    first_decision,
)
from orchestrator.claims.verdict import contrast_values, resolution
from orchestrator.evaluation.verdicts import kendall_tau

Rng = np.random.Generator
SKEWED = 0.75
"""The deviation of the logarithm of skewed values: their skewness is 3.3."""
BLOCK = 1000
"""Claims that are simulated at once: larger arrays take longer to allocate."""
LARGE = 20.0
"""An effect that is seen at once, in deviations."""
SMALLEST = (0.25, 1.0, 4.0)
"""Smallest effects of interest, in deviations of a difference; the worst of them is printed."""
KINDS: dict[str, Kind] = {
    "superiority": "superiority",
    "superiority over 3": "superiority",
    "non-inferiority": "non_inferiority",
    "equivalence": "equivalence",
    "difference of differences": "difference_of_differences",
    "trend": "trend",
    "order": "order",
    "rank agreement": "rank_agreement",
}
RANKED = 8
"""Arms of a rank agreement."""
CORRELATION = 0.95
"""Of the two metrics over the arms, before an effect is added: then tau is 0.8, and its distribution skewed."""


def hypothesis(name: str) -> Hypothesis:
    """A claim of this kind, with as many arms as shipped ones have."""
    kind, names = KINDS[name], ["a", "b"]
    if name in ("superiority over 3", "difference of differences", "order"):
        names = ["a", "b", "c", "d"]
    if kind == "trend":
        names = ["a"]
    if kind == "rank_agreement":
        names = [f"arm_{number}" for number in range(RANKED)]
    keys: dict[str, Any] = {"arm": "a", "than": names[1:]}
    if kind == "order":
        keys = {"order": [[one] for one in names]}
    if kind == "rank_agreement":
        keys = {"second_metric": "test/recall_at_1"}
    return Hypothesis(
        claim=name,
        source="-",
        kind=kind,
        metric="test/map_at_r",
        smallest_effect=1.0,
        datasets={"-": {}},
        arms={one: Arm() for one in names},
        changed={"label_noise": 0.2} if kind == "difference_of_differences" else {},
        **keys,
    )


def normal(rng: Rng, shape: tuple[int, ...]) -> Floats:
    return rng.standard_normal(shape)


def skewed(rng: Rng, shape: tuple[int, ...]) -> Floats:
    """Of mean 0 and deviation 1, with one long tail."""
    scale = np.exp(SKEWED**2)
    raw = np.exp(SKEWED * rng.standard_normal(shape)) - np.sqrt(scale)
    return np.asarray(raw / np.sqrt(scale * (scale - 1)))


DRAWS = {"normal": normal, "skewed": skewed}


def drawn(rng: Rng, claim: Hypothesis, effect: float | Floats, claims: int, pairs: int, draw: str = "normal") -> Floats:
    """The values of all comparisons, shape (claims, K, pairs): each has the mean `effect` (of all, or of each) in
    deviations of its own difference; arms with a seed in common share a part that pairing takes out."""
    if claim.kind == "rank_agreement":
        mean, deviation = moments_of_ranks(draw)
        return np.asarray((draw_taus(rng, (claims, pairs), draw) - mean) / deviation + effect)[:, None, :]
    seeds = DRAWS["normal"](rng, (claims, pairs))
    comparisons = [one for one in contrasts(claim) if isinstance(one, Contrast)]
    values = {
        (arm, state): seeds + DRAWS[draw](rng, (claims, pairs)) for arm in claim.trained_arms for state in claim.states
    }
    x_KN = contrast_values(comparisons, values).swapaxes(0, 1)
    weights = np.asarray([list(one.weights.values()) for one in comparisons])
    own = (weights**2).sum(axis=1) + (weights.sum(axis=1)) ** 2  # their variance, and the shared part's
    return np.asarray(x_KN / np.sqrt(own)[None, :, None] + np.broadcast_to(effect, len(comparisons))[None, :, None])


def draw_taus(rng: Rng, shape: tuple[int, ...], draw: str) -> Floats:
    """Kendall's tau between two metrics of `RANKED` arms, whose values are drawn anew with each seed."""
    first = DRAWS[draw](rng, (RANKED, *shape))
    second = CORRELATION * first + np.sqrt(1 - CORRELATION**2) * DRAWS[draw](rng, (RANKED, *shape))
    return kendall_tau(first, second)


@cache
def moments_of_ranks(draw: str) -> tuple[float, float]:
    """Mean and deviation of `draw_taus`."""
    tau_N = draw_taus(np.random.default_rng(0), (200_000,), draw)
    return float(tau_N.mean()), float(tau_N.std())


@dataclass(frozen=True)
class Row:
    """How often claims of one kind end in which way, and after how many pairs on average."""

    holds: float
    fails: float
    pairs: float


def simulated(
    rng: Rng,
    name: str,
    effect: float | Floats,
    smallest: float,
    *,
    claims: int,
    pairs: int,
    draw: str = "normal",
    intervals: Intervals | None = None,
) -> Row:
    """All of many claims to their ends. `effect` and `smallest` are in deviations of a difference."""
    claim, ends, at = hypothesis(name), list[NDArray[np.int_]](), list[NDArray[np.int_]]()
    least = resolution(claim, None) / (moments_of_ranks(draw)[1] if claim.kind == "rank_agreement" else 1.0)
    for start in range(0, claims, BLOCK):
        x_KN = drawn(rng, claim, effect, min(BLOCK, claims - start), pairs, draw)
        decision, number = first_decision(decisions(claim.kind, x_KN, smallest, resolution=least, intervals=intervals))
        ends.append(decision)
        at.append(number)
    whole = np.concatenate(ends)
    return Row(float((whole == HOLDS).mean()), float((whole == FAILS).mean()), float(np.concatenate(at).mean()))


def untrue(name: str, smallest: float) -> Floats:
    """The effects nearest to the claim that make it untrue: of several comparisons one has no effect, the others a
    large one, for there it is most likely that all seem to hold."""
    nearest = {"non_inferiority": -smallest, "equivalence": smallest, "rank_agreement": smallest}.get(KINDS[name], 0.0)
    return np.array([nearest] + [LARGE] * (len(contrasts(hypothesis(name))) - 1))


def true(name: str, smallest: float) -> float:
    """The effect at which it is claimed: its smallest one, or equality; of ranks as much above what is claimed."""
    return {"non_inferiority": 0.0, "equivalence": 0.0, "rank_agreement": 2 * smallest}.get(KINDS[name], smallest)


def edge(name: str, smallest: float) -> float:
    """The effect nearest to its being untrue at which it is true: a verdict that it does not hold is false there."""
    return {"non_inferiority": -smallest, "equivalence": smallest}.get(KINDS[name], smallest)


def t_intervals(values_N: Floats, error: float) -> tuple[Floats, Floats]:
    """Student's interval after each value, as if it were looked at once: the planted bug."""
    from scipy.special import stdtrit

    n_N = np.arange(1, values_N.shape[-1] + 1)
    mean_N = np.cumsum(values_N, axis=-1) / n_N
    variance_N = np.maximum(np.cumsum(values_N**2, axis=-1) / n_N - mean_N**2, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        radius_N = np.abs(stdtrit(n_N - 1, error / 2)) * np.sqrt(variance_N / (n_N - 1))
    radius_N[..., 0] = np.inf
    return mean_N - radius_N, mean_N + radius_N


def errors(claims: int, seed: int = 0) -> Iterator[str]:
    """The table of errors and power, a line each."""
    rng = np.random.default_rng(seed)
    yield "| kind | values | pairs at most | false holds | false fails |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for name in KINDS:
        for draw, pairs in (("normal", 10), ("normal", 20), ("normal", 100), ("skewed", 20)):
            false_holds, false_fails = [], []
            for m in SMALLEST:
                drawing: dict[str, Any] = {"claims": claims, "pairs": pairs, "draw": draw}
                false_holds.append(simulated(rng, name, untrue(name, m), m, **drawing).holds)
                false_fails.append(simulated(rng, name, edge(name, m), m, **drawing).fails)
            yield f"| {name} | {draw} | {pairs} | {max(false_holds):.1%} | {max(false_fails):.1%} |"
    for pairs in (10, 20, 100):
        holds, fails = (
            simulated(rng, "superiority", effect, SMALLEST[0], claims=claims, pairs=pairs, intervals=t_intervals)
            for effect in (0.0, SMALLEST[0])
        )
        looks = "*for comparison:* a t interval after each pair"
        yield f"| {looks} | normal | {pairs} | {holds.holds:.1%} | {fails.fails:.1%} |"
    yield ""
    yield "| kind | true effect in deviations | holds by 5 pairs | by 10 | by 20 | pairs on average, of 20 |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for name in KINDS:
        for smallest in (1.0, 2.0, 4.0):
            rows = [
                simulated(rng, name, true(name, smallest), smallest, claims=claims, pairs=pairs)
                for pairs in (5, 10, 20)
            ]
            cells = " | ".join(f"{row.holds:.0%}" for row in rows)
            yield f"| {name} | {smallest:g} | {cells} | {rows[-1].pairs:.1f} |"


def precision(claims: int, seed: int = 0) -> Iterator[str]:
    """How often a difference of so many deviations is seen by so many pairs, for several values of PRECISION."""
    rng = np.random.default_rng(seed)
    yield "| c^2 | effect | 3 pairs | 5 | 10 | 20 |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: |"
    for value in (1.0, 0.3, PRECISION, 0.03, 0.01):
        for effect in (1, 2, 4, 8):
            low_N, _ = confidence_sequence(rng.standard_normal((claims, 20)) + effect, precision=value)
            seen = [float((low_N[:, n - 1] > 0).mean()) for n in (3, 5, 10, 20)]
            yield f"| {value:g} | {effect} | " + " | ".join(f"{one:.0%}" for one in seen) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", default="errors", choices=("errors", "precision"))
    parser.add_argument("--claims", type=int, default=10_000)
    given = parser.parse_args()
    for line in {"errors": errors, "precision": precision}[given.table](given.claims):
        print(line, flush=True)


if __name__ == "__main__":
    main()
