"""Warm-up epochs compute no gradient of the backbone, and give the bits that they gave with one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Pair
from support.training_loops import train, weights
from torch import Tensor, nn

from orchestrator.check.subject import NETWORK
from orchestrator.networks.backbones import BACKBONES
from orchestrator.networks.backbones.base import Architecture
from orchestrator.networks.backbones.network import Backbone
from orchestrator.training.engine import Engine

STEPS = 7
"""Of an epoch; the warm-up ends between the third and the fourth validation of `LONG`."""
LONG: dict[str, Any] = {
    "method": "proxy_anchor",
    "backbone": NETWORK.name,
    "images_per_class": 32,
    "epochs": 2,
    "warmup_epochs": 1,
    "validate_every": "2 steps",
    "precision": "float32",
    "clip_norm": 0.1,
    "weight_decay": 1e-3,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "averaged": {"ema_decay": 0.7},
    "two batches a step": {"accumulate_batches": 2},  # the warm-up ends between the two
    "in parts": {"images_per_pass": 50},
    "a step of its own": {"method": "sharpness_aware"},
    "of low rank": {"backbone": "tiny", "lora_rank": 2},
    "live batch norm": {"backbone": "tiny", "freeze_batch_norm": False},
}


def tiny(channels: int, class_token: bool = False) -> Backbone:
    body = nn.Sequential(nn.Conv2d(channels, 8, 4, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1))
    half = [0.5] * channels
    return Backbone(body, feature_dim=8, channels=channels, mean=half, std=half, layers={"blocks": r"^(\d+)"})


@pytest.fixture(autouse=True)
def with_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network with batch norm and a 1 x 1 convolution."""
    monkeypatch.setitem(BACKBONES, "tiny", Architecture("tiny", about="a network for tests", build=tiny))


def with_gradients(folder: Path | None, data: Path, settings: dict[str, Any]) -> list[Any]:
    """As before: gradients of the backbone are computed, and left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_freeze", lambda *_: None)
        return train(folder, data, settings, stop_after=5)


def without(folder: Path | None, data: Path, settings: dict[str, Any], take: int = 99) -> list[Any]:
    return train(folder, data, settings, stop_after=5, take=take)


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_bits_are_those_of_a_training_that_computes_them(variant: str, data_folder: Path, tmp_path: Path) -> None:
    settings = LONG | VARIANTS[variant]
    found = without(tmp_path / "without", data_folder, settings)
    assert found == with_gradients(tmp_path / "with", data_folder, settings)
    assert_same(weights(tmp_path / "without"), weights(tmp_path / "with"))


@pytest.mark.parametrize("variant", ["plain", "two batches a step", "in parts"])
def test_on_two_processes_too(variant: str, data_folder: Path, tmp_path: Path, pair: Pair) -> None:
    settings = LONG | VARIANTS[variant]
    found = pair.run(without, tmp_path / "without", data_folder, settings)
    assert found == pair.run(with_gradients, tmp_path / "with", data_folder, settings)
    assert found[0] == found[1]
    assert_same(weights(tmp_path / "without"), weights(tmp_path / "with"))


@pytest.mark.parametrize("take", [3, 4])  # before and after the end
@pytest.mark.parametrize("variant", ["plain", "two batches a step"])
def test_resumed_before_and_after_the_end_of_the_warm_up(
    variant: str, take: int, data_folder: Path, tmp_path: Path
) -> None:
    settings = LONG | VARIANTS[variant]
    whole = without(tmp_path / "whole", data_folder, settings)
    without(tmp_path / "cut", data_folder, settings, take=take)
    assert without(tmp_path / "cut", data_folder, settings) == whole
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


def graphs(data: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> list[bool]:
    """Of each run of the backbone in training, whether it has a graph."""
    forward, found = Backbone.forward, []

    def watched(self: Backbone, images: Tensor) -> Tensor:
        features = forward(self, images)
        if self.training:
            found.append(features.requires_grad)
        return features

    monkeypatch.setattr(Backbone, "forward", watched)
    without(None, data, settings)
    return found


@pytest.mark.parametrize(
    ("more", "first"),
    [
        ({}, STEPS),
        ({"accumulate_batches": 2}, STEPS - 1),
        ({"method": "sharpness_aware"}, 0),
        ({"warmup_epochs": 0}, 0),
    ],
)
def test_the_backbone_has_no_graph_in_steps_that_leave_it_alone(
    more: dict[str, Any], first: int, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = graphs(data_folder, monkeypatch, LONG | more)
    assert found[:first] == [False] * first and all(found[first:]) and len(found) >= 10


def test_planted_a_warm_up_that_freezes_one_batch_too_many(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = LONG | VARIANTS["two batches a step"]
    with_gradients(tmp_path / "with", data_folder, settings)
    monkeypatch.setattr(Engine, "_ends_in_warm_up", lambda self, step: True)
    without(tmp_path / "planted", data_folder, settings)
    with pytest.raises(AssertionError):
        assert_same(weights(tmp_path / "planted"), weights(tmp_path / "with"))
