"""Pre-trained networks as they come, on a task's test classes: what training on their features has to be better than.

results/networks/DATASET.BACKBONE.json    the scores of each test class: `NetworkScores`
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from orchestrator.errors import InputError
from orchestrator.evaluation.verdicts import Estimate, crossed_estimate
from orchestrator.problems import File, Problem, describe
from orchestrator.report.class_tables import NEAR, ClassTable, paired_differences
from orchestrator.results.outputs import NetworkOutput
from orchestrator.results.plan import Plan, Task
from orchestrator.results.row import MEASURES, Row, digest_of, read_file
from orchestrator.storage.atomic import write_whole
from orchestrator.storage.outputs import Output, SettingValue

FORMAT = 1
NETWORKS = "networks"
FEATURES = ("backbone", "weights", "weights_sha256", "pooling", "input_convention", "augmentation", "image_size")
"""The settings of a training that the features of its network depend on before the training."""


class NetworkScores(Output):
    """A network without an embedding layer and without training, on a data set's test classes."""

    format: int
    dataset: str
    dataset_digest: str
    settings: dict[str, SettingValue]
    """Those of FEATURES."""
    dimensions: int
    test: dict[str, float]
    """By metric."""
    by_class: dict[str, dict[str, float]]
    """By metric and class: the mean over its queries."""
    command: str
    """Measures the same again."""
    commit: str | None
    machine: str
    date: str
    scores_digest: str
    """SHA-256 of `by_class`, as `classes_digest` counts it."""

    @property
    def name(self) -> str:
        """`emoji.efficientnet_lite0`"""
        return f"{self.dataset}.{str(self.settings['backbone']).replace('/', '-')}"

    @property
    def label(self) -> str:
        """`efficientnet_lite0 as it comes`"""
        return f"{self.settings['backbone']} as it comes"


class TaskNetwork:
    """A network beside the rows of its task."""

    def __init__(self, scores: NetworkScores, rows: Sequence[Row], metric: str) -> None:
        self.scores, self.metric, self._rows = scores, metric, rows

    @property
    def score(self) -> float:
        """Of the metric."""
        return self.scores.test[self.metric]

    @cached_property
    def estimates(self) -> Mapping[str, Estimate]:
        """By method: how much higher it scores than the network, over classes and seeds crossed. The network has no
        seeds: its scores are paired with those of every seed, class by class."""
        return {row.facts.method: self._estimate(row.tables[self.metric]) for row in self._rows}

    def output(self, task: str) -> NetworkOutput:
        """For JSON."""
        scores = self.scores
        return NetworkOutput(
            task=task,
            settings=scores.settings,
            dimensions=scores.dimensions,
            test=scores.test,
            command=scores.command,
            commit=scores.commit,
            date=scores.date,
        )

    def _estimate(self, tables: Mapping[int, ClassTable]) -> Estimate:
        means = self.scores.by_class[self.metric]
        same = {seed: ClassTable(means, table.counts) for seed, table in tables.items()}
        paired = paired_differences(tables, same, sorted(tables))
        estimate = None if paired is None else crossed_estimate(*paired, 1 / float(paired[1][:, 0].sum()))
        if estimate is None:
            raise ValueError(f"{self.scores.name}: the rows have too few classes or seeds to compare with")
        return estimate


def classes_digest(by_class: Mapping[str, Mapping[str, float]]) -> str:
    """SHA-256 over lines `metric,class,score`, sorted, with every digit of the doubles."""
    lines = sorted(
        f"{metric},{name},{score!r}" for metric, scores in by_class.items() for name, score in scores.items()
    )
    return digest_of("\n".join(lines).encode())


def features_of(task: Task, reference: str) -> dict[str, SettingValue]:
    """Those of FEATURES, of a task's trainings."""
    settings = task.training(reference)
    return {key: settings[key] for key in FEATURES}


def write_network(scores: NetworkScores, record: Path) -> Path:
    """Write a network into a record."""
    places = places_of(scores, record)
    path = next((path for path in places if not path.exists() or _settings(path) == scores.settings), places[-1])
    write_whole(path, (scores.model_dump_json(indent=1) + "\n").encode())
    return path


def places_of(scores: NetworkScores, record: Path) -> list[Path]:
    """Where a network may be: another place has the digest of its settings, if the first has one of others."""
    digest = digest_of(json.dumps(scores.settings, sort_keys=True).encode())
    return [record / NETWORKS / f"{name}.json" for name in (scores.name, f"{scores.name}.{digest[:8]}")]


def _settings(path: Path) -> Mapping[str, SettingValue] | None:
    """Those of a network's file; None if it is none."""
    try:
        return NetworkScores.model_validate_json(read_file(path)).settings
    except (ValidationError, InputError):
        return None


def read_networks(record: Path) -> list[NetworkScores]:
    """All networks of a record; InputError names every file that is none, or was changed."""
    networks: list[NetworkScores] = []
    problems: list[Problem] = []
    for path in sorted(record.glob(f"{NETWORKS}/[!.]*.json")):
        try:
            scores = NetworkScores.model_validate_json(read_file(path))
        except ValidationError as error:
            problems.append(Problem((File(path),), rule=f"is no network of this version: {describe(error)}"))
            continue
        except InputError as error:
            problems += error.details
            continue
        problems += [Problem((File(path),), rule=rule) for rule in _wrong(scores, path)]
        networks.append(scores)
    if problems:
        raise InputError(*problems)
    return networks


def _wrong(scores: NetworkScores, path: Path) -> Iterator[str]:
    values = [*scores.test.values(), *(score for means in scores.by_class.values() for score in means.values())]
    if scores.format != FORMAT:
        yield f"has format {scores.format}, this version reads {FORMAT}"
    elif path.name not in [place.name for place in places_of(scores, path.parents[1])]:
        yield f"is of {scores.name}"
    elif scores.settings.keys() != set(FEATURES):
        yield f"has not the settings {', '.join(FEATURES)}"
    elif scores.test.keys() != set(MEASURES) or scores.by_class.keys() != set(MEASURES):
        yield f"has not the metrics {', '.join(MEASURES)}"
    elif not all(math.isfinite(value) and 0 <= value <= 1 for value in values):
        yield "has a score that is not between 0 and 1"
    elif (digest := classes_digest(scores.by_class)) != scores.scores_digest:
        yield f"has other scores of classes than it was written with: their digest is {digest[:12]}"


def networks_beside(
    tasks: Mapping[str, Task], rows: Mapping[str, Sequence[Row]], networks: Sequence[NetworkScores], plan: Plan
) -> dict[str, TaskNetwork]:
    """By task: the network that its trainings begin with, where that was measured. InputError names every one that was
    not tested on the same queries as the rows."""
    beside: dict[str, TaskNetwork] = {}
    problems: list[Problem] = []
    for name, task in tasks.items():
        for scores in networks:
            if scores.dataset == task.dataset and scores.settings == features_of(task, plan.reference):
                rules = [rule for row in rows[name][:1] for rule in _other_queries(scores, row)]
                problems += [Problem((f"network '{scores.name}' beside task '{name}'",), rule=rule) for rule in rules]
                beside[name] = TaskNetwork(scores, rows[name], plan.metric)
    if problems:
        raise InputError(*problems)
    return beside


def _other_queries(scores: NetworkScores, row: Row) -> Iterator[str]:
    """All rows of a task are of the same queries."""
    if scores.dataset_digest != row.facts.dataset_digest:
        yield f"is of data set {scores.dataset_digest[:12]}, the rows are of {row.facts.dataset_digest[:12]}"
        return
    for metric, means in scores.by_class.items():
        counts = next(iter(row.tables[metric].values())).counts
        if means.keys() != counts.keys():
            yield f"has {metric} of other classes than the rows"
        elif abs((mean := ClassTable(means, counts).mean) - scores.test[metric]) > NEAR:
            yield f"its test {metric}, {scores.test[metric]:.4f}, is not the mean of its classes' scores, {mean:.4f}"
