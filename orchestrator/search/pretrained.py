"""Pre-trained networks as they come: what a training on their features has to be better than."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.config.shaping import untrained_key
from orchestrator.config.training import Experiment
from orchestrator.evaluation.measures import YARDSTICK
from orchestrator.report.best import Pretrained
from orchestrator.storage.places import Places

if TYPE_CHECKING:
    from orchestrator.data.store import Store

PREFIX = "bare-"
"""What the keys of scores without an embedding layer begin with, beside those of untrained networks with one."""


def measure_pretrained(
    experiments: Sequence[Experiment], store: "Store", places: Places, stage: Callable[[str], None]
) -> list[Pretrained]:
    """The backbones of these experiments on held-out classes and on the test's, the best on held-out ones first. The
    storage keeps the scores. InputError for weights that cannot be had."""
    networks = [_measured(experiment, store, places, stage) for experiment in experiments]
    return sorted(networks, key=lambda network: -network.held_out)


def _measured(experiment: Experiment, store: "Store", places: Places, stage: Callable[[str], None]) -> Pretrained:
    held_out, test = (_score(experiment, store, places, stage, on_test=on_test) for on_test in (False, True))
    names = {str(label): name for label, name in enumerate(store.class_names)}
    return Pretrained(
        backbone=experiment.training.backbone,
        held_out=held_out["metrics"][YARDSTICK],
        test=test["metrics"],
        by_class={
            metric: {names[label]: mean for label, mean in means.items()} for metric, means in test["by_class"].items()
        },
    )


def _score(
    experiment: Experiment, store: "Store", places: Places, stage: Callable[[str], None], *, on_test: bool
) -> Mapping[str, Any]:
    from orchestrator.errors import InputError
    from orchestrator.training.splits import data_splits
    from orchestrator.training.untrained import find_score, measure, save_score

    key = PREFIX + untrained_key(experiment.flat(), str(store.manifest["digest"]), on_test=on_test)
    if (score := find_score(places.storage, key)) is not None and score.get("by_class"):
        return score
    training = experiment.training
    stage(f"measuring {training.backbone} as it comes, on {'test' if on_test else 'held-out'} classes")
    score = measure(experiment, store, data_splits(training, store), on_test=on_test, bare=True)
    if score is None:
        raise InputError(f"backbone: {training.backbone} gives embeddings of {store.name} that are not finite")
    save_score(places.storage, key, score)
    return score
