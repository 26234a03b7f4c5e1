"""What a kind of batches is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]
    Centres = NDArray[np.float64]

OWN = ("super_classes_per_batch",)
"""The settings that are refused beside batches which do not read them."""


class Settings(Protocol):
    """The settings of a training that batches may read."""

    @property
    def classes_per_batch(self) -> int:
        """P."""

    @property
    def images_per_class(self) -> int:
        """K; a batch has P x K images."""

    @property
    def super_classes_per_batch(self) -> int | None:
        """None: the kind's own."""

    @property
    def seed(self) -> int:
        """Of all that is drawn."""


@dataclass(frozen=True)
class Source:
    """What batches are made of.

    Attributes:
        labels: class of each training image, 0 to C - 1, (N,).
        super_classes: the number of the super-class of each class, (C,); empty if the data set has none.
    """

    labels: "Positions"
    super_classes: tuple[int, ...] = ()


class Sampler(Protocol):
    """Knows nothing of processes: each of them computes the same global batches."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""

    def batches(self, epoch: int, centres: "Centres | None" = None) -> "Positions":
        """Positions among the training images of the epoch's batches, (steps, P K); they depend on the seed, the epoch
        and the centres only. `centres`: the classes' mean embeddings of unit length, (C, D), if the kind reads them."""


@dataclass(frozen=True)
class Batching:
    """A kind of the table.

    Attributes:
        name: as in settings.
        about: what it is, as the setting's description says it.
        build: the sampler of a training; InputError if there can be none.
        reads_labels: it depends on classes, so that it is not for a method that must not see them.
        reads_centres: an epoch's batches depend on the network at its beginning, by the classes' mean embeddings.
        reads: those of OWN that it reads; the others are refused beside it.
    """

    name: str
    about: str
    build: Callable[[Source, Settings], Sampler]
    reads_labels: bool = True
    reads_centres: bool = False
    reads: tuple[str, ...] = ()
