"""The optimisers, each in a file of this folder and a line of the table."""

from orchestrator import parts
from orchestrator.config.optimizers.adam import ADAM, ADAMW
from orchestrator.config.optimizers.base import OWN, Optimizer
from orchestrator.config.optimizers.sgd import NESTEROV, RMSPROP, SGD
from orchestrator.config.optimizers.timm import ADAMP, LION
from orchestrator.text import join_names

OPTIMIZERS: dict[str, Optimizer] = {
    optimizer.name: optimizer
    for optimizer in (
        ADAM,
        ADAMW,
        SGD,
        NESTEROV,
        RMSPROP,
        LION,
        ADAMP,
    )
}

DESCRIPTION = join_names([optimizer.about for optimizer in OPTIMIZERS.values()], ", or ")

READ_BY = {key: [name for name, optimizer in OPTIMIZERS.items() if key in optimizer.reads] for key in OWN}
"""Which optimisers of the table read a setting that not all do."""

ANNOUNCED = parts.names("optimizers", OPTIMIZERS)


def optimizer_of(name: str) -> Optimizer:
    """One of the table, or one that an installed package announces; InputError if that cannot be used."""
    return OPTIMIZERS[name] if name in OPTIMIZERS else parts.load_part("optimizers", name, Optimizer)
