"""The optimisers, each in a file of this folder and a line of the table."""

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
