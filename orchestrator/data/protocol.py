"""How a training goes through its data: folds, and steps of an epoch."""

FOLDS = 4
"""Folds of the protocol `mlrc`."""


def steps_per_epoch(images: int, batch: int) -> int:
    """Whole batches among this many images; at least one, in which images repeat."""
    return max(1, images // batch)
