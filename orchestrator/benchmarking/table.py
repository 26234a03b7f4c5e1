"""The file of the tabular benchmark: tasks, each a finite set of points with the curves of their trainings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.config.points import PointTable
from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Objective, Search
from orchestrator.config.space import Space, point_key
from orchestrator.errors import InputError
from orchestrator.problems import File, Problem, suggestion

FORMAT = 1
"""The format of the files that this version writes and reads."""
METADATA = b"orchestrator.benchmarking"
"""The key of the file's metadata."""
SHIPPED = Path(__file__).with_name("searches.parquet")
"""The tasks that come with the package."""
OWN_KEYS = {"method", "dataset", "settings", "space", "objective", "objectives"}
"""The keys of a search file that a replay cannot change."""
COLUMNS: dict[str, Any] = {
    "task": pa.dictionary(pa.int32(), pa.string()),
    "point": pa.int32(),
    "settings": pa.string(),
    "seed": pa.int32(),
    "state": pa.dictionary(pa.int32(), pa.string()),
    "reason": pa.string(),
    "seconds": pa.list_(pa.float64()),
    "cpu_seconds": pa.list_(pa.float64()),
}
"""The columns beside those of the metrics: a row is a training. The metrics of validations are lists of doubles, those
of the test are doubles."""


@dataclass(frozen=True)
class TabularCurve:
    """One recorded training of a task, validation by validation."""

    metrics: Mapping[str, Sequence[float]]
    """By name, a value per validation: `epoch`, `train/loss`, `val/map_at_r`, ..."""
    seconds: Sequence[float]
    """Of the clock, until each validation from the one before."""
    cpu_seconds: Sequence[float]
    """Of the processor, likewise: for machines that were busy. Empty if not recorded."""
    test: Mapping[str, float] = field(default_factory=dict)
    """The metrics on the test classes at the end, of the best validation's model. No search may see them."""
    reason: str | None = None
    """Why the training failed after these validations, if it did."""

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True)
class TabularTask:
    """A search to be replayed: a method with its space, a data set, a network, and the curves of some points."""

    name: str
    content: Mapping[str, Any]
    """The search file by which it was recorded, without the seed of its trainings."""
    points: Sequence[Mapping[str, Any]]
    seeds: Sequence[int]
    """The seeds with which each point was trained."""
    curves: Mapping[tuple[int, int], TabularCurve]
    """By the number of the point and the seed."""
    planned: int
    """How many points it is to have."""
    held_out: bool = False
    """Whether it is kept for the last comparison: no search algorithm may be tuned on it."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Where it was recorded: versions, commit, machine, date, the data set's digest."""

    @property
    def complete(self) -> bool:
        """Whether all its points are recorded."""
        return len(self.points) >= self.planned

    def search(self, training_seed: int | None = None, **changes: Any) -> Search:
        """Its search, with a seed of trainings (by default the first) and other top-level keys of a search file
        (`algorithm`, `scheduler`, `budget`, ...). InputError if it is refused, or a key is the task's own."""
        if fixed := sorted(OWN_KEYS & changes.keys()):
            raise InputError(Problem((fixed[0],), changes[fixed[0]], f"is given by the task '{self.name}'"))
        settings = {**self.content["settings"], "seed": self.check_seed(training_seed)}
        raw = {**self.content, "settings": settings, "final": False, **changes}
        return resolve_search(raw, name=self.name, source=f"task {self.name}")

    @cached_property
    def space(self) -> Space:
        """The space in which its points lie."""
        return self.search().space

    @cached_property
    def objective(self) -> Objective:
        """What is optimised."""
        return self.search().objective

    @cached_property
    def table_points(self) -> PointTable:
        """Its points, for a search that may try no others."""
        return PointTable(self.space, self.points)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {point_key(point): number for number, point in enumerate(self.points)}

    def curve(self, point: Mapping[str, Any], seed: int | None = None) -> TabularCurve:
        """The curve of the point that is nearest to this one, by the distance of `PointTable.place`, with a seed of its
        trainings, by default the first. InputError if it is no point of the space: a setting is missing, has another
        name, or lies outside its range."""
        self.space.point(point)
        searched = {parameter.key for parameter in self.space.parameters()}
        for key in point:
            if key not in searched:
                raise InputError(Problem((str(key),), rule="is not searched", suggestion=suggestion(key, searched)))
        nearest = self._numbers.get(point_key(point))
        if nearest is None:
            of_the_table = self.table_points.nearest(point)
            assert of_the_table is not None
            nearest = self._numbers[point_key(of_the_table)]
        return self.curves[nearest, self.check_seed(seed)]

    def check_seed(self, seed: int | None) -> int:
        """This seed of trainings, or the first; InputError if it was not recorded."""
        if seed is not None and seed not in self.seeds:
            raise InputError(
                f"training_seed={seed}: task '{self.name}' was recorded with {', '.join(map(str, self.seeds))}"
            )
        return self.seeds[0] if seed is None else seed

    def best(self, seed: int | None = None) -> float:
        """The best value of the objective of all points, at any validation, with a seed of trainings."""
        seed, best = self.check_seed(seed), max if self.objective.mode == "max" else min
        curves = (curve for (_, of), curve in self.curves.items() if of == seed and len(curve))
        return best(best(curve.metrics[self.objective.metric]) for curve in curves)

    @property
    def validations(self) -> int:
        """Of its longest training."""
        return max(map(len, self.curves.values()))

    @property
    def epochs(self) -> float:
        """Of all its points together, with one seed."""
        return sum(curve.metrics["epoch"][-1] for curve in self.curves.values() if len(curve)) / len(self.seeds)


def read_tasks(path: Path | None = None) -> dict[str, TabularTask]:
    """The tasks of a file by their names, by default of the one that comes with the package."""
    path = path or SHIPPED
    if path.is_dir():
        raise InputError(Problem((File(path),), rule="is a folder; name the file"))
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise InputError(Problem((File(path),), rule="no such file")) from None
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(Problem((File(path),), rule=f"cannot be read as Parquet ({error})")) from None
    try:
        header = json.loads((table.schema.metadata or {}).get(METADATA, b"null"))
        if header is not None and header.get("format") == FORMAT:
            rows: dict[str, list[dict[str, Any]]] = {name: [] for name in header["tasks"]}
            for row in table.to_pylist():
                rows[row["task"]].append(row)
            return {name: _task(name, about, rows[name]) for name, about in header["tasks"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"its tasks are damaged ({type(error).__name__}: {error})"
        raise InputError(Problem((File(path),), rule=what)) from None
    what = "holds no tasks" if header is None else f"has format {header.get('format')}, this version reads {FORMAT}"
    raise InputError(Problem((File(path),), rule=what))


def read_task(name: str, path: Path | None = None, *, partial: bool = False) -> TabularTask:
    """One of them. InputError if there is none of this name or, without `partial`, if points of it are missing."""
    tasks = read_tasks(path)
    if name not in tasks:
        raise InputError(Problem(("task",), name, "no such task", suggestion=suggestion(name, tasks)))
    task = tasks[name]
    if not (task.complete or partial):
        raise InputError(
            f"task '{name}': {len(task.points)} of its {task.planned} points are recorded; partial=True takes these"
        )
    return task


def _task(name: str, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> TabularTask:
    points: dict[int, dict[str, Any]] = {}
    curves: dict[tuple[int, int], TabularCurve] = {}
    for row in rows:
        points[row["point"]] = json.loads(row["settings"])
        metrics = {key: value for key, value in row.items() if key not in COLUMNS and isinstance(value, list)}
        test = {key: value for key, value in row.items() if key.startswith("test/") and value is not None}
        curves[row["point"], row["seed"]] = TabularCurve(
            metrics,
            row["seconds"],
            row["cpu_seconds"],
            {key.removeprefix("test/"): value for key, value in test.items()},
            row["reason"],
        )
    ordered = [points[number] for number in sorted(points)]
    facts = {key: about[key] for key in ("content", "planned", "held_out", "origin")}
    return TabularTask(name, points=ordered, seeds=sorted({seed for _, seed in curves}), curves=curves, **facts)


def write_tasks(tasks: Sequence[TabularTask], path: Path) -> None:
    """Write a file of tasks (zstd); the same tasks give the same bytes."""
    metrics = sorted({name for task in tasks for curve in task.curves.values() for name in curve.metrics})
    tests = sorted({f"test/{name}" for task in tasks for curve in task.curves.values() for name in curve.test})
    rows = [
        {
            "task": task.name,
            "point": number,
            "settings": json.dumps(task.points[number]),
            "seed": seed,
            "state": "done" if curve.reason is None else "failed",
            "reason": curve.reason,
            "seconds": list(curve.seconds),
            "cpu_seconds": list(curve.cpu_seconds),
            **{name: list(values) for name, values in curve.metrics.items()},
            **{f"test/{name}": value for name, value in curve.test.items()},
        }
        for task in tasks
        for (number, seed), curve in sorted(task.curves.items())
    ]
    about = {
        task.name: {
            "content": task.content,
            "planned": task.planned,
            "points": len(task.points),
            "held_out": task.held_out,
            "origin": task.origin,
        }
        for task in tasks
    }
    fields = COLUMNS | dict.fromkeys(metrics, pa.list_(pa.float64())) | dict.fromkeys(tests, pa.float64())
    metadata = {METADATA: json.dumps({"format": FORMAT, "tasks": about}).encode()}
    table = pa.Table.from_pylist(rows, schema=pa.schema(list(fields.items()), metadata=metadata))
    pq.write_table(table, path, compression="zstd", compression_level=19)
