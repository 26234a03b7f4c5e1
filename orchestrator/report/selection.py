"""Lines about the set that a search selects on, and whether it is large enough."""

from collections.abc import Mapping
from typing import Any

from orchestrator.data.measured import Measured
from orchestrator.data.protocol import FOLDS

FEW_CLASSES = 10
"""With fewer held-out classes there is a warning: an interval over so few is wider than trials differ."""
FEW_QUERIES = 100
"""With fewer held-out queries there is one too: one query is then more than a hundredth of recall."""


def selection_text(held_out: Measured) -> str:
    """What a search selects on, and how finely."""
    return (
        f"selection is on {held_out.size_text}: one query is {held_out.one_query:.4f} of recall; chance is "
        f"{held_out.chance_text()}"
    )


def selection_warning(held_out: Measured, settings: Mapping[str, Any], training_classes: int) -> str | None:
    """Why a selection on so little is unreliable, and what would be better; None if it is enough.

    `training_classes` is the number of classes of the training half, held-out ones included.
    """
    few_classes = held_out.classes < FEW_CLASSES and settings.get("protocol") != "classification"
    if settings.get("selection") == "test" or not (few_classes or held_out.queries < FEW_QUERIES):
        return None
    limit = f"fewer than {FEW_CLASSES} classes" if few_classes else f"fewer than {FEW_QUERIES} queries"
    return (
        f"selection is on {held_out.size_text}, {limit}: trials may differ by chance alone; "
        f"{_better(held_out, settings, training_classes)}"
    )


def _better(held_out: Measured, settings: Mapping[str, Any], training_classes: int) -> str:
    share = float(settings.get("validation_share") or 0.0)
    ways, most = [], held_out.classes
    if settings.get("protocol") == "conventional":
        if training_classes >= 2 * FOLDS and training_classes > held_out.classes:
            ways.append(f"--set protocol=mlrc holds out all {training_classes} training classes, in {FOLDS} folds")
            most = training_classes
        if share < 0.5 and (more := round(0.5 * training_classes)) > held_out.classes and training_classes - more >= 2:
            ways.append(f"--set validation_share=0.5 holds out {more}")
            most = max(most, more)
    elif settings.get("protocol") == "classification" and share < 0.5:
        ways.append("--set validation_share=0.5 holds out more images of each class")
    if not ways:
        return "the data set has no more classes to hold out"
    still = settings.get("protocol") == "conventional" and most < FEW_CLASSES
    return "better: " + ", or ".join(ways) + (" (still few: the data set has no more)" if still else "")


def unlike_text(held_out: Measured | None, test: Measured | None) -> str:
    """Why values of the held-out and of the test set must not be compared, where both are shown side by side; empty
    if one of the sets is not known, or they are alike."""
    if held_out is None or test is None or (held_out.classes, held_out.images) == (test.classes, test.images):
        return ""
    return (
        f"Held-out and test values are not of equal difficulty: {held_out.size_text} (chance: "
        f"{held_out.chance_text(('map_at_r',))}) against {test.size_text} (chance: {test.chance_text(('map_at_r',))})."
    )
