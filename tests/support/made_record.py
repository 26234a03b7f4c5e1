"""A record whose truth is known: its plan, and searches that never ran, with the scores of their classes."""

import csv
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.recorded import begin, record

from orchestrator.config.resolve import resolve_search
from orchestrator.results.adding import add_row
from orchestrator.results.plan import read_plan
from orchestrator.storage.journal import Journal
from orchestrator.storage.places import JOURNAL, Places
from orchestrator.storage.trial_folder import TrialPaths

TRIALS, SEEDS, QUERIES = 3, 5, 32
DIGESTS = {"glyphs-small": "d" * 64, "glyphs": "e" * 64}
TAGS = {"git.commit": "c" * 40, "git.dirty": "false", "platform": "Linux", "version.torch": "2.15.0"}
_SMALL = "settings: {epochs: 2, backbone: small_cnn, embedding_dim: 16}"
PLAN = f"""\
metric: map_at_r
reference: proxy_anchor
budget: {{num_trials: {TRIALS}, algorithm: random, scheduler: none}}
seeds: {SEEDS}
space: {{lr: {{low: 1e-4, high: 1e-2, log: true}}}}
tasks:
  small: {{dataset: glyphs-small, digest: {DIGESTS["glyphs-small"]}, protocol: conventional, {_SMALL}}}
  large: {{dataset: glyphs, protocol: conventional, {_SMALL}}}
  birds: {{dataset: cub200, protocol: conventional, settings: {{epochs: 2, backbone: resnet50, embedding_dim: 512}}}}
methods: {{proxy_anchor: , contrastive: , pfml: , triplet: }}
"""
SPACES: dict[str, Any] = {
    "proxy_anchor": {"alpha": {"low": 8, "high": 64}},
    "contrastive": {"pos_margin": {"low": 0, "high": 0.5}},
    "pfml": {"delta": {"low": 0.1, "high": 0.35}},
    "triplet": {"margin": {"low": 0.02, "high": 0.5}},
}
LR = {"low": 1e-4, "high": 1e-2, "log": True}

Floats = NDArray[np.float64]


def made_record(folder: Path, text: str = PLAN) -> Path:
    """An empty record with its plan."""
    record_folder = folder / "results"
    record_folder.mkdir()
    for method, space in SPACES.items():
        file = folder / "spaces" / f"{method}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"method": method, "space": {"lr": LR, **space}}))
        text = re.sub(rf"(methods: .*\b{method}: )(?=[,}}])", rf"\1{{space: {file}}}", text)
    (record_folder / "plan.yaml").write_text(text)
    return record_folder


def made_search(
    places: Places,
    method: str,
    scores_CS: Floats,
    *,
    dataset: str = "glyphs-small",
    name: str = "",
    trials: int = TRIALS,
    tags: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    end: bool = True,
    resumed: Mapping[str, str] | None = None,
    failure: str | None = None,
    queries: int = QUERIES,
    **changes: Any,
) -> str:
    """A finished search of a method, whose winner has this MAP@R on each class with each seed; returns its name. Before
    the final runs it was `resumed` with these tags; its last trial had a `failure`."""
    name = name or f"{dataset}.{method}"
    raw: dict[str, Any] = {
        "method": method,
        "dataset": dataset,
        "settings": {"epochs": 2, "embedding_dim": 16, **(settings or {})},
        "space": {"lr": LR, **SPACES.get(method, {})},
        "algorithm": "random",
        "num_trials": TRIALS,
        "final_seeds": SEEDS,
        **changes,
    }
    search = resolve_search(raw, name=name, source="made.yaml")
    folder = places.search(name)
    classes, seeds = scores_CS.shape
    test = {"classes": classes, "images": classes * QUERIES, "queries": classes * QUERIES}
    point = {key: range_["low"] for key, range_ in raw["space"].items()}
    with Journal(folder / JOURNAL) as journal:
        known = {"dataset.digest": DIGESTS[dataset], **TAGS, **(tags or {})}
        begin(journal, search, tags=known, sizes={"test": test, "training_classes": classes})
        for number in range(trials):
            params = point | {"lr": 0.001 * (number + 1)}
            trial_id, config = f"{number:04d}", search.experiment(params).flat()
            record(journal, "trial_started", trial_id=trial_id, params=params, config=config)
            _validate(journal, trial_id, 0.5 - 0.1 * number, epochs=2)
            failed = failure if number == trials - 1 else None
            record(journal, "trial_ended", trial_id=trial_id, state="failed" if failed else "done", failure=failed)
        if resumed is not None:
            record(journal, "search_ended")
            record(journal, "search_resumed", tags=dict(resumed))
        winner = point | {"lr": 0.001}
        for seed in range(seeds):
            params = winner | {"seed": seed}
            trial_id = f"final-0000-seed-{seed}"
            config = search.experiment(params).flat()
            record(
                journal, "trial_started", trial_id=trial_id, kind="final", params=params, config=config, source="0000"
            )
            _validate(journal, trial_id, None, epochs=2)
            recalls = np.round(np.sqrt(scores_CS[:, seed]) * QUERIES) / QUERIES
            metrics = {"test/map_at_r": float(scores_CS[:, seed].mean()), "test/recall_at_1": float(recalls.mean())}
            gain = {"metric": "map_at_r", "difference": 0.1, "low": 0.05, "high": 0.15, "up": 19, "classes": 20}
            record(journal, "result", trial_id=trial_id, metrics=metrics, gain=gain if seed == 0 else None)
            record(journal, "trial_ended", trial_id=trial_id)
            write_classes(folder / "trials" / trial_id, scores_CS[:, seed], recalls, queries)
        if end:
            record(journal, "search_ended")
    return name


def write_classes(trial: Path, scores_C: Floats, recalls_C: Floats, queries: int = QUERIES) -> None:
    """The table of classes that a training leaves."""
    path = TrialPaths(trial).class_table
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "class", "queries", "recall_at_1", "map_at_r"])
        for label, (score, recall) in enumerate(zip(scores_C, recalls_C, strict=True)):
            writer.writerow([label, f"class {label}", queries, repr(float(recall)), repr(float(score))])


def _validate(journal: Journal, trial_id: str, value: float | None, epochs: int) -> None:
    for number in range(1, epochs + 1):
        metrics = {"epoch": float(number), "train/loss": 1.0 / number}
        metrics |= {} if value is None else {"val/map_at_r": value * (0.5 + number / 4)}
        system = {"cpu_utilization_percentage": 50.0}
        record(journal, "validation", trial_id=trial_id, validation=number, metrics=metrics, seconds=4.0, system=system)


def drawn_scores(
    methods: Mapping[str, float], classes: int = 20, seeds: int = SEEDS, seed: int = 0, spread: float = 0.02
) -> dict[str, Floats]:
    """Scores of methods whose true means are known: the class's difficulty is the same for all, seeds are not."""
    rng = np.random.default_rng(seed)
    hard_C = rng.normal(0.5, 0.1, classes)
    return {
        name: np.clip(
            hard_C[:, None] + mean + rng.normal(0, spread, (classes, 1)) + rng.normal(0, spread, (classes, seeds)), 0, 1
        )
        for name, mean in methods.items()
    }


LEVELS = {"proxy_anchor": 0.0, "contrastive": -0.1, "pfml": 0.1, "triplet": -0.005}
"""The true means of a whole record: beside the reference one is worse, one better, one hardly different."""


def filled_record(folder: Path) -> Path:
    """A record of two data sets with all of these methods on each."""
    places, made = Places(folder / "storage"), made_record(folder)
    assert read_plan(made)
    for number, dataset in enumerate(DIGESTS):
        for method, scores_CS in drawn_scores(LEVELS, seed=number).items():
            add_row(made_search(places, method, scores_CS, dataset=dataset), places, made)
    return made
