"""The kinds of batches, each in a file of this folder and a line of the table."""

from orchestrator.data.batches.base import OWN, Batching
from orchestrator.data.batches.class_balanced import CLASS_BALANCED
from orchestrator.data.batches.hard_classes import HARD_CLASSES
from orchestrator.data.batches.hierarchical import HIERARCHICAL
from orchestrator.data.batches.shuffled import SHUFFLED

BATCHES: dict[str, Batching] = {
    kind.name: kind
    for kind in (
        CLASS_BALANCED,
        SHUFFLED,
        HIERARCHICAL,
        HARD_CLASSES,
    )
}

DESCRIPTION = "; ".join(f"{kind.name}: {kind.about}" for kind in BATCHES.values())

READ_BY = {key: [name for name, kind in BATCHES.items() if key in kind.reads] for key in OWN}
"""Which kinds read a setting that not all do."""
