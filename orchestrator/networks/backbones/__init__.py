"""Image backbones: (B, channels, H, W) in [0, 1] -> feature maps (B, feature_dim, h, w). Each is in a file of this
folder, and a line of the table."""

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import parts
from orchestrator.errors import InputError
from orchestrator.networks.backbones.base import Architecture, no_class_token
from orchestrator.networks.backbones.bn_inception import BN_INCEPTION
from orchestrator.networks.backbones.colours import InputConvention
from orchestrator.networks.backbones.efficientnet_lite0 import EFFICIENTNET_LITE0
from orchestrator.networks.backbones.mobilenet_v2 import MOBILENET_V2
from orchestrator.networks.backbones.small_cnn import SMALL_CNN
from orchestrator.networks.backbones.timm_models import (
    DINO_SMALL,
    TIMM,
    VIT_SMALL,
    VIT_SMALL_IN21K,
    timm_has,
    timm_model,
)
from orchestrator.networks.backbones.torchvision_resnets import RESNET18, RESNET50
from orchestrator.problems import suggestion

if TYPE_CHECKING:
    from orchestrator.networks.backbones.network import Backbone

BACKBONES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        SMALL_CNN,
        RESNET18,
        RESNET50,
        BN_INCEPTION,
        VIT_SMALL,
        VIT_SMALL_IN21K,
        DINO_SMALL,
        EFFICIENTNET_LITE0,
        MOBILENET_V2,
    )
}


def architecture_of(name: str | Architecture) -> Architecture:
    """One that is given already, or that of a name. InputError for a name that is neither in BACKBONES nor announced by
    a package, nor begins with `timm/`."""
    if isinstance(name, Architecture):
        return name
    if name in BACKBONES:
        return BACKBONES[name]
    announced = parts.names("backbones", BACKBONES)
    if name in announced:
        return parts.load_part("backbones", name, Architecture)
    if name.startswith(TIMM):
        return timm_model(name.removeprefix(TIMM))
    if timm_has(name):
        raise InputError(f"unknown backbone '{name}'; timm's is written {TIMM}{name}")
    raise InputError(
        f"unknown backbone '{name}'{suggestion(name, (*BACKBONES, *announced))}; or {TIMM}MODEL for any model of timm"
    )


def build_backbone(
    backbone: str | Architecture,
    *,
    channels: int,
    weights: str,
    sha256: str | None = None,
    input_convention: InputConvention = "default",
    class_token: bool = False,
    image_size: int | None = None,
) -> "Backbone":
    """The backbone of this name, or one that is in no table, for images of `channels` channels.

    `weights`: `default` (the pretrained ones, if there are any), `random`, or the path of a state-dict file, which
    must have the digest `sha256` if one is given. `class_token`: return only that token, not the image's.
    `image_size`: the side of the images, if it is not the network's own.
    InputError if the weights cannot be loaded, or the network cannot do what is asked.
    """
    from orchestrator.networks.backbones.weights import load_weights_file, weights_of_file

    architecture = architecture_of(backbone)
    name = architecture.name
    if class_token and not architecture.has_tokens:
        raise no_class_token(name)
    if architecture.pretrained is None:
        if weights not in ("default", "random"):
            raise InputError(f"weights: '{weights}' cannot be loaded into {name}, which trains from scratch")
        if input_convention != "default":
            raise InputError(f"input_convention: '{input_convention}' is of pretrained networks, {name} has its own")
    built = architecture.build(channels, class_token)
    built.take(input_convention)
    if architecture.pretrained is not None and weights != "random":
        if weights == "default":
            state, source = architecture.pretrained(), "the default ones"
        else:
            state, source = weights_of_file(Path(weights).expanduser(), sha256), weights
        if architecture.rename is not None:
            state = architecture.rename(state, list(built.network.state_dict()))
        load_weights_file(built.network, state, name, source)
    if image_size is not None:
        built.resize(image_size)
    return built
