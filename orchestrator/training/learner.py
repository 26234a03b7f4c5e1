"""Backbone, heads and method as ONE module, so that one DDP forward is one training step."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Generator, Tensor, nn

from orchestrator.data.samplers import sizes_of_shares
from orchestrator.errors import InputError, TrainingFailed
from orchestrator.method import Batch, Method, MethodConfig, Outputs, Task
from orchestrator.networks.backbones import architecture_of, build_backbone
from orchestrator.networks.backbones.base import Architecture, HeadInit, LayerNorm, Pooling
from orchestrator.networks.backbones.colours import InputConvention
from orchestrator.networks.embedding import EmbeddingNetwork
from orchestrator.networks.frozen_batch_norm import keep_less
from orchestrator.networks.lora import LoRA, adapt
from orchestrator.problems import suggestion
from orchestrator.training.batch_norm import whole_batch
from orchestrator.training.caching import Cached
from orchestrator.training.distributed import gather, sum_over_shares, world_size
from orchestrator.training.precision import arithmetic, network_from_here


class NoOutput(KeyError):
    """A method asks for an output that there is not."""

    def __str__(self) -> str:
        return str(self.args[0])


class Given(dict[str, Tensor]):
    """Outputs as a method is given them: asking for another raises NoOutput, which says why there is none."""

    def __missing__(self, name: object) -> Tensor:
        why = ": set reads_raw = True" if name == "raw" else suggestion(name, self)
        raise NoOutput(f"outputs have no {name!r}{why}")


class Features(Protocol):
    """Pooled features of a backbone that is never trained: `training.features`."""

    @property
    def store(self) -> object:
        """The data set."""

    def expect(self, batch: Batch | None) -> None:
        """The images that have features from now on."""

    def of_images(self, images: Tensor) -> Tensor | None:
        """Those of a batch's images, unchanged."""

    def of_rows(self, rows: np.ndarray[Any, Any]) -> Tensor | None:
        """Those of images of the store."""


class Learner(nn.Module):
    """Everything that is trained: the embedding network, and the method with its proxies and state."""

    def __init__(
        self,
        method_class: type[Method],
        config: MethodConfig,
        task: Task,
        *,
        channels: int,
        backbone: str | Architecture,
        weights: str,
        weights_sha256: str | None,
        pooling: Pooling,
        input_convention: InputConvention = "default",
        image_size: int | None = None,
        lora: LoRA | None = None,
        precision: str = "float32",
        layer_norm: LayerNorm | None = None,
        head_init: HeadInit | None = None,
        freeze_patch_embedding: bool = False,
    ) -> None:
        super().__init__()
        self.precision = precision
        architecture = architecture_of(backbone)
        built = build_backbone(
            architecture,
            channels=channels,
            weights=weights,
            sha256=weights_sha256,
            input_convention=input_convention,
            image_size=image_size,
            class_token=pooling == "token",
        )
        if freeze_patch_embedding:
            built.freeze_patch_embedding()
        self.network = EmbeddingNetwork(built, task.embedding_dim, pooling, layer_norm=layer_norm, head_init=head_init)
        self.method = method_class(config, replace(task, feature_dim=self.network.head.in_features))
        self.method.shared_sum = sum_over_shares
        self.method.gather = self._gather
        if not isinstance(self.method.views, int) or self.method.views < 1:  # set by its __init__
            raise InputError(f"{self.method.name}: views {self.method.views!r} must be a whole number from 1 on")
        self.features: Features | None = None
        """The features of a backbone that is never trained, where they are kept."""
        self.batch: Batch | None = None
        """The batch of the training step that runs; None outside of one."""
        self.network.heads = self.method.heads()
        if lora is not None:
            adapt(self.network.backbone, lora, architecture.name)
        self.method.bind(self.network)

    def outputs(self, images: Tensor) -> Outputs:
        """The network's outputs for these images, with embeddings normalised as the method asks."""
        features = None if self.features is None else self.features.of_images(images)
        if features is not None:
            return self.outputs_of_features(features)
        return self._outputs(lambda: self.network(images), images.device)

    def outputs_of_features(self, features: Tensor) -> Outputs:
        """The same from the images' pooled features."""
        return self._outputs(lambda: self.network.read_out(features), features.device)

    def _outputs(self, run: Callable[[], Outputs], device: torch.device) -> Outputs:
        in_step = contextlib.nullcontext() if self.batch is None else whole_batch(device)
        with arithmetic(self.precision, device), in_step:
            outputs = network_from_here(run(), self.precision)
        # half-precision activations end here: distances and losses are computed in float32 or better
        outputs = {name: output.float() if output.dtype.itemsize < 4 else output for name, output in outputs.items()}
        if self.method.reads_raw:
            outputs["raw"] = outputs["embedding"]
        return outputs | {"embedding": self.method.normalize(outputs["embedding"])}

    def forward(self, given: Batch | Tensor, rng: Generator | None = None, cached: Cached | None = None) -> Any:
        """Of a batch, the loss terms, and the gathered outputs of each run of the network; of images, `outputs`."""
        if isinstance(given, Tensor):
            return self.outputs(given)
        assert rng is not None
        outputs_of_views: list[Outputs] = []

        def network(images: Tensor) -> Outputs:
            outputs_here = self.outputs(images) if cached is None else cached.run(images, self.outputs)
            outputs = self.gather_outputs(outputs_here)
            outputs_of_views.append({name: output.detach() for name, output in outputs.items()})
            return outputs

        before, self.batch = self.batch, given
        try:
            terms = self.method.step(given, network, rng)
        finally:
            self.batch = before
        return require_terms(self.method, terms, "loss() or step()"), outputs_of_views

    def gather_outputs(self, outputs_here: Outputs) -> Outputs:
        """The outputs of all processes for their images, from this process's."""
        sizes = None
        if (batch := self.batch) is not None and len(set(counts := self._shares(batch))) > 1:
            count, images = len(outputs_here["embedding"]), len(batch.images)
            if count % images:
                raise TrainingFailed(
                    f"{self.method.name}: the network got {count} images of a process that has {images}: it takes one "
                    "for each image, or several, where the processes' shares are unequal"
                )
            sizes = [share * (count // images) for share in counts]
        return Given({name: gather(output, sizes) for name, output in outputs_here.items()})

    def _gather(self, rows: Tensor) -> Tensor:
        """`Method.gather`; TrainingFailed if these are not rows of the batch's images."""
        if (batch := self.batch) is None:
            return gather(rows)
        images = len(batch.images)
        if not rows.ndim or not len(rows) or len(rows) % images:
            raise TrainingFailed(
                f"{self.method.name}: gather() got {tuple(rows.shape)} for {images} images of this process: it "
                "takes one row of each image, or several"
            )
        return gather(rows, [share * (len(rows) // images) for share in self._shares(batch)])

    def _shares(self, batch: Batch) -> list[int]:
        """How many images of a batch each process has."""
        return sizes_of_shares(len(batch.labels), world_size(), self.method.batch_parts)

    def freeze_batch_norm(self) -> None:
        """Running statistics and affine parameters stay as loaded; call again after every `train()`."""
        for module in self.network.backbone.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
                module.requires_grad_(False)
                keep_less(module)

    def state_outside_synchronisation(self) -> list[str]:
        """Names of the buffers that DDP must not send: the method's, which are equal by construction."""
        return [f"method.{name}" for name, _ in self.method.named_buffers()]


def layers_that_draw(network: nn.Module) -> list[str]:
    """The kinds of a network's layers that draw numbers in training: dropout, and dropped paths as timm has them."""
    chances = ((type(module).__name__, vars(module)) for module in network.modules())
    named = {name for name, own in chances if "Drop" in name and (own.get("p") or own.get("drop_prob"))}
    return sorted(named)


def require_terms(method: Method, terms: Any, what: str = "update()") -> dict[str, Tensor]:
    """These terms; TrainingFailed if they are none."""
    if not isinstance(terms, dict) or not terms:
        actual = "an empty dict" if isinstance(terms, dict) else describe_value(terms)
        raise TrainingFailed(
            f'{method.name}: {what} returned {actual}: it must be a dict of named loss terms, such as {{"pairs": loss}}'
        )
    for name, term in terms.items():
        if not isinstance(term, Tensor):
            raise TrainingFailed(f"{method.name}: {what}: term '{name}' is {describe_value(term)}, not a tensor")
        if term.ndim:
            raise TrainingFailed(
                f"{method.name}: {what}: term '{name}' has shape {tuple(term.shape)}, it should be a scalar"
            )
    return terms


def describe_value(value: object) -> str:
    """What a hook returned that should be something else: "a list", "nothing (None)"."""
    return "nothing (None)" if value is None else f"a {type(value).__name__}"
