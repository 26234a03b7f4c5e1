"""Backbone, pooling and linear layer: an image -> its embedding."""

from torch import Tensor, nn

from orchestrator.method import Outputs
from orchestrator.networks.backbones.base import Pooling
from orchestrator.networks.backbones.network import Backbone


class EmbeddingNetwork(nn.Module):
    """Backbone -> global pooling -> linear head; the method's extra heads read the same pooled features.

    images (B, channels, H, W) in [0, 1] -> {"embedding": (B, D) as the method normalises it, <head>: ...}.
    """

    def __init__(self, backbone: Backbone, embedding_dim: int, pooling: Pooling) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = pooling
        self.head = nn.Linear(backbone.feature_dim, embedding_dim)
        self.heads = nn.ModuleDict()

    def forward(self, images: Tensor) -> Outputs:
        maps = self.backbone(images)
        if self.pooling == "max":
            features = maps.amax(dim=(2, 3))
        else:  # the class token is a single place
            features = maps.mean(dim=(2, 3))
        if self.pooling == "average+max":
            features = features + maps.amax(dim=(2, 3))
        outputs = {"embedding": self.head(features)}
        return outputs | {name: head(features) for name, head in self.heads.items()}
