"""Settings that depend on what other settings choose: an optimiser, a schedule, a kind of batches, LoRA."""

from typing import Any

from pydantic import BaseModel

from orchestrator.config.lr_schedules import READ_BY as SCHEDULES_READ
from orchestrator.config.lr_schedules import lr_schedule_of
from orchestrator.config.lr_schedules.milestones import MILESTONES
from orchestrator.config.lr_schedules.plateau import PLATEAU
from orchestrator.config.optimizers import READ_BY, optimizer_of
from orchestrator.config.optimizers.sgd import NESTEROV
from orchestrator.data.batches import BATCHES
from orchestrator.data.batches import READ_BY as BATCHES_READ
from orchestrator.data.batches.class_balanced import CLASS_BALANCED
from orchestrator.problems import Problem
from orchestrator.text import join_names


def choice_problem(training: BaseModel) -> Problem | None:
    """What is wrong with a setting beside what others choose; None if all suit each other."""
    settings: Any = training
    schedule = lr_schedule_of(settings.lr_schedule)
    if (problem := _unread_problem(training)) is not None:
        return problem
    if schedule is MILESTONES and settings.lr_milestones is None:
        rule = f"is missing: lr_schedule: {MILESTONES.name} needs it, like '190, 250'"
        return Problem(("lr_milestones",), rule=rule)
    if schedule is PLATEAU and settings.lr_gamma == 1:
        return Problem(("lr_gamma",), 1.0, f"lr_schedule: {PLATEAU.name} needs a factor below 1")
    if settings.optimizer == NESTEROV.name and settings.optimizer_momentum == 0:
        rule = "optimizer: nesterov needs one above 0: take sgd without"
        return Problem(("optimizer_momentum",), 0.0, rule)
    for key in ("lora_alpha", "lora_layers"):
        if (value := getattr(settings, key)) is not None and settings.lora_rank is None:
            return Problem((key,), value, "is not read without lora_rank: give one")
    if settings.lora_rank is not None and settings.warmup_epochs >= settings.epochs:
        rule = f"warmup_epochs: {settings.warmup_epochs} of {settings.epochs} epochs leave the backbone as it is"
        return Problem(("lora_rank",), settings.lora_rank, rule, advice=": leave one of them out")
    return None


def _unread_problem(training: BaseModel) -> Problem | None:
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
