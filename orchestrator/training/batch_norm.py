"""Live batch norm of a network whose batch several processes share: by the statistics of the whole batch."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from orchestrator.training.distributed import gather, world_size

Network = TypeVar("Network", bound=nn.Module)


def synchronise(network: Network, device: torch.device) -> Network:
    """The network with torch's synchronised batch norm on a GPU, timm's with its activation; as it is elsewhere."""
    if device.type != "cuda" or world_size() == 1:
        return network
    from timm.layers.norm_act import convert_sync_batchnorm  # torch's would leave out the activations of timm's

    return convert_sync_batchnorm(network)  # type: ignore[no-any-return]


def whole_batch(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Within it live batch norm takes the statistics of the images of all processes. On a GPU the network does so
    itself."""
    return _WholeBatch() if world_size() > 1 and device.type != "cuda" else contextlib.nullcontext()


class _WholeBatch(TorchFunctionMode):
    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return (_batch_norm if function is functional.batch_norm else function)(*args, **(kwargs or {}))


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`functional.batch_norm`, (n, C, ...) on each process. Each sends the mean, variance and count of its n images:

    mean = sum_r n_r mean_r / sum_r n_r        variance = sum_r n_r (variance_r + (mean_r - mean)^2) / sum_r n_r
    """
    if not training:
        return functional.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    rest = [index for index in range(x.ndim) if index != 1]
    variance_here, mean_here = torch.var_mean(wide, rest, correction=0)
    count_here = wide.new_full((1,), x.numel() // x.shape[1])
    rows = gather(torch.cat([mean_here, variance_here, count_here])[None])
    means, variances, counts = torch.split(rows, [x.shape[1], x.shape[1], 1], 1)
    count = counts.sum()
    mean = (counts * means).sum(0) / count
    variance = (counts * (variances + (means - mean).square())).sum(0) / count
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean), momentum)
            running_var.lerp_((variance * count / (count - 1)).to(running_var), momentum)
    shape = -1, *[1] * (x.ndim - 2)
    scale = (variance + eps).rsqrt() if weight is None else (variance + eps).rsqrt() * weight
    result = (wide - mean.view(shape)) * scale.view(shape)
    shifted: Tensor = result if bias is None else result + bias.view(shape)
    return shifted.to(x.dtype)
