"""Inception with batch normalisation, as the metric-learning papers use it."""

from typing import TYPE_CHECKING

from orchestrator.errors import InputError
from orchestrator.networks.backbones.base import Architecture
from orchestrator.networks.backbones.colours import CAFFE_MEAN

if TYPE_CHECKING:
    from torch import Tensor

    from orchestrator.networks.backbones.network import Backbone


def bn_inception(channels: int, class_token: bool = False) -> "Backbone":
    """Inception with batch norm, with random weights; colours by `bgr_255`."""
    from orchestrator.networks.backbones.network import Backbone
    from orchestrator.networks.bn_inception import BNInception

    layers = {"stem": r"^conv", "blocks": r"^inception_(\d)"}
    backbone = Backbone(BNInception(), feature_dim=1024, channels=3, mean=CAFFE_MEAN, std=[1 / 255] * 3, layers=layers)
    backbone.take("bgr_255")
    return backbone


def no_download() -> "dict[str, Tensor]":
    """Raise InputError: they have to be given."""
    raise InputError(
        "weights: bn_inception has no maintained download: get bn_inception-52deb4733.pth (or the older "
        "bn_inception-239d2248.pth) and give weights=/path/to/file.pth weights_sha256=DIGEST, "
        "or ask for random ones (weights=random)"
    )


BN_INCEPTION = Architecture(
    name="bn_inception",
    about="Inception with batch norm, 1024 features; its weights are a file that you give",
    build=bn_inception,
    pretrained=no_download,
    convention="bgr_255",
)
