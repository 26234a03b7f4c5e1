"""Trainings of `fit` on small glyphs, in every variant."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from orchestrator.check.subject import NETWORK
from orchestrator.config.search import Objective
from orchestrator.config.training import Experiment, resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.data.splits import class_split
from orchestrator.data.store import Store
from orchestrator.errors import Preempted
from orchestrator.method import Method, registry
from orchestrator.networks.backbones import BACKBONES
from orchestrator.storage.trial_folder import CHECKPOINT
from orchestrator.training.checkpoint import load_checkpoint
from orchestrator.training.engine import Engine
from orchestrator.training.loop import fit
from orchestrator.training.notice import announce_own_end, withdraw

SETTINGS: dict[str, Any] = {
    "dataset": "glyphs-small",
    "embedding_dim": 8,
    "classes_per_batch": 6,
    "images_per_class": 2,
    "validate_every": "3 steps",
    "epochs": 1,
    "lr": 1e-3,
    "precision": "float64",
    "device": "cpu",
}


# every method as it is by default, and the choices that a default does not make
METHODS = sorted(registry())


VARIANTS: dict[str, dict[str, Any]] = {name: {"method": name} for name in METHODS} | {
    "xbm": {"method": "contrastive", "references": "batch+memory", "memory_start": 1, "memory_size": 30},
    "memory": {"method": "multi_similarity", "references": "memory", "memory_start": 2, "memory_size": 8},
    "contrastive over proxies": {"method": "contrastive", "references": "proxies", "proxies_per_class": 2},
    "idml over a batch": {"method": "idml", "objective": "triplet", "mixup_alpha": 0.4, "uncertainty_dim": 3},
    "idml, margin": {
        "method": "idml",
        "objective": "margin",
        "mixup": False,
        "norm": "separate",
        "degradation": "blur",
    },
    "idml, released": {"method": "idml", "objective": "normalized_softmax", "mixup_loss": "released", "gamma": 2.0},
    "idml, drawn": {"method": "idml", "objective": "contrastive", "references": "proxies", "random_uncertainty": True},
    "anti-collapse of all classes": {"method": "anti_collapse", "form": "all_class", "objective": "proxy_nca"},
    "anti-collapse of the batch": {"method": "anti_collapse", "form": "pair", "proxies_per_class": 2},
    "anti-collapse without labels": {"method": "anti_collapse", "form": "pair", "proxy_loss": False},
    "anti-collapse guided": {"method": "anti_collapse", "guidance_weight": 1.0, "text_embeddings": "texts.csv"},
    "hier": {"method": "hier", "hierarchical_proxies": 20, "triplets": 5},
    "ccp over problems": {"method": "ccp", "objective": "triplet", "patience": 1, "pair_weight": 0.1, "lr": 0.03},
}


@functools.cache
def small_glyphs(data: Path) -> Store:
    """The small glyphs in `data`, opened once in a process."""
    return open_dataset("glyphs-small", data)


def resolved(data: Path, settings: dict[str, Any]) -> Experiment:
    if "text_embeddings" in settings:
        settings = settings | {"text_embeddings": str(data / settings["text_embeddings"])}
    return resolve_experiment(SETTINGS | settings, "test")


def train(
    folder: Path | None,
    data: Path,
    settings: dict[str, Any],
    stop_after: int = 2,
    take: int = 99,
    objective: Objective | None = None,
    keep: Callable[[], None] = lambda: None,
) -> list[Any]:
    store = small_glyphs(data)
    split = class_split(store, validation_share=0.3, seed=0)
    split = dataclasses.replace(split, validation=split.validation[:64])
    validations = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BACKBONES, NETWORK.name, NETWORK)
        experiment = resolved(data, settings)
        how: dict[str, Any] = {"folder": folder, "stop_after": stop_after, "objective": objective, "keep": keep}
        for validation in fit(experiment, store, split, **how):
            validations.append(validation)
            if len(validations) == take:
                break
    return [(v.number, v.epoch, v.step, v.metrics, v.finished) for v in validations]


def preempted(
    folder: Path | None,
    data: Path,
    settings: dict[str, Any],
    *,
    at: int,
    by: Callable[[], None] = lambda: announce_own_end("a test"),
    trained: Callable[..., list[Any]] = train,
    **how: Any,
) -> int:
    """As `train`, of a process whose end is announced `by` a call within step `at`; the steps that it took."""
    steps, step_of = 0, Engine.step

    def counted(engine: Engine, *arguments: Any) -> dict[str, Tensor]:
        nonlocal steps
        steps += 1
        if steps == at:
            by()
        return step_of(engine, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "step", counted)
        try:
            trained(folder, data, settings, **how)
        except Preempted:
            return steps
        finally:
            withdraw()
    pytest.fail("it was not preempted")


def weights(folder: Path) -> dict[str, Tensor]:
    return load_checkpoint(folder / CHECKPOINT)["model"]["learner"]  # type: ignore[no-any-return]


class Broken(Method):
    """A loss that stops being a number."""

    name, paper = "broken", "none"

    def loss(self, outputs: dict[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
        return {"pull": outputs["embedding"].sum(), "push": outputs["embedding"].sum() * float("nan")}
