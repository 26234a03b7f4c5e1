"""The files and options that users write."""

import math
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.method import registry
from orchestrator.spec import (
    Parameter,
    find_search,
    idle_settings,
    parse_assignments,
    read_scalar,
    read_yaml,
    resolve_experiment,
    resolve_search,
    shipped_searches,
    single_training,
)

PFML: dict[str, Any] = {
    "method": "pfml",
    "dataset": "glyphs-small",
    "space": {"delta": {"low": 0.1, "high": 0.35}, "proxies_per_class": {"low": 0, "high": 30}},
    "num_trials": 4,
}


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
    assert (experiment.config.delta, experiment.training.lr, experiment.training.epochs) == (0.3, 1e-4, 3)
    assert resolve_experiment(experiment.flat(), "again") == experiment


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "pmfl"}, "unknown method 'pmfl' (did you mean 'pfml'?)"),
        ({"method": "pfml", "detla": 0.2}, "detla: no such setting of 'pfml' (did you mean 'delta'?)"),
        ({"method": "pfml", "delta": 0}, "delta: 0: should be greater than 0"),
        ({"method": "pfml", "delta": "wide"}, "delta: 'wide': should be a number"),
        ({"method": "pfml", "proxies_per_class": 1.5}, "proxies_per_class: 1.5: should be a whole number"),
        ({"method": "pfml", "compile": "maybe"}, "compile: 'maybe': should be true or false"),
        ({"method": "pfml", "weights_sha256": "x"}, "weights_sha256: 'x': should be 64 hexadecimal digits"),
        ({"method": "idml", "objective": "proxy_anchr"}, "(did you mean 'proxy_anchor'?)"),
        ({"method": "pfml", "epochs": 0}, "epochs: 0"),
        ({"method": "pfml", "lr": math.inf}, "lr: inf"),
        ({"method": "pfml", "backbone": "resnet5"}, "did you mean 'resnet50'?"),
        ({"method": "pfml", "validate_every": "1 week"}, "should read like '1 epoch' or '25 steps'"),
        ({"method": "pfml", "optimizer": "sgd"}, "optimizer: 'sgd'"),
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
        ({"space": {"delta": {"low": -1, "high": 0.2}}}, "delta: -1.0: should be greater than 0"),
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
        ({"scheduler": {"name": "asha", "reduction_factor": 1}}, "reduction_factor: 1"),
        ({"objective": "val/map_at_rr"}, "did you mean 'val/map_at_r'?"),
        ({"objective": "test/map_at_r"}, "not a metric of a validation"),
        ({"method": "pmfl"}, "did you mean 'pfml'?"),
        ({"seed": -1}, "seed: -1"),
    ],
)
def test_a_bad_search_is_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(PFML | change)
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
    ],
)
def test_settings_without_effect_are_told(settings: dict[str, Any], space: dict[str, Any], lines: list[str]) -> None:
    raw = {"settings": {"method": "contrastive"} | settings, "space": space, "num_trials": 2}
    assert idle_settings(resolve_search(raw, name="x", source="x")) == lines
