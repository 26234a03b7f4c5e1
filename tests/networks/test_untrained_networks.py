"""`evaluate BACKBONE`: a network without a training, by its pooled features."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.command_line import run
from support.image_pipelines import photographs as photographs

from orchestrator.data.augmentations.crops import crop_of
from orchestrator.data.catalog import open_dataset
from orchestrator.data.pipeline import EVALUATION, Reader, Request, as_float
from orchestrator.data.splits import class_split
from orchestrator.data.store import Store
from orchestrator.evaluation.metrics import evaluate_embeddings
from orchestrator.networks.backbones import build_backbone


def test_a_backbone_is_evaluated_by_its_pooled_features(
    tmp_path: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "glyphs-small").symlink_to(data_folder / "glyphs-small")
    command = f"evaluate small_cnn --dataset glyphs-small --storage {tmp_path} --set pooling=max --set seed=3"
    found = json.loads(run(capsys, f"{command} --json").out)
    assert found["untrained"] | {"backbone": "small_cnn", "pooling": "max", "weights": "default"} == found["untrained"]
    assert found["selection"] is None and found["model"] == "small_cnn"
    store = open_dataset("glyphs-small", data_folder)
    rows = class_split(store, validation_share=0, seed=0).test
    torch.manual_seed(3)
    backbone = build_backbone("small_cnn", channels=store.channels, weights="default").eval()
    with torch.no_grad():
        features = backbone(store.images(rows).float() / 255).amax((2, 3))
    labels = torch.from_numpy(store.labels[rows]).long()
    expected = evaluate_embeddings(F.normalize(features.double()), labels, clustering=False)
    for metric in ("recall_at_1", "map_at_r", "r_precision"):
        assert found["metrics"][metric] == pytest.approx(expected[metric], abs=2e-3)
    shown = " ".join(run(capsys, command).out.split())
    assert "small_cnn (not trained, weights: default, pooling: max, no head) on glyphs-small, test classes" in shown


@pytest.mark.parametrize("size", [64, 96])
def test_it_takes_images_of_another_size(
    size: int, tmp_path: Path, photographs: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "photographs").symlink_to(photographs.path)
    command = f"evaluate resnet18 --dataset photographs --storage {tmp_path} --set weights=random --set pooling=average"
    found = json.loads(run(capsys, f"{command} --set image_size={size} --json").out)
    assert found["untrained"]["image_size"] == size
    rows = class_split(photographs, validation_share=0, seed=0).test
    crop = crop_of("random_crop_224", size)
    assert crop is not None and crop.size == size
    torch.manual_seed(0)
    backbone = build_backbone("resnet18", channels=3, weights="random", image_size=size).eval()
    with Reader(photographs, augmentation="random_crop_224", image_size=size) as reader, torch.no_grad():
        ((_, images),) = reader.read([Request(rows, EVALUATION)])
        features = backbone(as_float(images)).mean((2, 3))
    expected = evaluate_embeddings(
        F.normalize(features.double()), torch.from_numpy(photographs.labels[rows]).long(), clustering=False
    )
    assert found["metrics"]["map_at_r"] == pytest.approx(expected["map_at_r"], abs=2e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "small_cnn --set lr=1",
            "--set: lr: without effect on a network that is not trained (these have one: pooling,",
        ),
        (
            "mobilenet_v3",
            "'mobilenet_v3' is no model file, search, SEARCH/TRIAL or run id (did you mean 'mobilenet_v2'?)",
        ),
        ("no-model --set pooling=max", "--set: is for a backbone that is not trained; the model no-model has its own"),
        ("small_cnn --out-of-distribution glyphs", "--out-of-distribution: small_cnn: an untrained network has no"),
        (
            "small_cnn --set image_size=64 --set augmentation=none",
            "--set: image_size: 64: is for photographs, and augmentation: none cuts none",
        ),
        ("small_cnn --set pooling=token", "pooling: 'token' needs a class token, which small_cnn does not have"),
    ],
)
def test_what_it_cannot_do_is_one_line(
    words: str, message: str, tmp_path: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "glyphs-small").symlink_to(data_folder / "glyphs-small")
    name, _, options = words.partition(" ")
    ran = run(capsys, f"evaluate {name} --dataset glyphs-small --storage {tmp_path} {options}")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {message}") and ran.err.count("\n") == 1
