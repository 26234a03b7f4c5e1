"""Tests as they are reported: each value with the interval of its claim, and what that is over."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.evaluation.claims import ClaimScope, is_end, recorded_claim
from orchestrator.evaluation.measures import is_share, metric_of
from orchestrator.report.class_tables import OverBoth, class_table, over_both
from orchestrator.report.learning import test_set
from orchestrator.storage.leaderboard import Interval, Repeated
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import pluralize


def protocol_of(ledger: Ledger) -> str | None:
    """The protocol of a search's tests."""
    anyone: TrialRecord | None = next(iter(ledger.finals.values()), None) or next(iter(ledger.trials.values()), None)
    settings = anyone.settings if anyone is not None else ledger.config.get("settings", {})
    return settings.get("protocol")


def claim_of_test(ledger: Ledger, test: Mapping[str, Any], name: str) -> ClaimScope | None:
    """The interval of a recorded test's metric."""
    of = test_set(ledger)
    return recorded_claim(test, name, protocol_of(ledger), None if of is None else of.classes)


def claim_units(ledger: Ledger, of_claim: ClaimScope) -> str:
    """`50 classes`, `classes`, `1000 queries`"""
    of = test_set(ledger)
    if of is None:
        return of_claim.over
    if of_claim.over == "classes":
        return pluralize(of.classes, "class", "classes")
    return pluralize(of.queries, "query", "queries")


def between(ledger: Ledger, test: Mapping[str, Any], name: str) -> str:
    """`95% over 50 classes: 0.4970 to 0.5960`, or why there is no such interval; empty where none was recorded."""
    interval = claim_of_test(ledger, test, name)
    return "" if interval is None else interval.text(claim_units(ledger, interval))


def test_texts(ledger: Ledger, test: Mapping[str, float]) -> dict[str, str]:
    """Each metric of one test: `0.5440 (95% over 50 classes: 0.4970 to 0.5960)`."""
    intervals = {name: between(ledger, test, name) for name in test if not is_end(name)}
    return {name: f"{test[name]:.4f}" + (f" ({interval})" if interval else "") for name, interval in intervals.items()}


def means(group: Repeated) -> dict[str, float]:
    """The mean over seeds of each metric of a repeated test, and of the intervals' ends: the interval of the mean of
    several trainings is no wider, since its deviation is at most the mean of theirs."""
    return {name: spread.mean for name, spread in group.metrics.items()}


def metric_texts(ledger: Ledger, group: Repeated) -> dict[str, str]:
    """Each metric of a repeated test: `0.5210 ± 0.0010 (95% over 50 classes and 3 seeds: 0.4970 to 0.5960)`, classes
    and seeds crossed where the tables of the classes were kept; else one interval over each."""
    values, texts = means(group), {}
    for name, spread in group.metrics.items():
        if is_end(name):
            continue
        both = _over_both(ledger, group, name)
        over = f"{_over_seeds(len(group.trial_ids), in_range(name, spread))}{_and_over(ledger, values, name)}"
        texts[name] = f"{spread.mean:.4f} ± {spread.standard_deviation:.4f} ({over if both is None else both.text})"
    return texts


def _over_both(ledger: Ledger, group: Repeated, name: str) -> OverBoth | None:
    metric = metric_of(name)
    if protocol_of(ledger) == "classification" or metric is None or not metric.by_class:
        return None
    runs = {run.trial_id: run for run in ledger.everyone()}
    tables = [class_table(ledger, runs[one], name, runs[one].test[name]) for one in group.trial_ids]
    by_seed = {number: table for number, table in enumerate(tables) if table is not None}
    return over_both(by_seed) if len(by_seed) == len(tables) else None


def _over_seeds(seeds: int, spread: Interval) -> str:
    return f"95% over {seeds} seeds: {spread.low:.4f} to {spread.high:.4f}"


def _and_over(ledger: Ledger, values: Mapping[str, float], name: str) -> str:
    interval = claim_of_test(ledger, values, name)
    text = "" if interval is None else interval.text_over(claim_units(ledger, interval))
    return f"; {text}" if text else ""


def single_tests(ledger: Ledger, grouped: Sequence[Repeated]) -> list[TrialRecord]:
    """The tested runs that are in no group of repeated ones, final runs first."""
    together = {trial_id for group in grouped for trial_id in group.trial_ids}
    runs = [*ledger.finals.values(), *ledger.ranking()]
    return [run for run in runs if run.test and run.trial_id not in together]


def in_range(name: str, spread: Interval) -> Interval:
    """An interval over seeds as it is shown: Student's t knows nothing of a metric's range, its ends stay within it."""
    if not is_share(name):
        return spread
    return replace(spread, low=max(0.0, spread.low), high=min(1.0, spread.high))


def test_rows(ledger: Ledger, test: Mapping[str, float]) -> tuple[list[str], list[list[Any]]]:
    """Heads and rows of a test's table: metric, value, both intervals as far as recorded, chance."""
    of = test_set(ledger)
    heads, rows = ["metric", "value"], []
    stems = {"classes": "_over_classes", "queries": "_over_queries"}
    if any(is_end(name) and not any(stem in name for stem in stems.values()) for name in test):
        stems["queries"] = ""
    by_population = {
        over: {name: (test.get(f"{name}{stem}_low"), test.get(f"{name}{stem}_high")) for name in test}
        for over, stem in stems.items()
    }
    populations = [over for over, ends in by_population.items() if any(pair != (None, None) for pair in ends.values())]
    for over in populations:
        heads += [f"over {over}: low", "high"]
    chance: Mapping[str, float] = {} if of is None else of.chance
    heads += ["chance"] if chance else []
    for name, value in test.items():
        if is_end(name) or name.startswith("diagnostics/"):
            continue
        row: list[Any] = [name, value]
        for over in populations:
            row += by_population[over][name]
        rows.append(row + ([chance.get(name.removeprefix("concatenated_"))] if chance else []))
    return heads, rows
