"""P classes x K images, the classes from a few super-classes.

Source: Cakir et al., Deep Metric Learning to Rank (FastAP), CVPR 2019, Section 4.2: its batches have the classes of two
categories, so that many of a query's negatives are of its own.
"""

from functools import partial
from typing import TYPE_CHECKING

from orchestrator.data.batches.base import Batching, Sampler, Settings, Source
from orchestrator.errors import InputError
from orchestrator.text import pluralize

if TYPE_CHECKING:
    import numpy as np

    from orchestrator.data.batches.base import Centres, Positions

SUPER_CLASSES = 2
"""FastAP's."""


def rule(
    super_classes: tuple[int, ...], count: int, size: int, rng: "np.random.Generator", steps: int, _: "Centres | None"
) -> "Positions":
    """The classes of each batch, (steps, size): of `count` super-classes, in equal parts.

    Super-classes are drawn equally often, and so are the classes of each. Where one has too few classes for its part,
    the others of the batch fill it; where all have too few, further super-classes do.
    """
    import numpy as np

    from orchestrator.data.samplers import Deck, draw_rounds

    super_of = np.unique(super_classes, return_inverse=True)[1]
    members = [np.flatnonzero(super_of == number) for number in range(super_of.max() + 1)]
    decks = [Deck(rng, len(classes)) for classes in members]
    batches = np.empty((steps, size), np.int64)
    for step, members_of_step in enumerate(draw_rounds(rng, len(members), count, steps)):
        others = np.setdiff1d(np.arange(len(members)), members_of_step)
        parts = dict.fromkeys(members_of_step.tolist(), 0)
        missing = size
        while missing and (free := [each for each in parts if parts[each] < len(members[each])]):
            for each in free[:missing]:
                parts[each] += 1
                missing -= 1
        for each in rng.permutation(others).tolist() if missing else ():
            parts[each] = min(missing, len(members[each]))
            missing -= parts[each]
        batches[step] = np.concatenate([members[each][decks[each].draw(part)] for each, part in parts.items() if part])
    return batches


def build(source: Source, settings: Settings) -> Sampler:
    """InputError for a data set without super-classes, or with too few."""
    from orchestrator.data.samplers import ClassBalancedSampler

    if not source.super_classes:
        raise InputError("batches: hierarchical: the data set has no super-classes: take other batches")
    count = SUPER_CLASSES if settings.super_classes_per_batch is None else settings.super_classes_per_batch
    there = len(set(source.super_classes))
    if count > there:
        raise InputError(
            f"super_classes_per_batch: {count}: the training classes are of "
            f"{pluralize(there, 'super-class', 'super-classes')}: give at most {there}"
        )
    if count > settings.classes_per_batch:
        raise InputError(
            f"super_classes_per_batch: {count}: a batch has "
            f"{pluralize(settings.classes_per_batch, 'class', 'classes')}: give at most that many"
        )
    return ClassBalancedSampler(
        source.labels,
        classes_per_batch=settings.classes_per_batch,
        images_per_class=settings.images_per_class,
        seed=settings.seed,
        rule=partial(rule, source.super_classes, count, settings.classes_per_batch),
    )


HIERARCHICAL = Batching(
    "hierarchical",
    "P classes x K images, the classes from super_classes_per_batch super-classes",
    build,
    reads=("super_classes_per_batch",),
)
