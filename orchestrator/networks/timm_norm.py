"""timm's batch norm with its activation, which keeps nothing for the backward pass while it is frozen."""

from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn

from orchestrator.networks.frozen_batch_norm import normalize_frozen


class LeanBatchNormAct2d(BatchNormAct2d):  # type: ignore[misc]
    """timm's, with the same bits."""

    def forward(self, x: Tensor) -> Tensor:
        result = normalize_frozen(self, x)
        return super().forward(x) if result is None else self.act(self.drop(result))  # type: ignore[no-any-return]


def keep_less(model: nn.Module) -> None:
    """Make each such batch norm of a network one that keeps nothing while it is frozen."""
    for module in model.modules():
        if type(module) is BatchNormAct2d:
            module.__class__ = LeanBatchNormAct2d
