"""Defaults that depend on the data set, unless a file, a preset or an option sets them.

The plain defaults are those of the drawn data sets: small images of one size, and hundreds of classes. A folder
of a user's own photographs has neither.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.config.search import Search
from orchestrator.config.training import Training
from orchestrator.data.augmentations.crops import check_cut
from orchestrator.data.store import Store
from orchestrator.errors import InputError
from orchestrator.training.splits import data_splits

PHOTOGRAPHS = "random_crop_224"
DRAWN_SIDE = 128
"""Images of one size count as drawings if their shorter side has at most this many pixels."""


def suit_defaults(search: Search, store: Store) -> tuple[Search, dict[str, str]]:
    """The search with the defaults adapted to its data set, and the reason for each such setting.

    `augmentation`: a crop if images differ in size or are larger than drawings. `classes_per_batch`: all training
    classes if there are fewer than the default. Settings that are given or searched are kept. Raises InputError if the
    classes cannot be split as the settings require.
    """
    set_keys = search.settings.keys() | {parameter.key for parameter in search.parameters()}
    changes: dict[str, Any] = {}
    because: dict[str, str] = {}
    if "augmentation" not in set_keys and (what := photograph_sign(store)) is not None:
        changes["augmentation"] = PHOTOGRAPHS
        because["augmentation"] = f"{store.name} has {what}"
    if "classes_per_batch" not in set_keys:
        training = search.example().training
        classes = min(len(split.train_classes) for split in data_splits(training, store))
        default: int = Training.model_fields["classes_per_batch"].default
        if classes < default:
            changes["classes_per_batch"] = classes
            held_out = ", besides those held out" if training.validation_share else ""
            because["classes_per_batch"] = f"{store.name} has {classes} classes to train on{held_out}"
    suited_search = search.model_copy(update={"settings": {**search.settings, **changes}}) if changes else search
    training = suited_search.example().training
    try:
        check_cut(training.image_size, training.augmentation)
    except ValueError as error:
        raise InputError(f"{error} ({store.name} is of drawings)") from None
    return suited_search, because


def photograph_sign(store: Store) -> str | None:
    """The sign that a data set's images are photographs; None if they are drawings, or their kind is unknown."""
    sizes = _sizes(store)
    if sizes is None or not len(sizes):
        return None
    kinds = len(np.unique(sizes, axis=0))
    if kinds > 1:
        return f"images of {kinds:,} sizes"
    if sizes[0].min() > DRAWN_SIDE:
        return f"images of {sizes[0, 0]} x {sizes[0, 1]} pixels"
    return None


def _sizes(store: Store) -> NDArray[np.int64] | None:
    """Width and height of the stored images, (N, 2); None if no importer recorded them."""
    try:
        original = store.column("original_size").astype(np.int64)
    except ValueError:
        return None
    shorter, size = original.min(axis=1, keepdims=True), store.manifest["settings"].get("size")
    if size is None:
        return original
    return np.where(shorter <= size, original, np.round(original * size / shorter).astype(np.int64))
