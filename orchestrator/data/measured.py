"""The sets that numbers are measured on: how many classes, images and queries, and the chance levels there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from orchestrator.errors import DataError
from orchestrator.evaluation.measures import HEADLINES
from orchestrator.evaluation.measures.recall import DEFAULT_RECALL_AT, RECALL_AT
from orchestrator.text import pluralize

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from orchestrator.data.splits import Split
    from orchestrator.data.store import Store


@dataclass(frozen=True)
class Measured:
    """A set that numbers are measured on; for a training over folds, all its held-out sets together."""

    classes: int
    images: int
    queries: int
    """Queries that have an image of their class in the gallery."""
    chance: Mapping[str, float] = field(default_factory=dict)
    """By the name of the metric, without the part before its slash."""
    folds: int = 1
    one_query: float = 0.0
    """The weight of one query in a recall: the smallest difference that two values can have."""
    query_classes: int | None = None
    """Classes that these queries are of; None if all have some, or it is not known."""
    without_match: int = 0
    """Images that would be queries, but have none of their class in the gallery: they are left out."""

    @classmethod
    def of(
        cls, store: "Store", parts: "Sequence[NDArray[np.int64]]", recall_at: Sequence[int] = DEFAULT_RECALL_AT
    ) -> "Measured | None":
        """From the rows of each fold (or of the only set); None if one of them has no query."""
        import numpy as np

        from orchestrator.evaluation.chance import chance_levels, chance_of_clusters

        levels, queries, lonely = [], [], 0
        of_queries: set[int] = set()
        for rows in parts:
            labels, apart = store.labels[rows].astype(np.int64), store.splits[rows] == "query"
            both = bool(apart.any() and not apart.all())  # otherwise each is searched for among all
            query_labels, among = (labels[apart], labels[~apart]) if both else (labels, labels)
            relevant = np.bincount(among, minlength=int(labels.max(initial=0)) + 1)[query_labels] - (not both)
            if not (relevant > 0).any():
                return None
            ranking = chance_levels(relevant, len(among) - (not both), recall_at)
            levels.append(ranking | chance_of_clusters(query_labels))
            queries.append(int((relevant > 0).sum()))
            lonely += int((relevant <= 0).sum())
            of_queries |= set(query_labels[relevant > 0].tolist())
        classes = len(np.unique(store.labels[np.concatenate(parts)])) if parts else 0
        return cls(
            classes=classes,
            images=sum(map(len, parts)),
            queries=sum(queries),
            chance={name: fmean(level[name] for level in levels) for name in levels[0]} if levels else {},
            folds=len(parts),
            query_classes=None if len(of_queries) == classes else len(of_queries),
            without_match=lonely,
            one_query=max(1 / count for count in queries) / len(parts) if parts else 0.0,
        )

    @classmethod
    def read(cls, recorded: Any) -> "Measured | None":
        """Read what `plain` wrote; None if it is missing or does not have this form."""
        try:
            return None if not recorded else cls(**recorded)
        except TypeError:
            return None

    @property
    def plain(self) -> dict[str, Any]:
        """Plain values, for a journal and for JSON."""
        return {
            "classes": self.classes,
            "images": self.images,
            "queries": self.queries,
            "chance": dict(self.chance),
            "folds": self.folds,
            "one_query": self.one_query,
            **({} if self.query_classes is None else {"query_classes": self.query_classes}),
            **({"without_match": self.without_match} if self.without_match else {}),
        }

    @property
    def size_text(self) -> str:
        """`12 classes with 384 images`, `8 classes with 80 images in 4 folds`; where not every image is a query,
        `2 classes with 6 queries (of 10 classes with 14 images)`"""
        folds = f" in {self.folds} folds" if self.folds > 1 else ""
        whole = f"{pluralize(self.classes, 'class', 'classes')} with {pluralize(self.images, 'image')}"
        if self.query_classes is None and not self.without_match:
            return f"{whole}{folds}"
        classes = self.classes if self.query_classes is None else self.query_classes
        queries = f"{pluralize(classes, 'class', 'classes')} with {pluralize(self.queries, 'query', 'queries')}"
        return f"{queries} (of {whole}){folds}"

    @property
    def text_with_queries(self) -> str:
        """The same, with the number of queries also where every image is one."""
        whole = self.query_classes is None and not self.without_match and self.queries == self.images
        return f"{self.size_text}, each a query" if whole else self.size_text

    def chance_text(self, names: Sequence[str] = HEADLINES) -> str:
        """`map_at_r 0.0412, recall_at_1 0.0809`"""
        return ", ".join(f"{name} {self.chance[name]:.4f}" for name in names if name in self.chance)


def lonely_images(measured: Measured | None) -> str:
    """Which images have nothing to find, or that all have nothing else to find; "" if neither is so."""
    if measured is None:
        return ""
    if measured.classes == 1:
        return "all images are of one class: whatever the model, every neighbour is right and every metric is 1"
    if not measured.without_match:
        return ""
    count = measured.without_match
    return (
        f"{pluralize(count, 'image has', 'images have')} no other of the class to be found, and no part in the numbers"
    )


def measurable(store: "Store", rows: "NDArray[np.int64]", what: str) -> "NDArray[np.int64]":
    """These rows. DataError if no image of them (the `what`) has another of its class to be found."""
    if Measured.of(store, [rows]) is None:
        raise nothing_to_find(store.name, what)
    return rows


def nothing_to_find(dataset: str, what: str) -> DataError:
    """The error for images of which none has another of its class to be found."""
    return DataError(
        f"{dataset}: no image of the {what} has another of its class to be found: there is nothing to measure; give "
        "classes of two images or more"
    )


def told_at(dataset: str) -> Sequence[int]:
    """The k of a test's recall@k on this data set."""
    return RECALL_AT.get(dataset, DEFAULT_RECALL_AT)


def sizes(store: "Store", splits: "Sequence[Split]") -> dict[str, Any]:
    """What a search's numbers are measured on, for its journal: the held-out set (None if nothing is held out) and the
    test set of its first point; and its training set, the largest one if there are several folds."""
    import numpy as np

    from orchestrator.data.remarks import remarks

    held_out = [split.validation for split in splits if len(split.validation)]
    validation = Measured.of(store, held_out) if held_out else None
    test = Measured.of(store, [splits[0].test], told_at(store.name)) if len(splits[0].test) else None
    half = np.union1d(splits[0].train_classes, splits[0].validation_classes)
    return {
        "validation": validation and validation.plain,
        "test": test and test.plain,
        "training_classes": len(half),
        "training_images": max(len(split.train) for split in splits),
        **({"remarks": lines} if (lines := remarks(store)) else {}),
    }
