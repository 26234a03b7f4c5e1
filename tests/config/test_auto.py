"""The rule of `algorithm: auto`, clause by clause."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.cli.starting import earlier_file
from orchestrator.config.algorithms import ALGORITHMS
from orchestrator.config.algorithms.auto import FEW_TRAININGS, FEWEST_VALIDATIONS, MOST_POINTS, reasons
from orchestrator.config.resolve import resolve_search, with_more_budget
from orchestrator.config.search import Search
from orchestrator.errors import InputError

RANGE = {"low": 0.1, "high": 1.0}
RAW: dict[str, Any] = {
    "method": "proxy_anchor",
    "dataset": "glyphs-small",
    "settings": {"epochs": 2},
    "space": {"alpha": RANGE},
    "num_trials": 40,
}


def resolved(**changes: Any) -> Search:
    raw = {key: value for key, value in (RAW | changes).items() if value is not None}
    return resolve_search(raw, name="one", source="one.yaml")


OPENS = {"learn_beta": {"choices": {"no": None, "one": {"proxy_lr_multiplier": {"low": 1.0, "high": 100.0}}}}}


SHORT: dict[str, Any] = {"num_trials": None, "settings": {"epochs": 10}, "budget": {"epochs": 10 * FEW_TRAININGS}}


@pytest.mark.parametrize(
    ("changes", "algorithm", "because"),
    [
        ({}, "gp", "at most 200 points"),
        ({"num_trials": MOST_POINTS}, "gp", "at most 200 points"),
        ({"num_trials": MOST_POINTS + 1}, "tpe", "more than 200 points"),
        ({"num_trials": None, "budget": {"hours": 2}}, "tpe", "is not known"),
        ({"num_trials": None, "budget": {"epochs": 400}}, "gp", "at most 200"),
        ({"num_trials": None, "budget": {"epochs": 402}}, "tpe", "more than 200"),
        ({"num_trials": None, "budget": {"epochs": 40}, "scheduler": "asha"}, "tpe", "is not known"),  # stops are cheap
        (SHORT, "gp", "at most 15 whole trainings"),
        (SHORT | {"constraints": {"cost/megabytes": 50}}, "tpe", "constraints"),
        (
            {
                "num_trials": None,
                "budget": {"epochs": 40},
                "settings": {},
                "space": {"alpha": RANGE, "epochs": {"low": 1, "high": 2}},
            },
            "tpe",
            "is not known",
        ),
        ({"num_trials": 500, "space": {"alpha": [1, 2, 3]}}, "gp", "at most 200"),
        ({"num_trials": 300, "seeds": 2}, "tpe", "more than 200"),
        ({"scheduler": "asha"}, "gp", "at most 200"),
        ({"objectives": ["val/map_at_r", "cost/seconds"]}, "gp", "at most 200"),
        ({"constraints": {"cost/megabytes": 50}}, "tpe", "constraints"),
        ({"method": "margin", "space": OPENS}, "tpe", "space.learn_beta opens"),
        ({"num_trials": None, "space": [{"alpha": [1, 2]}, {"margin": [0.1]}]}, "grid", "union"),
    ],
)
def test_the_rule(changes: dict[str, Any], algorithm: str, because: str) -> None:
    search = resolved(**changes)
    assert (search.algorithm, search.auto) == (algorithm, True)
    assert because in reasons(search)[0]
    assert resolved(**changes, algorithm="auto") == search


@pytest.mark.parametrize(
    ("changes", "scheduler"),
    [
        ({}, "promotion"),
        ({"num_trials": FEW_TRAININGS + 1, "budget": {"epochs": 10 * FEW_TRAININGS}}, "promotion"),
        ({"constraints": {"cost/megabytes": 50}}, "promotion"),  # by TPE
        ({"method": "margin", "space": OPENS}, "promotion"),
        ({"settings": {"epochs": 10, "validate_every": "5 steps"}}, "promotion"),  # how many is not known
        ({"algorithm": "random", "scheduler": "auto"}, "promotion"),
        ({"scheduler": {"name": "auto"}}, "promotion"),
        ({"budget": {"epochs": 10 * FEW_TRAININGS + 10}}, "none"),
        ({"budget": {"hours": 1}}, "none"),
        ({"num_trials": FEW_TRAININGS, "budget": {"epochs": 10 * FEW_TRAININGS}}, "none"),  # it has the epochs for all
        ({"num_trials": FEW_TRAININGS, "budget": {}}, "none"),
        ({"space": {"alpha": [1, 2, 3]}}, "none"),  # the same
        ({"settings": {"epochs": 9, "validate_every": "2 epochs"}}, "none"),
        ({"settings": {"epochs": FEWEST_VALIDATIONS - 1}}, "none"),
        ({"algorithm": "grid", "scheduler": "auto", "space": {"alpha": [*range(1, 40)]}}, "none"),
        ({"settings": {}, "space": {"alpha": RANGE, "epochs": {"low": 1, "high": 10}}}, "none"),
        ({"objectives": ["val/map_at_r", "cost/seconds"]}, "none"),
        ({"seeds": 2, "num_trials": 40}, "none"),
        ({"workers": 2}, "none"),
        ({"space": [{"alpha": [1, 2]}, {"margin": [0.1]}]}, "none"),
        ({"scheduler": "none"}, "none"),
        ({"scheduler": "asha"}, "asha"),
        ({"algorithm": "tpe"}, "none"),
    ],
)
def test_the_early_stops_of_a_search_that_names_none(changes: dict[str, Any], scheduler: str) -> None:
    search = resolved(**SHORT | changes)
    assert search.scheduler.name == scheduler
    named = {"scheduler", "algorithm"} & changes.keys()
    assert search.auto_stops == (not named or changes.get("scheduler") in ("auto", {"name": "auto"}))
    assert bool(reasons(search)[1]) == search.auto_stops
    assert ("at most 15 whole" in reasons(search)[1]) == (search.auto_stops and scheduler == "promotion")
    assert with_more_budget(search, None, {"epochs": 4000}).scheduler == search.scheduler


def test_a_union_that_no_grid_can_search_names_who_chose_the_grid() -> None:
    union = [{"alpha": RANGE}, {"margin": [0.1]}]
    with pytest.raises(InputError, match=r"a grid, which `auto` takes for a union of spaces, needs choices or a step"):
        resolved(num_trials=None, space=union)
    with pytest.raises(InputError, match="a grid needs choices or a step"):
        resolved(num_trials=None, space=union, algorithm="grid")


def content_of_like(earlier: Search, monkeypatch: pytest.MonkeyPatch, storage: Path) -> dict[str, Any]:
    """What `--like` takes of a search."""
    monkeypatch.setattr("orchestrator.cli.starting.places_of", lambda _: SimpleNamespace(journal=lambda name: name))
    monkeypatch.setattr("orchestrator.storage.reading.read_journal", lambda _: (None, SimpleNamespace(config=earlier)))
    monkeypatch.setattr("orchestrator.config.search.recorded_search", lambda config: config)
    return dict(earlier_file("one", storage))


@pytest.mark.parametrize("auto", [True, False])
def test_a_search_like_another_asks_the_rule_again(auto: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = content_of_like(resolved(**({} if auto else {"algorithm": "gp"})), monkeypatch, tmp_path)
    assert content["algorithm"] == ("auto" if auto else "gp")
    other = resolve_search({**content, "num_trials": 1000}, name="other", source="other.yaml")
    assert other.algorithm == ("tpe" if auto else "gp")


@pytest.mark.parametrize("named", [None, "promotion", "none"])
def test_it_asks_for_its_early_stops_again(named: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    earlier = resolved(**SHORT | ({"scheduler": named} if named else {}))
    assert earlier.scheduler.name == (named or "promotion")
    content = content_of_like(earlier, monkeypatch, tmp_path)
    for epochs, chosen in ((4000, "none"), (120, "promotion")):
        other = resolve_search({**content, "budget": {"epochs": epochs}}, name="other", source="other.yaml")
        assert other.scheduler.name == (named or chosen)
    assert resolve_search({**content, "algorithm": "tpe"}, name="x", source="x").scheduler == earlier.scheduler


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({"budget": {"epochs": 1000}}, "more than 15 whole trainings"),
        ({"budget": {"hours": 1}}, "no budget of epochs"),
        ({"space": {"alpha": [1, 2, 3]}}, "the epochs for all that it may try"),
        ({"settings": {"epochs": 8}, "budget": {"epochs": 80}}, "fewer than 9 validations"),
        ({"workers": 2}, "several processes"),
        ({"seeds": 2, "num_trials": 40}, "several seeds"),
        ({"objectives": ["val/map_at_r", "cost/seconds"]}, "two objectives"),
        ({"settings": {}, "space": {"alpha": RANGE, "epochs": {"low": 1, "high": 10}}}, "differ in their epochs"),
        ({"space": [{"alpha": [1, 2]}, {"margin": [0.1]}]}, "a grid"),
    ],
)
def test_why_nothing_is_stopped_early(changes: dict[str, Any], because: str) -> None:
    assert because in reasons(resolved(**SHORT | changes))[1]


def test_auto_takes_no_keys_of_a_scheduler() -> None:
    with pytest.raises(InputError, match=r"scheduler: name: `auto` takes no keys: name the scheduler that they are of"):
        resolved(scheduler={"name": "auto", "grace_validations": 2})


def test_what_is_named_is_taken() -> None:
    for algorithm in ("tpe", "random", "gp", "qmc"):
        search = resolved(algorithm=algorithm)
        assert (search.algorithm, search.auto) == (algorithm, False)


def test_what_was_chosen_stays_when_the_search_gets_more_trials() -> None:
    assert with_more_budget(resolved(), 1000, {}).algorithm == "gp"


def test_the_file_of_a_search_names_what_was_chosen() -> None:
    content = resolved().content()
    assert content["algorithm"] == "gp" and "auto" not in content
    assert resolved(**content).algorithm == "gp"


def test_it_is_no_algorithm_of_its_own() -> None:
    assert "auto" not in ALGORITHMS
    with pytest.raises(ValidationError, match="unknown"):
        resolved().model_validate(resolved().model_dump() | {"algorithm": "auto"})


def test_a_search_without_an_end_is_refused() -> None:
    with pytest.raises(InputError, match="num_trials: this key is required, or a budget: only a grid needs neither"):
        resolved(num_trials=None)
