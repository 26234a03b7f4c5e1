"""The score of a network before its training: a training must exceed it to have learned anything.

It is measured once for each set of the settings in `config.shaping.SHAPING`, by the first trial that has them, on its
own device, before its first step; the storage keeps it for all later searches.
"""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from orchestrator.config.training import Experiment
from orchestrator.data.measured import Measured
from orchestrator.data.pipeline import without
from orchestrator.data.splits import Split
from orchestrator.data.store import Store
from orchestrator.errors import TrainingFailed
from orchestrator.evaluation.claims import SUFFIXES
from orchestrator.evaluation.intervals import class_intervals, mean_interval
from orchestrator.evaluation.measures import HEADLINES, YARDSTICK
from orchestrator.evaluation.metrics import Evaluation
from orchestrator.storage.events import is_untrained_score
from orchestrator.storage.files import parse_json
from orchestrator.storage.folder import Folder
from orchestrator.training.distributed import broadcast_object, rank

FOLDER = "untrained"
"""The folder of the storage with these scores, one file each."""
Found = dict[str, Any]


def measure(
    experiment: Experiment, store: Store, splits: Sequence[Split], *, on_test: bool = False, bare: bool = False
) -> Found | None:
    """The retrieval metrics of the network at the start of its training, on the held-out set (over folds: the mean), on
    the test set if nothing is held out, or if `on_test`: `metrics`, the 95% interval over classes of each as
    `intervals`, the set that they are `of` (a `Measured`), its `split`, and `by_class` the mean of each of HEADLINES by
    label (each class is in one fold). None if the embeddings are not finite. `bare`: of the backbone's pooled features,
    without the embedding layer, whose first weights are random.

    The training is the same whether or not this runs before it: it seeds all that it draws.
    """
    from orchestrator.training.device import choose_device, memory_faults
    from orchestrator.training.embed import embed_split, validate
    from orchestrator.training.features import keep_features
    from orchestrator.training.model_file import BareNetwork, new_learner
    from orchestrator.training.splits import leave_out, new_reader

    training = experiment.training
    torch.set_num_threads(training.threads)
    device = choose_device(training.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training reports them
        unreadable = leave_out(store, training)
    name = "validation" if len(splits[0].validation) and not on_test else "test"
    metrics_of_folds, intervals, parts = [], [], []
    by_class: dict[str, dict[str, float]] = {}
    with new_reader(store, training, device=device) as reader:
        for split in splits:
            split = without(split, unreadable) if unreadable else split
            torch.manual_seed(training.seed)
            learner = BareNetwork(experiment).learner(store) if bare else new_learner(experiment, store, split)
            learner.to(device)
            if training.precision == "float64":
                learner.double()
            keep_features(learner, training, store, reader, device)
            rows = split.validation if name == "validation" else split.test
            try:
                with memory_faults(training, validating=True):
                    held_out = embed_split(learner, store, rows, device, reader)
                    metrics, evaluation = validate(held_out, store, device)
            except TrainingFailed:
                return None
            ends = class_intervals(evaluation) if evaluation is not None else {}
            whole = evaluation is not None and (len(splits) == 1 or name == "validation")
            for metric, means in class_means(evaluation).items() if evaluation is not None and whole else ():
                by_class.setdefault(metric, {}).update(means)
            metrics_of_folds.append(metrics)
            intervals.append(broadcast_object(ends if rank() == 0 else None))
            parts.append(rows)
    of = Measured.of(store, parts)
    names = [name.removeprefix("val/") for name in metrics_of_folds[0]]
    return {
        "split": name,
        "metrics": {name: fmean(fold[f"val/{name}"] for fold in metrics_of_folds) for name in names},
        "intervals": {name: mean_interval([fold[name] for fold in intervals]) for name in names}
        if all(intervals)
        else {},
        "of": of.plain if of is not None else None,
        "by_class": broadcast_object(by_class if rank() == 0 else None),
    }


def class_means(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Each of HEADLINES by class, the label as text; without classes whose queries are all left out."""
    classes = evaluation.classes().to_pydict()
    return {
        name: {
            str(label): value for label, value in zip(classes["label"], classes[name], strict=True) if value is not None
        }
        for name in HEADLINES
        if name in classes
    }


def find_score(storage: Path, key: str) -> Found | None:
    """The score stored under this key; None if there is none, or it cannot be read."""
    try:
        content = Folder(storage / FOLDER, patient=False).read(f"{key}.json")
        score = parse_json(content) if content is not None else None
        return score if valid(score) else None
    except (OSError, ValueError):
        return None


def save_score(storage: Path, key: str, score: Mapping[str, Any]) -> None:
    """Store a score for later searches; if the storage refuses the file, they measure it again."""
    folder = Folder(storage / FOLDER, patient=False)
    try:
        folder.write(f"{key}.json", json.dumps(score).encode())
    except OSError as error:
        warnings.warn(f"{folder}: the untrained score is not saved ({error.strerror})", stacklevel=2)


def valid(score: Any) -> bool:
    """Whether it has the form that `measure` returns, including the numbers."""
    if not isinstance(score, dict) or score.get("split") not in ("validation", "test"):
        return False
    metrics, intervals = score.get("metrics"), score.get("intervals")
    if not isinstance(metrics, dict) or not isinstance(intervals, dict) or YARDSTICK not in metrics:
        return False
    pairs = [list(ends) if isinstance(ends, list | tuple) else [None] for ends in intervals.values()]
    numbers = [*metrics.values(), *(end for ends in pairs for end in ends)]
    finite = all(isinstance(n, int | float) and math.isfinite(n) for n in numbers)
    if not finite or any(len(ends) != 2 for ends in pairs) or Measured.read(score.get("of")) is None:
        return False
    return is_untrained_score({**score, "intervals": dict(zip(intervals, pairs, strict=True))})


def score_metrics(score: Mapping[str, Any]) -> dict[str, float]:
    """For a journal and the tracker: `untrained/val_map_at_r` and so on."""
    stem = "untrained/val_" if score["split"] == "validation" else "untrained/test_"
    ends = {
        f"{name}_over_classes{suffix}": end
        for name, pair in score["intervals"].items()
        for suffix, end in zip(SUFFIXES, pair, strict=True)
    }
    return {f"{stem}{name}": value for name, value in (score["metrics"] | ends).items()}
