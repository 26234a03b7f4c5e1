"""The largest batch that the memory holds."""

from dataclasses import replace

from orchestrator.config.training import Experiment
from orchestrator.data.splits import Split
from orchestrator.data.store import Store
from orchestrator.errors import InputError, OutOfMemory, TrainingFailed
from orchestrator.training.device import free_memory
from orchestrator.training.loop import fit


def batch_that_fits(experiment: Experiment, store: Store, split: Split) -> tuple[int, int] | None:
    """For a batch that did not fit into memory: try half of its classes, a quarter, ..., and return the most with which
    two steps succeed, as (classes_per_batch, images). None if none does. For one process."""
    training = experiment.training
    classes = training.classes_per_batch
    while (classes := classes // 2) >= 2:
        tried = {"classes_per_batch": classes, "validate_every": "2 steps", "epochs": 2}
        try:
            smaller = replace(experiment, training=training.model_copy(update=tried))
            next(fit(smaller, store, replace(split, validation=split.validation[:0])))
        except OutOfMemory as error:
            free_memory(error)
            continue
        except (InputError, TrainingFailed):  # the method cannot work with so few
            return None
        finally:
            free_memory()
        return classes, classes * training.images_per_class
    return None
