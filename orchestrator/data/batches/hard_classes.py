"""P classes x K images, the classes near to each other.

Source: Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NIPS 2016, Section 3.2.1, "hard
negative class mining": a class drawn at random, then one after the other the class that is nearest to those chosen. The
paper looks for them among classes drawn anew for each batch; here all classes are candidates, by their mean embeddings
at the beginning of the epoch.
"""

from functools import partial
from typing import TYPE_CHECKING

from orchestrator.data.batches.base import Batching, Sampler, Settings, Source

if TYPE_CHECKING:
    import numpy as np

    from orchestrator.data.batches.base import Centres, Positions


def rule(size: int, rng: "np.random.Generator", steps: int, centres: "Centres | None") -> "Positions":
    """The classes of each batch, (steps, size). The first ones of the batches are all classes equally often; each
    further one has the largest cosine of its centre with that of any chosen one. Equal ones: the first."""
    import numpy as np

    from orchestrator.data.samplers import draw_rounds

    assert centres is not None
    batches = np.empty((steps, size), np.int64)
    for batch, (first,) in zip(batches, draw_rounds(rng, len(centres), 1, steps), strict=True):
        batch[0] = first
        nearness = np.full(len(centres), -np.inf)
        for place in range(1, size):
            nearness = np.maximum(nearness, centres @ centres[batch[place - 1]])
            nearness[batch[:place]] = -np.inf
            batch[place] = nearness.argmax()
    return batches


def build(source: Source, settings: Settings) -> Sampler:
    """See `rule`."""
    from orchestrator.data.samplers import ClassBalancedSampler

    return ClassBalancedSampler(
        source.labels,
        classes_per_batch=settings.classes_per_batch,
        images_per_class=settings.images_per_class,
        seed=settings.seed,
        rule=partial(rule, settings.classes_per_batch),
    )


HARD_CLASSES = Batching(
    "hard_classes",
    "P classes x K images, the classes near to each other at the epoch's beginning",
    build,
    reads_centres=True,
)
