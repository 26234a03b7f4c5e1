"""timm's models: any by its name, and some that have a name of their own here."""

from functools import partial
from typing import Any

from torch import Tensor

from orchestrator.errors import InputError, suggestion
from orchestrator.networks.backbones.base import Architecture, Backbone, Wrapped, no_class_token
from orchestrator.networks.backbones.weights import not_to_be_had

TIMM = "timm/"
"""Prefix of a timm model's name."""


class TimmBody(Wrapped):
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


def timm_backbone(channels: int, class_token: bool = False, *, name: str) -> Backbone:
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


def timm_weights(name: str, timm_name: str) -> dict[str, Tensor]:
    import timm

    try:
        state: dict[str, Tensor] = timm.create_model(timm_name, pretrained=True, num_classes=0).state_dict()
    except Exception as error:  # the hub's client raises errors of several libraries
        raise not_to_be_had(name, f"the Hugging Face hub, timm/{timm_name}", error) from None
    return state


def timm_model(model: str, name: str | None = None, about: str = "") -> Architecture:
    """One of them, under its own name `timm/MODEL` or another."""
    name = name or TIMM + model
    return Architecture(
        name=name,
        about=about,
        build=partial(timm_backbone, name=model),
        pretrained=partial(timm_weights, name, model),
        has_tokens=True,
    )


VIT_SMALL = timm_model(
    "vit_small_patch16_224.augreg_in21k_ft_in1k",
    "vit_small",
    "timm ViT-S/16, 384 features, ImageNet-21k weights tuned on ImageNet-1k",
)
VIT_SMALL_IN21K = timm_model(
    "vit_small_patch16_224.augreg_in21k", "vit_small_in21k", "timm ViT-S/16, 384 features, ImageNet-21k weights"
)
DINO_SMALL = timm_model(
    "vit_small_patch16_224.dino",
    "dino_small",
    "timm ViT-S/16, 384 features, DINO weights of ImageNet-1k without labels",
)
