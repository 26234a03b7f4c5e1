"""Settings that only some optimisers, schedules or kinds of batches read."""

from typing import Any

from pydantic import BaseModel

from orchestrator.config.lr_schedules import READ_BY as SCHEDULES_READ
from orchestrator.config.lr_schedules import lr_schedule_of
from orchestrator.config.optimizers import READ_BY, optimizer_of
from orchestrator.data.batches import BATCHES
from orchestrator.data.batches import READ_BY as BATCHES_READ
from orchestrator.data.batches.class_balanced import CLASS_BALANCED
from orchestrator.problems import Problem
from orchestrator.text import join_names


def unread(training: BaseModel) -> Problem | None:
    """What is wrong with a setting that is given beside a choice which does not read it; None if all are read."""
    settings: Any = training
    schedule = lr_schedule_of(settings.lr_schedule)
    kind = BATCHES[settings.batches or CLASS_BALANCED.name]
    for table, reads, part in (
        (READ_BY, optimizer_of(settings.optimizer).reads, f"optimizer: {settings.optimizer}"),
        (SCHEDULES_READ, schedule.reads, f"lr_schedule: {schedule.name}"),
        (BATCHES_READ, kind.reads, f"batches: {kind.name}"),
    ):
        for key, readers in table.items():
            value = getattr(settings, key)
            if value != type(training).model_fields[key].default and key not in reads:
                advice = f": take {join_names(readers)}, or leave it out"
                return Problem((key,), value, f"is not read by {part}", advice=advice)
    return None
