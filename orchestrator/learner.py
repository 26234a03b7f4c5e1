"""Backbone, heads and method as ONE module, so that one DDP forward is one training step."""

from typing import Literal

from torch import Generator, Tensor, nn

from orchestrator.backbones import Backbone, InputConvention, build_backbone
from orchestrator.distributed import gather, sum_over_shares
from orchestrator.errors import TrainingFailed
from orchestrator.method import Batch, Method, MethodConfig, Outputs, Task

Pooling = Literal["average", "max", "average+max", "token"]
"""Over the places of the feature maps: mean, largest, their sum; or a vision transformer's class token."""


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
        else:  # of the class token there is one place
            features = maps.mean(dim=(2, 3))
        if self.pooling == "average+max":
            features = features + maps.amax(dim=(2, 3))
        outputs = {"embedding": self.head(features)}
        return outputs | {name: head(features) for name, head in self.heads.items()}


class Learner(nn.Module):
    """All that is trained: the embedding network and the method with its proxies and state."""

    def __init__(
        self,
        method_class: type[Method],
        config: MethodConfig,
        *,
        num_classes: int,
        class_names: tuple[str, ...] = (),
        batch_size: int = 0,
        channels: int,
        backbone: str,
        weights: str,
        weights_sha256: str | None,
        embedding_dim: int,
        pooling: Pooling,
        input_convention: InputConvention = "default",
    ) -> None:
        super().__init__()
        built = build_backbone(
            backbone,
            channels=channels,
            weights=weights,
            sha256=weights_sha256,
            input_convention=input_convention,
            class_token=pooling == "token",
        )
        self.network = EmbeddingNetwork(built, embedding_dim, pooling)
        task = Task(num_classes, embedding_dim, self.network.head.in_features, class_names, batch_size)
        self.method = method_class(config, task)
        self.method.shared_sum = sum_over_shares
        self.network.heads = self.method.heads()
        self.method.bind(self.network)

    def outputs(self, images: Tensor) -> Outputs:
        """The network's outputs of these images, embeddings normalised as the method asks."""
        outputs = self.network(images)
        # half-precision activations end here: distances and losses are computed in float32 or better
        outputs = {name: output.float() if output.dtype.itemsize < 4 else output for name, output in outputs.items()}
        return outputs | {"embedding": self.method.normalize(outputs["embedding"])}

    def forward(self, batch: Batch, rng: Generator) -> tuple[dict[str, Tensor], list[Outputs]]:
        """The loss terms of the global batch, and the gathered outputs of each run of the network."""
        seen: list[Outputs] = []

        def network(images: Tensor) -> Outputs:
            outputs = {name: gather(output) for name, output in self.outputs(images).items()}
            seen.append({name: output.detach() for name, output in outputs.items()})
            return outputs

        terms = self.method.step(batch, network, rng)
        if not isinstance(terms, dict) or not terms:
            found = "an empty dict" if isinstance(terms, dict) else f"a {type(terms).__name__}"
            raise TrainingFailed(
                f"{self.method.name}: loss() or step() returned {found}: it must be a dict of named loss terms, "
                'such as {"pairs": loss}'
            )
        return terms, seen

    def freeze_batch_norm(self) -> None:
        """Running statistics and affine parameters stay as loaded; call again after every `train()`."""
        for module in self.network.backbone.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
                module.requires_grad_(False)

    def state_outside_synchronisation(self) -> list[str]:
        """Names of the buffers that DDP must not send: the method's, which are equal by construction."""
        return [f"method.{name}" for name, _ in self.method.named_buffers()]
