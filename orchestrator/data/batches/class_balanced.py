"""P classes x K images, all classes equally often."""

from orchestrator.data.batches.base import Batching, Sampler, Settings, Source


def build(source: Source, settings: Settings) -> Sampler:
    """See `ClassBalancedSampler`."""
    from orchestrator.data.samplers import ClassBalancedSampler

    return ClassBalancedSampler(
        source.labels,
        classes_per_batch=settings.classes_per_batch,
        images_per_class=settings.images_per_class,
        seed=settings.seed,
    )


CLASS_BALANCED = Batching("class_balanced", "P classes x K images, all classes equally often", build)
