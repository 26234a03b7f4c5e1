"""What came out of a claim: per data set and altogether, from the recorded trainings alone."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from orchestrator.claims.design import Columns, Contrast, RankAgreement, contrasts
from orchestrator.claims.hypothesis import SECOND, Claim, Hypothesis, is_share_metric
from orchestrator.claims.outputs import ClaimEffect, ClaimVerdict, DatasetVerdict, Kind, Word
from orchestrator.claims.sequential import (
    ERROR,
    FAILS,
    HOLDS,
    UNDECIDED,
    Floats,
    confidence_sequence,
    decisions,
    first_decision,
)
from orchestrator.errors import InputError
from orchestrator.storage.events import Event, Validation
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import pluralize, span

WORDS: dict[int, Word] = {HOLDS: "holds", FAILS: "does not hold", UNDECIDED: "undecided"}


def metric_value(metric: str, kind: Kind, events: Sequence[Event], ledger: Ledger) -> float:
    """The value of a training that a claim compares: of a test, of its best validation (`val/`), of its last one
    (`diagnostics/`, `train/`), or its time; of a trend the change over all validations, as the line through them says:
    its least-squares slope times the validations less 1."""
    (trial,) = ledger.trials.values()
    if kind == "trend":
        return _change(metric, events, trial)
    prefix, _, name = metric.partition("/")
    if prefix == "cost":
        return trial.seconds / max(trial.epochs, 1e-12)
    places = {"test": trial.test, "val": trial.best_metrics}
    metrics, key = places.get(prefix, trial.last_metrics), name if prefix == "test" else metric
    if key not in metrics:
        raise _not_recorded(metric, ledger.name, metrics)
    return metrics[key]


def _change(metric: str, events: Sequence[Event], trial: TrialRecord) -> float:
    series = {event.validation: event.metrics.get(metric) for event in events if isinstance(event, Validation)}
    values = [value for _, value in sorted(series.items()) if value is not None]
    if len(values) < 2:
        raise _not_recorded(metric, f"two validations of {trial.trial_id}", trial.last_metrics)
    steps = np.arange(len(values)) - (len(values) - 1) / 2
    return float(steps @ np.asarray(values) / (steps @ steps) * (len(values) - 1))


def _not_recorded(metric: str, where: str, metrics: Mapping[str, float]) -> InputError:
    first = metric.partition("/")[0]
    names = sorted(name for name in metrics if name.startswith(f"{first}/")) or sorted(metrics)
    return InputError(f"metric: {metric}: not recorded by {where} (recorded: {', '.join(names[:12])})")


def resolution(hypothesis: Hypothesis, queries: int | None) -> float:
    """The least deviation of a comparison: the weight of one query of a recall, which is a count (of a trend too: that
    of its values' deviation by one query is as large); of ranks that of two neighbours that change places; else 0."""
    if hypothesis.kind == "rank_agreement":
        arms = len(hypothesis.trained_arms)
        return 4 / (arms * (arms - 1))
    return 1 / queries if queries and is_share_metric(hypothesis.metric) else 0.0


def contrast_values(comparisons: Sequence[Contrast | RankAgreement], values: Columns) -> Floats:
    """The value of each comparison with each seed, shape (K, N), from the arms' values."""
    return np.asarray([one.values(values) for one in comparisons])


class EndedTraining(NamedTuple):
    """A training of a claim that has ended."""

    name: str
    """Arms and metrics that read one training have one name."""
    value: float
    """That the claim compares."""
    test: Mapping[str, float]
    has_learned: bool
    """Whether its network is better than before it, as far as is known."""

    def is_like(self, other: "EndedTraining") -> bool:
        """Whether it is another training with the same value and the same test, in every digit of every metric that
        both have."""
        common = self.test.keys() & other.test.keys()
        same = self.value == other.value and all(self.test[key] == other.test[key] for key in common)
        return self.name != other.name and bool(common) and same


def dataset_verdict(
    hypothesis: Hypothesis,
    dataset: str,
    values: Mapping[tuple[str, str], Sequence[float]],
    *,
    classes: int | None = None,
    queries: int | None = None,
    trainings: Mapping[tuple[str, str], Sequence[EndedTraining]] | None = None,
    tuned: Mapping[str, Mapping[str, Any]] | None = None,
    problem: str = "",
) -> DatasetVerdict:
    """The verdict from each arm's values with the first seeds; those after its decision are left out. `trainings`:
    those that have these values; `tuned`: the point that was chosen for an arm."""
    comparisons, sign, points = contrasts(hypothesis), hypothesis.sign, hypothesis.points
    trainings = trainings or {}
    without_effect = [seeds_without_effect(one, trainings) for one in comparisons]
    x_KN = contrast_values(comparisons, values)
    decision, pairs, reason, effects = UNDECIDED, x_KN.shape[-1], problem, list[ClaimEffect]()
    least = resolution(hypothesis, queries)
    if pairs:
        decision_N = decisions(
            hypothesis.kind,
            sign * x_KN,
            hypothesis.smallest_effect / points,
            datasets=len(hypothesis.datasets),
            resolution=least,
            without_effect=without_effect,
        )
        decision, pairs = (int(one) for one in first_decision(decision_N))
        low_KN, high_KN = confidence_sequence(x_KN[:, :pairs], ERROR, least, skipped=without_effect)
        most = 1.0 if hypothesis.kind == "rank_agreement" else math.inf  # of a correlation
        effects = [
            ClaimEffect(
                comparison=one.label,
                effect=round(points * float(x_KN[at, :pairs].mean()), 12),  # +0, not +1.4e-15
                low=_end(points * low_KN[at, -1], most),
                high=_end(points * high_KN[at, -1], most),
            )
            for at, one in enumerate(comparisons)
        ]
    if decision != UNDECIDED:
        reason = ""
    elif not problem and pairs < hypothesis.seeds.max:
        reason = f"stopped after {pluralize(pairs, 'pair')} of {hypothesis.seeds.max}"
    elif not problem:
        reason = "what its arms differ in had no effect" if pairs in without_effect else "at this budget"
    return DatasetVerdict(
        dataset=dataset,
        verdict=WORDS[decision],
        reason=reason,
        pairs=pairs,
        effects=effects,
        classes=classes,
        queries=queries,
        values={_column_name(cell): list(column[:pairs]) for cell, column in values.items()},
        unlearned={
            _column_name(cell): count
            for cell, column in trainings.items()
            if cell[1] != SECOND and (count := sum(not one.has_learned for one in column[:pairs]))
        },
        alike={
            f"{_column_name(one)} and {_column_name(other)}": count
            for one, other in itertools.combinations(trainings, 2)
            if (count := sum(map(EndedTraining.is_like, trainings[one][:pairs], trainings[other][:pairs])))
        },
        tuned={arm: dict(point) for arm, point in (tuned or {}).items()},
    )


def seeds_without_effect(
    comparison: Contrast | RankAgreement, trainings: Mapping[tuple[str, str], Sequence[EndedTraining]]
) -> int:
    """With how many seeds, from the first on, every training of a comparison is the same as one of its other side: its
    difference says nothing of the arms then."""
    if isinstance(comparison, RankAgreement) or not trainings:
        return 0
    above, below = (
        zip(*(trainings[cell] for cell, weight in comparison.weights.items() if weight * sign > 0), strict=True)
        for sign in (1, -1)
    )
    return sum(itertools.takewhile(bool, itertools.starmap(_are_alike, zip(above, below, strict=False))))


def _are_alike(above: Sequence[EndedTraining], below: Sequence[EndedTraining]) -> bool:
    """Of one seed."""
    sides = ((above, below), (below, above))
    return all(any(one.is_like(other) for other in others) for side, others in sides for one in side)


def _column_name(cell: tuple[str, str]) -> str:
    return ", ".join(filter(None, cell))


def reservations(verdict: DatasetVerdict) -> str:
    """What takes from the comparisons' worth: `; not shown to have learned: idml with 4 of 4 seeds; the same test in
    every digit: papers and none with 2 of 4 seeds`. Empty if there is nothing."""
    parts = {"not shown to have learned": verdict.unlearned, "the same test in every digit": verdict.alike}
    return "".join(
        f"; {text}: " + ", ".join(f"{name} with {count} of {verdict.pairs} seeds" for name, count in counts.items())
        for text, counts in parts.items()
        if counts
    )


def _end(value: float, most: float) -> float | None:
    return float(min(max(value, -most), most)) if math.isfinite(value) else None


def whole_verdict(verdicts: Sequence[DatasetVerdict]) -> Word:
    """It holds where it holds on every data set, and does not hold if it does not on one of them."""
    words = {one.verdict for one in verdicts}
    if words == {"holds"}:
        return "holds"
    return "does not hold" if "does not hold" in words else "undecided"


def claim_verdict(
    claim: Claim,
    verdicts: Sequence[DatasetVerdict],
    *,
    trainings: int,
    searches: int,
    seconds: float,
    commit: str | None,
) -> ClaimVerdict:
    """All of a claim, with its line."""
    hypothesis, word = claim.hypothesis, whole_verdict(verdicts)
    parts = [_of_dataset(hypothesis, one) for one in verdicts]
    spent = [pluralize(trainings, "training"), *([pluralize(searches, "search", "searches")] if searches else [])]
    cost = f"{' and '.join(spent)}, {span(seconds)}"
    return ClaimVerdict(
        name=claim.name,
        claim=hypothesis.claim,
        source=hypothesis.source,
        kind=hypothesis.kind,
        digest=claim.digest,
        metric=hypothesis.metric,
        direction=hypothesis.direction,
        unit=effect_unit(hypothesis),
        smallest_effect=hypothesis.smallest_effect,
        confidence=1 - ERROR,
        verdict=word,
        line=f"{hypothesis.claim}: {word}. {' '.join(parts)} {cost} of training; claim {claim.digest[:8]}.",
        datasets=list(verdicts),
        trainings=trainings,
        searches=searches,
        seconds=seconds,
        commit=commit,
    )


def effect_unit(hypothesis: Hypothesis) -> str:
    """`points of map_at_r`: hundredths of a share; else `proxy_coding_rate`; of ranks, by which metrics."""
    name = hypothesis.metric.partition("/")[2]
    if hypothesis.kind == "rank_agreement":
        return f"of the ranks by {name} and {str(hypothesis.second_metric).partition('/')[2]}"
    return f"points of {name}" if hypothesis.points != 1 else name


def effect_text(effect: ClaimEffect) -> str:
    """`pfml - proxy_anchor +3.12 (95% +1.02 to +5.20)`"""
    if effect.low is None or effect.high is None:
        return f"{effect.comparison} {effect.effect:+.3g} (no interval yet)"
    return f"{effect.comparison} {effect.effect:+.3g} (95% {effect.low:+.3g} to {effect.high:+.3g})"


def _of_dataset(hypothesis: Hypothesis, verdict: DatasetVerdict) -> str:
    word = verdict.verdict + (f" {verdict.reason}" if verdict.reason == "at this budget" else "")
    word += f" ({verdict.reason})" if verdict.reason not in ("", "at this budget") else ""
    effects = "; ".join(map(effect_text, verdict.effects))
    lower = " (lower is claimed)" if hypothesis.direction == "lower" else ""
    effects = f"{effects} {effect_unit(hypothesis)}{lower}" if effects else "no effect yet"
    over = [pluralize(verdict.pairs, "seed"), *([f"{verdict.classes} classes"] if verdict.classes else [])]
    return f"On {verdict.dataset} it {_verb(word)}: {effects}; {', '.join(over)}{reservations(verdict)}."


def _verb(word: str) -> str:
    return f"is {word}" if word.startswith("undecided") else word
