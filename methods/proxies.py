"""Class proxies: learned points of the embedding space that stand for the classes."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from orchestrator.method import MethodConfig, Task

MATRIX = 1024  # maximum number of proxies whose similarities are stored
TRUNCATED = 0.87962566103423978  # standard deviation of a standard normal distribution cut off at -2 and 2


def _uniform(rows: int, dim: int, bound: float) -> Tensor:
    return torch.empty(rows, dim).uniform_(-bound, bound)


def _truncated_normal(rows: int, dim: int, deviation: float) -> Tensor:
    own = deviation / TRUNCATED
    return nn.init.trunc_normal_(torch.empty(rows, dim), std=own, a=-2 * own, b=2 * own)


INITS: Mapping[str, Callable[[int, int], Tensor]] = {
    "randn": torch.randn,
    "randn/8": lambda n, d: torch.randn(n, d) / 8,  # ProxyNCA and what was built on its code
    "randn/100": lambda n, d: torch.randn(n, d) / 100,  # ArcFace
    "kaiming_fan_out": lambda n, d: torch.randn(n, d) * math.sqrt(2 / max(1, n)),  # Proxy-Anchor, on (n, D)
    "he_normal": lambda n, d: _truncated_normal(n, d, math.sqrt(2 / max(1, n))),  # Keras, on (n, D): CCP
    "kaiming_uniform": lambda n, d: _uniform(n, d, 1 / math.sqrt(max(1, n))),  # SoftTriple: a = sqrt(5), on (D, n)
    "uniform": lambda n, d: _uniform(n, d, 1 / math.sqrt(max(1, d))),  # torch's linear layer: normalised softmax
}
"""How n proxies of D dimensions start, by name: (n, D)."""

if TYPE_CHECKING:
    ProxyInit = str
else:
    ProxyInit = Literal[tuple(INITS)]


def proxy_init(default: str) -> Any:
    """The field of the start, with a method's own default."""
    return Field(
        default,
        description="how proxies start: randn (/8, /100), kaiming_fan_out (variance 2 / n of n proxies), he_normal "
        "(the same, truncated), kaiming_uniform (up to 1 / sqrt(n)) or uniform (up to 1 / sqrt(D))",
    )


class ProxySettings(MethodConfig):
    """How proxies start and learn.

    Only their directions enter a loss. A step of Adam moves each of their numbers by lr x proxy_lr_multiplier, so it
    turns a proxy by about that over the standard deviation of its start: a multiplier means nothing without it.
    """

    earlier: ClassVar[Mapping[str, Any]] = {"proxy_init": "randn", "proxy_lr_multiplier": 100.0}
    proxy_init: ProxyInit = proxy_init("randn")
    proxy_lr_multiplier: float = Field(100.0, gt=0, description="the proxies' learning rate over the network's")
    proxy_weight_decay: float | None = Field(
        None, ge=0, description="weight decay of the proxies; null: the training's"
    )


PROXY_SETTINGS = tuple(ProxySettings.model_fields)


class Proxies(nn.Module):
    """M proxies per class, drawn as `init` says and normalised at use.

    The optimiser's weight decay is theirs too, unless their own is given. Their gradient is at right angles to each of
    them; decay shortens them, which makes their next steps turn them farther.

    `forward()` -> unit rows (C * M, D), class-major: the proxies of class c are rows c M to (c + 1) M - 1.
    """

    labels: Tensor

    def __init__(self, task: Task, per_class: int, init: str = "randn") -> None:
        super().__init__()
        self.weight = nn.Parameter(INITS[init](task.num_classes * per_class, task.embedding_dim))
        self.register_buffer("labels", torch.arange(task.num_classes).repeat_interleave(per_class))

    def forward(self) -> Tensor:
        return F.normalize(self.weight, dim=-1)

    def similarities(self) -> dict[str, Any]:
        """`proxy_similarity` (N, N), a diagnostic: cosines of the first MATRIX proxies; nothing if there are none."""
        proxies = F.normalize(self.weight.detach()[:MATRIX].float(), dim=-1).cpu()
        return {"proxy_similarity": (proxies @ proxies.T).numpy()} if len(proxies) else {}

    def group(self, lr: float, multiplier: float, weight_decay: float | None = None) -> list[dict[str, Any]]:
        """The optimiser group at `multiplier` times the network's learning rate; `weight_decay`: None for the
        training's."""
        return optimizer_groups([self.weight], lr * multiplier, weight_decay) if len(self.weight) else []


def optimizer_groups(parameters: list[nn.Parameter], lr: float, weight_decay: float | None) -> list[dict[str, Any]]:
    """The optimiser group of these parameters, none without any; `weight_decay`: None for the training's."""
    own = {} if weight_decay is None else {"weight_decay": weight_decay}
    return [{"params": parameters, "lr": lr, **own}] if parameters else []
