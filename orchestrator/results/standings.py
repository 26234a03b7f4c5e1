"""What follows from the rows of the record: which methods are told apart, on a task and over data sets.

    x[c, s]: the difference of two methods' scores on the queries of test class c, trained with seed s
    d = sum of n x / sum of n, over classes and seeds crossed (`verdicts.crossed_of`)

Every pair of methods of every task is tested, all in one family (`verdicts.holm`, weighted): half of the 5% goes to the
comparisons with the reference, which is asked for first, half to all other pairs. The best method of a task is known
from the same scores; since all pairs are corrected for, what is said of it holds whichever that is.

Where a task's network is pre-trained and was measured as it comes (`results.networks`), each method is compared with it
too: Holm's correction over the methods of all such tasks, with a 5% of its own.

Over data sets a method's difference from the reference is summarised by random effects (`verdicts.over_sets`), with
Holm's correction for the methods of a protocol; each protocol's 5% is its own.

Suffixes: K methods, P pairs, C classes, S seeds.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import get_args

import numpy as np

from orchestrator.errors import InputError
from orchestrator.evaluation.claims import SIGNIFICANT, Ends
from orchestrator.evaluation.verdicts import (
    Estimate,
    Floats,
    OverSets,
    crossed_of,
    holm,
    kendall_tau,
    over_sets,
    times_taken,
)
from orchestrator.problems import Problem, suggestion
from orchestrator.report.class_tables import OverBoth, over_both
from orchestrator.results.networks import NetworkScores, TaskNetwork, networks_beside, read_networks
from orchestrator.results.outputs import ContrastOutput, OverTasksOutput, RowOutput, StandingsOutput, Word
from orchestrator.results.plan import PLAN, Plan, Task, read_plan
from orchestrator.results.row import Row, read_rows
from orchestrator.text import join_names, pluralize

NAMED = 4
"""Up to so many methods are named in a sentence."""
FEW_METHODS = 10
"""Of fewer, a fall by half of them says little."""


@dataclass(frozen=True)
class Contrast:
    """How much higher `one` scores than `other`, over classes and seeds."""

    one: str
    other: str
    estimate: Estimate
    adjusted: float
    times: float
    """How many times its p was taken."""

    @property
    def ends(self) -> Ends:
        """The 95% interval, widened as its p is, so that 0 is outside exactly where the two are told apart."""
        return self.estimate.ends(1 - SIGNIFICANT / self.times)

    @property
    def real(self) -> bool:
        """Whether the two are told apart."""
        return self.adjusted < SIGNIFICANT

    @property
    def verdict(self) -> Word:
        """What `one` is."""
        return _word(self.real, self.estimate.mean)

    @property
    def reversed(self) -> "Contrast":
        """Of the other method."""
        estimate = Estimate(-self.estimate.mean, self.estimate.parts)
        return Contrast(self.other, self.one, estimate, self.adjusted, self.times)

    @property
    def output(self) -> ContrastOutput:
        """For JSON."""
        low, high = self.ends
        return ContrastOutput(
            other=self.other,
            difference=self.estimate.mean,
            low=low,
            high=high,
            p=self.estimate.p,
            adjusted_p=self.adjusted,
            verdict=self.verdict,
        )


@dataclass(frozen=True)
class TaskStandings:
    """The rows of a task, the best first, and all pairs of its methods."""

    name: str
    task: Task
    rows: Sequence[Row]
    contrasts: Mapping[tuple[str, str], Contrast]
    """By methods, in both orders."""
    metric: str
    network: TaskNetwork | None = None
    """The pre-trained network as it comes; None where none was measured."""
    over_network: Mapping[str, Contrast] = field(default_factory=dict)
    """By method: its contrast with that network."""

    def contrast(self, one: str, other: str) -> Contrast | None:
        """Of two methods; None of one with itself, or where one has no row."""
        return self.contrasts.get((one, other))

    @property
    def best(self) -> str:
        """The method of the highest score."""
        return self.rows[0].facts.method

    def interval(self, row: Row) -> OverBoth | None:
        """Of a row's score, over other classes and other training seeds."""
        return over_both(row.tables[self.metric])

    def half_width(self, reference: str) -> float:
        """Of the intervals of the differences from the reference: their median; NaN without any."""
        ends = [one.ends for row in self.rows if (one := self.contrast(row.facts.method, reference)) is not None]
        return statistics.median((high - low) / 2 for low, high in ends) if ends else math.nan

    @property
    def agreement(self) -> float:
        """How alike the held-out scores and the test rank the methods: Kendall's tau-b."""
        test = [row.mean(self.metric) for row in self.rows]
        return float(kendall_tau(np.array([row.facts.held_out for row in self.rows]), np.array(test)))

    @property
    def falls(self) -> list[tuple[str, int, int]]:
        """The methods whose rank in the test is lower than by their held-out scores by half of the methods or more,
        with both ranks; none of fewer than ten methods."""
        if len(self.rows) < FEW_METHODS:
            return []
        scores = sorted((row.facts.held_out for row in self.rows), reverse=True)
        ranks = [(row.facts.method, scores.index(row.facts.held_out) + 1, at) for at, row in enumerate(self.rows, 1)]
        return [(method, held_out, test) for method, held_out, test in ranks if test - held_out >= len(self.rows) / 2]

    @property
    def groups(self) -> list[list[str]]:
        """The largest runs of methods, in the order of their scores, of which no two are told apart: two methods or
        more each."""
        methods = [row.facts.method for row in self.rows]
        runs: list[tuple[int, int]] = []
        for first in range(len(methods)):
            last = first
            while last + 1 < len(methods) and not any(
                self.contrasts[methods[at], methods[last + 1]].real for at in range(first, last + 1)
            ):
                last += 1
            if last > first and not any(low <= first and last <= high for low, high in runs):
                runs.append((first, last))
        return [methods[first : last + 1] for first, last in runs]


@dataclass(frozen=True)
class Standings:
    """The whole record."""

    plan: Plan
    tasks: Sequence[TaskStandings]
    """In the plan's order, those that have rows."""
    over: Mapping[str, Sequence[OverSets]]
    """By protocol: the methods less the reference over its tasks, one of each source of pictures."""
    comparisons: int
    """How many pairs the correction is for."""

    @property
    def empty(self) -> dict[str, Task]:
        """The tasks without rows."""
        filled = {task.name for task in self.tasks}
        return {name: task for name, task in self.plan.tasks.items() if name not in filled}

    @property
    def note(self) -> str:
        """What the verdicts are corrected for, and what they are not about."""
        with_networks = sum(len(task.over_network) for task in self.tasks)
        own = (
            f" {pluralize(with_networks, 'comparison')} with pre-trained networks as they come have another 5%."
            if with_networks
            else ""
        )
        return (
            f"Told apart at 5% for {pluralize(self.comparisons, 'pair')} of methods together.{own} Compared are the "
            "settings that one search found for each: another may find others."
        )

    @property
    def empty_lines(self) -> list[str]:
        """A line for each of them."""
        return [f"{name}: no rows yet" for name in self.empty]

    @cached_property
    def outputs(self) -> list[RowOutput]:
        """Every row with its verdicts, task by task, the best first."""
        return [self._row_output(task, row) for task in self.tasks for row in task.rows]

    @cached_property
    def over_outputs(self) -> list[OverTasksOutput]:
        """Every method's mean difference from the reference over tasks, protocol by protocol."""
        return [_over_output(protocol, one) for protocol, pairs in self.over.items() for one in pairs]

    def _row_output(self, task: TaskStandings, row: Row) -> RowOutput:
        facts, interval = row.facts, task.interval(row)
        against, best = (task.contrast(facts.method, other) for other in (self.plan.reference, task.best))
        network = task.over_network.get(facts.method)
        return RowOutput(
            name=facts.name,
            task=task.name,
            method=facts.method,
            score=row.mean(task.metric),
            low=None if interval is None else interval.low,
            high=None if interval is None else interval.high,
            recall_at_1=row.mean("recall_at_1"),
            against_reference=None if against is None else against.output,
            against_best=None if best is None else best.output,
            against_network=None if network is None else network.output,
            core_seconds=facts.cost.core_seconds,
            command=facts.command,
        )

    @property
    def output(self) -> StandingsOutput:
        """For JSON."""
        return StandingsOutput(
            metric=self.plan.metric,
            reference=self.plan.reference,
            rows=self.outputs,
            over_tasks=self.over_outputs,
            networks=[task.network.output(task.name) for task in self.tasks if task.network is not None],
            empty_tasks=list(self.empty),
        )

    @property
    def network_lines(self) -> dict[str, str]:
        """Of each task, how its methods stand to its network; empty without one."""
        return {task.name: network_text(task) for task in self.tasks}

    @property
    def tables(self) -> dict[str, list[dict[str, str]]]:
        """For a terminal: of each task its rows, each with its cells by their heads, the method first."""
        tables: dict[str, list[dict[str, str]]] = {}
        for one in self.outputs:
            cells = {
                "method": one.method,
                self.plan.metric: f"{one.score:.4f}",
                "95%": "" if one.low is None else f"{one.low:.4f} to {one.high:.4f}",
                "recall@1": f"{one.recall_at_1:.4f}",
                f"against {self.plan.reference}": contrast_text(one.against_reference),
                "against the best": contrast_text(one.against_best) or "the best",
            }
            tables.setdefault(one.task, []).append(cells)
        return tables


def contrast_text(contrast: ContrastOutput | None) -> str:
    """`-0.0120, worse`; empty without one."""
    return "" if contrast is None else f"{contrast.difference:+.4f}, {contrast.verdict}"


def network_text(task: TaskStandings) -> str:
    """`Compared with efficientnet_lite0 as it comes, without training (0.24): 9 better and 2 worse (pfml and triplet).`
    Empty where none was measured."""
    if task.network is None:
        return ""
    counted = []
    for word in get_args(Word):
        methods = [name for name, one in task.over_network.items() if one.verdict == word]
        named = f" ({join_names(methods, ' and ')})" if word != "better" and 0 < len(methods) <= NAMED else ""
        counted += [f"{len(methods)} {word}{named}"] if methods else []
    label = f"{task.network.scores.label}, without training ({task.network.score:.4f})"
    return f"Compared with {label}: {join_names(counted, ' and ')}."


def _word(real: bool, difference: float) -> Word:
    if not real:
        return "not told apart"
    return "better" if difference > 0 else "worse"


def _over_output(protocol: str, one: OverSets) -> OverTasksOutput:
    """Differences of shares are between -1 and 1."""
    low, high = one.ends
    difference = one.summary.estimate.mean
    return OverTasksOutput(
        method=one.one,
        protocol=protocol,
        by_task=dict(one.by_set),
        difference=difference,
        low=max(-1.0, low),
        high=min(1.0, high),
        p=one.summary.estimate.p,
        adjusted_p=one.adjusted,
        verdict=_word(one.real, difference),
        deviation_between_tasks=one.summary.deviation,
    )


def read_standings(record: Path) -> Standings:
    """Those of a record's folder."""
    return find_standings(read_plan(record), read_rows(record), read_networks(record))


def find_standings(plan: Plan, rows: Iterable[Row], networks: Sequence[NetworkScores] = ()) -> Standings:
    """Test all pairs of methods of each task, and each against the task's network, and summarise over the data sets."""
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        by_task.setdefault(row.facts.task, []).append(row)
    if problems := list(_mismatches(plan, by_task)):
        raise InputError(*problems)
    pairs: dict[str, list[tuple[str, str, Estimate]]] = {}
    for name in plan.tasks:
        ordered = sorted(by_task.get(name, []), key=lambda row: -row.mean(plan.metric))
        by_task[name] = ordered
        pairs[name] = list(_estimates(ordered, plan.metric))
    flat = [(task, *pair) for task, of in pairs.items() for pair in of]
    with_reference = [plan.reference in (one, other) for _, one, other, _ in flat]
    adjusted = adjust([estimate.p for *_, estimate in flat], with_reference)
    contrasts: dict[str, dict[tuple[str, str], Contrast]] = {name: {} for name in plan.tasks}
    for (task, one, other, estimate), p, times in zip(flat, *adjusted, strict=True):
        contrast = Contrast(one, other, estimate, p, times)
        contrasts[task] |= {(one, other): contrast, (other, one): contrast.reversed}
    tasks = [
        TaskStandings(name, task, by_task[name], contrasts[name], plan.metric)
        for name, task in plan.tasks.items()
        if by_task[name]
    ]
    tasks = _with_networks(tasks, networks_beside(plan.tasks, by_task, networks, plan))
    return Standings(plan, tasks, _over_tasks(plan, tasks), len(flat))


def _mismatches(plan: Plan, by_task: Mapping[str, Sequence[Row]]) -> Iterator[Problem]:
    """What the rows have otherwise than the plan says."""
    rows = [row for of in by_task.values() for row in of]
    for name in sorted(by_task.keys() - plan.tasks.keys()):
        counted = pluralize(len(by_task[name]), "row is", "rows are")
        rule = f"{counted} of task '{name}', which the plan does not have"
        yield Problem((PLAN, "tasks"), rule=rule, suggestion=suggestion(name, plan.tasks))
    for row in rows:
        if (task := plan.tasks.get(row.facts.task)) is not None:
            kept = {"dataset": row.facts.dataset, "digest": row.facts.dataset_digest, "protocol": row.facts.protocol}
            for key, value in kept.items():
                if (planned := getattr(task, key)) not in (None, value):
                    rule = f"has {key} '{value}', the plan's is '{planned}'"
                    yield Problem((f"row '{row.facts.name}'",), rule=rule)
    if lacking := [row for row in rows if plan.metric not in row.tables]:
        rule = f"'{plan.metric}' is no score of {pluralize(len(lacking), 'row')}"
        yield Problem((PLAN, "metric"), rule=rule, suggestion=suggestion(plan.metric, lacking[0].tables))
    for of in by_task.values() if not lacking else ():
        yield from _unlike(of, plan.metric)
    for row in rows:
        if len(row.facts.seeds) != plan.seeds:
            tested = pluralize(len(row.facts.seeds), "seed")
            rule = f"is tested with {tested}, the plan asks for {plan.seeds}: make it anew"
            yield Problem((f"row '{row.facts.name}'",), rule=rule)


def _unlike(rows: Sequence[Row], metric: str) -> Iterator[Problem]:
    """Rows of a task that are of other images, classes, queries or seeds than most of them."""
    facts = [
        {
            "data set's digest": row.facts.dataset_digest,
            "seeds": row.facts.seeds,
            "classes or numbers of queries": {seed: table.counts for seed, table in row.tables[metric].items()},
        }
        for row in rows
    ]
    usual = next((own for own in facts if 2 * facts.count(own) >= len(facts)), facts[0])
    for row, own in zip(rows, facts, strict=True):
        if differing := [name for name, value in own.items() if value != usual[name]]:
            like = rows[facts.index(usual)].facts.name
            rule = f"has another {' and '.join(differing)} than '{like}': they cannot be compared"
            yield Problem((f"row '{row.facts.name}'",), rule=rule)


def _with_networks(tasks: Sequence[TaskStandings], networks: Mapping[str, TaskNetwork]) -> list[TaskStandings]:
    """The same tasks, with the contrasts of all their methods with their networks: one family."""
    flat = [(name, method, one) for name, network in networks.items() for method, one in network.estimates.items()]
    adjusted = adjust([estimate.p for *_, estimate in flat], [True] * len(flat))
    contrasts: dict[str, dict[str, Contrast]] = {name: {} for name in networks}
    for (name, method, estimate), p, times in zip(flat, *adjusted, strict=True):
        contrasts[name][method] = Contrast(method, networks[name].scores.label, estimate, p, times)
    return [replace(task, network=networks.get(task.name), over_network=contrasts.get(task.name, {})) for task in tasks]


def adjust(ps: Sequence[float], with_reference: Sequence[bool]) -> tuple[list[float], list[float]]:
    """The adjusted p of each pair, and how many times its p was taken: half of the error goes to the pairs with the
    reference, half to the others, where both kinds are there."""
    counts = {kind: max(1, sum(one is kind for one in with_reference)) for kind in (True, False)}
    weights = [0.5 / counts[kind] for kind in with_reference]
    adjusted = holm(ps, weights)
    most = [sum(weights) / weight for weight in weights]
    return adjusted, [times_taken(*of_pair) for of_pair in zip(ps, adjusted, most, strict=True)]


def _estimates(rows: Sequence[Row], metric: str) -> Iterable[tuple[str, str, Estimate]]:
    """Every pair of a task's methods, the better one first."""
    if len(rows) < 2:
        return
    values_KCS, counts_CS = _cells(rows, metric)
    queries = float(counts_CS[:, 0].sum())
    places = list(combinations(range(len(rows)), 2))
    for one in range(len(rows) - 1):
        of_PCS = values_KCS[one] - values_KCS[one + 1 :]
        mean_P, parts = crossed_of(of_PCS, np.broadcast_to(counts_CS, of_PCS.shape), 1 / queries)
        for at, (_, other) in enumerate(pair for pair in places if pair[0] == one):
            of_pair = tuple((float(np.asarray(v)[at]), float(np.asarray(f)[at])) for v, f in parts)
            yield rows[one].facts.method, rows[other].facts.method, Estimate(float(np.asarray(mean_P)[at]), of_pair)


def _cells(rows: Sequence[Row], metric: str) -> tuple[Floats, Floats]:
    """(K, C, S) scores, and the (C, S) numbers of queries that all of them are of."""
    first = rows[0].tables[metric]
    seeds, names = sorted(first), sorted(next(iter(first.values())).means)
    counts_CS = np.array([[first[seed].counts[name] for seed in seeds] for name in names])
    values_KCS = np.array([[[row.tables[metric][s].means[name] for s in seeds] for name in names] for row in rows])
    return values_KCS, counts_CS


def _over_tasks(plan: Plan, tasks: Sequence[TaskStandings]) -> dict[str, list[OverSets]]:
    """By protocol: of two tasks of one source only the first counts, as they are not two draws of data sets."""
    by_source: dict[str, dict[str, TaskStandings]] = {}
    for task in tasks:
        by_source.setdefault(task.task.protocol, {}).setdefault(task.task.source or task.task.dataset, task)
    over: dict[str, list[OverSets]] = {}
    for protocol, of_sources in by_source.items():
        pairs: dict[tuple[str, str], dict[str, Estimate]] = {}
        for method in plan_order(plan, of_sources.values()):
            contrasts = {task.name: task.contrast(method, plan.reference) for task in of_sources.values()}
            estimates = {name: one.estimate for name, one in contrasts.items() if one is not None}
            pairs[method, plan.reference] = estimates
        over[protocol] = over_sets(pairs)
    return {protocol: pairs for protocol, pairs in over.items() if pairs}


def plan_order(plan: Plan, tasks: Iterable[TaskStandings]) -> list[str]:
    """The methods that have rows on these tasks: those of the plan in its order, then others."""
    present = {row.facts.method for task in tasks for row in task.rows}
    return [*(name for name in plan.methods if name in present), *sorted(present - plan.methods.keys())]


def what_it_is_over(task: TaskStandings) -> str:
    """`60 classes and 5 seeds`"""
    row = task.rows[0]
    return f"{pluralize(row.facts.classes, 'class', 'classes')} and {pluralize(len(row.facts.seeds), 'seed')}"
