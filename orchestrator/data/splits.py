"""Class-disjoint splits: no class is in two of training, validation and test."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from orchestrator.data.protocol import FOLDS
from orchestrator.data.store import Store
from orchestrator.errors import DataError, InputError
from orchestrator.text import pluralize

OWN = ("folder", "csv")
"""The importers of images of one's own."""

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """Row indices of a store, ascending, and the official ids of the classes they belong to, ascending.

    Where a set has a query and a gallery part, `test` holds both and `store.splits` tells them apart.
    """

    train: Rows
    validation: Rows
    test: Rows
    train_classes: Rows
    validation_classes: Rows
    test_classes: Rows


def class_split(store: Store, *, validation_share: float, seed: int, class_subset: int | None = None) -> Split:
    """Split a store into training, validation and test classes.

    The store's own split is taken if no class is on both of its sides; otherwise the first half of the classes, in
    the data set's order, is for training and the second half for testing. Validation classes are held out of the
    *training* half, a share of its classes rounded, at least two, drawn by `seed`; with a share of 0 there are none.
    `class_subset`: use only this many classes of each half, the first in the data set's order.

    Raises DataError if the share is not in [0, 1) or leaves fewer than two classes to train on, and if a half has fewer
    classes than `class_subset`.
    """
    if not 0 <= validation_share < 1:
        raise DataError(f"validation_share is {validation_share}; it should be at least 0 and below 1")
    if problem := too_few_classes(store):
        raise DataError(problem)
    training_half, test_classes = _halves(store, class_subset)
    held_out = max(2, round(validation_share * len(training_half))) if validation_share else 0
    if len(training_half) - held_out < 2:
        remedy = "take a smaller share" if held_out > 2 else "take 0, or more classes: 4 training classes are the least"
        raise DataError(
            f"{store.name}: validation_share {validation_share} holds out {held_out} of {len(training_half)} training "
            f"classes (at least 2, unless it is 0) and leaves fewer than 2 to train on; {remedy}"
        )
    shuffled = np.random.default_rng(seed).permutation(training_half)
    return _split(store, np.sort(shuffled[held_out:]), np.sort(shuffled[:held_out]), test_classes)


def rows_for_testing(store: Store) -> Rows:
    """The images of a store's test classes, as in `class_split`, even if nothing could be trained on."""
    return _rows(store, _halves(store, None)[1])


def class_folds(store: Store, *, class_subset: int | None = None) -> list[Split]:
    """The four folds of MLRC: consecutive ranges of the training classes, in the data set's order, are held out in
    turn, so that each training class is held out exactly once.

    `class_subset` as in `class_split`. Raises DataError if a fold would hold out fewer than two classes.
    """
    training_half, test_classes = _halves(store, class_subset)
    if len(training_half) < 2 * FOLDS:
        raise DataError(
            f"{store.name}: {len(training_half)} training classes are too few for {FOLDS} folds; "
            f"they need {2 * FOLDS}, or take protocol: conventional"
        )
    ranges = np.array_split(training_half, FOLDS)
    return [_split(store, np.setdiff1d(training_half, part), part, test_classes) for part in ranges]


def class_groups(store: Store, sizes: Sequence[int]) -> list[Rows]:
    """All rows of consecutive groups of classes by their index: the first `sizes[0]` classes, the next `sizes[1]`, ...

    Classes beyond the last group are in none. Raises DataError if a group has fewer than two classes, or all together
    have more than the store.
    """
    if not sizes or min(sizes) < 2:
        raise DataError(f"groups of {', '.join(map(str, sizes)) or 'no'} classes: each needs 2 at least")
    if sum(sizes) > store.num_classes:
        raise DataError(f"the groups have {sum(sizes)} classes, {store.name} has {store.num_classes}")
    ends = np.cumsum([0, *sizes])
    return [_rows(store, np.arange(first, end)) for first, end in pairwise(ends)]


def unused_split(store: Store) -> str | None:
    """Why a store's own split is not used, in one line; None if it is, if there is none, or if it is a benchmark's that
    divides the images of every class, for classification."""
    is_train = store.splits == "train"
    training, others = np.unique(store.labels[is_train]), np.unique(store.labels[~is_train])
    both = np.intersect1d(training, others)
    if is_train.all() or (len(training) and not len(both)):
        return None
    if len(both) == store.num_classes:
        if store.manifest.get("settings", {}).get("importer") not in OWN:
            return None
        return (
            f"{store.name}: its own split divides the images of every class, and is used by protocol=classification "
            "only: else the first half of the classes trains, the other tests"
        )
    reason = (
        f"{len(both)} of {store.num_classes} classes are on both sides" if len(training) else "no class is for training"
    )
    return f"{store.name}: its own split is not used ({reason}): the first half of the classes trains, the other tests"


def too_few_classes(store: Store) -> str | None:
    """Why a data set cannot be trained on, in one line; None if it can. Its images may still be used for testing."""
    classes = len(_halves(store, None)[0])
    if classes >= 2:
        return None
    otherwise = ", or trained on with protocol=classification" if _divides_each_class(store) else ""
    return (
        f"{store.name}: cannot be trained on: it needs 2 classes for training, and has {classes} of "
        f"{pluralize(store.num_classes, 'class', 'classes')} (without a split of its own the first half of the classes "
        f"trains: 4 classes are the least, or 8 if some are held out for selection); it can be tested on{otherwise}"
    )


def image_split(store: Store, *, validation_share: float, seed: int, class_subset: int | None = None) -> Split:
    """Train on all classes, on the data set's own training images; test on the others. Of each class, a share of the
    training images drawn by `seed`, at least two, is held out; with a share of 0 none is.

    Raises InputError if a class has no image on one of the sides, or the share leaves it none to train on.
    """
    is_train = store.splits == "train"
    classes = np.unique(store.labels[is_train])
    if not _divides_each_class(store):
        raise InputError(
            f"protocol: 'classification': the data set {store.name} has no training and test images of every class: "
            "take protocol: conventional"
        )
    if class_subset is not None and class_subset > len(classes):
        raise InputError(f"class_subset: {class_subset}: {store.name} has {len(classes)} classes; give fewer")
    classes = classes[:class_subset]
    rng = np.random.default_rng(seed)
    held_out: list[Rows] = [np.empty(0, np.int64)]
    for label in classes if validation_share else ():
        members = rng.permutation(np.flatnonzero(is_train & (store.labels == label)))
        count = max(2, round(validation_share * len(members)))
        if count >= len(members):
            raise InputError(
                f"validation_share: {validation_share:g} holds out {count} of the {len(members)} training images of "
                f"class {store.class_names[label]!r} (at least 2, unless it is 0); take a smaller share or 0"
            )
        held_out.append(members[:count])
    in_classes, validation = np.isin(store.labels, classes), np.sort(np.concatenate(held_out))
    return Split(
        train=np.setdiff1d(np.flatnonzero(is_train & in_classes), validation),
        validation=validation,
        test=np.flatnonzero(~is_train & in_classes),
        train_classes=classes,
        validation_classes=classes if validation_share else classes[:0],
        test_classes=classes,
    )


def _divides_each_class(store: Store) -> bool:
    """Whether a store's own split has training and other images of every class."""
    is_train = store.splits == "train"
    classes = np.unique(store.labels[is_train])
    return bool(len(classes)) and np.array_equal(classes, np.unique(store.labels[~is_train]))


def _halves(store: Store, class_subset: int | None) -> tuple[Rows, Rows]:
    """The training classes and the test classes, ascending."""
    training_half, test_classes = halves(store.labels, store.splits, store.num_classes)
    if class_subset is None:
        return training_half, test_classes
    fewest = min(len(training_half), len(test_classes))
    if not 2 <= class_subset <= fewest:
        raise DataError(
            f"{store.name}: class_subset is {class_subset}, but there are {len(training_half)} training and "
            f"{len(test_classes)} test classes; give a number from 2 to {fewest}, or null"
        )
    return training_half[:class_subset], test_classes[:class_subset]


def halves(labels: NDArray[np.int64], splits: NDArray[np.str_], num_classes: int) -> tuple[Rows, Rows]:
    """The training classes and the test classes of images with these labels and splits, ascending."""
    is_train = splits == "train"
    training_half, test_classes = np.unique(labels[is_train]), np.unique(labels[~is_train])
    if not len(training_half) or not len(test_classes) or len(np.intersect1d(training_half, test_classes)):
        training_half, test_classes = np.split(np.arange(num_classes), [num_classes // 2])
    return training_half, test_classes


def _split(store: Store, train_classes: Rows, validation_classes: Rows, test_classes: Rows) -> Split:
    return Split(
        train=_rows(store, train_classes),
        validation=_rows(store, validation_classes),
        test=_rows(store, test_classes),
        train_classes=train_classes,
        validation_classes=validation_classes,
        test_classes=test_classes,
    )


def train_labels(store: Store, rows: Rows) -> NDArray[np.int64]:
    """Labels of `rows` renumbered 0 to C - 1 in the order of the official ids; (N,) int64."""
    return np.unique(store.labels[rows], return_inverse=True)[1].astype(np.int64)


def super_classes(store: Store, rows: Rows) -> tuple[int, ...]:
    """The super-class of each class of `rows`, as `train_labels` numbers them, that of its first image; empty if the
    data set has none."""
    if "super_class" not in store.columns:
        return ()
    first = np.unique(store.labels[rows], return_index=True)[1]
    return tuple(int(number) for number in store.column("super_class")[rows[first]])


def share_of_each_class(labels: NDArray[np.int64], share: float, *, seed: int) -> NDArray[np.bool_]:
    """Which images, (N,), are a random share of their class, rounded; at least one of each class is not."""
    order = np.random.default_rng(seed).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    _, first, sizes = np.unique(labels[by_class], return_index=True, return_counts=True)
    place = np.arange(len(labels)) - np.repeat(first, sizes)
    mask = np.zeros(len(labels), bool)
    mask[by_class] = place < np.repeat(np.minimum(np.rint(share * sizes), sizes - 1), sizes)
    return mask


def noisy_labels(labels: NDArray[np.int64], *, share: float, seed: int) -> NDArray[np.int64]:
    """Labels of which a share, rounded to a whole number, is replaced by another class drawn uniformly; (N,) int64.

    `labels`: 0 to C - 1, each at least once. One image of every class, also drawn, is never chosen, so that no class
    loses all its images. Raises DataError if the share is not in [0, 1), or asks for more images than can be chosen.
    """
    if not 0 <= share < 1:
        raise DataError(f"label_noise is {share}; it should be at least 0 and below 1")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    unchanged = order[np.unique(labels[order], return_index=True)[1]]
    changed = order[~np.isin(order, unchanged)][: round(share * len(labels))]
    if len(changed) < round(share * len(labels)):
        raise DataError(
            f"label_noise is {share}, but {len(unchanged)} of {len(labels)} training images keep their label, one of "
            "each class; "
            f"give {(len(labels) - len(unchanged)) / len(labels):.2f} or less"
        )
    noisy = labels.copy()
    others = rng.integers(1, len(unchanged), size=len(changed)) if len(changed) else 0
    noisy[changed] = (labels[changed] + others) % len(unchanged)
    return noisy


def _rows(store: Store, classes: Rows) -> Rows:
    return np.flatnonzero(np.isin(store.labels, classes)).astype(np.int64)
