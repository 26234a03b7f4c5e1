"""Features that are computed once: the training is the same as without them, and who changes images goes without."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Pair
from support.training_loops import small_glyphs, train
from torch import Tensor

import orchestrator.training.features
from orchestrator.check.subject import NETWORK
from orchestrator.data.splits import class_split
from orchestrator.data.store import Store
from orchestrator.method import Batch, Method, Network, registry
from orchestrator.networks.backbones import BACKBONES
from orchestrator.networks.backbones.network import Backbone
from orchestrator.training.embed import evaluate_model
from orchestrator.training.features import BLOCK, FrozenFeatures, keep_features
from orchestrator.training.model_file import new_learner
from orchestrator.training.splits import new_reader

FROZEN = {"augmentation": "none", "epochs": 1, "warmup_epochs": 1, "precision": "float32", "method": "proxy_anchor"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))


def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each later pass of a backbone has."""
    counts: list[int] = []
    forward = Backbone.forward

    def counting(backbone: Backbone, images: Tensor) -> Tensor:
        counts.append(len(images))
        return forward(backbone, images)

    monkeypatch.setattr(Backbone, "forward", counting)
    return counts


def learner_with_features(data: Path, **settings: Any) -> tuple[Any, Store]:
    from support.training_loops import resolved

    store = small_glyphs(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BACKBONES, NETWORK.name, NETWORK)
        experiment = resolved(data, FROZEN | settings)
        torch.manual_seed(0)
        learner = new_learner(experiment, store, class_split(store, validation_share=0.3, seed=0))
    learner.network.backbone.requires_grad_(False)
    learner.freeze_batch_norm()
    with new_reader(store, experiment.training) as reader:
        keep_features(learner, experiment.training, store, reader, torch.device("cpu"), trains=True)
    return learner, store


@pytest.mark.parametrize("method", ["proxy_anchor", "idml", "ccp"])  # plain; mixed images; weights written anew
def test_curves_are_those_without(method: str, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = FROZEN | {"method": method, "images_per_class": 4} | ({"patience": 1} if method == "ccp" else {})
    plain = train(None, data_folder, settings | {"cache_features": False}, stop_after=3)
    first = train(None, data_folder, settings, stop_after=3)
    counts = passes(monkeypatch)
    again = train(None, data_folder, settings, stop_after=3)
    assert first == plain and again == plain  # to the last bit
    # two images show that the mode does not matter; only mixed images pass in the steps
    assert counts == [2, 2] + ([24] * 9 if method == "idml" else [])


def test_two_processes_are_as_one(data_folder: Path, tmp_path: Path, pair: Pair) -> None:
    plain = train(None, data_folder, FROZEN | {"cache_features": False, "precision": "float64"})
    for validations in pair.run(train, None, data_folder, FROZEN | {"precision": "float64"}):
        for here, there in zip(validations, plain, strict=True):
            assert here[3] == pytest.approx(there[3], rel=1e-9, abs=1e-12)


def with_batch_norm(channels: int, class_token: bool = False) -> Backbone:
    """A backbone with batch norm, whose statistics are those of no batch."""
    norm = torch.nn.BatchNorm2d(16)
    norm.load_state_dict(norm.state_dict() | {"running_mean": torch.full((16,), 0.3)})
    body = torch.nn.Sequential(torch.nn.Conv2d(channels, 16, 3, stride=4), norm, torch.nn.ReLU())
    return Backbone(body, feature_dim=16, channels=channels, mean=[0.5], std=[0.5], layers=None)


def test_a_test_reads_them_too(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    normalized = dataclasses.replace(NETWORK, build=with_batch_norm)
    monkeypatch.setattr("support.training_loops.NETWORK", normalized)
    monkeypatch.setitem(BACKBONES, NETWORK.name, normalized)
    store = small_glyphs(data_folder)
    train(tmp_path / "run", data_folder, FROZEN)
    rows = class_split(store, validation_share=0.3, seed=0).test[:300]
    scores = evaluate_model(tmp_path / "run" / "best.pt", store, rows, "cpu")
    counts = passes(monkeypatch)
    assert evaluate_model(tmp_path / "run" / "best.pt", store, rows, "cpu") == scores and not counts
    monkeypatch.setattr(orchestrator.training.embed, "keep_features", lambda *_: None)
    assert evaluate_model(tmp_path / "run" / "best.pt", store, rows, "cpu") == scores and counts
    train(None, data_folder, FROZEN)
    assert set(counts[2:]) == {2}  # the training's features are the test's


@pytest.mark.parametrize(
    "settings",
    [
        {"cache_features": False},
        {"augmentation": "affine"},
        {"degradation": "blur"},
        {"warmup_epochs": 0},
        {"freeze_batch_norm": False},
        {"precision": "bf16"},
        {"extra_augmentations": "random_horizontal_flip"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_who_goes_without(settings: dict[str, Any], data_folder: Path) -> None:
    assert learner_with_features(data_folder, **settings)[0].features is None


def test_a_backbone_that_draws_goes_without(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Backbone.forward

    def dropping(backbone: Backbone, images: Tensor) -> Tensor:
        return torch.nn.functional.dropout(forward(backbone, images), 0.5, backbone.training)

    assert learner_with_features(data_folder)[0].features is not None
    monkeypatch.setattr(Backbone, "forward", dropping)
    assert learner_with_features(data_folder)[0].features is None


def batch_of(store: Store, rows: list[int]) -> Batch:
    images = store.images(rows).float() / 255
    return Batch(images, torch.zeros(len(rows), 1), torch.tensor(rows))


def test_only_the_batchs_own_images_have_features(data_folder: Path) -> None:
    learner, store = learner_with_features(data_folder)
    features, batch = learner.features, batch_of(store, [9, 300, 4, 5])
    features.expect(batch)
    expected = learner.network.pool(batch.images)
    assert torch.equal(features.of_images(batch.images), expected)
    assert torch.equal(features.of_images(batch.images[1:3]), expected[1:3])
    more = dataclasses.replace(batch, images=batch.images * 2, meta=batch_of(store, [7]), more_views=(batch.images,))
    for others in (batch.images.clone(), batch.images[::2], batch.images.flip(0), batch.images[:, :, 1:], more.images):
        assert features.of_images(others) is None
    assert features.of_images(batch.images.detach().requires_grad_()) is None
    features.expect(more)
    assert features.of_images(more.meta.images) is not None  # type: ignore[union-attr]
    assert features.of_images(more.views[1]) is not None
    batch.images[1:2].mul_(0.5)  # in place: by the method
    assert features.of_images(batch.images) is None
    features.expect(None)
    assert features.of_images(more.views[0]) is None


def test_a_changed_backbone_goes_without(data_folder: Path) -> None:
    learner, store = learner_with_features(data_folder)
    features, weight = learner.features, next(learner.network.backbone.parameters())
    assert features.of_rows(store.labels.argsort()[:3]) is not None
    before = weight.clone()
    with torch.no_grad():
        weight.copy_(before)  # the same values
        assert features.of_rows(store.labels.argsort()[:3]) is not None
        weight.add_(1)
        assert features.of_rows(store.labels.argsort()[:3]) is None
        weight.copy_(before)
    assert features.of_rows(store.labels.argsort()[:3]) is not None
    hook = learner.network.backbone.body.register_forward_hook(lambda *_: None)  # reads a layer in between
    assert features.of_rows(store.labels.argsort()[:3]) is None
    hook.remove()
    with torch.no_grad():  # another backbone has files of its own
        weight.add_(1)
    others = FrozenFeatures(learner, store).of_rows(store.labels.argsort()[:3])
    assert others is not None and not torch.equal(others, features._table[store.labels.argsort()[:3]])


def test_files_are_made_anew_where_they_cannot_be_used(data_folder: Path, tmp_path: Path) -> None:
    learner, store = learner_with_features(data_folder)
    rows = class_split(store, validation_share=0.3, seed=0).test[:5]
    values = learner.features.of_rows(rows)
    files = sorted((tmp_path / "cache").rglob("*.npy"))
    assert len(files) == len({row // BLOCK for row in rows})
    whole = files[0].read_bytes()
    for damaged in (b"", whole[:200], b"\x93NUMPY" + bytes(90)):
        files[0].write_bytes(damaged)
        learner, _ = learner_with_features(data_folder)
        assert torch.equal(learner.features.of_rows(rows), values) and files[0].read_bytes() == whole


class MixedInPlace(Method):
    """Changes its images in place before the network sees them."""

    name, paper = "mixed_in_place", "none"

    def step(self, batch: Batch, network: Network, rng: torch.Generator) -> dict[str, Tensor]:
        batch.images.lerp_(batch.images.flip(0), 0.5)
        return {"loss": network(batch.images)["embedding"].square().mean()}


def test_images_changed_in_place_pass_the_backbone(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry(), "mixed_in_place", MixedInPlace)
    settings = FROZEN | {"method": "mixed_in_place"}
    plain = train(None, data_folder, settings | {"cache_features": False})
    assert train(None, data_folder, settings) == plain
