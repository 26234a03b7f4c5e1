"""fit(): exact on one process and on two, exact after an interruption, and what it refuses."""

import contextlib
import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from conftest import Pair
from support.training_loops import SETTINGS, VARIANTS, Broken, preempted, resolved, small_glyphs, train, weights
from torch import Tensor

import orchestrator.training.embed
import orchestrator.training.loop
import orchestrator.training.model_file
from methods import pfml
from methods.baselines import Baseline
from orchestrator.check.subject import NETWORK
from orchestrator.config.lr_schedules import LR_SCHEDULES
from orchestrator.config.optimizers import OPTIMIZERS
from orchestrator.config.search import Objective
from orchestrator.config.training import Experiment, Training, resolve_experiment
from orchestrator.data.batches import BATCHES
from orchestrator.data.catalog import open_dataset
from orchestrator.data.samplers import rank_block
from orchestrator.data.splits import class_split
from orchestrator.data.store import Store
from orchestrator.errors import InputError, TrainingFailed
from orchestrator.evaluation.metrics import evaluate_embeddings
from orchestrator.method import Batch, Diagnostics, Embedded, Method, MethodConfig, Scope, registry
from orchestrator.storage.trial_folder import BEST, CHECKPOINT, DIAGNOSTICS, MODEL
from orchestrator.training.checkpoint import load_checkpoint
from orchestrator.training.distributed import (
    broadcast_object,
    data_parallel,
    gather,
    membership,
    rank,
    sum_over_shares,
    world_size,
)
from orchestrator.training.embed import embed_split, evaluate_model, evaluate_model_by_query
from orchestrator.training.loop import Clock, fit
from orchestrator.training.model_file import build_learner, load_learner

RECIPES: dict[str, dict[str, Any]] = {
    "nesterov": {
        "optimizer": "nesterov",
        "optimizer_momentum": 0.8,
        "lr": 0.1,
        "lr_schedule": "cosine",
        "lr_warmup": "2 steps",
        "ema_decay": 0.7,
        "accumulate_batches": 2,
        "schedule": "from 1 lr=0.02 weight_decay=0.1 clip_norm=0.5 alpha=16 proxy_lr_multiplier=3",
    },
    "rmsprop": {
        "optimizer": "rmsprop",
        "optimizer_momentum": 0.5,
        "optimizer_smoothing": 0.9,
        "lr_schedule": "plateau",
        "lr_patience": 0,
        "lr_gamma": 0.1,
    },
    "lion": {"optimizer": "lion", "ema_decay": 0.5},
    "adamp": {"optimizer": "adamp", "accumulate_batches": 4},  # interrupted after two of the four
    # an epoch has 7 steps, so that the schedule changes the learning rate within the 9 of a test
    "sgd": {
        "optimizer": "sgd",
        "lr": 0.1,
        "lr_schedule": "milestones",
        "lr_milestones": "1",
        "images_per_class": 32,
        "epochs": 2,
    },
    "adamw": {
        "optimizer": "adamw",
        "lr_schedule": "step",
        "lr_step_epochs": 1,
        "batches": "shuffled",
        "images_per_class": 32,
        "epochs": 2,
    },
    "hierarchical": {"batches": "hierarchical", "super_classes_per_batch": 3},
    "hard classes": {"batches": "hard_classes", "images_per_class": 32, "epochs": 2},  # an epoch has 7 steps
}


# objectives that add nothing to what Baseline does in a training: two stand for all, each of which test_check.py tests
OF_AN_OBJECTIVE = {
    "__module__",
    "__doc__",
    "_abstract",
    "name",
    "paper",
    "reads",
    "function",
    "fused",
    "Config",
    "config",
}
ALIKE = {
    name
    for name, method in registry().items()
    if method.__bases__ == (Baseline,) and not vars(method).keys() - OF_AN_OBJECTIVE - {"__annotations__"}
}
DISTINCT = sorted(VARIANTS.keys() - ALIKE | {"multi_similarity", "normalized_softmax"})


def train_in_super_classes(folder: Path | None, data: Path, settings: dict[str, Any], **how: Any) -> list[Any]:
    """As `train`, of classes of which each five are a super-class."""

    def by_fives(store: Store, rows: Any) -> tuple[int, ...]:
        return tuple(int(label) // 5 for label in np.unique(store.labels[rows]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orchestrator.training.model_file, "super_classes", by_fives)
        return train(folder, data, settings, **how)


def training_of(variant: str) -> tuple[Callable[..., list[Any]], dict[str, Any]]:
    """What trains a variant, and its settings."""
    if variant in RECIPES:
        large = {"backbone": NETWORK.name} if "images_per_class" in RECIPES[variant] else {}
        settings = {"method": "proxy_anchor", **large, **RECIPES[variant]}
    else:
        settings = {"backbone": NETWORK.name, **VARIANTS[variant]}
    return (train_in_super_classes if settings.get("batches") == "hierarchical" else train), settings


def test_the_recipes_have_every_part_of_a_recipe() -> None:
    """So that each is trained on one process and two, and undisturbed and resumed."""
    found = [Training(**{**SETTINGS, **recipe}) for recipe in RECIPES.values()]
    assert {training.optimizer for training in [*found, Training()]} == OPTIMIZERS.keys()
    assert {training.lr_schedule for training in found} >= LR_SCHEDULES.keys()
    assert {training.batches for training in found} >= BATCHES.keys() - {"class_balanced"}  # that is the default
    assert any(t.schedule is not None for t in found)
    assert any(t.ema_decay is not None for t in found) and any(t.accumulate_batches is not None for t in found)
    assert Training().optimizer == "adam"


@pytest.mark.parametrize("variant", [*DISTINCT, *RECIPES])
def test_one_process_equals_two(variant: str, data_folder: Path, tmp_path: Path, pair: Pair) -> None:
    """The batch is not a multiple of two: one process has 8 of 15 images, or two of three parts for Mixup."""
    trained, settings = training_of(variant)
    shares = {"mixup_blocks": 3} if "idml" in variant else {"classes_per_batch": 5, "images_per_class": 3}
    if variant == "idml over a batch":  # an image mixed with itself is at distance 0, where rounding gives the gradient
        shares = {}
    settings = shares | settings | {"clip_norm": 10.0, "pooling": "average+max"}
    one = trained(tmp_path / "one", data_folder, settings)
    two = pair.run(trained, tmp_path / "two", data_folder, settings)
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert first.keys() == second.keys()
    for name in first:
        assert torch.allclose(first[name], second[name], rtol=0, atol=1e-10), name
    for ours, theirs in zip(one, two[0], strict=True):
        assert ours[3] == pytest.approx(theirs[3], abs=1e-9, rel=1e-12)
    assert two[0] == two[1]


def train_in_small_blocks(folder: Path, data: Path, settings: dict[str, Any]) -> tuple[list[Any], int]:
    """As `train`, and the rows of all blocks of the energy that this process computed."""
    rows_seen: list[int] = []
    add_block = pfml._add_block

    def counted(points: Tensor, labels: Tensor, rows: slice, *rest: Any) -> Tensor:
        rows_seen.append(len(points[rows]))
        return add_block(points, labels, rows, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pfml, "TILE", 32)
        patch.setattr(pfml, "_add_block", counted)
        return train(folder, data, settings), sum(rows_seen)


@pytest.mark.parametrize("method", ["pfml", "cpml"])
def test_ranks_share_the_energy_and_its_gradient_stays(
    method: str, data_folder: Path, tmp_path: Path, pair: Pair
) -> None:
    settings = {"method": method, "proxies_per_class": 4, "delta": 0.5, "delta_rep": 1.3}
    one, rows = train_in_small_blocks(tmp_path / "one", data_folder, settings)
    (two, first), (other, second) = pair.run(train_in_small_blocks, tmp_path / "two", data_folder, settings)
    alone, shared = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in alone:
        assert torch.allclose(alone[name], shared[name], rtol=0, atol=1e-10), name
    for ours, theirs in zip(one, two, strict=True):
        assert ours[3] == pytest.approx(theirs[3], abs=1e-9, rel=1e-12)
    assert two == other
    assert first + second == rows
    assert max(first, second) < 0.6 * rows


def moved(folder: Path, data: Path, settings: dict[str, Any]) -> float:
    """How far training moves the backbone's weights."""
    train(folder / "short", data, settings, stop_after=1)
    train(folder / "long", data, settings, stop_after=2)
    short, long = weights(folder / "short"), weights(folder / "long")
    return float(sum((long[k] - short[k]).abs().sum() for k in long if "backbone" in k))


def test_a_rank_never_goes_on_alone() -> None:
    """Another thread destroys the group, as Ray Train does when a rank is lost."""
    row = torch.ones(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dist, "is_initialized", lambda: True)
        patched.setattr(dist, "get_rank", lambda: 1)
        patched.setattr(dist, "get_world_size", lambda: 2)
        stays = membership()
        stays.__enter__()
    assert not dist.is_initialized() and (rank(), world_size()) == (1, 2)
    for needs_the_others in (gather, broadcast_object, lambda row: sum_over_shares(lambda index, shares: row.sum())):
        with pytest.raises(ValueError, match="process group"):
            needs_the_others(row)
    stays.__exit__(None, None, None)
    assert (rank(), world_size()) == (0, 1) and gather(row) is row


def test_warm_up_trains_heads_and_proxies_only(data_folder: Path, tmp_path: Path) -> None:
    settings = {"method": "proxy_anchor", "warmup_epochs": 1}
    assert moved(tmp_path, data_folder, settings) == 0
    short, long = weights(tmp_path / "short"), weights(tmp_path / "long")
    assert not torch.equal(short["network.head.weight"], long["network.head.weight"])
    assert not torch.equal(short["method.proxies.weight"], long["method.proxies.weight"])
    assert moved(tmp_path / "without", data_folder, {"method": "proxy_anchor"}) > 0
    # the first of more epochs: gradients of the backbone are computed and left out
    train(tmp_path / "first", data_folder, settings | {"epochs": 2}, stop_after=2)
    first = weights(tmp_path / "first")
    assert all(torch.equal(first[name], long[name]) for name in long)


@pytest.mark.parametrize("variant", [*DISTINCT, *RECIPES])
def test_same_seed_same_bits_and_resuming_is_exact(variant: str, data_folder: Path, tmp_path: Path) -> None:
    trained, settings = training_of(variant)
    settings = settings | {"precision": "float32"}
    whole = trained(tmp_path / "whole", data_folder, settings, stop_after=3)
    assert preempted(tmp_path / "broken", data_folder, settings, at=5, trained=trained, stop_after=3) == 5
    resumed = trained(tmp_path / "broken", data_folder, settings, stop_after=3)
    assert resumed == whole
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    for name in first:
        assert torch.equal(first[name], second[name]), name
    (other,) = trained(None, data_folder, settings | {"seed": 1}, take=1)
    assert other[3] != whole[0][3]


def test_patience_ends_two_processes_where_it_ends_one(data_folder: Path, tmp_path: Path, pair: Pair) -> None:
    settings = {"method": "proxy_anchor", "lr": 1e-30, "validate_every": "1 step", "stop_patience": 2}
    one = train(tmp_path / "one", data_folder, settings, stop_after=6)
    first, second = pair.run(train, tmp_path / "two", data_folder, settings, 6)
    assert [(found[0], found[4]) for found in one] == [(1, False), (2, False), (3, True)]
    assert [(found[0], found[4]) for found in first] == [(found[0], found[4]) for found in one]
    assert first == second


def test_layers_keep_their_learning_rates_when_resumed(data_folder: Path, tmp_path: Path) -> None:
    settings = {"method": "proxy_anchor", "backbone_lr_multiplier": 0.5, "layer_decay": 0.5, "lr_step_epochs": 1}
    settings |= {"epochs": 2, "validate_every": "1 epoch", "precision": "float32", "images_per_class": 16}
    whole = train(tmp_path / "whole", data_folder, settings)
    assert train(tmp_path / "broken", data_folder, settings, take=1) == whole[:1]
    assert train(tmp_path / "broken", data_folder, settings) == whole
    groups = [load_checkpoint(tmp_path / run / CHECKPOINT)["optimizer"]["param_groups"] for run in ("whole", "broken")]
    assert groups[0] == groups[1]
    # the three layers from the bottom, the head, the proxies; halved once by the schedule
    assert [group["lr"] for group in groups[0][:4]] == [0.0000625, 0.000125, 0.00025, 0.0005]
    assert train(None, data_folder, settings | {"layer_decay": 1.0}, take=1) != whole[:1]


def test_a_finished_training_only_tells_its_past(data_folder: Path, tmp_path: Path) -> None:
    whole = train(tmp_path, data_folder, {"method": "proxy_anchor"})
    before = (tmp_path / CHECKPOINT).read_bytes()
    assert train(tmp_path, data_folder, {"method": "proxy_anchor"}) == whole
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_the_best_model_is_kept_and_can_be_evaluated(glyphs: Store, data_folder: Path, tmp_path: Path) -> None:
    validations = train(tmp_path, data_folder, {"method": "proxy_anchor"}, stop_after=3)
    split = class_split(glyphs, validation_share=0.3, seed=0)
    metrics = evaluate_model(tmp_path / BEST, glyphs, split.validation[:64])
    best = max(validation[3]["val/map_at_r"] for validation in validations)
    assert metrics["map_at_r"] == pytest.approx(best, abs=1e-12)
    assert "normalized_mutual_information" in metrics


@pytest.mark.parametrize("name", ["inshop", "glyphs-small"])
def test_queries_are_searched_for_in_the_gallery(name: str, data_folder: Path, tmp_path: Path) -> None:
    """In a data set that has both; and recall is of the k that its literature reports."""
    train(tmp_path, data_folder, {"method": "proxy_anchor"}, stop_after=1)
    store = Store.open(data_folder / "glyphs-small")
    rows = class_split(store, validation_share=0.3, seed=0).validation
    store.name = name
    store.splits = np.where(np.arange(len(store)) % 3 == 0, "query", "gallery")
    found = evaluate_model_by_query(tmp_path / BEST, store, rows)
    learner, _ = load_learner(tmp_path / BEST, store)
    embedded = embed_split(learner, store, rows, torch.device("cpu"))
    embeddings, asked = embedded.outputs["embedding"].numpy(), rows % 3 == 0
    expected = evaluate_embeddings(
        embeddings[asked],
        store.labels[rows[asked]],
        gallery=embeddings[~asked],
        gallery_labels=store.labels[rows[~asked]],
        recall_at=(1, 10, 20, 30) if name == "inshop" else (1, 2, 4, 8),
    )
    assert {key: value for key, value in found.metrics.items() if "/" not in key} == expected
    assert found.queries["query"].to_pylist() == rows[asked].tolist()
    assert evaluate_model(tmp_path / BEST, store, rows) == found.metrics

    store.splits = np.full(len(store), "query")
    assert len(evaluate_model_by_query(tmp_path / BEST, store, rows).queries) == len(rows)
    store.splits = np.where(store.labels % 2 == 0, "query", "gallery")
    with pytest.raises(InputError, match="best.pt on .*: labels: none of the .* queries has a same-class item"):
        evaluate_model_by_query(tmp_path / BEST, store, rows)


def test_without_held_out_classes_the_clock_ticks_the_same(glyphs: Store, tmp_path: Path) -> None:
    split = class_split(glyphs, validation_share=0.0, seed=0)
    experiment = resolve_experiment(SETTINGS | {"method": "proxy_anchor"}, "test")
    validations = list(fit(experiment, glyphs, split, folder=tmp_path, stop_after=2))
    assert [v.step for v in validations] == [3, 6]
    assert not any(name.startswith("val/") for name in validations[0].metrics)
    assert (tmp_path / MODEL).exists()
    assert not (tmp_path / BEST).exists()


@pytest.mark.parametrize(
    ("every", "stop_after", "ticks"),
    [
        ("1 epoch", None, [10, 20, 30]),
        ("2 epochs", None, [20, 30]),
        ("7 steps", None, [7, 14, 21, 28, 30]),
        ("7 steps", 2, [7, 14]),
        ("1 epoch", 9, [10, 20, 30]),
    ],
)
def test_the_clock(every: str, stop_after: int | None, ticks: list[int]) -> None:
    clock = Clock(every, steps_per_epoch=10, epochs=3, stop_after=stop_after)
    assert [step for step in range(1, clock.total_steps + 1) if clock.ticks(step)] == ticks
    assert clock.total_validations == len(ticks)


class Bare(Method):
    """Forgets the names of its terms."""

    name, paper = "bare", "none"

    def loss(self, outputs: dict[str, Tensor], labels: Tensor) -> Any:
        return outputs["embedding"].sum()


class Watching(Method):
    """Uses all that a validation offers, and stops at the second one."""

    name, paper, needs_validation = "watching", "none", True

    def __init__(self, config: MethodConfig, task: Any) -> None:
        super().__init__(config, task)
        self.centre = torch.nn.Parameter(torch.zeros(task.embedding_dim))
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("begun", torch.zeros(()))
        self.calls = 0

    def loss(self, outputs: dict[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (outputs["embedding"] - self.centre).square().mean()}

    def begin(self, scope: Scope) -> None:
        assert not self.calls and all((moment == 0).all() for moment in scope.moments([self.centre]))
        self.get_buffer("begun").add_(1)

    def after_validation(self, score: float, scope: Scope) -> None:
        self.calls += 1
        points = scope.class_embeddings(5, scope.rng)
        assert points.shape == (self.task.num_classes, 5, self.task.embedding_dim)
        with torch.no_grad():
            self.centre.copy_(points.mean((0, 1)))
        scope.reset_moments([self.centre])
        assert scope.metrics["val/map_at_r"] == score and scope.metrics["val/recall_at_1"] != score
        self.get_buffer("seen")[self.calls - 1] = score
        if self.calls == 2:
            scope.stop()


class Telling(Method):
    """Says what it was shown."""

    name, paper = "telling", "none"

    def loss(self, outputs: dict[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
        return {"loss": outputs["embedding"].square().mean()}

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        counts: dict[str, float] = {
            "trained": len(trained.samples) if trained else 0,
            "held_out": len(held_out.samples) if held_out else 0,
        }
        if trained is None or held_out is None:
            known = held_out.labels.numpy() if held_out else np.empty(0)
            counts |= {"classes": len(np.unique(known)), "collapsed": bool(held_out)}
            return Diagnostics(scalars=counts, arrays={"labels": known})
        assert trained.outputs["embedding"].shape == (len(trained.labels), 8)
        assert not set(trained.samples.tolist()) & set(held_out.samples.tolist())
        table: dict[str, list[Any]] = {"sample": held_out.samples[:2].tolist(), "says": ["a, b", 'c "d"']}
        arrays = {"embeddings": held_out.outputs["embedding"].numpy()}
        return Diagnostics(scalars=counts | {"collapsed": False}, arrays=arrays, tables={"words": table})


class Forgetful(Watching):
    """Leaves its parameter out of every optimiser group."""

    name = "forgetful"

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return []


@pytest.fixture
def extra_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in (Broken, Bare, Watching, Telling, Forgetful):
        monkeypatch.setitem(registry(), method.name, method)


@pytest.mark.usefixtures("extra_methods")
def test_a_loss_that_is_not_finite_ends_the_training_with_its_terms(data_folder: Path) -> None:
    with pytest.raises(TrainingFailed, match=r"not finite at step 1, epoch 1 \(pull .*, push nan\)"):
        train(None, data_folder, {"method": "broken"})
    with pytest.raises(TrainingFailed, match=r"^bare: loss\(\) or step\(\) returned a Tensor: it must be a dict of "):
        train(None, data_folder, {"method": "bare"})


@pytest.mark.usefixtures("extra_methods")
@pytest.mark.parametrize("objective", [None, Objective(metric="train/loss", mode="min")])
def test_a_method_may_act_at_validations_and_stop(
    objective: Objective | None, data_folder: Path, tmp_path: Path
) -> None:
    """By the same score whatever is optimised."""
    validations = train(tmp_path, data_folder, {"method": "watching"}, stop_after=9, objective=objective)
    assert [v[0] for v in validations] == [1, 2]
    assert validations[-1][4]
    state = weights(tmp_path)
    assert np.allclose(state["method.seen"], [v[3]["val/map_at_r"] for v in validations])
    assert state["method.begun"] == 1


@pytest.mark.usefixtures("extra_methods")
def test_the_best_model_is_kept_as_it_was_judged(data_folder: Path, tmp_path: Path) -> None:
    train(tmp_path, data_folder, {"method": "watching"}, stop_after=1)
    best = load_checkpoint(tmp_path / BEST)["learner"]
    assert not torch.equal(best["method.centre"], weights(tmp_path)["method.centre"])
    assert best["method.seen"].sum() == 0, "from before what the method did after the validation"


@pytest.mark.usefixtures("extra_methods")
def test_a_resumed_training_does_not_begin_again(data_folder: Path, tmp_path: Path) -> None:
    train(tmp_path, data_folder, {"method": "watching"}, stop_after=3, take=1)
    train(tmp_path, data_folder, {"method": "watching"}, stop_after=3)
    assert weights(tmp_path)["method.begun"] == 1


@pytest.mark.usefixtures("extra_methods")
def test_diagnostics_see_training_and_held_out_images_and_are_kept(
    data_folder: Path, tmp_path: Path, glyphs: Store
) -> None:
    validations = train(tmp_path, data_folder, {"method": "telling"}, stop_after=2)
    for validation in validations:
        assert (validation[3]["diagnostics/trained"], validation[3]["diagnostics/held_out"]) == (36, 64)
        assert type(validation[3]["diagnostics/collapsed"]) is float  # a journal takes numbers only
    assert np.load(tmp_path / DIAGNOSTICS / "embeddings.npy").shape == (64, 8)
    with (tmp_path / DIAGNOSTICS / "words.csv").open() as file:
        head, *rows = list(csv.reader(file))
    assert head == ["sample", "says"]
    assert [row[1] for row in rows] == ["a, b", 'c "d"']
    test = class_split(glyphs, validation_share=0.3, seed=0).test[:48]
    tested = evaluate_model(tmp_path / BEST, glyphs, test, folder=tmp_path / DIAGNOSTICS)
    assert np.array_equal(np.load(tmp_path / DIAGNOSTICS / "test_labels.npy"), glyphs.labels[test])
    assert (tested["diagnostics/trained"], tested["diagnostics/held_out"]) == (0, 48)
    assert type(tested["diagnostics/collapsed"]) is float


@pytest.mark.usefixtures("extra_methods")
def test_forgotten_parameters_are_refused(data_folder: Path) -> None:
    with pytest.raises(InputError, match="method.centre is in 0 optimiser groups"):
        train(None, data_folder, {"method": "forgetful"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes_per_batch": 500}, "classes_per_batch"),
        ({"device": "cuda"}, "not available"),
        ({"backbone": "resnet18", "weights": "/no/such/file.pth"}, "no file"),
        ({"weights": "imagenet"}, "trains from scratch"),
    ],
)
def test_what_cannot_be_trained_is_refused(data_folder: Path, settings: dict[str, Any], message: str) -> None:
    if settings.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is CUDA")
    with pytest.raises(InputError, match=message):
        train(None, data_folder, {"method": "proxy_anchor"} | settings)


def test_a_resnet_trains_with_frozen_batch_norm(data_folder: Path, tmp_path: Path) -> None:
    settings = {"method": "proxy_anchor", "backbone": "resnet18", "weights": "random", "precision": "float32"}
    train(tmp_path, data_folder, settings, stop_after=1)
    state = weights(tmp_path)
    assert torch.equal(state["network.backbone.body.bn1.running_mean"], torch.zeros(64))
    assert torch.equal(state["network.backbone.body.bn1.weight"], torch.ones(64))


def test_mixed_precision_computes_the_loss_in_float32(data_folder: Path) -> None:
    full = train(None, data_folder, {"method": "pfml", "precision": "float32"}, stop_after=1)
    half = train(None, data_folder, {"method": "pfml", "precision": "bf16"}, stop_after=1)
    assert half[0][3]["train/loss"] == pytest.approx(full[0][3]["train/loss"], rel=0.2)
    assert half[0][3]["train/loss"] != full[0][3]["train/loss"]


@pytest.mark.parametrize(("metric", "best"), [(None, 0.9), ("val/recall_at_1", 0.8)])
def test_the_best_validation_is_that_of_the_setting_s_metric(
    metric: str | None, best: float, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([{"val/map_at_r": 0.1, "val/recall_at_1": 0.8}, {"val/map_at_r": 0.9, "val/recall_at_1": 0.2}])
    monkeypatch.setattr(orchestrator.training.embed, "validate", lambda *_: (next(scores), None))
    monkeypatch.setattr(orchestrator.training.loop, "validate", lambda *_: (next(scores), None))
    train(tmp_path, data_folder, {"method": "proxy_anchor", "selection_metric": metric})
    assert load_checkpoint(tmp_path / CHECKPOINT)["best"] == best
    same = load_checkpoint(tmp_path / BEST)["learner"]["network.head.weight"].equal(
        weights(tmp_path)["network.head.weight"]
    )
    assert same == (metric is None)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_of_equal_validations_the_first_is_kept(
    mode: Any, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {"val/map_at_r": 0.5, "val/recall_at_1": 0.5}
    monkeypatch.setattr(orchestrator.training.loop, "validate", lambda *_: (scores, None))
    goal = Objective(metric="val/map_at_r", mode=mode)
    train(tmp_path, data_folder, {"method": "proxy_anchor"}, take=1, objective=goal)
    first = (tmp_path / BEST).read_bytes()
    train(tmp_path, data_folder, {"method": "proxy_anchor"}, objective=goal)
    assert (tmp_path / BEST).read_bytes() == first


def test_fp16_takes_gradients_that_it_cannot_hold(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PFML's energy is a sum over all pairs, of 1/d^7 in its forces."""
    settings = {"method": "pfml", "precision": "fp16", "delta": 0.1, "alpha": 6.0}
    one = train(None, data_folder, settings)[-1][3]
    assert one["train/loss"] == pytest.approx(one["train/interaction"] + one["train/constant"])
    monkeypatch.setattr(orchestrator.training.loop, "SMALLEST_SCALE", 2.0**17)
    with pytest.raises(TrainingFailed, match=r"the gradients do not fit into fp16 at step \d+: set precision=bf16"):
        train(None, data_folder, settings, stop_after=1)


def test_an_experiment_says_what_it_is(data_folder: Path, tmp_path: Path) -> None:
    train(tmp_path, data_folder, {"method": "pfml", "delta": 0.3}, stop_after=1)
    saved = load_checkpoint(tmp_path / CHECKPOINT)["model"]
    experiment: Experiment = resolve_experiment(saved["experiment"], "saved")
    assert experiment.config.model_dump()["delta"] == 0.3
    assert saved["dataset_digest"] == open_dataset("glyphs-small", data_folder).manifest["digest"]


def sent_in_a_step(data: Path, settings: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Numbers that this rank hands to each collective in one training step, and what there is to send."""
    store = small_glyphs(data)
    names = tuple(store.class_names[:6])
    learner = build_learner(resolved(data, settings), store, num_classes=6, class_names=names).double()
    module = data_parallel(learner, unsynchronised=learner.state_outside_synchronisation())
    shared_sum, sums = learner.method.shared_sum, []

    def summed(part: Any) -> Tensor:
        sums.append(shared_sum(part))
        return sums[-1]

    learner.method.shared_sum = summed
    gather, gathered = learner.method.gather, []

    def together(rows: Tensor) -> Tensor:
        gathered.append(rows.numel())
        return gather(rows)

    learner.method.gather = together
    rows = np.arange(12)[rank_block(np.arange(12), rank(), world_size())]
    images = store.images(rows).double()
    views = tuple(images + view for view in range(1, learner.method.views))
    batch = Batch(images, torch.arange(12).unsqueeze(1) % 6, torch.arange(12), more_views=views)
    rng = torch.Generator().manual_seed(0)
    profile = torch.autograd.profiler.profile(record_shapes=True)
    for step in range(4):  # DDP arranges its buckets by what it sees in the first steps
        learner.zero_grad()
        with contextlib.ExitStack() as stack:
            if step == 3:
                stack.enter_context(profile)
            terms, seen = module(batch, rng)
            sum(terms.values()).backward()
    sent: dict[str, int] = {}
    assert profile.kineto_results is not None
    for event in profile.kineto_results.events():  # as they were recorded: to pair them takes longer than the step
        if event.name().startswith("gloo:"):
            name = event.name().removeprefix("gloo:")
            sent[name] = sent.get(name, 0) + sum(math.prod(shape) for shape in event.shapes())
    there_is = {
        "parameters": sum(parameter.numel() for parameter in learner.parameters() if parameter.requires_grad),
        "outputs": sum(output.numel() for run in seen for output in run.values()),
        "gathered": sum(gathered) // 4,
        "with gradients": sum(
            output.numel() for run in seen for name, output in run.items() if name != "embedding" or "raw" not in run
        ),
        "shared sums": len(sums) // 4,
        "network's buffers": sum(buffer.numel() for buffer in learner.network.buffers()),
    }
    return {"sent": sent, "there is": there_is}


@pytest.mark.parametrize("variant", DISTINCT)
def test_a_step_sends_gradients_and_outputs_and_nothing_else(variant: str, data_folder: Path, pair: Pair) -> None:
    one, two = pair.run(sent_in_a_step, data_folder, VARIANTS[variant])
    assert one == two
    there_is = one["there is"]
    # forward: this rank's half of the outputs, one number of each sum that the ranks share; backward: all parameters'
    # gradients, and those of all outputs;
    # of buffers the network's only: a method's (proxies' labels, a memory) are equal on all ranks by construction
    assert one["sent"] == {
        "all_gather": there_is["outputs"] // 2 + there_is["gathered"],
        "all_reduce": there_is["parameters"] + there_is["with gradients"] + there_is["shared sums"],
        "broadcast": there_is["network's buffers"],
    }
