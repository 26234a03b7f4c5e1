"""What a method may do beyond a loss: steps of its own, views, samplers, a clean batch, gathered rows."""

import copy
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import Pair
from pydantic import Field
from support.contract_methods import SETTINGS, Centres, training_of
from torch import Generator, Tensor, nn

import orchestrator.training.caching
import orchestrator.training.engine
import orchestrator.training.learner
from orchestrator.check import Check, method_checks
from orchestrator.check.processes import train_on_two
from orchestrator.check.subject import TRAIN_ROWS, CheckFailed, Run, Subject, require_close, state_of
from orchestrator.config.resolve import single_training
from orchestrator.config.training import resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.data.pipeline import Reader
from orchestrator.data.splits import class_split, share_of_each_class, super_classes, train_labels
from orchestrator.errors import InputError, TrainingFailed
from orchestrator.method import Batch, Engine, Method, MethodConfig, Network, Outputs, Scope, Task, registry, total
from orchestrator.search.preflight import check_data
from orchestrator.storage.places import Places
from orchestrator.storage.trial_folder import CHECKPOINT
from orchestrator.training import distributed
from orchestrator.training.batches import Batches
from orchestrator.training.checkpoint import load_checkpoint
from orchestrator.training.learner import Learner
from orchestrator.training.splits import LabelledImages, training_images


class Sharp(Centres):
    """L = the pull, by its gradient at a point a little uphill."""

    name = "sharp"

    def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
        terms = engine.terms(batch)
        slopes = engine.gradients(total(terms))
        size = torch.stack([slope.square().sum() for slope in slopes.values()]).sum().sqrt()
        uphill = {name: value + 0.05 * slopes[name] / size for name, value in engine.parameters.items()}
        engine.backward(total(engine.terms(batch, uphill)))
        engine.apply()
        return terms


class Alternating(Centres):
    """L = the pull; the network's step, then the centres' on what the network has become."""

    name = "alternating"

    def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
        own = [name for name in engine.parameters if name.startswith("method.")]
        engine.backward(total(engine.terms(batch)))
        engine.apply(name for name in engine.parameters if name not in own)
        terms = engine.terms(batch)
        engine.backward(total(terms))
        engine.apply(own)
        return terms


class Surgeon(Centres):
    """L = pull + spread, whose gradients are made orthogonal where they disagree."""

    name = "surgeon"

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        z = outputs["embedding"]
        return super().loss(outputs, labels) | {"spread": (z @ z.T).square().mean()}

    def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
        terms = engine.terms(batch)
        pull, spread = (engine.gradients(terms[name]) for name in ("pull", "spread"))
        product = sum((pull[name] * spread[name]).sum() for name in pull)
        size = sum(slope.square().sum() for slope in pull.values())
        share = torch.as_tensor(product / size).clamp(max=0)
        for name, parameter in engine.parameters.items():
            parameter.grad = (pull[name] + spread[name] - share * pull[name]).detach()
        engine.apply()
        return terms


class Virtual(Centres):
    """L = the weighed pulls of the batch; the weights are such that a virtual step helps the clean batch."""

    name = "virtual"

    class Config(MethodConfig):
        meta_share: float = Field(0.25, gt=0, lt=1, description="share of the clean images")

    config: Config
    weights: Tensor | None = None

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        pulls = (outputs["embedding"] - self.centres[labels[:, 0]]).square().sum(1)
        weights = torch.full_like(pulls, 1 / len(pulls)) if self.weights is None else self.weights
        return {"pull": (weights * pulls).sum()}

    def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
        assert batch.meta is not None
        self.weights = torch.zeros(len(batch.labels), dtype=torch.float64, requires_grad=True)
        slopes = engine.gradients(total(engine.terms(batch)), create_graph=True)
        virtual = {name: value - 0.1 * slopes[name] for name, value in engine.parameters.items()}
        given, self.weights = self.weights, None
        wanted = -engine.gradients(total(engine.terms(batch.meta, virtual)), {"weights": given})["weights"]
        chosen = wanted.clamp(min=0)
        self.weights = (chosen / chosen.sum().clamp(min=1e-12)).detach()
        terms = engine.terms(batch)
        engine.backward(total(terms))
        engine.apply()
        self.weights = None
        return terms


class Teacher(Centres):
    """L = the pull + the distance to a teacher's embeddings, the mean of networks before."""

    name = "teacher"

    def bind(self, network: nn.Module) -> None:
        self.student = (network,)
        self.teacher = copy.deepcopy(network).requires_grad_(False)

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        outputs = network(batch.images)
        with torch.no_grad():
            for mean, value in zip(self.teacher.parameters(), self.student[0].parameters(), strict=True):
                mean.lerp_(value, 0.1)
            taught = self.gather(F.normalize(self.teacher.eval()(batch.images)["embedding"], dim=-1))
        return self.loss(outputs, batch.labels) | {"taught": (outputs["embedding"] - taught).square().mean()}


class Pixels(Centres):
    """L = the pull + how far the norm before normalising is from a learned multiple of the image's brightness."""

    name = "pixels"
    reads_raw = True

    def __init__(self, config: MethodConfig, task: Task) -> None:
        super().__init__(config, task)
        self.factor = nn.Parameter(torch.ones(1))

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        outputs = network(batch.images)
        bright = self.gather(self.factor * batch.images.flatten(1).mean(1))
        own = self.loss(outputs, batch.labels)
        # a rank's own rows of the labels belong to its images
        marks = self.gather(batch.labels[batch.rows, 0])
        assert torch.equal(marks, batch.labels[:, 0])
        return own | {"norm": (outputs["raw"].norm(dim=1) - bright).square().mean()}


class Twice(Centres):
    """L = the pull of two views of each image."""

    name = "twice"
    views = 2


class Sorted(Centres):
    """L = the pull, on batches of the images that are farthest from their centre."""

    name = "sorted"
    distances: Tensor

    def __init__(self, config: MethodConfig, task: Task) -> None:
        super().__init__(config, task)
        self.register_buffer("distances", torch.zeros(task.num_samples))

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        outputs = network(batch.images)
        with torch.no_grad():
            far = (outputs["embedding"] - self.centres[batch.labels[:, 0]]).square().sum(1)
            self.distances = self.distances.index_copy(0, batch.samples, far.to(self.distances.dtype))
        return self.loss(outputs, batch.labels)

    def batches(self, epoch: int, labels: Tensor, samples: Tensor, rng: Generator) -> Tensor:
        order = torch.randperm(len(labels), generator=rng)
        order = order[torch.argsort(self.distances.cpu()[samples[order]], descending=True, stable=True)]
        size = self.task.steps_per_epoch * self.task.batch_size
        return order.repeat(-(-size // len(order)))[:size].view(-1, self.task.batch_size)


METHODS: tuple[type[Method], ...] = (Sharp, Alternating, Surgeon, Virtual, Teacher, Pixels, Twice, Sorted)
SECOND_ORDER = {"Virtual-caching"}
TRAINED = [
    pytest.param(*check.values, id=check.id)
    for check in method_checks(*METHODS)
    if check.id not in SECOND_ORDER
    and str(check.id).partition("-")[2] in ("two_processes", "state_round_trip", "state_shapes", "caching", "terms")
]


@pytest.mark.parametrize("check", TRAINED)
def test_it_holds_on_two_processes_resumed_and_cached(check: Check) -> None:
    check()


def test_second_order_gradients_refuse_cached_ones() -> None:
    with pytest.raises(TrainingFailed, match=r"^images_per_pass: 5: virtual takes gradients of gradients, .* it out$"):
        Run(Subject(Virtual, {}), images_per_pass=5).step()


def trained(planted: str, method: type[Method]) -> dict[str, Any]:
    """What `two_processes` compares, with a wrong part in this process."""
    with pytest.MonkeyPatch.context() as patch:
        if planted == "gather":  # each rank's own rows only
            wrong = lambda ctx, gradient: gradient.repeat(distributed.world_size(), *[1] * (gradient.ndim - 1))  # noqa: E731
            patch.setattr(distributed._OwnBlockOfSum, "backward", staticmethod(wrong))
        elif planted == "mean":
            patch.setattr(distributed._Mean, "backward", staticmethod(lambda ctx, gradient: gradient))
        elif planted == "no mean":
            patch.setattr(orchestrator.training.engine, "mean", list)
        elif planted == "teacher's rows":
            patch.setattr(orchestrator.training.learner, "gather", lambda rows: rows.repeat(2, *[1] * (rows.ndim - 1)))
        return train_on_two(Subject(method, {}))


@pytest.mark.parametrize(
    ("planted", "method"), [("gather", Virtual), ("mean", Virtual), ("no mean", Sharp), ("teacher's rows", Pixels)]
)
def test_a_wrong_gradient_on_two_processes_is_seen(planted: str, method: type[Method], pair: Pair) -> None:
    one, (two, _) = train_on_two(Subject(method, {})), pair.run(trained, "nothing", method)
    require_close(one, two, 1e-9, "on one process, then on two")
    try:
        wrong, _ = pair.run(trained, planted, method)
    except pytest.fail.Exception:
        return
    with pytest.raises(CheckFailed):
        require_close(one, wrong, 1e-9, "on one process, then on two")


# Steps of its own -------------------------------------------------------------------------------------------


def test_parameters_of_another_name_are_refused() -> None:
    engine, batch = Run(Subject(Sharp, {})).engine, Subject(Sharp, {}).batch(TRAIN_ROWS[:12])
    with pytest.raises(TrainingFailed, match=r"^sharp: 'centres' is no parameter of the learner: see engine"):
        engine.terms(batch, {"centres": torch.zeros(7, 8)})
    with pytest.raises(TrainingFailed, match=r"^sharp: update\(\) applies 'centres', which is not trained"):
        engine.apply(["centres"])


def test_apply_without_gradients_is_refused() -> None:
    run = Run(Subject(Alternating, {}))
    engine, batch = run.engine, run.subject.batch(TRAIN_ROWS[:12])
    with pytest.raises(TrainingFailed, match=r"^alternating: update\(\) calls engine.apply\(\) where no parameter has"):
        engine.apply()
    engine.backward(total(engine.terms(batch)))
    engine.apply(["method.centres"])
    with pytest.raises(TrainingFailed, match="where no parameter has a gradient"):
        engine.apply(["method.centres"])
    engine.apply(["network.head.weight"])


class Idle(Centres):
    """L = the pull, of which nothing is made."""

    name = "idle"

    def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
        return engine.terms(batch)


def test_an_update_that_trains_nothing_fails_after_an_epoch(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry(), Idle.name, Idle)
    assert len(training_of(Idle, data_folder, None, take=1)) == 1, "it may gather gradients for a while"
    with pytest.raises(TrainingFailed, match=r"^idle: update\(\) trains nothing: it should call engine.backward"):
        training_of(Idle, data_folder, None, validate_every="1 epoch")


@pytest.mark.parametrize("where", ["step", "update"])
def test_rows_to_gather_are_of_the_images(where: str) -> None:
    class Some(Centres):
        name = "some"

        def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
            self.gather(batch.images[where == "update" :])
            return super().update(batch, engine)

        def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
            return super().step(batch, network, rng) | {"more": self.gather(batch.images[where == "step" :]).mean()}

    with pytest.raises(TrainingFailed, match=r"^some: gather\(\) got \(11, 1, 12, 12\) for 12 images of this process"):
        Run(Subject(Some, {})).step()


def test_an_update_returns_terms() -> None:
    class Silent(Centres):
        name = "silent"

        def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
            return None  # type: ignore[return-value]

    with pytest.raises(
        TrainingFailed, match=r"^silent: update\(\) returned nothing \(None\): it must be a dict of named"
    ):
        Run(Subject(Silent, {})).step()


def test_one_of_two_optimisers_moves_its_own_parameters_only() -> None:
    run = Run(Subject(Alternating, {}))
    engine, batch = run.engine, run.subject.batch(TRAIN_ROWS[:12])
    before = state_of(run.learner)
    engine.backward(total(engine.terms(batch)))
    engine.apply(["method.centres"])
    after = state_of(run.learner)
    assert [name for name in before if not torch.equal(before[name], after[name])] == ["method.centres"]
    assert engine.parameters["network.head.weight"].grad is not None, "it waits for its own step"


@pytest.mark.parametrize("method", [Sharp, Surgeon, Alternating], ids=lambda method: method.name)
def test_the_scale_of_a_loss_in_half_precision_changes_no_gradient(method: type[Method]) -> None:
    """Neither one that the engine adds up nor one that the method puts there; it is a power of two."""
    found = []
    for scaled in (False, True):
        run = Run(Subject(method, {}))
        run.engine.scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=2.0**10)
        run.step(), run.step()
        found.append(state_of(run.learner))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_an_infinite_gradient_skips_the_step_and_halves_the_scale() -> None:
    run = Run(Subject(Sharp, {}))
    engine, batch = run.engine, run.subject.batch(TRAIN_ROWS[:12])
    engine.scaler = torch.amp.GradScaler("cpu", enabled=True, init_scale=2.0**10)
    before = state_of(run.learner)
    engine.backward(total(engine.terms(batch)) * torch.inf)
    engine.apply()
    after = state_of(run.learner)
    assert engine.scaler.get_scale() == 2.0**9 and all(torch.equal(before[name], after[name]) for name in before)


def test_every_call_of_terms_in_a_step_draws_the_same() -> None:
    drawn: list[Tensor] = []

    class Drawing(Centres):
        name = "drawing"

        def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
            drawn.append(torch.rand(2, generator=rng))
            return super().step(batch, network, rng)

        def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
            engine.terms(batch)
            return super().update(batch, engine)

    run = Run(Subject(Drawing, {}))
    run.step(), run.step()
    once, again, next_step, last = drawn
    assert torch.equal(once, again) and torch.equal(next_step, last) and not torch.equal(once, next_step)


# Gradient caching --------------------------------------------------------------------------------------------


def gradients_of(learner: Learner, engine: Engine | None, batch: Batch) -> dict[str, Tensor]:
    """By the engine, or by the network on five images at a time, each with its graph."""
    torch.manual_seed(3)
    learner.zero_grad()
    if engine is not None:
        engine.backward(total(engine.terms(batch)))
    else:

        def network(images: Tensor) -> Outputs:
            parts = [learner.outputs(part) for part in images.split(5)]  # type: ignore[no-untyped-call]
            return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

        total(learner.method.step(batch, network, Generator().manual_seed(0))).backward()  # type: ignore[no-untyped-call]
    return {name: value.grad.clone() for name, value in learner.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("planted", [False, True])
def test_cached_images_meet_the_same_dropout_again(planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(Subject(Twice, {}), images_per_pass=5)
    network: Any = run.learner.network
    network.head = nn.Sequential(nn.Dropout(0.4), network.head)
    batch = run.subject.batch(TRAIN_ROWS[:12])
    expected = gradients_of(run.learner.train(), None, batch)
    if planted:
        monkeypatch.setattr(orchestrator.training.caching, "set_random_state", lambda *_: None)
    found = gradients_of(run.learner, run.engine, batch)
    gaps = [float((found[name] - expected[name]).abs().max()) for name in expected]
    assert found.keys() == expected.keys() and (max(gaps) > 1e-4 if planted else max(gaps) < 1e-12)


def test_cached_images_pass_in_parts() -> None:
    run = Run(Subject(registry()["triplet"], {}), images_per_pass=5)
    sizes: list[int] = []
    run.learner.network.register_forward_hook(lambda module, given, found: sizes.append(len(given[0])))
    run.step()
    assert sizes == [5, 5, 2] * 2


def in_parts(data: Path, **settings: Any) -> list[Any]:
    return training_of(registry()["multi_similarity"], data, None, epochs=1, clip_norm=1.0, warmup_epochs=0, **settings)


def test_a_training_whose_images_pass_in_parts_is_the_same(data_folder: Path, pair: Pair) -> None:
    whole = in_parts(data_folder)
    for found in (in_parts(data_folder, images_per_pass=7), *pair.run(in_parts_of_four, data_folder)):
        for ours, theirs in zip(whole, found, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-9, rel=1e-9)


def in_parts_of_four(data: Path) -> list[Any]:
    return in_parts(data, images_per_pass=4)


def test_half_precision_in_parts_learns(data_folder: Path) -> None:
    half, whole = {"precision": "fp16", "images_per_pass": 7}, {"precision": "float32"}
    rough, exact = (in_parts(data_folder, take=4, **given) for given in (half, whole))
    assert [found["train/loss"] for found in rough] == pytest.approx([found["train/loss"] for found in exact], rel=0.05)


# Batches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Sorted, Virtual, Twice, Alternating], ids=lambda method: method.name)
def test_resumed_in_the_middle_of_an_epoch(
    method: type[Method], data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry(), method.name, method)
    whole = training_of(method, data_folder, tmp_path / "whole")
    training_of(method, data_folder, tmp_path / "cut", take=1)
    assert load_checkpoint(tmp_path / "cut" / CHECKPOINT)["step"] == 3
    resumed = training_of(method, data_folder, tmp_path / "cut")
    assert len(whole) > 2 and resumed == whole
    first, second = (load_checkpoint(tmp_path / name / CHECKPOINT)["model"]["learner"] for name in ("whole", "cut"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_sampler_sees_what_the_epoch_before_has_left(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    class Watching(Sorted):
        name = "watching"

        def batches(self, epoch: int, labels: Tensor, samples: Tensor, rng: Generator) -> Tensor:
            seen.append(bool((self.distances[samples] > 0).any()))
            assert labels.tolist() == sorted(labels.tolist()) and labels.max() == self.task.num_classes - 1
            return super().batches(epoch, labels, samples, rng)

    monkeypatch.setitem(registry(), "watching", Watching)
    training_of(Watching, data_folder, None)
    assert seen == [False, True]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (torch.zeros(3, 12, dtype=torch.long), r"batches\(\) returned torch.int64 \(3, 12\): .* of shape \(2, 12\)"),
        (torch.zeros(2, 12), r"batches\(\) returned torch.float32 \(2, 12\)"),
        (torch.zeros(0, 12, dtype=torch.long), r"batches\(\) returned no batches, torch.int64 \(0, 12\)"),
        ([[0] * 12] * 2, r"batches\(\) returned a list"),
        (torch.full((2, 12), 28), r"positions from 28 to 28: they must be from 0 to 27"),
    ],
)
def test_wrong_batches_are_refused(found: Any, said: str) -> None:
    class Wrong(Centres):
        name = "wrong"

        def batches(self, epoch: int, labels: Tensor, samples: Tensor, rng: Generator) -> Tensor:
            return found  # type: ignore[no-any-return]

    with pytest.raises(TrainingFailed, match=said):
        Run(Subject(Wrong, {})).step()


def batches_of(
    method: type[Method], data: Path, **settings: Any
) -> tuple[list[tuple[int, Batch]], LabelledImages, LabelledImages]:
    store = open_dataset("glyphs-small", data)
    experiment = resolve_experiment(SETTINGS | {"method": method.name} | settings, "test")
    split, images, meta = training_images(experiment, store, class_split(store, validation_share=0.3, seed=0))
    made = method(experiment.config, Task(len(split.train_classes), 8, 8))
    reader = Reader(store, augmentation="affine")
    return [*Batches(made, experiment.training, images, meta, reader, torch.device("cpu")).read(0, 40)], images, meta


def test_views_are_augmented_apart_and_the_first_is_as_alone(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in (Twice, Sharp):
        monkeypatch.setitem(registry(), method.name, method)
    twice, alone = (batches_of(method, data_folder)[0] for method in (Twice, Sharp))
    assert len(twice) == len(alone) == 40
    for (epoch, two), (its, one) in zip(twice, alone, strict=True):
        assert epoch == its and two.step == one.step and len(two.views) == 2 and len(one.views) == 1
        assert torch.equal(two.images, one.images) and torch.equal(two.labels, one.labels)
        assert two.views[0] is two.images and not torch.equal(two.views[0], two.views[1])


def test_the_clean_batch_is_of_other_images_with_their_true_labels(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry(), "virtual", Virtual)
    found, images, meta = batches_of(Virtual, data_folder, label_noise=0.4)
    store = open_dataset("glyphs-small", data_folder)
    split = class_split(store, validation_share=0.3, seed=0)
    clean = dict(zip(split.train.tolist(), train_labels(store, split.train).tolist(), strict=True))
    assert sorted([*images.samples, *meta.samples]) == split.train.tolist()
    noisy = seen = 0
    for _, batch in found:
        assert batch.meta is not None and batch.meta.images.shape == batch.images.shape
        assert set(batch.samples.tolist()) <= set(images.samples.tolist())
        assert set(batch.meta.samples.tolist()) <= set(meta.samples.tolist())
        assert [clean[row] for row in batch.meta.samples.tolist()] == batch.meta.labels[:, 0].tolist()
        noisy += sum(
            clean[row] != label for row, label in zip(batch.samples.tolist(), batch.labels[:, 0].tolist(), strict=True)
        )
        seen += len(batch.labels)
    assert 0.3 < noisy / seen < 0.5


@pytest.mark.parametrize(("share", "kept"), [(0.25, [3, 2, 1]), (0.9, [1, 1, 1]), (0.1, [4, 2, 1])])
def test_a_share_of_each_class_leaves_one(share: float, kept: list[int]) -> None:
    labels = np.array([0, 2, 0, 1, 0, 1, 0])
    chosen = share_of_each_class(labels, share, seed=0)
    assert np.bincount(labels[~chosen], minlength=3).tolist() == kept


def test_a_share_that_holds_back_nothing_is_refused(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry(), "virtual", Virtual)
    with pytest.raises(InputError, match=r"^meta_share: 0.001: holds back no image: no class has enough of them"):
        batches_of(Virtual, data_folder, meta_share=0.001)


def test_a_share_that_leaves_few_images_is_told(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(registry(), "virtual", Virtual)
    monkeypatch.setattr(Places, "data", data_folder)
    warnings = []
    for share in (0.1, 0.9):
        settings = SETTINGS | {"method": "virtual", "meta_share": share}
        check_data(single_training("one", settings), Places(data_folder))
        warnings.append([line for line in capsys.readouterr().err.splitlines() if "meta_share" in line])
    none, (told,) = warnings
    assert none == []
    assert re.fullmatch(
        r"warning: meta_share: 0.9: leaves \d images for training in (\d+) of \1 classes, fewer than images_per_class "
        r"\(5\): batches repeat images; lower one of them",
        told,
    )


# What a method knows ----------------------------------------------------------------------------------------


def test_a_method_knows_its_task_and_embeds_training_images(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Any] = {}

    class Knowing(Centres):
        name = "knowing"

        def begin(self, scope: Scope) -> None:
            known["all"] = scope.embed(None)
            known["some"] = scope.embed(known["all"].samples[[5, 2]])
            known["task"] = self.task
            with pytest.raises(TrainingFailed, match=r"^knowing: sample 99999 is no training image: see Scope.embed$"):
                scope.embed(torch.tensor([99999]))

        def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
            known.setdefault("steps", []).append(batch.step)
            return super().step(batch, network, rng)

    monkeypatch.setitem(registry(), "knowing", Knowing)
    training_of(Knowing, data_folder, None)
    whole, some, task = known["all"], known["some"], known["task"]
    assert torch.allclose(some.outputs["embedding"], whole.outputs["embedding"][[5, 2]], rtol=1e-12)
    assert torch.equal(some.labels, whole.labels[[5, 2]])
    assert known["steps"] == list(range(task.total_steps)) and task.total_steps == 2 * task.steps_per_epoch
    assert task.num_samples == len(open_dataset("glyphs-small", data_folder)) > int(whole.samples.max())
    assert task.super_classes == () and task.batch_size == 30


def test_super_classes_are_those_of_the_training_classes() -> None:
    columns = {"super_class": np.array([1, 1, 0, 2, 0])}
    store: Any = SimpleNamespace(columns=tuple(columns), labels=np.array([3, 3, 5, 7, 5]), column=columns.__getitem__)
    assert super_classes(store, np.array([0, 1, 2, 4])) == (1, 0)
    assert super_classes(store, np.arange(5)) == (1, 0, 2)
    columns.clear()
    assert super_classes(SimpleNamespace(columns=()), np.arange(5)) == ()  # type: ignore[arg-type]
