"""Backbone, heads and method as ONE module, so that one DDP forward is one training step."""

from torch import Generator, Tensor, nn

from orchestrator.errors import TrainingFailed
from orchestrator.method import Batch, Method, MethodConfig, Outputs, Task
from orchestrator.networks.backbones import build_backbone
from orchestrator.networks.backbones.base import Pooling
from orchestrator.networks.backbones.colours import InputConvention
from orchestrator.networks.embedding import EmbeddingNetwork
from orchestrator.training.distributed import gather, sum_over_shares


class Learner(nn.Module):
    """Everything that is trained: the embedding network, and the method with its proxies and state."""

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
        """The network's outputs for these images, with embeddings normalised as the method asks."""
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
