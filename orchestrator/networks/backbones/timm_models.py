"""timm's models: any by its name, and some that have a name of their own here."""

import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import InputError
from orchestrator.networks.backbones.base import Architecture, not_to_be_had
from orchestrator.problems import suggestion

if TYPE_CHECKING:
    from torch import Tensor

    from orchestrator.networks.backbones.network import Backbone

TIMM = "timm/"
"""Prefix of a timm model's name."""
PATCH = re.compile(r"vit_[a-z]+_patch(\d+)_")
"""In the names of plain vision transformers."""


def timm_backbone(channels: int, class_token: bool = False, *, name: str) -> "Backbone":
    """Any timm model by its name, with random weights."""
    import timm

    from orchestrator.networks.backbones.network import Backbone
    from orchestrator.networks.timm_body import TimmBody

    if not timm.is_model(name):
        candidates = timm.list_models(f"{name.split('_')[0].split('.')[0]}*") or timm.list_models()
        raise InputError(f"backbone: timm has no model '{name}'{suggestion(name, candidates[:500])}")
    try:
        model = timm.create_model(name, pretrained=False, num_classes=0)
    except RuntimeError as error:  # a name is a model and a tag of pretrained weights, which may not exist for it
        raise InputError(f"backbone: timm: {' '.join(str(error).split())}") from None
    cfg = model.pretrained_cfg
    layers = model.group_matcher(coarse=True) if hasattr(model, "group_matcher") else None
    body = TimmBody(model, TIMM + name, class_token)
    mean, std = list(cfg["mean"]), list(cfg["std"])
    return Backbone(body, feature_dim=model.num_features, channels=3, mean=mean, std=std, layers=layers)


def timm_weights(name: str, timm_name: str) -> "dict[str, Tensor]":
    import timm

    try:
        state: dict[str, Tensor] = timm.create_model(timm_name, pretrained=True, num_classes=0).state_dict()
    except Exception as error:  # the hub's client raises errors of several libraries
        raise not_to_be_had(name, f"the Hugging Face hub, timm/{timm_name}", error) from None
    return state


def timm_has(name: str) -> bool:
    """Whether timm defines a model of this name, as its files say: to import timm is to import torch."""
    spec = find_spec("timm")
    if spec is None or spec.origin is None or not name.isidentifier():
        return False
    return any(
        f"\ndef {name}(" in path.read_text(encoding="utf-8")
        for path in Path(spec.origin).with_name("models").glob("*.py")
    )


def timm_model(model: str, name: str | None = None, about: str = "") -> Architecture:
    """One of them, under its own name `timm/MODEL` or another."""
    name = name or TIMM + model
    patch = PATCH.search(model)
    return Architecture(
        name=name,
        about=about,
        build=partial(timm_backbone, name=model),
        pretrained=partial(timm_weights, name, model),
        has_tokens=True,
        patch=int(patch[1]) if patch else None,
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
