"""Backbone, pooling and linear layer: an image -> its embedding."""

import torch.nn.functional as F
from torch import Tensor, nn

from orchestrator.errors import InputError
from orchestrator.method import Outputs
from orchestrator.networks.backbones.base import HeadInit, LayerNorm, Pooling
from orchestrator.networks.backbones.network import Backbone


class EmbeddingNetwork(nn.Module):
    """Backbone -> global pooling -> linear head; the method's extra heads read the same pooled features.

    images (B, channels, H, W) in [0, 1] -> {"embedding": (B, D) as the method normalises it, <head>: ...}.

    `layer_norm` of the pooled features or of the embedding, in training and at test, has no parameters. `head_init` are
    the first weights of the linear layer, torch's own if None.
    """

    def __init__(
        self,
        backbone: Backbone,
        embedding_dim: int,
        pooling: Pooling,
        *,
        layer_norm: LayerNorm | None = None,
        head_init: HeadInit | None = None,
    ) -> None:
        super().__init__()
        if layer_norm == "embedding" and embedding_dim == 1:
            raise InputError("layer_norm: 'embedding': with embedding_dim: 1 it leaves a zero: leave it out")
        self.backbone = backbone
        self.pooling = pooling
        self.layer_norm = layer_norm
        self.head = nn.Linear(backbone.feature_dim, embedding_dim)
        if head_init == "orthogonal":
            nn.init.orthogonal_(self.head.weight)
        elif head_init == "kaiming":
            nn.init.kaiming_normal_(self.head.weight, mode="fan_out")
        if head_init is not None:
            nn.init.zeros_(self.head.bias)
        self.heads = nn.ModuleDict()

    def forward(self, images: Tensor) -> Outputs:
        return self.read_out(self.pool(images))

    def pool(self, images: Tensor) -> Tensor:
        """The backbone's pooled features of these images, (B, F)."""
        maps: Tensor = self.backbone(images)
        if self.pooling == "max":
            features = maps.amax(dim=(2, 3))
        else:  # the class token is a single place
            features = maps.mean(dim=(2, 3))
        if self.pooling == "average+max":
            features = features + maps.amax(dim=(2, 3))
        return features

    def read_out(self, features: Tensor) -> Outputs:
        """All outputs, from the pooled features."""
        if self.layer_norm == "features":
            features = F.layer_norm(features, features.shape[1:])
        embedding = self.head(features)
        if self.layer_norm == "embedding":
            embedding = F.layer_norm(embedding, embedding.shape[1:])
        outputs = {"embedding": embedding}
        return outputs | {name: head(features) for name, head in self.heads.items()}
