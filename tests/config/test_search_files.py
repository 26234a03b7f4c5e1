"""The files and options that users write."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import ValidationError
from typer.models import OptionInfo

import orchestrator.config.search
import orchestrator.config.space
from orchestrator.cli.main import command_of
from orchestrator.config.algorithms import ALGORITHMS
from orchestrator.config.files import find_search, parse_assignments, read_scalar, read_yaml, shipped_searches
from orchestrator.config.resolve import idle_settings, resolve_search, single_training, with_more_budget
from orchestrator.config.schedulers import SCHEDULERS
from orchestrator.config.search import FILE_KEYS, OF_WORKERS, Search
from orchestrator.config.space import Parameter, parse_space
from orchestrator.config.training import resolve_experiment
from orchestrator.config.workers import Count
from orchestrator.data.augmentations import DEGRADATIONS
from orchestrator.errors import InputError
from orchestrator.method import registry

PFML: dict[str, Any] = {
    "method": "pfml",
    "dataset": "glyphs-small",
    "space": {"delta": {"low": 0.1, "high": 0.35}, "proxies_per_class": {"low": 0, "high": 30}},
    "num_trials": 4,
}


METHODS = {"method": {"choices": {"pfml": {"delta": {"low": 0.1, "high": 0.3}}, "proxy_anchor": {"margin": [0, 0.1]}}}}


def resolve(raw: dict[str, Any], **changes: Any) -> Any:
    return resolve_search(raw, name="x", source="file.yaml", **changes)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("no", "no"),
        ("0.2", 0.2),
        ("12", 12),
        ("true", True),
        ("null", None),
        ("average+max", "average+max"),
    ],
)
def test_scalars_are_yaml_1_2(text: str, value: Any) -> None:
    assert read_scalar(text) == value
    assert type(read_scalar(text)) is type(value)


def test_a_file_reads_by_the_same_rules(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("lr: 1e-4\nanswer: no\n")
    assert read_yaml(path) == {"lr": 1e-4, "answer": "no"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "duplicate key"),
        ("a: [1, 2\n", "line"),
        ("- 1\n- 2\n", "should be a mapping"),
        ("", "should be a mapping"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_yaml(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_go_to_their_owners() -> None:
    experiment = resolve_experiment({"method": "pfml", "delta": 0.3, "lr": 1e-4, "epochs": 3}, "here")
    assert experiment.config.model_dump()["delta"] == 0.3
    assert (experiment.training.lr, experiment.training.epochs) == (1e-4, 3)
    assert resolve_experiment(experiment.flat(), "again") == experiment


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "pmfl"}, "unknown method 'pmfl' (did you mean 'pfml'?)"),
        ({"method": "pfml", "detla": 0.2}, "detla: no such setting of 'pfml' (did you mean 'delta'?)"),
        ({"method": "pfml", "delta": 0}, "delta: 0: should be above 0"),
        ({"method": "pfml", "delta": "wide"}, "delta: 'wide': should be a number"),
        ({"method": "pfml", "proxies_per_class": 1.5}, "proxies_per_class: 1.5: should be a whole number"),
        ({"method": "pfml", "compile": "maybe"}, "compile: 'maybe': should be true or false"),
        ({"method": "pfml", "weights_sha256": "x"}, "weights_sha256: 'x': should be 64 hexadecimal digits"),
        ({"method": "idml", "objective": "proxy_anchr"}, "(did you mean 'proxy_anchor'?)"),
        ({"method": "pfml", "epochs": 0}, "epochs: 0"),
        ({"method": "pfml", "lr": math.inf}, "lr: inf"),
        ({"method": "pfml", "backbone": "resnet5"}, "did you mean 'resnet50'?"),
        ({"method": "pfml", "validate_every": "1 week"}, "should read like '1 epoch' or '25 steps'"),
        ({"method": "pfml", "optimizer": "sgd2"}, "optimizer: 'sgd2'"),
        ({"method": "pfml", "optimizer_momentum": 0.8}, "by optimizer: adam: take sgd, nesterov or rmsprop, or leave"),
        ({"method": "pfml", "optimizer": "nesterov", "optimizer_momentum": 0.0}, "nesterov needs one above 0"),
        ({"method": "pfml", "lr_schedule": "cosin"}, "is unknown (did you mean 'cosine'?)"),
        (
            {"method": "pfml", "lr_schedule": "cosine", "lr_step_epochs": 5},
            "by lr_schedule: cosine: take step, or",
        ),
        ({"method": "pfml", "lr_patience": 5}, "lr_patience: 5: is not read by lr_schedule: step: take plateau, or"),
        (
            {"method": "pfml", "lr_schedule": "milestones"},
            "lr_milestones: is missing: lr_schedule: milestones needs it",
        ),
        (
            {"method": "pfml", "lr_schedule": "milestones", "lr_milestones": "9, 3"},
            "should read like '100' or '190, 250': increasing epochs",
        ),
        (
            {"method": "pfml", "super_classes_per_batch": 2},
            "super_classes_per_batch: 2: is not read by batches: class_balanced: take hierarchical, or leave it out",
        ),
        (
            {"method": "pfml", "image_size": 96, "augmentation": "affine"},
            "is for photographs, and augmentation: affine cuts none",
        ),
        ({"method": "pfml", "image_size": 8}, "image_size: 8: should be at least 16"),
        ({"method": "pfml", "lr_milestones": "3"}, "is not read by lr_schedule: step: take milestones, or"),
        ({"method": "pfml", "lr_schedule": "plateau", "lr_gamma": 1.0}, "needs a factor below 1"),
        ({"method": "pfml", "lr_warmup": "0 steps"}, "should read like '1 epoch' or '25 steps'"),
        ({"method": "pfml", "stop_patience": 3, "validation_share": 0.0}, "stop_patience: 3: needs validations, and"),
        (
            {"method": "pfml", "lr_schedule": "plateau", "validation_share": 0.0, "protocol": "classification"},
            "lr_schedule: 'plateau': needs validations, and validation_share: 0 holds nothing out",
        ),
        ({"method": "pfml", "augmentation": "afine"}, "did you mean 'affine'?"),
        ({"delta": 0.2}, "no method is named"),
    ],
)
def test_a_bad_setting_is_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_experiment(settings, "here")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_assignments() -> None:
    assert parse_assignments(["lr=1e-4", "delta = 0.2"]) == {"lr": 1e-4, "delta": 0.2}
    for bad in (["lr"], ["=3"], ["lr=1", "lr=2"]):
        with pytest.raises(InputError, match="--set"):
            parse_assignments(bad)


def test_a_search_resolves() -> None:
    search = resolve(PFML, num_trials=7, seed=3, overrides={"epochs": 2})
    assert (search.num_trials, search.seed, search.dataset) == (7, 3, "glyphs-small")
    experiment = search.experiment({"delta": 0.2, "proxies_per_class": 3})
    assert (experiment.training.epochs, experiment.training.seed) == (2, 3)
    kinds = {p.key: p.kind for p in search.space.parameters()}
    assert kinds == {"delta": "float", "proxies_per_class": "int"}
    assert search.space.size() == math.inf


def test_set_pins_a_searched_setting() -> None:
    search = resolve(PFML, overrides={"delta": 0.2})
    assert [p.key for p in search.space.parameters()] == ["proxies_per_class"]
    assert search.experiment({"proxies_per_class": 1}).config.delta == 0.2


def test_a_search_survives_being_stored() -> None:
    search = resolve(PFML)
    assert type(search).model_validate(search.model_dump()) == search


def test_a_budget_stands_for_a_number_of_trials_and_changes_key_by_key() -> None:
    raw = {key: value for key, value in PFML.items() if key != "num_trials"} | {"budget": {"hours": 2}}
    assert resolve(raw).num_trials is None
    search = resolve(raw, budget={"epochs": 100})
    assert search.budget.limits() == {"hours": 2, "epochs": 100}
    raised = with_more_budget(search, 7, {"hours": None, "epochs": 200})
    assert (raised.num_trials, raised.budget.limits()) == (7, {"epochs": 200})
    with pytest.raises(InputError, match="num_trials: this key is required"):
        with_more_budget(search, None, {"hours": None, "epochs": None})
    with pytest.raises(InputError, match="--budget: hour: no such limit"):
        with_more_budget(search, None, {"hour": 3})
    with pytest.raises(InputError, match="is a training, not a search"):
        with_more_budget(single_training("x", {"method": "pfml"}), 3, {})


def test_losses_and_costs_are_minimised() -> None:
    assert resolve(PFML | {"objective": "train/loss"}).objective.mode == "min"
    search = resolve(PFML | {"objectives": ["val/map_at_r", "cost/gpu_hours"]})
    assert [(goal.metric, goal.mode) for goal in search.goals] == [("val/map_at_r", "max"), ("cost/gpu_hours", "min")]
    assert type(search).model_validate(search.model_dump()) == search


def test_given_points_are_as_the_space_has_them() -> None:
    space = {"alpha": {"low": 0, "high": 6, "step": 0.5}, "proxies_per_class": {"low": 1, "high": 9}, "lr": [1, 2]}
    points = [{"alpha": 3, "proxies_per_class": 2.0, "lr": 1}, {"alpha": 3.0, "proxies_per_class": 2, "lr": 1}, "best"]
    found = {"alpha": 4.5, "proxies_per_class": 9, "lr": 2.0, "epochs": 3}
    search = resolve(PFML | {"space": space, "start_from": points}, find_settings=lambda name: [found])
    assert search.start_from == [
        {"alpha": 3.0, "proxies_per_class": 2, "lr": 1},
        {"alpha": 4.5, "proxies_per_class": 9, "lr": 2},
    ]
    assert [type(value) for value in search.start_from[0].values()] == [float, int, int]
    with pytest.raises(InputError, match="start_from: best: is for the method 'ccp', but this search is for 'pfml'"):
        resolve(PFML | {"space": space, "start_from": ["best"]}, find_settings=lambda name: [found | {"method": "ccp"}])
    conditional = resolve(
        {"space": METHODS, "num_trials": 2, "start_from": [{"method": "proxy_anchor", "margin": 0.1}]}
    )
    assert conditional.start_from == [{"method": "proxy_anchor", "margin": 0.1}]


def test_a_space_of_more_points_than_any_search_tries() -> None:
    """Nobody waits until they are counted one by one."""
    space = {"seed": {"low": 0, "high": 10**9}, "proxies_per_class": {"low": 0, "high": 10**4}, "alpha": [1, 2]}
    assert resolve(PFML | {"space": space}).space.size() == (10**9 + 1) * (10**4 + 1) * 2
    with pytest.raises(InputError, match="space: a grid of 2e[+]13 points: at most 1,000,000 can be tried"):
        resolve(PFML | {"space": space, "algorithm": "grid"})
    with pytest.raises(InputError, match="seed: high: 1e[+]30 should be at most 9007199254740992"):
        resolve(PFML | {"space": {"seed": {"low": 0, "high": 10**30}}})
    with pytest.raises(InputError, match="delta: step: 5 is more than the whole range, 0.1 to 0.3"):
        resolve(PFML | {"space": {"delta": {"low": 0.1, "high": 0.3, "step": 5}}})


def test_conditional_space_over_methods() -> None:
    space = {
        "method": {
            "choices": {
                "pfml": {"delta": {"low": 0.1, "high": 0.3, "step": 0.1}},
                "proxy_anchor": {"margin": [0.1, 0.2]},
                "multi_similarity": None,
            }
        },
        "lr": [1e-3],
    }
    search = resolve({"space": space, "algorithm": "grid", "dataset": "glyphs-small"})
    points = search.space.grid()
    assert len(points) == 3 + 2 + 1
    assert {"method": "pfml", "delta": 0.2, "lr": 1e-3} in points
    assert search.experiment(points[-1]).method == "multi_similarity"


def test_a_union_of_grids_has_no_repeats() -> None:
    raw = PFML | {
        "space": [{"delta": [0.2, 0.3]}, {"delta": [0.3], "alpha": [2, 4]}, {"delta": [0.2]}],
        "algorithm": "grid",
    }
    assert resolve(raw).space.size() == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"space": {}}, "space"),
        ({"space": []}, "the space is empty"),
        ({"space": None}, "space"),
        ({"spacee": {}}, "spacee: no such key of a search (did you mean 'space'?)"),
        ({"space": {"detla": {"low": 0.1, "high": 0.2}}}, "detla: no such setting"),
        ({"space": {"delta": {"low": 0.4, "high": 0.2}}}, "low 0.4 is above high 0.2"),
        ({"space": {"delta": {"low": -1, "high": 0.2}}}, "delta: -1.0: should be above 0"),
        ({"space": {"delta": {"low": math.nan, "high": 0.2}}}, "delta: low: nan: should be a finite number"),
        ({"space": {"delta": {"low": 0.1, "high": math.inf}}}, "delta: high: inf: should be a finite number"),
        ({"space": {"delta": {"low": 0.1}}}, "needs both low and high"),
        ({"space": {"delta": {"lo": 0.1, "high": 0.2}}}, "did you mean 'low'?"),
        ({"space": {"delta": 0.2}}, "should be a list of choices or a range"),
        ({"space": {"delta": []}}, "an empty list"),
        ({"space": {"delta": [[0.1], [0.2]]}}, "should be a single value"),
        ({"space": {"delta": {"choices": {0.1: None}}}}, "only a word can open a space"),
        ({"space": {"delta": [0.1, 0.1]}}, "names a value twice"),
        ({"space": {"alpha": {"low": 0, "high": 6, "log": True}}}, "starts above 0"),
        ({"space": {"proxies_per_class": {"type": "int", "low": 0.5, "high": 6}}}, "whole number"),
        ({"space": {"delta": {"low": "a", "high": 6}}}, "low: 'a'"),
        ({"settings": {"delta": 0.2}}, "both fixed in settings and searched"),
        ({"settings": {"validation_share": 0}}, "leaves a search nothing to select on"),
        ({"algorithm": "tpee"}, "did you mean 'tpe'?"),
        ({"algorithm": "grid"}, "a grid needs choices or a step"),
        ({"num_trials": 0}, "num_trials: 0"),
        ({"num_trials": "many"}, "num_trials: 'many'"),
        ({"num_trials": None}, "num_trials"),
        ({"scheduler": "ahsa"}, "scheduler"),
        ({"scheduler": {"name": "median", "reduction_factor": 2}}, "reduction_factor: has no meaning for 'median'"),
        (
            {"scheduler": {"name": "none", "grace_validations": 2}},
            "it is for asha, promotion, forecast, median",
        ),
        (
            {"scheduler": "hyperband", "settings": {"validate_every": "9 steps"}},
            "hyperband: max_validations: unknown from epochs and validate_every",
        ),
        ({"scheduler": "hyperband", "settings": {"epochs": 2}}, "2 validations make one bracket only"),
        ({"algorithm": "cmaes", "space": {"delta": {"low": 0.1, "high": 0.2}}}, "cmaes: needs two ranges or more"),
        ({"algorithm": "cmaes", "space": {"delta": [0.1, 0.2], "lr": [1, 2]}}, "space.delta has choices"),
        ({"algorithm": "nsga2"}, "nsga2: is for two objectives"),
        ({"algorithm": "cmaes", "objectives": ["val/map_at_r", "cost/seconds"]}, "cmaes: has one objective only"),
        ({"algorithm": "gp", "method": None, "space": METHODS}, "gp: cannot search choices that open a space"),
        ({"objectives": ["val/map_at_r"]}, "objectives: 1 given; two are needed"),
        ({"objectives": ["val/map_at_r", "val/map_at_r"]}, "val/map_at_r is named twice"),
        ({"objectives": ["val/map_at_r", "cost/second"]}, "did you mean 'cost/seconds'?"),
        ({"objectives": ["cost/seconds", "val/map_at_r"]}, "a cost can only be the second of two objectives"),
        ({"objectives": ["val/map_at_r", 3]}, "objectives[1]: 3 should be a name or a mapping"),
        ({"objective": "cost/seconds"}, "a cost can only be the second"),
        ({"objectives": ["val/map_at_r", {"metric": "cost/seconds", "mode": "max"}]}, "should be small"),
        ({"objective": "val/map_at_r", "objectives": ["train/loss", "val/map_at_r"]}, "objectives is given too"),
        (
            {"objectives": ["val/map_at_r", "cost/seconds"], "scheduler": "promotion"},
            "promotion: compares trials by one objective, and this search has two; give asha or none",
        ),
        ({"budget": {"epoch": 3}}, "budget: epoch: no such limit (did you mean 'epochs'?)"),
        ({"budget": {"hours": 0}}, "budget: hours: 0"),
        ({"budget": {"hours": math.inf}}, "budget: hours: inf"),
        ({"budget": {"epochs": 9}}, "budget.epochs: 9: one trial takes 10 alone"),
        ({"start_from": ["pfml/cub200/resnet50"]}, "give the point itself"),
        ({"start_from": [3]}, "point 1: 3 should be a point (a mapping), a preset or a search"),
        ({"start_from": [{"delta": 0.2}]}, "point 1: proxies_per_class: is missing"),
        ({"start_from": [{"delta": 0.4, "proxies_per_class": 3}]}, "delta: 0.4 is outside of the space (0.1 to 0.35)"),
        ({"start_from": [{"delta": 0.2, "proxies_per_class": 3.5}]}, "proxies_per_class: 3.5 is not a step"),
        ({"start_from": [{"delta": "x", "proxies_per_class": 3}]}, "delta: 'x' should be a number"),
        ({"start_from": [{"delta": 0.2, "proxies_per_class": 3, "lr": 1}]}, "lr: is not searched"),
        (
            {"start_from": [{"delta": d / 10, "proxies_per_class": p} for d in (2, 3) for p in (1, 2, 3)]},
            "6 points, but",
        ),
        ({"scheduler": {"name": "asha", "reduction_factor": 1}}, "reduction_factor: 1"),
        ({"objective": "val/map_at_rr"}, "did you mean 'val/map_at_r'?"),
        ({"objective": "test/map_at_r"}, "not a metric of a validation"),
        ({"method": "pmfl"}, "did you mean 'pfml'?"),
        ({"seed": -1}, "seed: -1"),
    ],
)
def test_a_bad_search_is_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve({key: value for key, value in (PFML | change).items() if key != "method" or value is not None})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../x", "", "a b", ".hidden", "x" * 200, "a/b"])
def test_a_name_cannot_leave_the_storage(name: str) -> None:
    with pytest.raises(InputError, match="--name"):
        resolve_search(PFML, name=name, source="file.yaml")


@pytest.mark.parametrize("name", sorted(shipped_searches()))
def test_shipped_searches_resolve(name: str) -> None:
    search = resolve_search(read_yaml(find_search(name)), name="x", source=name)
    assert search.description
    assert search.space.size() > 1


@pytest.mark.parametrize("name", sorted(shipped_searches()))
def test_a_search_is_written_as_a_file_that_means_the_same(name: str, tmp_path: Path) -> None:
    changes = {"dataset": "glyphs", "num_trials": 7, "budget": {"epochs": 10_000}, "seed": 5, "final_seeds": 3}
    for given in ({}, changes if name != "demo" else {"seed": 5}):
        search = resolve_search(read_yaml(find_search(name)), name="x", source="a.yaml", **given)
        path = tmp_path / "a.yaml"
        path.write_text(search.file())
        again = resolve_search(read_yaml(path), name="x", source="a.yaml")
        assert again.model_dump() == search.model_dump()


def test_a_search_of_two_objectives_is_written_as_one(tmp_path: Path) -> None:
    raw = PFML | {"objectives": ["val/map_at_r", "cost/seconds"], "algorithm": "nsga2", "scheduler": "none"}
    search = resolve_search(raw, name="x", source="a.yaml")
    (tmp_path / "a.yaml").write_text(search.file())
    again = resolve_search(read_yaml(tmp_path / "a.yaml"), name="x", source="a.yaml")
    assert again.model_dump() == search.model_dump()


@pytest.mark.parametrize("name", sorted(shipped_searches()))
def test_every_corner_of_a_shipped_search_is_an_experiment(name: str) -> None:
    """Both ends of every range in every branch, not the bounds of one setting at a time."""

    def corners(parameters: tuple[Parameter, ...]) -> list[dict[str, Any]]:
        points: list[dict[str, Any]] = [{}]
        for p in parameters:
            values = p.choices if p.kind == "categorical" else (p.low, p.high)
            values = tuple(int(value) for value in values) if p.kind == "int" else values
            own = [{p.key: value} | rest for value in values for rest in corners(p.branches.get(value, ()))]
            points = [point | corner for point in points for corner in own]
        return points

    search = resolve_search(read_yaml(find_search(name)), name="x", source=name)
    for alternative in search.space.alternatives:
        for corner in corners(alternative):
            experiment = search.experiment(corner)
            assert corner.items() <= experiment.flat().items()


def test_every_method_has_a_shipped_search_and_the_comparison_runs_over_many() -> None:
    shipped = {read_yaml(path).get("method") for path in shipped_searches().values()}
    assert set(registry()) <= shipped
    search = resolve_search(read_yaml(find_search("method_comparison")), name="x", source="x")
    (method,) = (p for p in search.space.parameters() if p.key == "method")
    assert {"pfml", "cpml", "anti_collapse", "proxy_anchor", "soft_triple"} <= set(method.choices) <= set(registry())
    assert all(method.branches[choice] for choice in method.choices)


def test_finding_a_search() -> None:
    assert find_search("demo").name == "demo.yaml"
    with pytest.raises(InputError, match="did you mean 'demo'"):
        find_search("dmeo")
    with pytest.raises(InputError, match="no such search file"):
        find_search("no/such.yaml")


def test_a_single_training_is_a_search_of_one_point() -> None:
    one = single_training("x", {"method": "proxy_anchor", "dataset": "glyphs-small", "epochs": 1})
    assert one.space.size() == 1
    assert one.experiment(one.space.first()).training.epochs == 1


@pytest.mark.parametrize(
    ("settings", "space", "lines"),
    [
        ({"memory_size": 9}, {"pos_margin": [0, 0.1]}, ['memory_size has no effect with references="batch"']),
        ({}, {"memory_size": [9, 10]}, ['memory_size has no effect with references="batch"']),
        ({"memory_size": 9}, {"references": ["batch", "memory"]}, []),
        ({"memory_size": 9, "references": "memory"}, {"pos_margin": [0, 0.1]}, []),
        ({"method": "pfml", "proxies_per_class": 0}, {"alpha": [1, 2]}, []),
        (
            {"method": "pfml", "proxies_per_class": 0, "alpha": 0, "delta": 0.3, "proxy_lr_multiplier": 2.0},
            {"lr": [0.1, 0.2]},
            ["proxy_lr_multiplier has no effect with proxies_per_class=0", "delta has no effect with alpha=0.0"],
        ),
        (
            {"method": "idml", "proxies_per_class": 3, "objective": "triplet"},
            {"lr": [0.1, 0.2]},
            ['proxies_per_class has no effect with references="batch", objective="triplet"'],
        ),
        ({"method": "idml", "proxies_per_class": 3}, {"objective": ["triplet", "proxy_nca"]}, []),
        (
            {"cache_features": True, "epochs": 3},
            {"lr": [0.1, 0.2]},
            ["cache_features has no effect with warmup_epochs=0 of 3 epochs: then the backbone is trained"],
        ),
        (
            {"cache_features": True, "epochs": 3, "warmup_epochs": 3},
            {"lr": [0.1, 0.2]},
            ["cache_features has no effect with augmentation=affine"],
        ),
        ({"cache_features": True, "epochs": 3, "warmup_epochs": 3, "augmentation": "none"}, {"lr": [0.1, 0.2]}, []),
        (
            {"cache_features": True, "epochs": 3, "warmup_epochs": 3, "augmentation": "none", "precision": "bf16"},
            {"lr": [0.1, 0.2]},
            ["cache_features has no effect with precision=bf16"],
        ),
    ],
)
def test_settings_without_effect_are_told(settings: dict[str, Any], space: dict[str, Any], lines: list[str]) -> None:
    raw = {"settings": {"method": "contrastive"} | settings, "space": space, "num_trials": 2}
    assert idle_settings(resolve_search(raw, name="x", source="x")) == lines


@pytest.mark.parametrize("raw", [PFML, {"method": None, "space": METHODS, "num_trials": 4}])
def test_a_space_is_parsed_once(raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked of the search: what reports the faults of the file is the space of the search."""
    parsed, resolved = [], []

    def counted_parse(*arguments: Any) -> Any:
        parsed.append(arguments)
        return parse_space(*arguments)

    def counted_resolve(*arguments: Any) -> Any:
        resolved.append(arguments)
        return resolve_experiment(*arguments)

    for module in ("resolve", "search"):
        monkeypatch.setattr(f"orchestrator.config.{module}.parse_space", counted_parse)
    raw = {key: value for key, value in raw.items() if value is not None}
    search = resolve(raw | {"scheduler": "hyperband", "start_from": []})
    assert len(parsed) == 1
    monkeypatch.setattr(orchestrator.config.search, "resolve_experiment", counted_resolve)
    monkeypatch.setattr(orchestrator.config.space, "resolve_experiment", counted_resolve)
    assert (
        search.brackets == 3 and search.most_epochs == 10 and search.parameters() and search.example() and search.space
    )
    more = with_more_budget(search, 9, {})
    assert len(parsed) == 2 and more.space == search.space
    one = search.model_copy(update={"num_trials": 5})
    assert one.space is search.space and (len(parsed), one.example()) == (2, search.example())
    assert sum(arguments[1] == "file.yaml" for arguments in resolved) == 1  # of `more`


@pytest.mark.parametrize("planted", [False, True], ids=["", "a copy keeps everything"])
def test_a_copy_with_another_space_is_of_that_space(planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    search = resolve(PFML)
    assert [parameter.key for parameter in search.parameters()] == ["delta", "proxies_per_class"]
    assert search.example().training.epochs == 10
    if planted:
        monkeypatch.delattr(Search, "model_copy")
    shorter = search.model_copy(update={"settings": search.settings | {"epochs": 3}})
    other = search.model_copy(update={"raw_space": {"alpha": [1, 2, 3]}})
    right = [parameter.key for parameter in other.parameters()] == ["alpha"] and other.example().config.alpha == 1
    assert (right and shorter.example().training.epochs == 3) is not planted


def test_the_page_about_searches_names_what_the_tables_hold() -> None:
    docs = Path(__file__).parents[2] / "docs"
    keys, algorithms, stops = (
        (docs / page).read_text(encoding="utf-8").partition(f"## {part}\n")[2].partition("\n## ")[0]
        for page, part in (
            ("search_files.md", "The keys"),
            ("algorithms.md", "The algorithm"),
            ("algorithms.md", "Early stops"),
        )
    )
    assert not [key for key in FILE_KEYS if f"`{key}`" not in keys]
    assert not [name for name in ALGORITHMS if f"`{name}`" not in keys or f"| `{name}` |" not in algorithms]
    for name, kind in SCHEDULERS.items():
        assert f"`{name}`" in keys
        assert re.search(rf"\{{name: {name}\b|`{name}`", stops)
        assert not [key for key in kind.model_fields if key not in stops]


def test_a_file_s_text_names_the_scheduler_with_what_is_not_its_default() -> None:
    for scheduler, text in (
        ("none", ""),
        ("asha", "scheduler:\n  name: asha\n"),
        ({"name": "hyperband", "reduction_factor": 2}, "scheduler:\n  name: hyperband\n  reduction_factor: 2\n"),
    ):
        search = resolve(PFML | {"scheduler": scheduler})
        assert re.findall(r"scheduler:\n(?:  .*\n)*", search.file()) == ([text] if text else [])
        assert type(search).model_validate_json(search.model_dump_json()) == search


def test_a_journal_holds_the_keys_of_every_scheduler_of_before() -> None:
    search = resolve(PFML | {"scheduler": {"name": "median", "startup_trials": 2}})
    stored = search.model_dump()["scheduler"]
    held = {"grace_validations": 1, "reduction_factor": 3, "startup_trials": 2, "max_validations": None}
    assert stored == {"name": "median", **held}
    with pytest.raises(ValidationError, match="patience: no such key"):
        Search.model_validate(search.model_dump() | {"scheduler": stored | {"patience": 3}})
    with pytest.raises(InputError) as refused:
        resolve(PFML | {"scheduler": {"name": "ahsa", "grace_validations": 0, "grace_validation": 1}})
    assert [problem.removeprefix("file.yaml: scheduler: ") for problem in refused.value.problems] == [
        "name: 'ahsa' is unknown (did you mean 'asha'?)",
        "grace_validations: 0: should be at least 1",
        "grace_validation: no such key (did you mean 'grace_validations'?)",
    ]


@pytest.mark.parametrize("planted", [False, True], ids=["", "an option of another range"])
def test_options_have_the_bounds_of_their_keys(planted: bool) -> None:
    def bounds(command: str) -> Iterator[tuple[str, Any, Any]]:
        for name, hint in get_type_hints(command_of(command), include_extras=True).items():
            option = next((part for part in get_args(hint) if isinstance(part, OptionInfo)), None)
            if option is not None and name in FILE_KEYS.keys() & Search.model_fields.keys():
                metadata = get_args(Count)[1].metadata if name in OF_WORKERS else Search.model_fields[name].metadata
                held = {type(bound).__name__: bound for bound in metadata}
                if option.min is not None:
                    yield name, option.min, held["Ge"].ge
                if option.max is not None:
                    yield name, option.max - (planted and name == "final_trials"), held["Le"].le

    found = [*bounds("search"), *bounds("benchmark")]
    assert len({name for name, *_ in found}) >= 6
    assert [name for name, option, key in found if option != key] == ["final_trials"] * planted


def test_the_choices_of_a_command_are_the_table_s() -> None:
    hints = get_type_hints(command_of("evaluate"))["degradation"]
    assert {name for part in get_args(hints) for name in get_args(part)} == set(DEGRADATIONS)
