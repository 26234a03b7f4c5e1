"""What the table of backbones says of each. Their files import torch only where a network is built: settings are
checked by the table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from orchestrator.errors import InputError
from orchestrator.networks.backbones.colours import InputConvention
from orchestrator.problems import Problem

if TYPE_CHECKING:
    from torch import Tensor

    from orchestrator.networks.backbones.network import Backbone

Pooling = Literal["average", "max", "average+max", "token"]
"""Over the places of the feature maps: mean, largest, their sum; or a vision transformer's class token."""

LayerNorm = Literal["features", "embedding"]
"""Of the pooled features, before the linear layers, or of the embedding, before its method normalises it."""
HeadInit = Literal["orthogonal", "kaiming"]
"""Of the embedding layer's weights, beside a bias of zero: an orthogonal matrix, or He's normal one by its outputs."""


@dataclass(frozen=True)
class Architecture:
    """A backbone of the table.

    Attributes:
        name: as in settings.
        about: what it is, in a line.
        build: the network with random weights, for images of so many channels; `class_token`: return only that token.
        pretrained: its own weights, by name; None: it trains from scratch.
        has_tokens: it may have a class token.
        convention: how it takes colours where nothing else is asked for.
        patch: the side of the patches that it divides images into, in pixels; None: it has none, or that is not known
            before the network is built.
        rename: weights of a file or a package, and the network's names in order -> the weights under these names; for
            published files that have other names.
    """

    name: str
    about: str
    build: Callable[[int, bool], "Backbone"]
    pretrained: "Callable[[], dict[str, Tensor]] | None" = None
    has_tokens: bool = False
    convention: InputConvention = "default"
    patch: int | None = None
    rename: "Callable[[dict[str, Tensor], Sequence[str]], dict[str, Tensor]] | None" = None


def no_class_token(name: str) -> InputError:
    """The error for `pooling=token` on a network that cannot do it."""
    return InputError(f"pooling: 'token' needs a class token, which {name} does not have: average, max or average+max")


def not_whole(size: int, name: str, patch: int) -> Problem:
    """The problem of images that do not consist of whole patches."""
    below = size // patch * patch
    fit = " or ".join(str(side) for side in (below, below + patch) if side)
    rule = f"backbone: {name} takes multiples of its patches of {patch} pixels: {fit}"
    return Problem(("image_size",), size, rule)


def not_to_be_had(name: str, source: str, error: Exception) -> InputError:
    """The error for pretrained weights that could not be fetched."""
    reason = (str(error) or type(error).__name__).splitlines()[0][:120].strip()
    rule = f"the pretrained weights of {name} could not be fetched from {source} ({reason})"
    advice = ": give a local state-dict file (weights=/path/to/file.pth) or ask for random ones (weights=random)"
    return InputError(Problem(("weights",), rule=rule, advice=advice))
