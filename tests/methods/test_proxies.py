"""Proxies start as in each method's source; searches and models of before go on as they began."""

import fnmatch
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.golden_files import GOLDENS, patterns
from torch import Tensor, nn
from torch.nn import init

from methods.proxies import INITS, Proxies
from orchestrator.config.optimizers import optimizer_of
from orchestrator.config.presets import find_preset, presets
from orchestrator.config.search import recorded_search
from orchestrator.config.training import resolve_experiment
from orchestrator.execution.inline import InlineRunner
from orchestrator.execution.worker import run_training
from orchestrator.method import Task, find_method
from orchestrator.plugins import config_class, installed_methods
from orchestrator.search.driver import resume
from orchestrator.storage.journal import Journal
from orchestrator.storage.places import JOURNAL
from orchestrator.storage.trial_folder import CHECKPOINT, MODEL
from orchestrator.training.checkpoint import load_checkpoint, save_checkpoint
from orchestrator.training.model_file import load_learner
from orchestrator.training.optimizer import LearningRates

CLASSES = {"cub200": 100, "cars196": 98, "sop": 11_318, "inshop": 3_997}
FIRST = {"proxy_init": "randn", "proxy_lr_multiplier": 100.0}


# As the released codes call them, on tensors of the shape that they have there ------------------------------------


def randn_over(divisor: float, rows: int, dim: int) -> Tensor:
    return torch.randn(rows, dim) / divisor


def kaiming_normal(rows: int, dim: int) -> Tensor:
    return init.kaiming_normal_(torch.empty(rows, dim), mode="fan_out")


def soft_triple(rows: int, dim: int) -> Tensor:
    return init.kaiming_uniform_(torch.empty(dim, rows), a=math.sqrt(5)).T.contiguous()


def linear_layer(rows: int, dim: int) -> Tensor:
    return nn.Linear(dim, rows, bias=False).weight.detach()


def keras_he_normal(rows: int, dim: int) -> Tensor:
    """variance_scaling(2, fan_in, truncated_normal): fan_in is the first size of a matrix."""
    drawn = torch.randn(rows, 2 * dim)
    kept = torch.stack([row[row.abs() < 2][:dim] for row in drawn])
    return kept * math.sqrt(2 / rows) / 0.87962566103423978


SOURCES: Mapping[str, Callable[[int, int], Tensor]] = {
    "randn": partial(randn_over, 1),
    "randn/8": partial(randn_over, 8),
    "randn/100": partial(randn_over, 100),
    "kaiming_fan_out": kaiming_normal,
    "kaiming_uniform": soft_triple,
    "he_normal": keras_he_normal,
    "uniform": linear_layer,
}


@pytest.mark.parametrize("name", INITS)
def test_each_start_is_that_of_its_source(name: str) -> None:
    torch.manual_seed(0)
    own, theirs = (draw(60, 500).double().flatten() for draw in (INITS[name], SOURCES[name]))
    assert own.std() == pytest.approx(theirs.std().item(), rel=0.02)
    assert own.abs().max() == pytest.approx(theirs.abs().max().item(), rel=0.15)
    assert own.square().square().mean() == pytest.approx(theirs.square().square().mean().item(), rel=0.06)  # the shape
    assert INITS[name](0, 4).shape == (0, 4)


def test_randn_draws_what_it_drew() -> None:
    torch.manual_seed(3)
    expected = torch.randn(8, 5)
    torch.manual_seed(3)
    assert torch.equal(Proxies(Task(4, 5, 7), 2).weight, expected)


# The angle of the first step -----------------------------------------------------------------------------------------


class Release(NamedTuple):
    """What a released code steps its proxies with: its start, their learning rate, proxies per class, and Adam's
    epsilon."""

    start: Callable[[int, int], Tensor]
    lr: float
    per_class: int = 1
    eps: float = 1e-8


RELEASES: Mapping[str, Release] = {
    "anti_collapse/*_released": Release(partial(randn_over, 8), 1e-5 * 2000),
    "idml/cub200/*/proxy_anchor_released": Release(kaiming_normal, 6e-4 * 100),
    "idml/cars196/*/proxy_anchor_released": Release(kaiming_normal, 2.5e-4 * 100),
    "idml/sop/*/proxy_anchor_released": Release(kaiming_normal, 6e-4 * 100),
    "idml/*/proxy_anchor": Release(kaiming_normal, 1e-5 * 100),
    "proxy_anchor/*/resnet50": Release(kaiming_normal, 1e-5 * 100),
    "proxy_anchor/*/bn_inception": Release(keras_he_normal, 1e-5 * 100),
    "proxy_nca_plus_plus/*/bn_inception": Release(keras_he_normal, 1e-5 * 100),
    "soft_triple/cub200/bn_inception": Release(keras_he_normal, 1e-5 * 100, 10),
    "soft_triple/cars196/bn_inception": Release(keras_he_normal, 1e-5 * 100, 10),
    "soft_triple/sop/bn_inception": Release(keras_he_normal, 1e-5 * 100, 4),
    "soft_triple/inshop/bn_inception": Release(keras_he_normal, 1e-5 * 100, 4),
    "proxy_anchor/cub200/*/released": Release(kaiming_normal, 1e-4 * 100),
    "proxy_anchor/cars196/*/released": Release(kaiming_normal, 1e-4 * 100),
    "proxy_anchor/sop/*/released": Release(kaiming_normal, 6e-4 * 100),
    "proxy_anchor/inshop/*/released": Release(kaiming_normal, 6e-4 * 100),
    "soft_triple/cars196/bn_inception/released": Release(soft_triple, 0.01, 10, eps=0.01),
    "nir/*": Release(partial(randn_over, 8), 1e-5 * 4000),
    "hier/c*/resnet50/released": Release(kaiming_normal, 1e-4 * 1e4, eps=1e-4),
    "hier/c*/vit_small/released": Release(kaiming_normal, 1e-5 * 1e4, eps=1e-4),
    "hier/c*/dino_small/released": Release(kaiming_normal, 5e-6 * 1e4, eps=1e-4),
    "hier/[!c]*/resnet50/released": Release(kaiming_normal, 6e-4 * 1e4, eps=1e-4),
    "hier/[!c]*/vit_small/released": Release(kaiming_normal, 1e-5 * 1e4, eps=1e-4),
    "hier/[!c]*/dino_small/released": Release(kaiming_normal, 5e-6 * 1e4, eps=1e-4),
    "proxy_nca_plus_plus/c*/resnet50/*": Release(partial(randn_over, 8), 4e2, eps=1.0),
    "proxy_nca_plus_plus/sop/resnet50/*": Release(partial(randn_over, 8), 4e1 * 6, eps=1.0),
    "proxy_nca_plus_plus/inshop/resnet50/*": Release(partial(randn_over, 8), 4e2 * 6, eps=1.0),
    "dada/*": Release(partial(randn_over, 8), 0.04),
    "happier/*": Release(linear_layer, 10.0),
}


def angle(before: Tensor, after: Tensor) -> float:
    """Mean over rows of the angle in radians."""
    cosine = torch.cosine_similarity(before.double(), after.double(), dim=1)
    return torch.acos(cosine.clamp(-1, 1)).mean().item()


def step(weight: nn.Parameter, optimizer: torch.optim.Optimizer) -> float:
    """The angle of a step along a loss of the directions of these rows."""
    before = weight.detach().clone()
    target = torch.randn(weight.shape, generator=torch.Generator().manual_seed(7))
    torch.autograd.backward((nn.functional.normalize(weight, dim=1) * target).sum())
    optimizer.step()
    return angle(before, weight.detach())


def own_angle(name: str) -> float:
    """That of the preset's first step."""
    preset = find_preset(name)
    experiment = resolve_experiment(preset.settings, name)
    training = experiment.training
    torch.manual_seed(1)
    task = Task(CLASSES[training.dataset], training.embedding_dim, 16)
    method = find_method(experiment.method)(experiment.config, task)
    (weight,) = (value for key, value in method.named_parameters() if key.endswith("proxies.weight"))
    groups = [group for group in method.parameter_groups(training.lr) if any(one is weight for one in group["params"])]
    return step(weight, optimizer_of(training.optimizer).build(groups, training, False))


def release_of(name: str) -> Release:
    (release,) = {release for pattern, release in RELEASES.items() if fnmatch.fnmatch(name, pattern)}
    return release


def with_a_rate() -> list[str]:
    """The presets of trained proxies whose start and whose rate are stated."""
    stated = {name: find_preset(name).settings for name in presets()}
    return [name for name, settings in stated.items() if {"proxy_init", "proxy_lr_multiplier"} <= settings.keys()]


def test_every_release_is_of_a_preset() -> None:
    for pattern in RELEASES:
        assert fnmatch.filter(with_a_rate(), pattern), pattern


@pytest.mark.parametrize("name", [name for name in with_a_rate() if "proxy_nca/" not in f"{name}/"])
def test_the_first_step_of_a_preset_turns_its_proxies_as_far_as_its_source(name: str) -> None:
    release, settings = release_of(name), find_preset(name).settings
    torch.manual_seed(2)
    weight = nn.Parameter(release.start(CLASSES[settings["dataset"]] * release.per_class, settings["embedding_dim"]))
    theirs = step(weight, torch.optim.Adam([weight], lr=release.lr, eps=release.eps))
    assert own_angle(name) == pytest.approx(theirs, rel=0.02)


def test_happier_s_proxies_have_a_rate_and_a_decay_of_their_own() -> None:
    """Its released code gives them an optimiser of their own: Adam at 10, without decay, falling by a cosine."""
    name = "happier/sop/resnet50/released"
    experiment = resolve_experiment(find_preset(name).settings, name)
    training = experiment.training
    method = find_method(experiment.method)(experiment.config, Task(6, training.embedding_dim, 16))
    (proxies,) = method.parameter_groups(training.lr)
    network = {"params": [nn.Parameter(torch.zeros(1))], "lr": training.lr}
    optimizer = optimizer_of(training.optimizer).build([network, proxies], training, False)
    stated = [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    assert stated == [(pytest.approx(1e-4), pytest.approx(1e-4)), (pytest.approx(10), 0)]
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    rates = LearningRates(optimizer, training, steps_per_epoch=10)
    for epoch in (0, 50, 75):
        rates.set(epoch * 10, epoch)
        cosine = (1 + math.cos(math.pi * epoch / 100)) / 2
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1e-4 * cosine, 10 * cosine])


def test_another_start_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "anti_collapse/cub200/resnet50/proxy_anchor_released"
    good = own_angle(name)
    assert math.degrees(good) == pytest.approx(9.1, abs=0.1)
    monkeypatch.setitem(INITS, "randn/8", torch.randn)
    assert own_angle(name) == pytest.approx(good / 8, rel=0.02)


# What was begun before ----------------------------------------------------------------------------------------------


def test_every_method_with_proxies_knows_how_they_started() -> None:
    """So that a search begun before is resumed as it began."""
    seen = [name for name in installed_methods() if "proxy_init" in config_class(name).model_fields]
    assert len(seen) > 30
    for name in seen:
        assert config_class(name).earlier.items() >= FIRST.items(), name
    for name in installed_methods():
        config = config_class(name)
        assert config.earlier.keys() <= config.model_fields.keys()
        config(**config.earlier)
    assert config_class("nir").earlier["proxy_weight"] == 0.01
    assert config_class("hist").earlier == {"proxy_lr_multiplier": 100.0}


def earlier(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "defaults"}


@pytest.mark.slow
def test_a_search_without_defaults_keeps_the_first(tmp_path: Path) -> None:
    """Version 0.1.0's journal, of another method: resumed, its trial is trained as that version trained it."""
    patterns(tmp_path / "data" / "patterns")
    (tmp_path / "searches" / "golden").mkdir(parents=True)
    with (GOLDENS / "begun" / "journal.jsonl").open(encoding="utf-8") as file:
        first = json.loads(next(file))
    config = first["config"]
    config["settings"] |= {"method": "proxy_anchor", "epochs": 1}
    config |= {"raw_space": {"alpha": [16.0]}, "num_trials": 1, "final": False, "algorithm": "random"}
    assert "defaults" not in config
    with Journal(tmp_path / "searches" / "golden" / JOURNAL) as journal:
        journal.append(**{key: value for key, value in first.items() if key not in ("seq", "time", "sum", "elapsed")})
    outcome = resume("golden", InlineRunner(), storage=tmp_path)
    events = list(Journal.read(outcome.journal))
    (started,) = (event for event in events if event["event"] == "trial_started")
    assert {key: started["config"][key] for key in FIRST} == FIRST
    (found,) = (event for event in events if event["event"] == "validation")
    settings = config["settings"] | {"alpha": 16.0}
    (before,), (now,) = (
        list(run_training(resolve_experiment(settings | given, "trial"), data=tmp_path / "data", folder=None))
        for given in (FIRST, {"alpha": 16.0})
    )
    assert found["metrics"]["train/loss"] == pytest.approx(before.metrics["train/loss"], rel=1e-9)
    assert now.metrics["train/loss"] != pytest.approx(before.metrics["train/loss"], rel=1e-3)


def test_the_first_defaults_are_in_the_file_of_such_a_search() -> None:
    config = json.loads((GOLDENS / "begun" / "journal.jsonl").read_text(encoding="utf-8").splitlines()[0])["config"]
    old = recorded_search(config)
    assert old.defaults == 1 and old.content()["defaults"] == 1
    assert "defaults" not in recorded_search(config | {"defaults": 2}).content()


def test_a_model_and_a_checkpoint_of_before_are_read(data_folder: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "method": "proxy_anchor",
        "dataset": "glyphs-small",
        "embedding_dim": 8,
        "classes_per_batch": 4,
        "images_per_class": 2,
        "validate_every": "1 step",
        "device": "cpu",
        **FIRST,
    }
    whole = list(
        run_training(resolve_experiment(settings, "trial"), data=data_folder, folder=tmp_path / "whole", stop_after=2)
    )
    next(
        run_training(resolve_experiment(settings, "trial"), data=data_folder, folder=tmp_path / "broken", stop_after=2)
    )
    path = tmp_path / "broken" / CHECKPOINT
    saved = load_checkpoint(path)
    for key in ("proxy_init", "proxy_weight_decay"):
        del saved["model"]["experiment"][key]
    save_checkpoint(path, saved)
    resumed = list(
        run_training(resolve_experiment(settings, "trial"), data=data_folder, folder=tmp_path / "broken", stop_after=2)
    )
    assert [one.metrics["train/loss"] for one in resumed] == [one.metrics["train/loss"] for one in whole]
    model = tmp_path / "broken" / MODEL
    model = model if model.exists() else path
    learner, _ = load_learner(model)
    other, _ = load_learner(tmp_path / "whole" / model.name)
    assert all(torch.equal(a, b) for a, b in zip(learner.parameters(), other.parameters(), strict=True))
