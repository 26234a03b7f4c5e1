"""Backbones by name or file, and the errors when their weights cannot be had."""

import hashlib
from pathlib import Path

import pytest
import torch
from torchvision import models

from orchestrator.backbones import BACKBONES, build_backbone
from orchestrator.errors import InputError


@pytest.mark.parametrize(
    ("name", "features", "size"),
    [("small_cnn", 128, 8), ("resnet18", 512, 1), ("resnet50", 2048, 1), ("timm/resnet18", 512, 1)],
)
def test_shapes(name: str, features: int, size: int) -> None:
    backbone = build_backbone(name, channels=1, weights="random").eval()
    assert backbone.feature_dim == features
    assert backbone(torch.rand(2, 1, 32, 32)).shape == (2, features, size, size)


def test_a_vision_transformer_gives_one_token() -> None:
    backbone = build_backbone("timm/vit_tiny_patch16_224", channels=3, weights="random").eval()
    assert backbone(torch.rand(1, 3, 224, 224)).shape == (1, backbone.feature_dim, 1, 1)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A ResNet-18 with its classifier, as the published files have it."""
    torch.manual_seed(1)
    path = tmp_path / "resnet18.pth"
    torch.save(models.resnet18(weights=None).state_dict(), path)
    return path


def test_weights_of_a_file_are_the_library_s_own(weights: Path) -> None:
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    backbone = build_backbone("resnet18", channels=3, weights=str(weights), sha256=digest).eval()
    model = models.resnet18(weights=None).eval()
    model.load_state_dict(torch.load(weights, weights_only=True))
    images = torch.rand(2, 3, 64, 64)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    features = backbone(images).mean((2, 3))
    expected = model.fc(features)
    assert torch.allclose(model((images - mean.view(3, 1, 1)) / std.view(3, 1, 1)), expected, atol=1e-5)


def test_another_file_is_refused(weights: Path) -> None:
    with pytest.raises(InputError, match="weights_sha256: .* it is another file"):
        build_backbone("resnet18", channels=3, weights=str(weights), sha256="0" * 64)
    with pytest.raises(InputError, match=r"not those of resnet50.*of other shapes"):
        build_backbone("resnet50", channels=3, weights=str(weights))
    weights.write_bytes(b"not weights")
    with pytest.raises(InputError, match="not a state-dict file"):
        build_backbone("resnet18", channels=3, weights=str(weights))


def test_weights_that_cannot_be_had_name_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", away)
    with pytest.raises(InputError, match=r"weights=/path/to/.*weights=random"):
        build_backbone("resnet50", channels=3, weights="default")


@pytest.mark.parametrize("name", ["resnet_50", "timm/resnet188"])
def test_a_misspelt_backbone_gets_a_suggestion(name: str) -> None:
    with pytest.raises(InputError, match=r"did you mean|known"):
        build_backbone(name, channels=3, weights="random")


def test_every_listed_backbone_builds() -> None:
    for name in BACKBONES:
        build_backbone(name, channels=3, weights="random")
