"""A timm model as a backbone's body."""

from typing import Any

from torch import Tensor

from orchestrator.errors import InputError
from orchestrator.networks import relu6
from orchestrator.networks.backbones.base import no_class_token, not_whole
from orchestrator.networks.backbones.network import Wrapped


class TimmBody(Wrapped):
    """A timm model's feature maps (B, feature_dim, h, w).

    For a model without maps, the tokens are the places of one, (B, feature_dim, tokens, 1): those of the image, or only
    the class token with `class_token`. InputError for images of a size that the model cannot take.
    """

    def __init__(self, model: Any, name: str, class_token: bool) -> None:
        from orchestrator.networks import timm_norm  # imports timm, as the model has

        super().__init__()
        relu6.keep_less(model)
        timm_norm.keep_less(model)
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

    def resize(self, size: int) -> None:
        """Interpolate the position embeddings of a model that is made for one size, as timm does: bicubic."""
        if self.size is None or tuple(self.size) == (size, size):
            return
        patch = self.model.patch_embed.patch_size[0]
        if size % patch:
            raise InputError(not_whole(size, self.name, patch))
        try:
            self.model.set_input_size(img_size=(size, size))
        except (AttributeError, AssertionError, RuntimeError, TypeError, ValueError):  # of models that cannot do it
            sides = " x ".join(map(str, self.size))
            raise InputError(
                f"image_size: {size}: backbone: {self.name} takes images of {sides} pixels only: leave image_size out"
            ) from None
        self.size = size, size

    def forward(self, images: Tensor) -> Tensor:
        size = tuple(images.shape[2:])
        if self.size is not None and size != tuple(self.size):
            takes, actual = (" x ".join(map(str, sides)) for sides in (self.size, size))
            raise InputError(f"backbone: {self.name} takes images of {takes} pixels, these are {actual}")
        features: Tensor = self.model.forward_features(images)
        if features.ndim == 4:
            return features.permute(0, 3, 1, 2) if self.channels_last else features
        tokens = features[:, :1] if self.class_token else features[:, self.extra_tokens :]
        return tokens.transpose(1, 2).unsqueeze(3)
