"""How sure a trial's value is, and how much better than its untrained network's, from the tables that they left."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.evaluation.intervals import of_class_tables
from orchestrator.evaluation.measures import YARDSTICK
from orchestrator.evaluation.paired import paired_gain
from orchestrator.storage import trial_files
from orchestrator.storage.events import Gain
from orchestrator.storage.trial_folder import INSIGHT, TrialPaths
from orchestrator.storage.trial_record import TrialRecord


def gain_of(trial: TrialRecord, place: Path, score: Mapping[str, Any] | None, objective: str) -> Gain | None:
    """The gain of a trial, whose folder is `place`, over its untrained network's `score` (`untrained.measure`), by the
    objective if the score has it, on the held-out classes; of a tested one on the test's. Over folds each
    class is tested once, by the network that did not train on it. None where one of the tables is missing."""
    by_class = {} if score is None else score.get("by_class") or {}
    split = "test" if trial.test else "validation"
    name = objective.removeprefix("val/")
    name = name if name in by_class else YARDSTICK
    if score is None or score["split"] != split or name not in by_class:
        return None
    trial_files.fetch_trial(place, INSIGHT)
    return paired_gain([model.class_table for model in TrialPaths(place).models], name, by_class[name])


def interval_of(trial: TrialRecord, place: Path, objective: str) -> tuple[float, float] | None:
    """The interval of a trial's best value over its held-out classes, from the tables of its best validation in its
    folder `place`. None if it is recorded, for a loss, and for a tested trial: its tables are those of its test."""
    if trial.test or trial.best_interval is not None or not objective.startswith("val/"):
        return None
    trial_files.fetch_trial(place, INSIGHT)
    return of_class_tables([model.class_table for model in TrialPaths(place).models], objective.removeprefix("val/"))
