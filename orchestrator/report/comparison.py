"""Several searches side by side: which won, by how much, how certain that is, and at what cost.

Numbers are compared only if they measure the same thing: the same classes of the same images, tested in the same way.
All other differences (settings, budgets) are reported.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.config.training import Training
from orchestrator.errors import InputError
from orchestrator.evaluation.measures import HEADLINES, YARDSTICK
from orchestrator.report import learning
from orchestrator.report.findings import RISING, Findings
from orchestrator.report.importance import ENOUGH_TRIALS
from orchestrator.report.member import Member, MemberOutput, in_queries, spread_text
from orchestrator.report.power import POWER, SEEDS_TO_FORECAST, seeds_needed
from orchestrator.report.repeated_searches import (
    MethodSearches,
    RepeatedMethod,
    between_methods,
    methods_of,
    verdict_of,
)
from orchestrator.report.significance import (
    Apart,
    Difference,
    differences,
    equal_texts,
    how_tested,
    resolution_of,
    tables_by_seed,
    tests_by_seed,
)
from orchestrator.report.tested import MetricGoal, goals, measured_on
from orchestrator.storage.leaderboard import chosen_value
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.outputs import Output
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import join_names, pluralize, value_text

MEASURED = ("dataset", "protocol", "selection", "class_subset")
"""What must be equal for numbers to be comparable, besides the data set's digest."""
NOT_THE_METHODS = (
    "Compared are the configurations that these searches found; searches with other seeds may find others (benchmark "
    "--searches 3 compares methods)."
)
FREE = {"seed", "dataset", "device", "threads", "loader_threads", "checkpoint_every"}
"""What may differ without a note: it is reported elsewhere, or changes no result."""


class ComparisonOutput(Output):
    """Searches beside each other."""

    name: str
    metric: str
    verdict: list[str]
    outlook: list[str]
    notes: list[str]
    members: list[MemberOutput]
    methods: list[RepeatedMethod]
    """Where their searches were repeated: the differences are between them."""
    differences: list[Apart]


@dataclass(frozen=True)
class Comparison:
    """The answers. `verdict` and `outlook` are whole sentences."""

    name: str
    metric: str
    members: tuple[Member, ...]
    """Best test first; those without one last."""
    differences: tuple[Difference, ...]
    verdict: tuple[str, ...]
    outlook: tuple[str, ...]
    """What more budget, or more seeds, would likely change."""
    notes: tuple[str, ...]
    """What differs, so that the comparison may not be fair, and what is missing."""
    methods: tuple[MethodSearches, ...] = ()
    """Best first, where their searches were repeated: the differences are between them then."""

    @classmethod
    def of(
        cls,
        name: str,
        ledgers: Mapping[str, Ledger],
        missing: Sequence[str] = (),
        storage: str = "",
        margin: float | None = None,
        searches: Mapping[str, tuple[str, int]] | None = None,
    ) -> "Comparison":
        """Compare searches, known by their labels; `missing` are those that have not begun, `storage` is where they
        are, if that is not the default, `margin` the largest difference with which two count as equal (else the first
        of their files' `equivalence_margin`), and `searches`
        the method and the number of each, where methods' searches were repeated.

        Raises:
            InputError: they do not measure the same thing; names what differs.
        """
        refuse_unlike(ledgers)
        metrics = {goals(ledger)[0] for ledger in ledgers.values()}
        goal = metrics.pop() if len(metrics) == 1 else MetricGoal(YARDSTICK)
        metric, sign = goal.metric, -1.0 if goal.larger else 1.0
        entries = []
        for label, ledger in ledgers.items():
            findings = Findings.of(ledger, storage=storage)
            entries.append(Member(label, findings, metric, tests_by_seed(ledger, findings.winner, metric)))
        members = sorted(entries, key=lambda member: math.inf if member.mean is None else sign * member.mean)
        tables = {m.label: tables_by_seed(m.ledger, m.winner, metric) for m in members if m.tests}
        resolution = max((resolution_of(m.ledger) for m in members), default=0.0)
        looks = {member.label: member.ledger.looks for member in members}
        methods = methods_of(members, searches, sign) if searches else []
        if methods:
            compared = between_methods(methods, metric, resolution)
            judged = verdict_of(metric, methods, compared)
        else:
            compared = differences({member.label: member.tests for member in members}, tables, resolution, looks)
            judged = _verdict(metric, members, compared)
        verdict = [*_untrained_lines(metric, members), *judged]
        if margin is None:
            margin = next((m for ledger in ledgers.values() if (m := ledger.config.get("equivalence_margin"))), None)
        if margin is not None:
            verdict += equal_texts(compared, margin).values()
        return cls(
            name=name,
            metric=metric,
            members=tuple(members),
            differences=tuple(compared),
            verdict=tuple(verdict),
            outlook=tuple(_outlook(members, compared)),
            notes=tuple(_notes(members, missing)),
            methods=tuple(methods),
        )

    @property
    def output(self) -> ComparisonOutput:
        """For JSON."""
        return ComparisonOutput(
            name=self.name,
            metric=self.metric,
            verdict=list(self.verdict),
            outlook=list(self.outlook),
            notes=list(self.notes),
            members=[member.output for member in self.members],
            methods=[method.output for method in self.methods],
            differences=[difference.output for difference in self.differences],
        )


def rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table, best first, as text. The other headlines of the test stand beside the metric."""
    beside = [
        name for name in HEADLINES if name != comparison.metric and any(m.beside(name) for m in comparison.members)
    ]
    heads = ["#", "search", f"test {comparison.metric}", *(f"test {name}" for name in beside), "seeds", "held-out"]
    heads += ["trials", "epochs", "hours", "seconds per training"]
    lines = []
    for rank, member in enumerate(comparison.members, start=1):
        winner = member.winner
        lines.append(
            [
                "-" if member.mean is None else str(rank),
                member.label,
                member.text,
                *(spread_text(member.beside(name)) for name in beside),
                str(len(member.tests)),
                "-" if winner is None or winner.best is None else f"{chosen_value(member.ledger, winner):.4f}",
                str(len(member.ledger.trials)),
                f"{member.ledger.epochs:g}",
                f"{member.hours:.2f}",
                f"{member.training_seconds:.1f}",
            ]
        )
    return heads, lines


# What can be compared --------------------------------------------------------------------------------------------


def refuse_unlike(ledgers: Mapping[str, Ledger]) -> None:
    """InputError naming what differs, if the searches' tests do not measure the same thing."""
    measured = {label: _measured_settings(ledger) for label, ledger in ledgers.items()}
    differing = []
    for key in dict.fromkeys(key for settings in measured.values() for key in settings):
        by_label = {label: settings[key] for label, settings in measured.items() if key in settings}
        if len({repr(value) for value in by_label.values()}) > 1:
            differing.append(f"{key}: " + ", ".join(f"{_text_of(v)} in '{label}'" for label, v in by_label.items()))
    if differing:
        raise InputError(f"their numbers cannot be compared: {'; '.join(differing)}")


def _measured_settings(ledger: Ledger) -> dict[str, Any]:
    settings = _settings(ledger)
    settings_measured = {key: settings[key] for key in MEASURED if key in settings}
    if ledger.config.get("final_protocol", "same") != "same":
        settings_measured["protocol"] = ledger.config["final_protocol"]
    if digest := ledger.tags.get("dataset.digest"):
        settings_measured["images of the data set"] = str(digest)[:12]
    return settings_measured


def _settings(ledger: Ledger) -> Mapping[str, Any]:
    """The settings of its winner, or of any of its trainings."""
    anyone = ledger.winner() or next(iter(ledger.everyone()), None)
    return anyone.settings if anyone is not None else ledger.config.get("settings", {})


def _text_of(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else value_text(value)


# What is said ----------------------------------------------------------------------------------------------------


def _verdict(metric: str, members: Sequence[Member], compared: Sequence[Difference]) -> list[str]:
    tested = [member for member in members if member.tests]
    if not tested:
        return ["No search has a test yet: nothing to compare."]
    best, others = tested[0], tested[1:]
    where = "the TEST classes (selection: test)" if best.ledger.selection == "test" else "unseen classes"
    said = f"{metric} {best.text} on {where}"
    if not others:
        return [f"Only {best.label} has a test ({said}): nothing to compare it with."]
    with_best = {d.other: d for d in compared if d.one == best.label}
    open_ = [m for m in others if m.label not in with_best or not with_best[m.label].real]
    how = how_tested(compared)
    searched = [NOT_THE_METHODS] if any(member.ledger.kind == "search" for member in tested) else []
    if not open_:
        ahead = with_best[others[0].label]
        beside = [f"{ahead.fixed_text}."] if ahead.fixed_text else []
        said = f"Best configuration found: {best.label}, {said}, {ahead.text} ahead of {others[0].label} ({how})."
        return [said, *in_queries(best, others[0]), *beside, *searched]
    if not any(difference.is_tested for difference in compared):
        following = ", ".join(f"{member.label} {member.text}" for member in others)
        return [f"Ahead: {best.label}, {said}, before {following}; that may be chance ({how})."]
    names = ", ".join(f"{m.label} ({_against(with_best.get(m.label))})" for m in open_)
    lines = [f"Not distinguishable over these seeds: {best.label}, {said}, and {names}; {how}."]
    if beaten := [member for member in others if member not in open_]:
        behind = ", ".join(f"{m.label} ({with_best[m.label].text})" for m in beaten)
        lines.append(f"{best.label} is better than {behind}.")
    against = [(d.other, d.fixed_text) for d in compared if d.one == best.label and d.fixed_text]
    lines += [f"Against {other}: {text[:1].lower()}{text[1:]}." for other, text in against]
    return [*lines, *searched]


def _untrained_lines(metric: str, members: Sequence[Member]) -> list[str]:
    """What the networks have on these test classes before their training, and which of the same seed's trainings did
    not get above that."""
    scores: dict[str, tuple[float, TrialRecord]] = {}
    for member in members:
        for run in member.ledger.tests_of(member.winner):
            score = learning.untrained_on_test(member.ledger, run)
            if score is not None and metric in score["metrics"] and metric in run.test:
                scores[member.label] = score["metrics"][metric], run
                break
    if not scores:
        return []
    several = {member.label for member in members if len(member.tests) > 1}
    above, below = [], []
    for label, (value, run) in scores.items():
        seed = f", seed {run.settings.get('seed', 0)}" if label in several else ""
        above.append(f"{value:.4f} ({label}{seed})")
        if run.test[metric] <= value:
            paired = run.gain is not None and run.gain.metric == metric
            by = f"; {learning.gain_text(run.gain)}" if run.gain is not None and paired else ""
            below.append(f"{label} ({run.test[metric]:.4f} trained{by})")
    less = f" With the same seed {join_names(below, ' and ')} did not get above it." if below else ""
    return [f"Untrained, the networks have {metric} {', '.join(above)} on the same classes.{less}"]


def _against(difference: Difference | None) -> str:
    return "no seed in common" if difference is None else difference.text


def _outlook(members: Sequence[Member], compared: Sequence[Difference]) -> list[str]:
    """From the course of the searches: which were still improving, and whether that could change the order."""
    lines = []
    ranked = [member for member in members if member.winner is not None and member.winner.best is not None]
    if not ranked:
        return []
    better = ranked[0].ledger.better
    values = {m.label: m.winner.best for m in ranked if m.winner is not None and m.winner.best is not None}
    top = next(label for label, v in values.items() if not any(better(other, v) for other in values.values()))
    moving = [member for member in ranked if member.late_gain > RISING * abs(values[member.label])]
    results = {member.label: len(member.ledger.candidates()) for member in ranked}
    few = [f"{pluralize(count, 'result')} of {label}" for label, count in results.items() if count < ENOUGH_TRIALS]
    if few:
        lines.append(
            f"Too few to say what a bigger budget would change: {', '.join(few)}; {ENOUGH_TRIALS} of each are needed."
        )
        moving = []
    elif not moving and not any(map(_unsettled_lines, ranked)):
        apart = all(d.real for d in compared if d.one == members[0].label)
        more = "" if apart else "; what is not distinguishable needs more seeds, or more test classes"
        lines.append(
            "A bigger budget for the searches would likely change little: none gained more than "
            f"{RISING:.0%}{measured_on(ranked[0].ledger)} in the second half of its epochs{more}."
        )
    for member in moving:
        gain, gap = member.late_gain, abs(values[top] - values[member.label])
        text = f"{member.label} still gained {gain:.4f}{measured_on(member.ledger)} in the second half of its epochs"
        if member.label == top:
            lines.append(f"{text}: with more budget it may get further ahead.")
        elif gain >= gap:
            lines.append(f"{text}, and is {gap:.4f} behind {top}: a bigger budget may change the order.")
        else:
            lines.append(f"{text}, less than the {gap:.4f} by which it is behind {top}.")
    for member in ranked:
        edges = [setting.key for setting in member.findings.searched if setting.edge]
        if edges:
            lines.append(f"{member.label}'s best is at the edge of its range of {', '.join(edges)}: widen it.")
        if member.findings.rising:
            lines.append(f"{member.label}'s best training still rose at its end: longer ones may help it.")
    best = members[0].label
    tests = sum(d.is_tested for d in compared)
    if any(d.unit == "search" for d in compared):
        return lines
    open_ = [d for d in compared if d.one == best and d.is_tested and not d.real]
    forecasts = {d.other: forecast for d in open_ if (forecast := seeds_needed(d, tests)) is not None}
    lines += [
        f"To tell a difference as large as that of {best} and {other} would take {forecast.text}, each, with a chance "
        f"of {POWER:.0%}."
        for other, forecast in forecasts.items()
    ]
    if any(d.seeds < SEEDS_TO_FORECAST for d in open_):
        lines.append(f"How many seeds would tell them apart cannot be said from fewer than {SEEDS_TO_FORECAST}.")
    return lines


def _unsettled_lines(member: Member) -> bool:
    """Whether its search says itself that there is more to gain: a best at an edge, a training that still rose."""
    at_edge = any(setting.edge for setting in member.findings.searched)
    return at_edge or bool(member.findings.rising)


def _notes(members: Sequence[Member], missing: Sequence[str]) -> list[str]:
    lines = [f"{label} has not begun." for label in missing]
    for member in members:
        ledger = member.ledger
        if ledger.state != "done":
            why = f" ({ledger.reason})" if ledger.reason else ""
            lines.append(f"{member.label} is {ledger.state}{why}: its numbers may change.")
        lines += [f"{member.label}: {line}" for line in learning.told_beside(ledger)]
        if (ahead := member.findings.favoured) is not None:
            lines.append(f"{member.label} is compared by trial {ahead.chosen.trial_id}, which it chose; {ahead.text}.")
        if member.winner is None:
            reason = next((trial.reason for trial in ledger.everyone() if trial.reason), "no trial has a result")
            lines.append(f"{member.label} has no result: {reason}.")
        elif not member.tests:
            finals = ledger.final_runs_of(member.winner)
            reason = next((run.reason for run in finals if run.reason), "it has no final run yet")
            lines.append(f"{member.label} has no test of its winner: {reason}.")
    if unlike := next((line for m in members if (line := learning.unlike(m.ledger))), ""):
        lines.append(unlike)
    budgets = {member.label: _budget(member.ledger) for member in members}
    if len(set(budgets.values())) > 1:
        lines.append("Budgets differ: " + ", ".join(f"{budget} ({label})" for label, budget in budgets.items()) + ".")
    searched = {setting.key for member in members for setting in member.findings.searched}
    settings = {member.label: _settings(member.ledger) for member in members}
    for key in Training.model_fields:
        if key in FREE | searched or key in MEASURED:
            continue
        values = {label: values_there[key] for label, values_there in settings.items() if key in values_there}
        if len({repr(value) for value in values.values()}) > 1:
            each = ", ".join(f"{_text_of(value)} ({label})" for label, value in values.items())
            lines.append(f"{key} differs: {each}.")
    for what in ("algorithm", "scheduler", "objective"):
        names = {member.label: _name_of(member.ledger.config.get(what)) for member in members}
        if len(set(names.values())) > 1:
            each = ", ".join(f"{value} ({label})" for label, value in names.items())
            lines.append(f"{what} differs: {each}.")
    return lines


def _budget(ledger: Ledger) -> str:
    limits = {"trials": ledger.config.get("num_trials")} | (ledger.config.get("budget") or {})
    texts = [f"{limit:g} {key.replace('_', ' ')}" for key, limit in limits.items() if limit is not None]
    return " and ".join(texts) or "the whole grid"


def _name_of(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return str(value.get("name") or value.get("metric"))
