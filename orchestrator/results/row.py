"""A row of the record: one method's search on one task, in a folder of five files.

    results/rows/TASK.METHOD/row.json          what was done and what came out: `RowFacts`
                             scores.parquet    a line for each seed of the winner and each test class
                             curves.parquet    a line for each validation of each training
                             journal.jsonl.xz  the search's journal, byte for byte
                             search.yaml       the search file that makes it again

A number is written once, and the digests of `row.json` say which files it was computed from.
"""

import hashlib
import io
import json
import lzma
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field, ValidationError

from orchestrator.errors import InputError
from orchestrator.problems import File, Problem, describe
from orchestrator.report.class_tables import CONCATENATED, NEAR, ClassTable
from orchestrator.results.plan import row_name
from orchestrator.storage.atomic import write_whole
from orchestrator.storage.events import Gain
from orchestrator.storage.outputs import Output, SettingValue
from orchestrator.text import pluralize

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
"""The format of the rows that this version writes and reads."""
ROWS = "rows"
FACTS, SCORES, CURVES, JOURNAL, SEARCH = (
    "row.json",
    "scores.parquet",
    "curves.parquet",
    "journal.jsonl.xz",
    "search.yaml",
)
MEASURES = ("map_at_r", "recall_at_1")
"""The metrics of which the scores of each class are kept."""


class RowCost(Output):
    """What a row took."""

    core_seconds: float | None
    """Of the processor, all trainings together; null where it was not measured."""
    seconds: float
    """Of the clock, likewise."""
    gpu_hours: float
    training_core_seconds: float | None
    """Of one training of the winner: the mean of its final runs."""
    training_seconds: float


class RowTrial(Output):
    """One of the trials of its search."""

    state: str
    params: dict[str, SettingValue]
    best: float | None
    """The objective, at its best validation."""


class RowFacts(Output):
    """What was done, and what came out."""

    format: int
    name: str
    task: str
    method: str
    dataset: str
    dataset_digest: str
    protocol: str
    network: str
    classes: int
    """Of the test."""
    queries: int
    winner: str
    params: dict[str, SettingValue]
    """The winner's searched settings."""
    objective: str
    held_out: float
    """The winner's objective, on held-out classes."""
    test: dict[str, list[float]]
    """By metric, a value for each seed."""
    seeds: list[int]
    untrained: float | None
    """The task's metric of the network before its training, on held-out classes."""
    gain: Gain | None = None
    """The first seed's test less that of its network before the training, paired by class."""
    trials: dict[str, RowTrial]
    epochs: float
    """Of all trials together: what the tuning spent."""
    cost: RowCost
    command: str
    train_command: str | None
    """Trains and tests the winner again with the first of the seeds; None where no command does."""
    commit: str | None
    """At which the search began."""
    later_commits: list[str] = Field(default_factory=list)
    """At which it was resumed, if at others."""
    version: str | None
    machine: str
    date: str
    journal_digest: str
    """SHA-256 of the journal."""
    search_digest: str
    """SHA-256 of `search.yaml`."""
    scores_digest: str
    """SHA-256 of the scores, as `scores_digest` counts them."""
    curves_digest: str
    """SHA-256 of the curves, as `curves_digest` counts them."""


@dataclass(frozen=True)
class Row:
    """A row, with the scores of its classes."""

    facts: RowFacts
    tables: Mapping[str, Mapping[int, ClassTable]]
    """By metric and seed."""
    folder: Path

    @property
    def label(self) -> str:
        """Its name."""
        return self.facts.name

    @property
    def failed_trials(self) -> int:
        """How many of its trials gave no score."""
        return sum(trial.state == "failed" for trial in self.facts.trials.values())

    def failed_seeds(self, metric: str) -> list[int]:
        """Those whose test is no better than that of the first seed's network before its training; empty where that is
        not known."""
        gain, values = self.facts.gain, self.facts.test[metric]
        if gain is None or gain.metric != metric:
            return []
        untrained = values[0] - gain.difference
        return [seed for seed, value in zip(self.facts.seeds, values, strict=True) if value <= untrained]

    @property
    def final_curves(self) -> list["Curve"]:
        """Of the trainings that were tested."""
        return [curve for name, curve in self.curves.items() if name not in self.facts.trials]

    @property
    def has_learned(self) -> bool:
        """Whether the first seed's network is shown to be better than before its training, as far as is known."""
        gain = self.facts.gain
        return gain is None or (gain.low is not None and gain.low > 0)

    @property
    def search_deviation(self) -> float:
        """By how much the best held-out score varies if the search's n trials are drawn again from these: the standard
        deviation of the largest of n values drawn with replacement, P(largest <= k-th smallest) = (k / n)^n."""
        values = np.sort([trial.best for trial in self.facts.trials.values() if trial.best is not None])
        if not len(values):
            return math.nan
        weights = np.diff((np.arange(len(values) + 1) / len(values)) ** len(values))
        mean = float((weights * values).sum())
        return math.sqrt(max(0.0, float((weights * (values - mean) ** 2).sum())))

    def mean(self, metric: str) -> float:
        """Of its tests over the seeds."""
        values = self.facts.test[metric]
        return sum(values) / len(values)

    @cached_property
    def curves(self) -> "dict[str, Curve]":
        """By training; of an interrupted training that went on, all validations. InputError if they were changed."""
        table = _read_table(self.folder / CURVES)
        if (digest := curves_digest(table)) != self.facts.curves_digest:
            raise InputError(_of_another(self.folder / CURVES, digest, self.facts.curves_digest))
        columns = table.to_pydict()
        curves: dict[str, Curve] = {}
        for number, trial in enumerate(columns["trial"]):
            curve = curves.setdefault(trial, Curve([], [], []))
            curve.epochs.append(columns["epoch"][number])
            curve.values.append(columns["objective"][number])
            curve.losses.append(columns["train_loss"][number])
        return curves


@dataclass(frozen=True)
class Curve:
    """The validations of a training."""

    epochs: list[float]
    values: list[float]
    losses: list[float | None]


@dataclass(frozen=True)
class NewRow:
    """A row that is not written yet: its facts, and the contents of its files."""

    facts: RowFacts
    tables: Mapping[str, Mapping[int, ClassTable]]
    curves: "pa.Table"
    journal: bytes
    search: bytes


def measured_as(metric: str, protocol: str) -> str:
    """What a test calls a row's metric: by the MLRC protocol it is of the four models' embeddings side by side, as of
    these alone the scores of the classes are kept."""
    return CONCATENATED + metric if protocol == "mlrc" else metric


def digest_of(content: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(content).hexdigest()


def scores_digest(tables: Mapping[str, Mapping[int, ClassTable]]) -> str:
    """SHA-256 over lines `metric,seed,class,queries,score`, sorted, with every digit of the doubles."""
    lines = sorted(
        f"{metric},{seed},{name},{table.counts[name]!r},{table.means[name]!r}"
        for metric, by_seed in tables.items()
        for seed, table in by_seed.items()
        for name in table.means
    )
    return digest_of("\n".join(lines).encode())


def curves_digest(table: "pa.Table") -> str:
    """SHA-256 over its lines as JSON, with every digit of the doubles; what JSON has no form for is written as text."""
    return digest_of("\n".join(json.dumps(line, sort_keys=True, default=str) for line in table.to_pylist()).encode())


def _of_another(path: Path, digest: str, kept: str) -> Problem:
    return Problem((File(path),), rule=f"is not that of {FACTS}: its digest is {digest[:12]}, not {kept[:12]}")


def write_row(new: NewRow, record: Path) -> Path:
    """Write a row into a record; `row.json`, without which there is no row, comes last."""
    folder = record / ROWS / new.facts.name
    write_whole(folder / SCORES, _parquet(_scores_table(new.tables)))
    write_whole(folder / CURVES, _parquet(new.curves))
    write_whole(folder / JOURNAL, lzma.compress(new.journal, preset=9 | lzma.PRESET_EXTREME))
    write_whole(folder / SEARCH, new.search)
    write_whole(folder / FACTS, (new.facts.model_dump_json(indent=1) + "\n").encode())
    return folder


def read_rows(record: Path) -> list[Row]:
    """All rows of a record, by name; InputError names every row whose files do not agree with each other."""
    rows: list[Row] = []
    problems: list[Problem] = []
    for folder in sorted(path for path in record.glob(f"{ROWS}/[!.]*") if path.is_dir()):
        if not (folder / FACTS).exists():  # the last file of a row that is written
            rule = f"has no {FACTS}: add the row again (orchestrator results add), or remove the folder"
            problems.append(Problem((File(folder),), rule=rule))
            continue
        try:
            rows.append(read_row(folder))
        except InputError as error:
            problems += error.details
    if problems:
        raise InputError(*problems)
    return rows


def read_row(folder: Path) -> Row:
    """A row; InputError if its files do not agree with each other."""
    facts = read_facts(folder)
    scores = _read_table(folder / SCORES)
    if (wrong := _wrong_scores(scores)) is not None:
        raise InputError(Problem((File(folder / SCORES),), rule=wrong))
    tables = _tables(scores, facts.seeds)
    journal = read_row_journal(folder)
    problems = [
        _of_another(folder / name, digest, kept)
        for name, digest, kept in (
            (SCORES, scores_digest(tables), facts.scores_digest),
            (JOURNAL, digest_of(journal), facts.journal_digest),
            (SEARCH, digest_of(read_file(folder / SEARCH)), facts.search_digest),
        )
        if digest != kept
    ]
    for metric, by_seed in tables.items():
        for seed, value in zip(facts.seeds, facts.test[metric], strict=True):
            if seed not in by_seed or not abs(by_seed[seed].mean - value) <= NEAR:
                rule = f"test {metric} with seed {seed} is {value:.4f}, and is not the mean of {SCORES}"
                problems.append(Problem((File(folder / FACTS),), rule=rule))
    if problems:
        raise InputError(*problems)
    return Row(facts, tables, folder)


def read_facts(folder: Path) -> RowFacts:
    """What `row.json` says."""
    path = folder / FACTS
    try:
        facts = RowFacts.model_validate_json(read_file(path))
    except ValidationError as error:
        raise InputError(Problem((File(path),), rule=f"is no row of this version: {describe(error)}")) from None
    if facts.format != FORMAT:
        raise InputError(Problem((File(path),), rule=f"has format {facts.format}, this version reads {FORMAT}"))
    if facts.name != folder.name:
        raise InputError(Problem((File(path),), rule=f"is of row {facts.name}, not of {folder.name}"))
    if facts.name != row_name(facts.task, facts.method):
        rule = f"is of method {facts.method} on task {facts.task}, which is row {row_name(facts.task, facts.method)}"
        raise InputError(Problem((File(path),), rule=rule))
    if facts.test.keys() != set(MEASURES) or any(len(values) != len(facts.seeds) for values in facts.test.values()):
        rule = f"should have {' and '.join(MEASURES)} with each of {pluralize(len(facts.seeds), 'seed')}"
        raise InputError(Problem((File(path), "test"), rule=rule))
    return facts


def read_row_journal(folder: Path) -> bytes:
    """The journal, as the search wrote it."""
    try:
        return lzma.decompress(read_file(folder / JOURNAL))
    except lzma.LZMAError as error:
        raise InputError(Problem((File(folder / JOURNAL),), rule=f"cannot be unpacked ({error})")) from None


def _scores_table(tables: Mapping[str, Mapping[int, ClassTable]]) -> "pa.Table":
    import pyarrow as pa

    first = next(iter(tables.values()))
    lines = [(seed, name) for seed, table in first.items() for name in table.means]
    columns: dict[str, Any] = {
        "seed": pa.array([seed for seed, _ in lines], pa.int32()),
        "class": pa.array([name for _, name in lines], pa.string()).dictionary_encode(),
        "queries": pa.array([first[seed].counts[name] for seed, name in lines], pa.float64()),
    }
    for metric, by_seed in tables.items():
        columns[metric] = pa.array([by_seed[seed].means[name] for seed, name in lines], pa.float64())
    return pa.table(columns)


def _wrong_scores(table: "pa.Table") -> str | None:
    """What is wrong with a table of scores: its columns, or their values; None if nothing."""
    import pyarrow as pa

    expected = ["seed", "class", "queries", *MEASURES]
    if sorted(table.column_names) != sorted(expected):
        return f"has columns {', '.join(table.column_names)}, should have {', '.join(expected)}"
    for name in expected:
        kind = table.schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        right = {"seed": pa.types.is_integer, "class": pa.types.is_string}.get(name, pa.types.is_floating)
        if not right(kind) or table.column(name).null_count:
            return f"column {name} is {kind}{' with nulls' if table.column(name).null_count else ''}"
    if not table.num_rows or not min(table.column("queries").to_pylist()) > 0:
        return "has no classes, or one without queries"
    return None


def _tables(table: "pa.Table", seeds: Sequence[int]) -> dict[str, dict[int, ClassTable]]:
    columns = table.to_pydict()
    metrics = [name for name in columns if name not in ("seed", "class", "queries")]
    tables: dict[str, dict[int, ClassTable]] = {}
    for metric in metrics:
        means: dict[int, dict[str, float]] = {seed: {} for seed in seeds}
        counts: dict[int, dict[str, float]] = {seed: {} for seed in seeds}
        for seed, name, queries, score in zip(*(columns[c] for c in ("seed", "class", "queries", metric)), strict=True):
            means.setdefault(seed, {})[name] = score
            counts.setdefault(seed, {})[name] = queries
        tables[metric] = {seed: ClassTable(means[seed], counts[seed]) for seed in means if means[seed]}
    return tables


def _parquet(table: "pa.Table") -> bytes:
    """A file of one group; the same table gives the same bytes."""
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", compression_level=19, write_statistics=False)
    return file.getvalue()


def _read_table(path: Path) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(io.BytesIO(read_file(path)))
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(Problem((File(path),), rule=f"cannot be read as Parquet ({error})")) from None


def read_file(path: Path) -> bytes:
    """A file of the record; InputError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(Problem((File(path),), rule=f"cannot be read ({error.strerror})")) from None
