"""Batches of an epoch, as positions in the training set.

A sampler knows nothing of ranks: every process computes the same global batches from (seed, epoch) and takes its own
block of each with `rank_block`. P: classes per batch, K: images per class.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestrator.data.protocol import steps_per_epoch
from orchestrator.errors import DataError

Batches = NDArray[np.int64]
Centres = NDArray[np.float64]
Rule = Callable[[np.random.Generator, int, Centres | None], Batches]
"""The classes of each of so many batches, (steps, P), distinct in a batch."""


class ClassBalancedSampler:
    """P classes x K images per batch, class after class.

    Each batch has P distinct classes and K distinct images of each; only a class with fewer than K images repeats
    some. In an epoch every class is visited equally often, to within one, unless a `rule` chooses the classes, as is
    every image of a class among the visits of that class. An epoch has max(1, N // (P K)) batches.
    """

    def __init__(
        self,
        labels: ArrayLike,
        *,
        classes_per_batch: int,
        images_per_class: int,
        seed: int,
        rule: Rule | None = None,
    ) -> None:
        """`labels`: class of each training image, (N,), any integers. Raises DataError if there are fewer than P."""
        labels = np.asarray(labels)
        _at_least_one(classes_per_batch=classes_per_batch, images_per_class=images_per_class)
        classes, first = np.unique(np.sort(labels), return_index=True)
        if len(classes) < classes_per_batch:
            raise DataError(
                f"classes_per_batch is {classes_per_batch}, but there are only {len(classes)} training classes; "
                "set it to that or less"
            )
        self.classes_per_batch = classes_per_batch
        self.images_per_class = images_per_class
        self.seed = seed
        self.rule = rule or self._equally_often
        self.steps_per_epoch = steps_per_epoch(len(labels), classes_per_batch * images_per_class)
        self._members = np.split(np.argsort(labels, kind="stable"), first[1:])  # positions, by class

    def batches(self, epoch: int, centres: Centres | None = None) -> Batches:
        """Positions of the epoch's batches, (steps, P K); they depend on (seed, epoch), and on what the rule reads."""
        rng = np.random.default_rng([self.seed, epoch])
        classes = self.rule(rng, self.steps_per_epoch, centres)
        batches = np.empty((*classes.shape, self.images_per_class), np.int64)
        for index in np.unique(classes):
            visits = classes == index
            members = self._members[index]
            batches[visits] = members[draw_rounds(rng, len(members), self.images_per_class, int(visits.sum()))]
        return batches.reshape(self.steps_per_epoch, -1)

    def _equally_often(self, rng: np.random.Generator, steps: int, _: Centres | None) -> Batches:
        return draw_rounds(rng, len(self._members), self.classes_per_batch, steps)


class UniformSampler:
    """Every image once per epoch in random order, labels ignored; an incomplete last batch is dropped.

    A set smaller than a batch forms one batch.
    """

    def __init__(self, n: int, batch_size: int, seed: int) -> None:
        """`n`: number of training images. Raises DataError if there are none."""
        _at_least_one(n=n, batch_size=batch_size)
        self.n = n
        self.batch_size = min(batch_size, n)
        self.seed = seed
        self.steps_per_epoch = n // self.batch_size

    def batches(self, epoch: int, centres: Centres | None = None) -> Batches:
        """Positions of the epoch's batches, (steps, batch size); they depend on (seed, epoch) only."""
        order = np.random.default_rng([self.seed, epoch]).permutation(self.n)
        return order[: self.steps_per_epoch * self.batch_size].reshape(self.steps_per_epoch, self.batch_size)


def sizes_of_shares(size: int, world_size: int, parts: int | None = None) -> list[int]:
    """The images that each rank has of a batch of `size`: as equal as they can be, the first ranks one more. With
    `parts` the batch is so many equal ones, and a rank has whole ones. Raises DataError if a rank would have none."""
    if world_size == 1:
        return [size]
    count = parts or size
    if size % count:
        raise DataError(f"a batch of {size} images cannot be cut into {count} equal parts")
    if count < world_size:
        what = f"a batch of {size} images" if parts is None else f"a batch of {parts} undivided parts"
        raise DataError(f"{what} cannot be shared by {world_size} workers: take fewer, or a larger batch")
    each, rest = divmod(count, world_size)
    return [(each + (rank < rest)) * (size // count) for rank in range(world_size)]


def rank_rows(size: int, rank: int, world_size: int, parts: int | None = None) -> slice:
    """The rows of a global batch of `size` images that belong to `rank`; DataError as `sizes_of_shares`."""
    if not 0 <= rank < world_size:
        raise DataError(f"rank is {rank}, not between 0 and {world_size - 1}")
    counts = sizes_of_shares(size, world_size, parts)
    start = sum(counts[:rank])
    return slice(start, start + counts[rank])


def rank_block(batch: Batches, rank: int, world_size: int, parts: int | None = None) -> Batches:
    """The contiguous block of a global batch that belongs to `rank`; DataError as `sizes_of_shares`."""
    return batch[rank_rows(len(batch), rank, world_size, parts)]


class Deck:
    """Deals range(n), shuffled anew whenever it is used up, so that all are drawn equally often, to within one."""

    def __init__(self, rng: np.random.Generator, n: int) -> None:
        self.rng, self.n = rng, n
        self._left = np.empty(0, np.int64)

    def draw(self, size: int) -> Batches:
        """`size` distinct ones, at most n. If they use up the deck, those of the next one that are not drawn yet
        follow."""
        cards, self._left = self._left[:size], self._left[size:]
        if len(cards) < size:
            deck = self.rng.permutation(self.n)
            fresh = deck[~np.isin(deck, cards)][: size - len(cards)]
            self._left = deck[~np.isin(deck, fresh)]
            cards = np.concatenate([cards, fresh])
        return cards


def draw_rounds(rng: np.random.Generator, n: int, size: int, count: int) -> Batches:
    """Draw `size` of range(n) in each of several rounds, (count, size), distinct in a round unless n < size."""
    if n < size:
        # Classes too small for a round: all items, and some twice.
        return np.stack([np.resize(rng.permutation(n), size) for _ in range(count)])
    deck = Deck(rng, n)
    return np.stack([deck.draw(size) for _ in range(count)])


def _at_least_one(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise DataError(f"{name} is {value}; it should be at least 1")
