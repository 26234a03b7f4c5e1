"""The tasks that come with the package, the recipes by which they are recorded, and other libraries on one."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import tabular

from orchestrator.benchmarking import TabularCurve, TabularTask, read_tasks, write_tasks
from orchestrator.benchmarking.collecting import content_of_task
from orchestrator.benchmarking.table import COLUMNS, SHIPPED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "benchmark_tables.md").read_text(encoding="utf-8")


def test_the_shipped_tasks_are_those_of_the_recipes() -> None:
    shipped = read_tasks()
    assert shipped.keys() <= tabular.TASKS.keys()
    assert SHIPPED.stat().st_size < 20e6
    for name, task in shipped.items():
        recipe = tabular.TASKS[name]
        assert task.content == content_of_task(recipe.search(name, seed=0))
        assert (task.held_out, task.planned, task.seeds) == (recipe.held_out, tabular.POINTS, list(tabular.SEEDS))
        assert {len(curve) for curve in task.curves.values() if curve.reason is None} == {18}
        assert all(0 < curve.test["map_at_r"] < 1 for curve in task.curves.values() if curve.reason is None)


def test_the_page_has_each_recipe_and_each_column() -> None:
    rows = {cells[0]: cells for line in PAGE.splitlines() if (cells := re.findall(r"`([^`]+)`", line)) and "|" in line}
    assert sum(recipe.held_out for recipe in tabular.TASKS.values()) == 2
    for name, recipe in tabular.TASKS.items():
        search = recipe.search(name, seed=0)
        line = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
        assert rows[name][1:3] == [recipe.method, search.dataset]
        assert line.endswith("| yes |") == recipe.held_out
        assert f"{search.settings['embedding_dim']}" in line and search.example().training.backbone in line
    assert rows.keys() >= COLUMNS.keys()


def test_the_page_says_how_many_points_there_are() -> None:
    for name, task in read_tasks().items():
        assert f"`{name}` {len(task.points)}" in PAGE
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(compile(code, "docs/benchmark_tables.md", "exec"), names)
    assert len(names["search"].ledger.trials) == 30


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """A file of a task whose settings do not depend on each other."""
    content = {
        "method": "triplet",
        "dataset": "glyphs-small",
        "settings": {"epochs": 4},
        "num_trials": 9,
        "space": {
            "lr": {"low": 1e-4, "high": 1e-2, "log": True},
            "margin": {"low": 0.1, "high": 0.5},
            "mining": ["semihard", "all"],
        },
    }
    margins = [0.2, 0.3, 0.4] * 3
    points = [{"lr": 1e-4 * 2**n, "margin": margin, "mining": "all"} for n, margin in enumerate(margins)]
    curves = {
        (number, 0): TabularCurve(
            {"epoch": [1.0, 2.0, 3.0, 4.0], "val/map_at_r": [margin * step for step in (0.5, 1.0, 1.5, 1.2)]},
            [1.0] * 4,
            [],
        )
        for number, margin in enumerate(margins)
    }
    write_tasks([TabularTask("flat", content, points, [0], curves, planned=9)], tmp_path / "flat.parquet")
    return tmp_path / "flat.parquet"


@pytest.mark.parametrize("library", ["optuna", "neps"])
def test_another_library_searches_a_task(
    flat: Path, library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(library, exc_type=ImportError)
    example = ROOT / "examples" / f"table_{library}.py"
    monkeypatch.setattr(sys, "argv", [str(example), "flat", str(flat)])
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.startswith("flat: 0.6000 of 0.6000")
