"""Plain batches: the images in random order, whatever their classes."""

from orchestrator.data.batches.base import Batching, Sampler, Settings, Source
from orchestrator.errors import InputError


def build(source: Source, settings: Settings) -> Sampler:
    """See `UniformSampler`."""
    from orchestrator.data.samplers import UniformSampler

    size, images = settings.classes_per_batch * settings.images_per_class, len(source.labels)
    if size > images:
        raise InputError(
            f"batches: shuffled: a batch has {size} images (classes_per_batch x images_per_class), and there are only "
            f"{images} training images: lower one of the two"
        )
    return UniformSampler(images, size, settings.seed)


SHUFFLED = Batching("shuffled", "P x K images in random order, each once in an epoch", build, reads_labels=False)
