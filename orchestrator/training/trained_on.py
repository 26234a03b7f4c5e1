"""The pictures and classes that a model was trained or selected on, and which of a data set's they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orchestrator.data.store import Store

NAMED = 5


def trained_on(store: Store, parts: Sequence[NDArray[np.int64]]) -> dict[str, Any]:
    """For a model's file: the names of the classes of these rows, and the first 64 bits of their pictures' digests,
    (N,) int64, ascending; none if the data set does not know these."""
    rows = np.concatenate(parts)
    pictures = _digests(store, rows)
    return {
        "dataset": store.name,
        "classes": [store.class_names[label] for label in np.unique(store.labels[rows])],
        "pictures": torch.from_numpy(np.unique(pictures)),
    }


def _digests(store: Store, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    if "content" not in store.columns:
        return np.empty(0, np.int64)
    contents = store.column("content")[rows]
    return np.array([int(content[:16], 16) for content in contents], np.uint64).view(np.int64)


@dataclass(frozen=True)
class Overlap:
    """Test classes that a model has seen: their names, and the rows of the others; how many of the pictures it has
    seen, of all classes."""

    classes: list[str]
    unseen: NDArray[np.int64]
    pictures: int
    tested: int

    def __str__(self) -> str:
        names = ", ".join(self.classes[:NAMED]) + (
            f" and {len(self.classes) - NAMED} more" if len(self.classes) > NAMED else ""
        )
        which = f" ({names})" if self.classes else ""
        return (
            f"{len(self.classes)} of {self.tested} test classes{which} and {self.pictures} test images are among those "
            "that the model was trained or selected on"
        )


def overlap(models: Sequence[Mapping[str, Any]], store: Store, rows: NDArray[np.int64]) -> Overlap | None:
    """What these models have seen of the rows to be tested; None if nothing, or if they are of an earlier version.

    A class is seen if one of its pictures is, or if the data set is the models' own (by its digest or its name) and
    they were trained on a class of that name.
    """
    labels, digests = store.labels[rows], _digests(store, rows)
    is_trained = np.zeros(len(rows), bool)
    names: set[str] = set()
    for saved in models:
        trained = saved.get("trained_on")
        if not trained:
            continue
        if len(digests):
            is_trained |= np.isin(digests, np.asarray(trained["pictures"]))
        if store.name == trained["dataset"] or saved.get("dataset_digest") == store.manifest["digest"]:
            names |= set(trained["classes"])
    trained_labels = set(labels[is_trained].tolist()) | {
        label for label in np.unique(labels).tolist() if store.class_names[label] in names
    }
    if not trained_labels:
        return None
    classes = [store.class_names[label] for label in sorted(trained_labels)]
    unseen = rows[~np.isin(labels, list(trained_labels))]
    return Overlap(classes, unseen, int(is_trained.sum()), len(np.unique(labels)))
