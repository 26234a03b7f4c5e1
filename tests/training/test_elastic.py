"""A training goes on with any number of processes, and its curve is that of one."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Pair
from support.training_loops import VARIANTS, train, weights
from torch import Tensor, nn

from orchestrator.check.subject import NETWORK
from orchestrator.data.transforms import augment
from orchestrator.networks.backbones import BACKBONES
from orchestrator.networks.backbones.base import Architecture
from orchestrator.networks.backbones.network import Backbone
from orchestrator.training import batch_norm, distributed
from orchestrator.training.checkpoint import save_checkpoint
from orchestrator.training.distributed import rank, world_size

UNEVEN = {"classes_per_batch": 5, "images_per_class": 3, "validate_every": "2 steps"}
SETTINGS = VARIANTS["xbm"] | UNEVEN | {"backbone": NETWORK.name, "augmentation": "affine", "memory_size": 15}
"""A memory, noise of each image, moments of the optimiser; two processes have 8 and 7 images."""


def per_process_weights(patch: pytest.MonkeyPatch) -> None:
    """The mean over the processes of the means over their images, where it should be the mean over the images."""
    original = distributed._OwnBlockOfSum.forward

    def planted(ctx: Any, rows: Tensor, sizes: list[int]) -> Tensor:
        block = original(ctx, rows, sizes)
        return block * (len(rows) / len(sizes) / max(len(block), 1))

    patch.setattr(distributed._OwnBlockOfSum, "forward", staticmethod(planted))


def per_process_generators(patch: pytest.MonkeyPatch) -> None:
    """Augmentations drawn by a generator of each process, where they should be those of the image."""

    def planted(images: Tensor, *rest: Any, seed: int, **more: Any) -> Tensor:
        return augment(images, *rest, seed=seed + rank(), **more)

    patch.setattr("orchestrator.data.pipeline.augment", planted)


def first_share_only(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint whose memory holds what the first process has of it."""

    def planted(path: Path, state: dict[str, Any]) -> None:
        if "model" in state and world_size() > 1:
            learner = dict(state["model"]["learner"])
            for name in [name for name in learner if "memory" in name and learner[name].ndim]:
                learner[name] = learner[name].clone()
                learner[name][len(learner[name]) // world_size() :] = 0
            state = {**state, "model": {**state["model"], "learner": learner}}
        save_checkpoint(path, state)

    patch.setattr("orchestrator.training.loop.save_checkpoint", planted)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [per_process_weights, per_process_generators, first_share_only]


def train_with(bug: int | None, folder: Path, data: Path, settings: dict[str, Any], take: int) -> list[Any]:
    """As `train`, with one of BUGS, interrupted after `take` of three validations."""
    with pytest.MonkeyPatch.context() as patch:
        if bug is not None:
            BUGS[bug](patch)
        return train(folder, data, settings, 3, take)


def difference(curve: list[Any], other: list[Any]) -> float:
    """The largest between the metrics of two curves; of the same validations."""
    assert [row[:3] for row in curve] == [row[:3] for row in other]
    pairs = zip(curve, other, strict=True)
    return max(float(abs(ours[3][name] - theirs[3][name])) for ours, theirs in pairs for name in ours[3])


def by_turns(bug: int | None, folder: Path, data: Path, settings: dict[str, Any], pair: Pair) -> list[Any]:
    """The curve of a training by two processes, one, and two, each from the checkpoint of those before."""
    first, same = pair.run(train_with, bug, folder, data, settings, 1)
    assert len(first) == 1 and same == first
    train_with(bug, folder, data, settings, 2)
    third: list[Any] = pair.run(train_with, bug, folder, data, settings, 3)[0]
    return third


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> tuple[list[Any], dict[str, Tensor]]:
    """The curve and the weights of one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return train(folder, data_folder, SETTINGS, 3), weights(folder)


def test_a_training_goes_on_with_another_number_of_processes(
    undisturbed: tuple[list[Any], dict[str, Tensor]], data_folder: Path, tmp_path: Path, pair: Pair
) -> None:
    curve, state = undisturbed
    assert difference(curve, by_turns(None, tmp_path, data_folder, SETTINGS, pair)) < 1e-9
    for name, value in weights(tmp_path).items():
        assert torch.allclose(value, state[name], rtol=0, atol=1e-10), name


@pytest.mark.parametrize("bug", range(len(BUGS)), ids=[bug.__name__ for bug in BUGS])
def test_what_depends_on_the_number_of_processes_is_seen(
    bug: int, undisturbed: tuple[list[Any], dict[str, Tensor]], data_folder: Path, tmp_path: Path, pair: Pair
) -> None:
    assert difference(undisturbed[0], by_turns(bug, tmp_path, data_folder, SETTINGS, pair)) > 1e-6


def normed(channels: int, class_token: bool = False) -> Backbone:
    body = nn.Sequential(
        nn.Conv2d(channels, 8, 4, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
    )
    half = [0.5] * channels
    return Backbone(body, feature_dim=8, channels=channels, mean=half, std=half, layers={"blocks": r"^(\d+)"})


def train_normed(folder: Path, data: Path, planted: bool = False) -> list[Any]:
    """With live batch norm; `planted`: each process has the statistics of its own images."""
    settings = UNEVEN | {"method": "proxy_anchor", "backbone": "normed", "freeze_batch_norm": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BACKBONES, "normed", Architecture("normed", about="a network for tests", build=normed))
        if planted:
            patch.setattr("orchestrator.training.learner.whole_batch", lambda device: contextlib.nullcontext())
        return train(folder, data, settings)


def test_live_batch_norm_sees_the_whole_batch(data_folder: Path, tmp_path: Path, pair: Pair) -> None:
    one, (two, same) = (
        train_normed(tmp_path / "one", data_folder),
        pair.run(train_normed, tmp_path / "two", data_folder),
    )
    assert two == same and difference(one, two) < 1e-9
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in first:
        assert torch.allclose(first[name], second[name], rtol=0, atol=1e-10), name
    moved = [first[name] for name in first if name.endswith("running_mean")]
    assert len(moved) == 2 and all(float(mean.abs().min()) > 0 for mean in moved)
    assert difference(one, pair.run(train_normed, tmp_path / "planted", data_folder, True)[0]) > 1e-6


def test_synchronised_batch_norm_keeps_timm_s_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    from timm.layers import BatchNormAct2d

    monkeypatch.setattr(batch_norm, "world_size", lambda: 2)
    network = nn.Sequential(nn.Conv2d(1, 8, 3), BatchNormAct2d(8, act_layer=nn.SiLU), nn.BatchNorm2d(8)).eval()
    images = torch.from_numpy(np.random.default_rng(0).random((3, 1, 8, 8), dtype=np.float32))
    expected = network(images)
    synchronised = batch_norm.synchronise(network, torch.device("cuda")).eval()
    assert sum(isinstance(module, nn.SyncBatchNorm) for module in synchronised.modules()) == 2
    assert torch.allclose(synchronised(images), expected, atol=1e-6)


def notes_of(data: Path, part: float) -> tuple[str, ...]:
    """What is noted of a training whose network leaves out this part of its numbers."""

    def dropping(channels: int, class_token: bool = False) -> Backbone:
        body = nn.Sequential(nn.Conv2d(channels, 8, 4, stride=4), nn.Dropout(part))
        half = [0.5] * channels
        return Backbone(body, feature_dim=8, channels=channels, mean=half, std=half, layers={"blocks": r"^(\d+)"})

    settings = UNEVEN | {"method": "proxy_anchor", "backbone": "dropping"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "_notes", [])
        patch.setitem(BACKBONES, "dropping", Architecture("dropping", about="a network for tests", build=dropping))
        train(None, data, settings, 1)
        return distributed.notes()


def test_a_network_that_draws_numbers_is_noted(data_folder: Path, pair: Pair) -> None:
    noted = "dropping draws other numbers (Dropout) with another number of workers"
    assert pair.run(notes_of, data_folder, 0.2) == [(noted,)] * 2
    assert pair.run(notes_of, data_folder, 0.0) == [()] * 2 and notes_of(data_folder, 0.2) == ()


@pytest.mark.slow
def test_two_three_and_one_processes_have_the_curve_of_one(data_folder: Path) -> None:
    words = ["--processes", "2", "3", "1", "--classes", "5", "--images", "3", "--validations", "1", "--data"]
    script = Path(__file__).parents[2] / "benchmarks" / "elastic.py"
    run = subprocess.run([sys.executable, script, *words, data_folder], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert [group["processes"] for group in report["groups"]] == [2, 3, 1] and report["validations"] == 3
    assert report["largest_difference"] < 1e-12 and report["of_weights"] < 1e-10
