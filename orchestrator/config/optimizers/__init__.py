"""The optimisers, each in a file of this folder and a line of the table."""

from orchestrator import parts
from orchestrator.config.optimizers.adam import ADAM, ADAMW
from orchestrator.config.optimizers.base import Optimizer
from orchestrator.text import listed

OPTIMIZERS: dict[str, Optimizer] = {
    optimizer.name: optimizer
    for optimizer in (
        ADAM,
        ADAMW,
    )
}

DESCRIPTION = listed([optimizer.about for optimizer in OPTIMIZERS.values()], ", or ")

ANNOUNCED = parts.names("optimizers", OPTIMIZERS)


def optimizer_of(name: str) -> Optimizer:
    """One of the table, or one that an installed package announces; InputError if that cannot be used."""
    return OPTIMIZERS[name] if name in OPTIMIZERS else parts.load("optimizers", name, Optimizer)
