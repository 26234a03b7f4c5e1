"""What a number is held against: the size of the set that it is of, chance, the network before its training.

Letters behind array names: Q queries.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.data.splits import FOLDS, Split
from orchestrator.data.store import Store
from orchestrator.ledger import counted

Integers = NDArray[np.int64]

RECALL_AT = (1, 2, 4, 8)
"""The k of a validation's recall@k."""
DEPTH = 1000
"""Of the mean average precision."""
FEW_CLASSES = 10
"""With fewer held-out classes a selection is warned of: an interval over so few is wider than trials differ."""
FEW_QUERIES = 100
"""With fewer held-out queries it is too: one query is then more than a hundredth of recall."""
SHAPING = (
    *("protocol", "selection", "validation_share", "class_subset", "seed"),
    *("backbone", "weights", "weights_sha256", "embedding_dim", "pooling", "input_convention", "augmentation"),
    "method",
)
"""The settings that the score of an untrained network depends on, beside the data: of the split, of the network, and
the method, which says whether embeddings are normalised and draws from the same seed."""


def chance_levels(
    relevant_Q: Sequence[int] | Integers,
    gallery: int,
    recall_at: Sequence[int] = RECALL_AT,
) -> dict[str, float]:
    """The exact expected value of each retrieval metric if the gallery's n items were ranked at random.

    With R items of the query's class among n, place j is right with probability R / n, and given that, each other place
    with (R - 1) / (n - 1), so that E[precision@j | j is right] = (1 + (j - 1)(R - 1) / (n - 1)) / j. With
    H_K = 1 + 1/2 + ... + 1/K, the expected sum of the precisions at the right places up to K is
    S_K = (R / n) (H_K + (R - 1) / (n - 1) (K - H_K)). Then

        recall@k = 1 - C(n - R, k) / C(n, k),   R-precision = R / n,   MAP@R = S_R / R,
        mAP@1000 = S_min(1000, n) / min(R, 1000),

    each the mean over the queries with R > 0. Clusters are no ranking: of those there is no such level.

    Args:
        relevant_Q: (Q,) R of each query, without itself.
        gallery: n, without the query itself where the queries are the gallery.
        recall_at: the k of each `recall_at_<k>`; clipped to n.

    Raises:
        ValueError: no query has R > 0, or one has more than n.
    """
    sizes, times = np.unique(np.asarray(relevant_Q, np.int64), return_counts=True)
    sizes, times = sizes[sizes > 0], times[sizes > 0]
    if not len(sizes) or sizes.max() > gallery:
        raise ValueError(f"relevant: need numbers up to the gallery's {gallery}, one above 0")
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, max(int(sizes.max()), DEPTH) + 1))])
    levels: dict[str, list[float]] = {}
    for size in sizes.tolist():
        again = (size - 1) / (gallery - 1) if gallery > 1 else 0.0
        depth = min(DEPTH, gallery)

        def expected(places: int, size: int = size, again: float = again) -> float:
            return size / gallery * float(harmonic[places] + again * (places - harmonic[places]))

        found = {f"recall_at_{k}": 1 - _no_hit(size, gallery, min(k, gallery)) for k in recall_at}
        found["r_precision"] = size / gallery
        found["map_at_r"] = expected(size) / size
        found["mean_average_precision_at_1000"] = expected(depth) / min(size, DEPTH)
        for name, value in found.items():
            levels.setdefault(name, []).append(value)
    return {name: float(np.average(values, weights=times)) for name, values in levels.items()}


def _no_hit(size: int, gallery: int, k: int) -> float:
    """C(n - R, k) / C(n, k): that none of k items is among the R."""
    missed = 1.0
    for place in range(k):
        missed *= max(0, gallery - size - place) / (gallery - place)
    return missed


@dataclass(frozen=True)
class Measured:
    """A set that numbers are of; of a training over folds, all its held-out sets together."""

    classes: int
    images: int
    queries: int
    """Those that have an image of their class in the gallery."""
    chance: Mapping[str, float] = field(default_factory=dict)
    """By the name of the metric, without what stands before its slash."""
    folds: int = 1
    one_query: float = 0.0
    """What one query is worth in a recall: the least by which two values can differ."""

    @classmethod
    def of(
        cls, store: Store, parts: Sequence[NDArray[np.int64]], recall_at: Sequence[int] = RECALL_AT
    ) -> "Measured | None":
        """Of the rows of each fold (or of the only set); None if one of them holds no query."""
        levels, queries = [], []
        for rows in parts:
            labels, apart = store.labels[rows].astype(np.int64), store.splits[rows] == "query"
            both = bool(apart.any() and not apart.all())  # else each is searched for among all
            asked, among = (labels[apart], labels[~apart]) if both else (labels, labels)
            relevant = np.bincount(among, minlength=int(labels.max(initial=0)) + 1)[asked] - (not both)
            if not (relevant > 0).any():
                return None
            levels.append(chance_levels(relevant, len(among) - (not both), recall_at))
            queries.append(int((relevant > 0).sum()))
        return cls(
            classes=len(np.unique(store.labels[np.concatenate(parts)])) if parts else 0,
            images=sum(map(len, parts)),
            queries=sum(queries),
            chance={name: fmean(level[name] for level in levels) for name in levels[0]} if levels else {},
            folds=len(parts),
            one_query=max(1 / count for count in queries) / len(parts) if parts else 0.0,
        )

    @classmethod
    def read(cls, recorded: Any) -> "Measured | None":
        """What `plain` wrote; None if it is not there, or not of this form."""
        try:
            return None if not recorded else cls(**recorded)
        except TypeError:
            return None

    @property
    def plain(self) -> dict[str, Any]:
        """For a journal, and for JSON."""
        return {
            "classes": self.classes,
            "images": self.images,
            "queries": self.queries,
            "chance": dict(self.chance),
            "folds": self.folds,
            "one_query": self.one_query,
        }

    @property
    def size_text(self) -> str:
        """`12 classes with 384 images`, `8 classes with 80 images in 4 folds`"""
        folds = f" in {self.folds} folds" if self.folds > 1 else ""
        return f"{counted(self.classes, 'class', 'classes')} with {counted(self.images, 'image')}{folds}"

    def chance_text(self, names: Sequence[str] = ("map_at_r", "recall_at_1")) -> str:
        """`map_at_r 0.0412, recall_at_1 0.0809`"""
        return ", ".join(f"{name} {self.chance[name]:.4f}" for name in names if name in self.chance)


def told_at(dataset: str) -> Sequence[int]:
    """The k of a test's recall@k on this data set."""
    from orchestrator.evaluation import RECALL_AT as known

    return known.get(dataset, RECALL_AT)


def sizes(store: Store, splits: Sequence[Split]) -> dict[str, Any]:
    """What a search's numbers are of, for its journal: the held-out set (None where nothing is held out) and the test
    set of its first point; and what it learns from, of several folds the largest."""
    held_out = [split.validation for split in splits if len(split.validation)]
    validation = Measured.of(store, held_out) if held_out else None
    test = Measured.of(store, [splits[0].test], told_at(store.name)) if len(splits[0].test) else None
    half = np.union1d(splits[0].train_classes, splits[0].validation_classes)
    return {
        "validation": validation and validation.plain,
        "test": test and test.plain,
        "training_classes": len(half),
        "training_images": max(len(split.train) for split in splits),
    }


def untrained_key(settings: Mapping[str, Any], digest: str) -> str:
    """What names the score of a network before its training: a hash of the data and of what shapes it (`SHAPING`)."""
    shaped = {name: settings.get(name) for name in SHAPING}
    return hashlib.sha256(json.dumps([1, digest, shaped], sort_keys=True, default=str).encode()).hexdigest()[:24]


# What is said of a selection ----------------------------------------------------------------------------------


def selection_text(held_out: Measured) -> str:
    """What a search selects on, and how finely."""
    return (
        f"selection is on {held_out.size_text}: one query is {held_out.one_query:.4f} of recall; chance is "
        f"{held_out.chance_text()}"
    )


def selection_warning(held_out: Measured, settings: Mapping[str, Any], training_classes: int) -> str | None:
    """Why a selection on so little is little worth, and what would be better; None where it is enough.

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
    """Why values of the held-out and of the test set are not to be compared, where both stand side by side; empty
    where one of the sets is not known, or they are alike."""
    if held_out is None or test is None or (held_out.classes, held_out.images) == (test.classes, test.images):
        return ""
    return (
        f"Held-out and test values are not of equal difficulty: {held_out.size_text} (chance: "
        f"{held_out.chance_text(('map_at_r',))}) against {test.size_text} (chance: {test.chance_text(('map_at_r',))})."
    )
