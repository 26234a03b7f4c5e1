"""A schedule: settings that have other values after some validations of a training."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training_loops import preempted, train, weights

from orchestrator.check.subject import NETWORK
from orchestrator.config.resolve import idle_settings, resolve_search
from orchestrator.config.schedule import checked_schedule, parse_schedule
from orchestrator.config.training import resolve_experiment
from orchestrator.errors import InputError
from orchestrator.method import registry
from orchestrator.storage.trial_folder import CHECKPOINT
from orchestrator.training.checkpoint import load_checkpoint
from orchestrator.training.stages import Stages

PLAIN: dict[str, Any] = {"method": "proxy_anchor", "backbone": NETWORK.name, "lr": 0.01, "optimizer": "adamw"}
SCHEDULE = "from 1 lr=0.002 alpha=16 weight_decay=0.1, from 2 margin=0.3 clip_norm=0.01"
LATER = {"lr": 0.002, "alpha": 16.0, "weight_decay": 0.1}


def equal(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_it_is_a_training_that_goes_on_with_other_settings(data_folder: Path, tmp_path: Path) -> None:
    """A training of other settings that goes on from a checkpoint, as a copied one does: bit for bit the same."""
    whole = train(tmp_path / "whole", data_folder, PLAIN | {"schedule": SCHEDULE}, stop_after=3)
    plain = train(tmp_path / "plain", data_folder, PLAIN, stop_after=3, take=1)
    assert plain == whole[:1], "until the first change it is the plain training"
    shutil.copytree(tmp_path / "plain", tmp_path / "other")
    for place, schedule in (("plain", SCHEDULE), ("other", "from 1 lr=0.002 alpha=16")):
        went_on = train(tmp_path / place, data_folder, PLAIN | {"schedule": schedule}, stop_after=3)
        assert went_on[0] == plain[0] and (went_on == whole) == (place == "plain")
        assert equal(tmp_path / "whole", tmp_path / place) == (place == "plain")


def test_the_same_values_change_nothing(data_folder: Path, tmp_path: Path) -> None:
    same = {"schedule": [{"from": 1, "lr": 0.01, "alpha": 32, "weight_decay": 1e-4, "clip_norm": None}]}
    results = [train(tmp_path / str(len(more)), data_folder, PLAIN | more) for more in ({}, same)]
    assert results[0] == results[1] and equal(tmp_path / "0", tmp_path / "1")


def test_a_change_of_the_learning_rate_is_a_milestone(data_folder: Path) -> None:
    """Against the schedule of lr that says the same: validations after each epoch, and a milestone there."""
    settings = PLAIN | {"images_per_class": 32, "epochs": 2, "validate_every": "1 epoch"}
    by_milestone = {"lr_schedule": "milestones", "lr_milestones": "1", "lr_gamma": 0.125}
    ours = train(None, data_folder, settings | {"schedule": "from 1 lr=0.00125"})
    assert ours == train(None, data_folder, settings | by_milestone) and len(ours) == 2


def test_each_stage_has_its_settings() -> None:
    experiment = resolve_experiment({"method": "proxy_anchor", "lr": 0.01, "schedule": SCHEDULE}, "test")
    stages = experiment.stages()
    assert list(stages) == [0, 1, 2] and stages[0] is experiment
    flat = {start: stage.flat() for start, stage in stages.items()}
    assert {key: flat[2][key] for key in (*LATER, "margin", "clip_norm")} == LATER | {"margin": 0.3, "clip_norm": 0.01}
    assert flat[1]["margin"] == flat[0]["margin"] == 0.1, "each change is from its validation on only"
    again = resolve_experiment(experiment.flat(), "again")
    assert again == experiment and again.training.schedule == SCHEDULE


def test_it_goes_on_exactly(data_folder: Path, tmp_path: Path) -> None:
    """Its process ends before the first change, and within a stage."""
    settings = PLAIN | {"schedule": SCHEDULE}
    expected = train(tmp_path / "whole", data_folder, settings, stop_after=3)
    for at, steps in ((3, 3), (2, 5)):
        assert preempted(tmp_path / "broken", data_folder, settings, at=at, stop_after=3) == at, f"step {steps}"
    assert train(tmp_path / "broken", data_folder, settings, stop_after=3) == expected
    assert equal(tmp_path / "whole", tmp_path / "broken")


def test_a_stage_that_is_not_entered_again_is_seen(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug for which the test above is: changes that are made at their validations only, not when resumed."""
    settings, enter = PLAIN | {"schedule": SCHEDULE}, Stages.enter
    expected = train(None, data_folder, settings, stop_after=3)
    preempted(tmp_path / "broken", data_folder, settings, at=5, stop_after=3)
    seen: list[int] = []

    def only_when_it_comes(stages: Stages, validations: int, engine: Any) -> None:
        if seen and seen[-1] != validations:
            enter(stages, validations, engine)
        seen.append(validations)

    monkeypatch.setattr(Stages, "enter", only_when_it_comes)
    assert train(tmp_path / "broken", data_folder, settings, stop_after=3) != expected


def test_the_untrained_backbone_stays_frozen(data_folder: Path, tmp_path: Path) -> None:
    """The optimiser's groups are those of the start, also where a warm-up freezes some at the change."""
    settings = PLAIN | {"images_per_class": 32, "epochs": 2, "validate_every": "3 steps", "warmup_epochs": 1}
    ours = train(tmp_path / "ours", data_folder, settings | {"schedule": "from 1 lr=0.005"}, stop_after=3)
    assert len(ours) == 3
    groups = load_checkpoint(tmp_path / "ours" / CHECKPOINT)["optimizer"]["param_groups"]
    assert {group["base_lr"] for group in groups} == {0.005, 0.05}


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("", "schedule: '': should be a list like [{from: 2, lr: 0.008}], or read like 'from 2 lr=0.008 alpha=16"),
        ([], "schedule: []: should be a list like"),
        ([3], "schedule[0]: 3 should be a list like"),
        ("from 2 lr=x", "schedule[0]: lr: 'x' should be a number"),
        ([{"lr": 1}], "schedule[0]: from: null should be the number of validations after which it holds, from 1 on"),
        ([{"from": 0, "lr": 1}], "from 1 on: what holds from the start are the settings themselves"),
        ([{"from": 2, "lr": 1}, {"from": 2, "lr": 2}], "schedule[1]: from: 2 should be above 2, the one before"),
        ([{"from": 2}], "from 2: names no setting"),
        ([{"from": 2, "l r": 1}], "schedule[0]: 'l r' should be the name of a setting"),
        ([{"from": 2, "lr": True}], "schedule[0]: lr: true should be a number"),
        ([{"from": 2, "lr": -1}], "schedule[0]: lr: -1: should be above 0"),
        ([{"from": 2, "lr": None}], "schedule[0]: lr: "),
        ([{"from": 2, "alpha": 0}], "schedule[0]: alpha: 0: should be above 0"),
        ([{"from": 2, "lrr": 0.1}], "schedule[0]: lrr: no such setting of 'proxy_anchor' (did you mean 'lr'?)"),
        (
            [{"from": 2, "epochs": 3}],
            "schedule[0]: epochs: cannot change during a training: with 'proxy_anchor' lr, weight_decay, clip_value, "
            "clip_norm, alpha, margin or proxy_lr_multiplier can",
        ),
        ([{"from": 2, "proxies_per_class": 3}], "schedule[0]: proxies_per_class: cannot change during a training"),
    ],
)
def test_what_it_refuses(schedule: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        resolve_experiment({"method": "proxy_anchor", "schedule": schedule}, "train")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_change_after_the_end_is_noted() -> None:
    raw = {"method": "proxy_anchor", "space": {"lr": [0.1, 0.2]}, "algorithm": "grid"}
    for epochs, lines in ((5, []), (4, ["schedule has no effect from 4: a training has 4 validations"])):
        settings = {"epochs": epochs, "schedule": [{"from": 2, "lr": 0.1}, {"from": 4, "alpha": 16}]}
        search = resolve_search(raw | {"settings": settings}, name="late", source="late.yaml")
        assert idle_settings(search) == lines
        assert search.example().stages()[4].flat()["alpha"] == 16


def test_a_text_is_read_again_as_it_was_written() -> None:
    for text in (SCHEDULE, "from 1 lr=1e-05 clip_norm=null"):
        assert checked_schedule(text) == text
    changes = [{"from": one.start, **one.values} for one in parse_schedule(SCHEDULE)]
    assert checked_schedule(changes) == SCHEDULE


def test_the_documentation_names_what_can_change() -> None:
    text = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text("utf-8")
    for name, method in registry().items():
        names = ", ".join(f"`{key}`" for key in sorted(method.Config.schedulable))
        assert (f"| `{name}` | {names} |\n" in text) == bool(names)
