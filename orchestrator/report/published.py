"""The papers' published numbers, and a run's numbers beside them.

The files of `published/` hold the tables, one file per paper, each row as on the page. A table has `columns`:
`method`, `backbone`, `dimension`, `dataset` and `condition` (what is special about a row) say what a row is, and every
other column is a metric under this project's name, after its data set where a row has several (`cub200 recall_at_1`).
What holds for all rows stands beside `columns`. A cell is a number as printed, `73.4 ± 0.3`, or null where the page has
none; cells that cannot be read with certainty are null too, and named in `left_out`. `methods` of a file says which
rows are methods of this project, by their settings, each one value or one for each data set; a table may have its own.
`selection: unstated` where a paper does not say on what its best epoch was chosen.

For the page of commands (`docs/write_tables_page.py`): `conditions` of a table are conditions in settings; `commands`
those of a row, by its method, that no preset gives (`{dataset}` is the row's, `{other}` the end of its condition);
`not_here` says why a method, or a condition, has no command.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from orchestrator.config.files import read_yaml
from orchestrator.config.presets import presets
from orchestrator.errors import InputError
from orchestrator.evaluation.measures import is_share
from orchestrator.problems import NO_VALUE, complaints

FOLDER = Path(__file__).parent / "published"
DESCRIBING = ("method", "backbone", "dimension", "dataset", "condition")
PRINTED = re.compile(r"(\d+(?:\.\d+)?) ± (\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Value:
    """A published number, and its deviation over runs if there is one."""

    value: float
    deviation: float | None = None


@dataclass(frozen=True)
class PublishedRow:
    """A table's entry for one method on one data set."""

    paper: str
    table: str
    method: str
    """As printed."""
    ours: Mapping[str, Any]
    """The settings that it has here; empty if it is not a method of this project."""
    dataset: str
    backbone: str | None
    dimension: int | None
    protocol: str | None
    selection: str
    condition: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)
    condition_settings: Mapping[str, Any] | None = None
    """The condition in settings, if the file has it."""
    commands: tuple[str, ...] = ()
    """Instead of a preset's."""
    not_here: str | None = None
    """Why it cannot be run, if that is said."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PaperTable(_Strict):
    """One table of a paper."""

    title: str
    protocol: Literal["conventional", "mlrc", "classification"] | None = Field(
        description="null: neither, or none is said"
    )
    selection: Literal["validation", "test", "unstated"]
    dataset: str | None = None
    backbone: str | None = None
    dimension: int | None = None
    settings: dict[str, Any] = Field(default_factory=dict, description="settings that all its rows have in common")
    columns: list[str] = Field(min_length=2)
    rows: list[list[str | float | int | None]]
    methods: dict[str, dict[str, Any]] = {}
    conditions: dict[str, dict[str, Any]] = {}
    commands: dict[str, list[str]] = {}
    not_here: dict[str, str] = {}
    left_out: list[str] = []

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if "method" not in self.columns or len(set(self.columns)) < len(self.columns):
            raise ValueError("columns: need a method, and each name once")
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                raise ValueError(f"rows: row {number}: {len(row)} cells for {len(self.columns)} columns")
            for column, cell in zip(self.columns, row, strict=True):
                if column not in DESCRIBING and isinstance(cell, str) and not PRINTED.fullmatch(cell):
                    raise ValueError(f"rows: row {number}, {column}: {cell!r}: neither a number nor `73.4 ± 0.3`")
        if "dataset" not in self.columns and self.dataset is None:
            for column in self.columns:
                if column not in DESCRIBING and " " not in column:
                    raise ValueError(f"columns: {column}: of which data set?")
        return self


class Paper(_Strict):
    """One file of `published/`."""

    paper: str
    citation: str
    source: str
    methods: dict[str, dict[str, Any]]
    not_here: dict[str, str] = {}
    tables: dict[str, PaperTable]

    def rows(self) -> Iterator[PublishedRow]:
        """Every row, apart for each data set."""
        for name, table in self.tables.items():
            methods, not_here = self.methods | table.methods, self.not_here | table.not_here
            for cells in table.rows:
                row: dict[str, Any] = dict(zip(table.columns, cells, strict=True))
                condition = row.get("condition")
                for dataset, values in _by_dataset(table, row).items():
                    yield PublishedRow(
                        paper=self.paper,
                        table=name,
                        method=str(row["method"]),
                        ours=_on(dataset, methods.get(str(row["method"]), {})),
                        dataset=dataset,
                        backbone=row.get("backbone", table.backbone),
                        dimension=row.get("dimension", table.dimension),
                        protocol=table.protocol,
                        selection=table.selection,
                        condition=condition,
                        settings=table.settings,
                        values=values,
                        condition_settings=table.conditions.get(str(condition)),
                        commands=tuple(
                            line.format(dataset=dataset, other=str(condition).rpartition(": ")[2])
                            for line in table.commands.get(str(row["method"]), [])
                        ),
                        not_here=not_here.get(str(row["method"]), not_here.get(str(condition))),
                    )


def _on(dataset: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings on a data set; empty if one of them is not known for it."""
    chosen = {key: value.get(dataset, _on) if isinstance(value, dict) else value for key, value in settings.items()}
    return {} if _on in chosen.values() else chosen


def _by_dataset(table: PaperTable, said: Mapping[str, Any]) -> dict[str, dict[str, Value]]:
    values: dict[str, dict[str, Value]] = {}
    for column, cell in said.items():
        if column in DESCRIBING or cell is None:
            continue
        dataset, _, metric = column.rpartition(" ")
        dataset = dataset or said.get("dataset") or table.dataset or ""
        values.setdefault(dataset, {})[metric] = _value(metric, cell)
    return values


def in_percent(metric: str) -> bool:
    """Whether papers print a metric in percent; here it is a share, as in every test."""
    return metric == "auroc" or is_share(metric)


def _value(metric: str, cell: str | float) -> Value:
    unit = 100.0 if in_percent(metric) else 1.0
    if (printed := PRINTED.fullmatch(str(cell))) is None:
        return Value(float(cell) / unit)
    return Value(float(printed[1]) / unit, float(printed[2]) / unit)


@cache
def read_paper(path: Path) -> Paper:
    """A file of published tables, read once; InputError names the file and the place."""
    try:
        return Paper.model_validate(read_yaml(path))
    except ValidationError as error:
        problem, kind = complaints(error)[0], error.errors()[0]["type"]
        if kind == "value_error":  # a table's content is too long to show
            problem = replace(problem, value=NO_VALUE)
        raise InputError(problem.under(str(path))) from None


@cache
def papers() -> tuple[Paper, ...]:
    """All papers with published tables."""
    return tuple(read_paper(path) for path in sorted(FOLDER.glob("*.yaml")))


@cache
def every_row() -> tuple[PublishedRow, ...]:
    """The rows of all papers, apart for each data set."""
    return tuple(row for paper in papers() for row in paper.rows())


@cache
def _is_named(dataset: str) -> bool:
    """Whether a file of published tables has this word: reading one as YAML takes 50 ms."""
    return any(dataset in path.read_text("utf-8") for path in FOLDER.glob("*.yaml"))


@dataclass(frozen=True)
class Departure:
    """A setting in which a run differs from the paper."""

    setting: str
    paper: Any
    run: Any


@dataclass(frozen=True)
class ComparableRow:
    """A published row for a run's data set, and where the run's settings differ from the row's."""

    row: PublishedRow
    same_method: bool
    differences: tuple[Departure, ...]


def beside(settings: Mapping[str, Any], metrics: Sequence[str]) -> list[ComparableRow]:
    """The published rows that a run may be compared with: its data set, one of these metrics (without `test/`), and its
    method, or another one under the same backbone, dimension and protocol. Closest first: its method, then few
    differences."""
    rows = []
    for row in every_row() if _is_named(str(settings.get("dataset"))) else ():
        if row.dataset != settings.get("dataset") or not set(row.values) & set(metrics):
            continue
        same = bool(row.ours) and all(settings.get(key) == value for key, value in row.ours.items())
        differences = tuple(_differences(row, settings, same_method=same))
        setup = ("backbone", "embedding_dim", "protocol", "label_noise", "condition")
        if same or not any(difference.setting in setup for difference in differences):
            rows.append(ComparableRow(row, same, differences))
    return sorted(rows, key=lambda b: (not b.same_method, len(b.differences)))


def _differences(row: PublishedRow, settings: Mapping[str, Any], *, same_method: bool) -> Iterator[Departure]:
    said = {"backbone": row.backbone, "embedding_dim": row.dimension, "protocol": row.protocol}
    for key, value in said.items():
        if settings.get(key) != value:
            yield Departure(key, "unstated" if value is None else value, settings.get(key))
    if settings.get("selection") != row.selection:
        yield Departure("selection", row.selection, settings.get("selection"))
    for key in dict.fromkeys(["label_noise", *row.settings]):
        if settings.get(key) != (value := row.settings.get(key, 0)):
            yield Departure(key, value, settings.get(key))
    if row.condition is not None:
        yield Departure("condition", row.condition, "")
    if same_method:
        yield from _preset_differences(settings, said)


def _preset_differences(settings: Mapping[str, Any], said: Mapping[str, Any]) -> Iterator[Departure]:
    """Where a run departs from its method's preset for the data set and backbone, by the closest of its variants."""
    place = "/".join(str(settings.get(key)) for key in ("method", "dataset", "backbone"))
    choices = []
    for name, preset in presets().items():
        if name == place or name.startswith(f"{place}/"):
            stated = {key: value for key, value in preset.settings.items() if key not in (*said, "selection")}
            different = [
                Departure(key, value, settings.get(key)) for key, value in stated.items() if settings.get(key) != value
            ]
            choices.append(different)
    yield from min(choices, key=len, default=[])
