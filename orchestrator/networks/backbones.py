"""Image backbones: (B, channels, H, W) in [0, 1] -> feature maps (B, feature_dim, h, w)."""

import hashlib
from collections import OrderedDict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from orchestrator.errors import InputError, suggestion
from orchestrator.networks.bn_inception import BNInception

IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

InputConvention = Literal["default", "bgr_255", "rgb_255"]
"""How a network takes colours: as it was pretrained, or each in [0, 255] minus its mean, blue or red first."""
CAFFE_MEAN = [104 / 255, 117 / 255, 128 / 255]


class Backbone(nn.Module):
    """Normalises images, repeats a grey channel where colour is expected, and runs `body`.

    `layers` are patterns, as of timm's `group_matcher`, that put the parameters of `network` in order from the bottom.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, body: nn.Module, *, feature_dim: int, channels: int, mean: list[float], std: list[float], layers: Any
    ) -> None:
        super().__init__()
        self.body = body
        self.feature_dim = feature_dim
        self.channels = channels
        self.layers = layers
        self.blue_first = False
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1] == 1 and self.channels == 3:
            images = images.expand(-1, 3, -1, -1)
        if self.blue_first:
            images = images.flip(1)
        features: Tensor = self.body((images - self.mean) / self.std)
        return features

    @property
    def network(self) -> nn.Module:
        """The module whose parameters are named as in the weight files."""
        return self.body.model if isinstance(self.body, TimmBody) else self.body

    def take(self, convention: InputConvention) -> None:
        """Adopt this colour convention: (x - mean) / std becomes 255 x - 255 mean, in its channel order."""
        if convention == "default":
            return
        self.blue_first = convention == "bgr_255"
        self.mean.copy_(torch.tensor(CAFFE_MEAN).view(1, -1, 1, 1))
        self.std.fill_(1 / 255)

    def depths(self) -> dict[nn.Parameter, int]:
        """Parameter -> its layer counted from the top, 0 for the topmost; InputError if the layers have no order."""
        from timm.models import group_parameters

        if self.layers is None:
            raise InputError("layer_decay: this backbone does not say the order of its layers: only 1.0 is possible")
        layer_of: dict[str, int] = group_parameters(self.network, self.layers, reverse=True)
        top = max(layer_of.values())
        return {parameter: top - layer_of[name] for name, parameter in self.network.named_parameters()}


def small_cnn(channels: int) -> Backbone:
    """Three 3x3 convolutions (32, 64, 128, the first two of stride 2) with GroupNorm; trained from scratch.

    GroupNorm keeps no batch statistics, so one process and several compute the same.
    """

    def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        # strides, not max pooling, which is several times slower on a CPU
        convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        return nn.Sequential(convolution, nn.GroupNorm(8, outputs), nn.ReLU())

    body = nn.Sequential(block(channels, 32, 2), block(32, 64, 2), block(64, 128, 1))
    half, layers = [0.5] * channels, {"blocks": r"^(\d+)"}
    return Backbone(body, feature_dim=128, channels=channels, mean=half, std=half, layers=layers)


def torchvision_resnet(name: str) -> Backbone:
    """torchvision's ResNet without its classifier, with random weights."""
    from torchvision import models

    model = getattr(models, name)(weights=None)
    body = nn.Sequential(
        OrderedDict((key, module) for key, module in model.named_children() if key not in ("avgpool", "fc"))
    )
    layers = {"stem": r"^conv1|bn1", "blocks": r"^layer(\d+)"}
    features = model.fc.in_features
    return Backbone(body, feature_dim=features, channels=3, mean=IMAGENET_MEAN, std=IMAGENET_STD, layers=layers)


def bn_inception() -> Backbone:
    """Inception with batch norm, with random weights; colours by `bgr_255`."""
    layers = {"stem": r"^conv", "blocks": r"^inception_(\d)"}
    backbone = Backbone(BNInception(), feature_dim=1024, channels=3, mean=CAFFE_MEAN, std=[1 / 255] * 3, layers=layers)
    backbone.take("bgr_255")
    return backbone


class TimmBody(nn.Module):
    """A timm model's feature maps (B, feature_dim, h, w).

    For a model without maps, the tokens are the places of one, (B, feature_dim, tokens, 1): those of the image, or only
    the class token with `class_token`. InputError for images of a size that the model cannot take.
    """

    def __init__(self, model: Any, name: str, class_token: bool) -> None:
        super().__init__()
        self.model = model
        self.name = name
        self.class_token = class_token
        self.channels_last = getattr(model, "output_fmt", "NCHW") == "NHWC"
        has_class_token = getattr(model, "cls_token", None) is not None
        self.extra_tokens: int = getattr(model, "num_prefix_tokens", int(has_class_token))
        patches: Any = getattr(model, "patch_embed", None)
        self.size: tuple[int, int] | None = patches.img_size if getattr(patches, "strict_img_size", False) else None
        if class_token and not has_class_token:
            raise no_class_token(name)

    def forward(self, images: Tensor) -> Tensor:
        size = tuple(images.shape[2:])
        if self.size is not None and size != tuple(self.size):
            takes, given = (" x ".join(map(str, sides)) for sides in (self.size, size))
            raise InputError(f"backbone: {self.name} takes images of {takes} pixels, these are {given}")
        features: Tensor = self.model.forward_features(images)
        if features.ndim == 4:
            return features.permute(0, 3, 1, 2) if self.channels_last else features
        tokens = features[:, :1] if self.class_token else features[:, self.extra_tokens :]
        return tokens.transpose(1, 2).unsqueeze(3)


def no_class_token(name: str) -> InputError:
    """The error for `pooling=token` on a network that cannot do it."""
    return InputError(f"pooling: 'token' needs a class token, which {name} does not have: average, max or average+max")


def timm_backbone(name: str, class_token: bool = False) -> Backbone:
    """Any timm model by its name, with random weights."""
    import timm

    if not timm.is_model(name):
        known = timm.list_models(f"{name.split('_')[0].split('.')[0]}*") or timm.list_models()
        raise InputError(f"backbone: timm has no model '{name}'{suggestion(name, known[:500])}")
    try:
        model = timm.create_model(name, pretrained=False, num_classes=0)
    except RuntimeError as error:  # a name is a model and a tag of pretrained weights, which may not exist for it
        raise InputError(f"backbone: timm: {' '.join(str(error).split())}") from None
    cfg = model.pretrained_cfg
    layers = model.group_matcher(coarse=True) if hasattr(model, "group_matcher") else None
    body = TimmBody(model, TIMM + name, class_token)
    mean, std = list(cfg["mean"]), list(cfg["std"])
    return Backbone(body, feature_dim=model.num_features, channels=3, mean=mean, std=std, layers=layers)


BACKBONES: dict[str, str] = {
    "small_cnn": "three convolutions with GroupNorm, for the embedded data; trained from scratch",
    "resnet18": "torchvision ResNet-18, 512 features, ImageNet-1k V1 weights",
    "resnet50": "torchvision ResNet-50, 2048 features, ImageNet-1k V1 weights",
    "bn_inception": "Inception with batch norm, 1024 features; its weights are a file that you give",
    "vit_small": "timm ViT-S/16, 384 features, ImageNet-21k weights tuned on ImageNet-1k",
    "vit_small_in21k": "timm ViT-S/16, 384 features, ImageNet-21k weights",
    "dino_small": "timm ViT-S/16, 384 features, DINO weights of ImageNet-1k without labels",
}
TIMM = "timm/"
"""Prefix of a timm model's name."""
TIMM_NAMES = {
    "vit_small": "vit_small_patch16_224.augreg_in21k_ft_in1k",
    "vit_small_in21k": "vit_small_patch16_224.augreg_in21k",
    "dino_small": "vit_small_patch16_224.dino",
}
"""The timm models that have a name of their own here."""
CLASSIFIERS = ("fc.", "last_linear.", "head.", "head_dist.", "aux_head.", "classifier.", "classif.")
"""Prefixes of the names of a classifier's weights, which a file may contain and a backbone does not need."""


def check_backbone_name(name: str) -> None:
    """InputError for a name that is neither in BACKBONES nor begins with `timm/`."""
    if name not in BACKBONES and not name.startswith(TIMM):
        raise InputError(
            f"unknown backbone '{name}'{suggestion(name, BACKBONES)}; or {TIMM}MODEL for any model of timm"
        )


def build_backbone(
    name: str,
    *,
    channels: int,
    weights: str,
    sha256: str | None = None,
    input_convention: InputConvention = "default",
    class_token: bool = False,
) -> Backbone:
    """The backbone called `name` for images of `channels` channels.

    `weights`: `default` (the pretrained ones, if there are any), `random`, or the path of a state-dict file, which
    must have the digest `sha256` if one is given. `class_token`: return only that token, not the image's.
    InputError if the weights cannot be loaded, or the network cannot do what is asked.
    """
    check_backbone_name(name)
    timm_name = name.removeprefix(TIMM) if name.startswith(TIMM) else TIMM_NAMES.get(name)
    if class_token and timm_name is None:
        raise no_class_token(name)
    if name == "small_cnn":
        if weights not in ("default", "random"):
            raise InputError(f"weights: '{weights}' cannot be loaded into small_cnn, which trains from scratch")
        if input_convention != "default":
            raise InputError(f"input_convention: '{input_convention}' is of pretrained networks, small_cnn has its own")
        return small_cnn(channels)
    if timm_name is not None:
        backbone = timm_backbone(timm_name, class_token)
    else:
        backbone = bn_inception() if name == "bn_inception" else torchvision_resnet(name)
    backbone.take(input_convention)
    if weights == "random":
        return backbone
    if weights != "default":
        state = _weights_of_file(Path(weights).expanduser(), sha256)
    elif timm_name is not None:
        state = _timm_weights(name, timm_name)
    elif name == "bn_inception":
        raise InputError(
            "weights: bn_inception has no maintained download: get bn_inception-52deb4733.pth (or the older "
            "bn_inception-239d2248.pth) and give weights=/path/to/file.pth weights_sha256=DIGEST, "
            "or ask for random ones (weights=random)"
        )
    else:
        state = _torchvision_weights(name)
    _load(backbone.network, state, name, f"the {weights} ones" if weights == "default" else weights)
    return backbone


def _torchvision_weights(name: str) -> dict[str, Tensor]:
    from torchvision.models import get_model_weights

    # V1: the papers' weights; V2 must not be used for comparisons with them
    url = get_model_weights(name)["IMAGENET1K_V1"].url
    try:
        state: dict[str, Tensor] = torch.hub.load_state_dict_from_url(
            url, progress=False, check_hash=True, map_location="cpu", weights_only=True
        )
    except OSError as error:
        raise _not_to_be_had(name, url, error) from None
    return state


def _timm_weights(name: str, timm_name: str) -> dict[str, Tensor]:
    import timm

    try:
        state: dict[str, Tensor] = timm.create_model(timm_name, pretrained=True, num_classes=0).state_dict()
    except Exception as error:  # the hub's client raises errors of several libraries
        raise _not_to_be_had(name, f"the Hugging Face hub, timm/{timm_name}", error) from None
    return state


def _not_to_be_had(name: str, source: str, error: Exception) -> InputError:
    reason = (str(error) or type(error).__name__).splitlines()[0][:120].strip()
    return InputError(
        f"weights: the pretrained weights of {name} could not be fetched from {source} ({reason}): "
        "give a local state-dict file (weights=/path/to/file.pth) or ask for random ones (weights=random)"
    )


def _weights_of_file(path: Path, sha256: str | None) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"weights: no file {path}: give 'default', 'random', or the path of a state-dict file")
    if sha256 is not None:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256.lower():
            raise InputError(f"weights_sha256: {path} has the digest {found}, not {sha256}: it is another file")
    from timm.models import load_state_dict

    try:
        state: dict[str, Tensor] = load_state_dict(str(path), weights_only=True)
    except Exception:  # torch and safetensors raise many kinds if the file is no state dict
        raise InputError(f"weights: {path} is not a state-dict file, or damaged") from None
    return state


def _load(network: nn.Module, state: dict[str, Tensor], name: str, source: str) -> None:
    """Load all of the network's weights; no others may be there, except a classifier's.

    Old files store vectors as (1, n), and no batch counts.
    """
    own = network.state_dict()
    loaded = dict(own)
    missing, wrong = [], []
    for key, tensor in own.items():
        found = state.get(key)
        if not isinstance(found, Tensor):
            if not key.endswith(".num_batches_tracked"):
                missing.append(key)
        elif found.shape not in (tensor.shape, (1, *tensor.shape)):
            wrong.append(f"{key} is {_shape(found)}, it should be {_shape(tensor)}")
        else:
            loaded[key] = found.view_as(tensor)
    more = [key for key in state if key not in own and not key.startswith(CLASSIFIERS)]
    if missing or wrong or more:
        counts = f"{len(missing)} tensors are missing, {len(wrong)} of other shapes, {len(more)} not of this network"
        raise InputError(f"weights: {source}: not those of {name}: {counts}; the first: {(missing + wrong + more)[0]}")
    network.load_state_dict(loaded)


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a number"
