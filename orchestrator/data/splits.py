"""Class-disjoint splits: no class is in two of training, validation and test."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.data.store import DataError, Store

Rows = NDArray[np.int64]
FOLDS = 4
"""Folds of the protocol `mlrc`."""


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


def class_split(store: Store, *, validation_share: float, seed: int) -> Split:
    """Split a store into training, validation and test classes.

    The store's own split is taken if no class is on both of its sides; otherwise the first half of the classes, in
    the data set's order, is for training and the second half for testing. Validation classes are held out of the
    *training* half, a share of its classes rounded, at least two, drawn by `seed`; with a share of 0 there are none.

    Raises DataError if the share is not in [0, 1) or leaves fewer than two classes to train on.
    """
    if not 0 <= validation_share < 1:
        raise DataError(f"validation_share is {validation_share}, not at least 0 and below 1")
    training_half, test_classes = _halves(store)
    held_out = max(2, round(validation_share * len(training_half))) if validation_share else 0
    if len(training_half) - held_out < 2:
        raise DataError(
            f"{store.name}: validation_share {validation_share} holds out {held_out} of {len(training_half)} training "
            "classes and leaves fewer than 2 to train on; take a smaller share"
        )
    shuffled = np.random.default_rng(seed).permutation(training_half)
    return _split(store, np.sort(shuffled[held_out:]), np.sort(shuffled[:held_out]), test_classes)


def protocol_splits(store: Store, *, protocol: str, validation_share: float, seed: int) -> list[Split]:
    """The split of the `conventional` protocol, or the folds of `mlrc`, which know neither share nor seed."""
    if protocol == "mlrc":
        return class_folds(store)
    return [class_split(store, validation_share=validation_share, seed=seed)]


def class_folds(store: Store) -> list[Split]:
    """The four folds of MLRC: consecutive ranges of the training classes, in the data set's order, are held out in
    turn, so that each training class is held out exactly once.

    Raises DataError if a fold would hold out fewer than two classes.
    """
    training_half, test_classes = _halves(store)
    if len(training_half) < 2 * FOLDS:
        raise DataError(
            f"{store.name}: {len(training_half)} training classes are too few for {FOLDS} folds; "
            f"they need {2 * FOLDS}, or take protocol: conventional"
        )
    ranges = np.array_split(training_half, FOLDS)
    return [_split(store, np.setdiff1d(training_half, part), part, test_classes) for part in ranges]


def _halves(store: Store) -> tuple[Rows, Rows]:
    """The classes to train with and those to test on, ascending."""
    own = store.splits == "train"
    training_half, test_classes = np.unique(store.labels[own]), np.unique(store.labels[~own])
    if not len(training_half) or not len(test_classes) or len(np.intersect1d(training_half, test_classes)):
        training_half, test_classes = np.split(np.arange(store.num_classes), [store.num_classes // 2])
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


def _rows(store: Store, classes: Rows) -> Rows:
    return np.flatnonzero(np.isin(store.labels, classes)).astype(np.int64)
