"""Pre-trained networks as they come, on a task's test classes: what training on their features has to be better than.

results/networks/TASK.json    the scores of each test class: `NetworkScores`
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from orchestrator.errors import InputError
from orchestrator.evaluation.verdicts import Estimate, Floats, crossed_of
from orchestrator.problems import File, Problem, describe
from orchestrator.report.class_tables import NEAR, ClassTable
from orchestrator.results.plan import Plan
from orchestrator.results.row import Row, read_file
from orchestrator.storage.atomic import write_whole
from orchestrator.storage.outputs import Output

FORMAT = 1
NETWORKS = "networks"


class NetworkScores(Output):
    """A network without an embedding layer and without training, on a task's test classes."""

    format: int = FORMAT
    task: str
    dataset_digest: str
    backbone: str
    pooling: str
    test: dict[str, float]
    """By metric."""
    by_class: dict[str, dict[str, float]]
    """By metric and class: the mean over its queries."""
    command: str
    """Prints these tests again."""
    commit: str | None
    machine: str
    date: str

    @property
    def label(self) -> str:
        """`efficientnet_lite0 as it comes`"""
        return f"{self.backbone} as it comes"


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

    def _estimate(self, tables: Mapping[int, ClassTable]) -> Estimate:
        seeds, means = sorted(tables), self.scores.by_class[self.metric]
        counts_CS = np.array([[tables[seed].counts[name] for seed in seeds] for name in means])
        values_CS = np.array([[tables[seed].means[name] - mean for seed in seeds] for name, mean in means.items()])
        return network_estimate(values_CS, counts_CS)


def network_estimate(values_CS: Floats, counts_CS: Floats) -> Estimate:
    """The mean over queries of differences from what has no seeds, (C, S)."""
    mean, parts = crossed_of(values_CS, counts_CS, 1 / float(counts_CS[:, 0].sum()))
    return Estimate(float(mean), tuple((float(variance), float(freedom)) for variance, freedom in parts))


def write_network(scores: NetworkScores, record: Path) -> Path:
    """Write a task's network into a record."""
    path = record / NETWORKS / f"{scores.task}.json"
    write_whole(path, (scores.model_dump_json(indent=1) + "\n").encode())
    return path


def read_networks(record: Path, plan: Plan) -> dict[str, NetworkScores]:
    """By task; InputError names every file that is none of a task of the plan."""
    networks: dict[str, NetworkScores] = {}
    problems: list[Problem] = []
    for path in sorted(record.glob(f"{NETWORKS}/*.json")):
        try:
            scores = NetworkScores.model_validate_json(read_file(path))
        except ValidationError as error:
            problems.append(Problem((File(path),), rule=f"is no network of this version: {describe(error)}"))
            continue
        except InputError as error:
            problems += error.details
            continue
        rules = list(_wrong(scores, path.stem, plan))
        problems += [Problem((File(path),), rule=rule) for rule in rules]
        networks[scores.task] = scores
    if problems:
        raise InputError(*problems)
    return networks


def _wrong(scores: NetworkScores, name: str, plan: Plan) -> Iterator[str]:
    task = plan.tasks.get(scores.task)
    if scores.format != FORMAT:
        yield f"has format {scores.format}, this version reads {FORMAT}"
    elif scores.task != name or task is None:
        yield f"is of task {scores.task}, which " + ("is not in the plan" if task is None else f"is not {name}")
    elif plan.metric not in scores.test.keys() & scores.by_class.keys():
        yield f"has no {plan.metric}"
    elif scores.backbone != task.settings.get("backbone"):
        yield f"is of {scores.backbone}, the task trains {task.settings.get('backbone')}"


def beside(scores: NetworkScores, rows: Sequence[Row], metric: str) -> TaskNetwork:
    """A network beside rows; InputError if it was not tested on the same queries as they were."""
    for row in rows:
        for seed, table in row.tables[metric].items():
            rule = _other_queries(scores, row, table, metric)
            if rule:
                raise InputError(
                    Problem((f"network of '{scores.task}'",), rule=f"{rule} (row {row.label}, seed {seed})")
                )
    return TaskNetwork(scores, rows, metric)


def _other_queries(scores: NetworkScores, row: Row, table: ClassTable, metric: str) -> str:
    if scores.dataset_digest != row.facts.dataset_digest:
        return f"is of data set {scores.dataset_digest[:12]}, not of {row.facts.dataset_digest[:12]}"
    if scores.by_class[metric].keys() != table.means.keys():
        return "has scores of other classes"
    mean = ClassTable(scores.by_class[metric], table.counts).mean
    if abs(mean - scores.test[metric]) > NEAR:
        return f"has a test {metric} of {scores.test[metric]:.4f}, and is not the mean of its classes, {mean:.4f}"
    return ""
