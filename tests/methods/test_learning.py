"""Every method learns by its defaults: what benchmarks/learning.py has recorded, and the slowest learners anew."""

import json
from pathlib import Path
from typing import Any

import pytest
from learning import DATASET, FILE, FIXED, METRIC, Outcome, row_of, train, write

from orchestrator.method import registry
from orchestrator.plugins import installed_methods

ROWS: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
SLOWEST = sorted(ROWS, key=lambda name: min(ROWS[name]["trained"]))[:5]
CLEARLY = 2
"""How many times the untrained network's MAP@R a training has at least."""


def test_every_built_in_method_is_measured() -> None:
    assert ROWS.keys() == {name for name, method in registry().items() if method.__module__.startswith("methods.")}


@pytest.mark.parametrize("name", ROWS)
def test_each_recorded_training_learned(name: str) -> None:
    row = ROWS[name]
    assert name in installed_methods() and len(row["trained"]) == len(row["untrained"]) >= 3
    for trained, untrained in zip(row["trained"], row["untrained"], strict=True):
        assert trained > CLEARLY * untrained > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOWEST)
def test_the_slowest_learners_learn(name: str, data_folder: Path) -> None:
    outcome = train(FIXED | {"method": name, "seed": 0}, data_folder)
    assert outcome.trained > CLEARLY * outcome.untrained > 0


def test_a_multiplier_that_does_not_learn_is_seen(data_folder: Path) -> None:
    """That of all methods before, on the scale and bias of pairs, which turn too fast by it."""
    given = FIXED | {"method": "sigmoid_pairs", "epochs": 3}
    good, bad = (train(given | more, data_folder).trained for more in ({}, {"proxy_lr_multiplier": 100.0}))
    assert good > CLEARLY * bad


def test_rows_that_are_not_measured_again_stay(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    row = row_of([Outcome(0.06, 0.5, 2.0), Outcome(0.07, 0.61234, 4.0)])
    assert row["trained"] == [0.5, 0.6123] and row["untrained"] == [0.06, 0.07] and row["seconds"] == 3.0
    write(file, {"b": row})
    write(file, {"a": row | {"seconds": 9.0}})
    assert list(found := json.loads(file.read_text(encoding="utf-8"))) == ["a", "b"]
    assert found["b"]["seconds"] == 3.0 and DATASET == "glyphs-small" and METRIC == "map_at_r"
