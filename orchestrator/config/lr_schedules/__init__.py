"""The schedules of the learning rate, each in a file of this folder and a line of the table."""

from orchestrator.config.lr_schedules.base import OWN, LRSchedule
from orchestrator.config.lr_schedules.cosine import COSINE
from orchestrator.config.lr_schedules.milestones import MILESTONES
from orchestrator.config.lr_schedules.plateau import PLATEAU
from orchestrator.config.lr_schedules.step import STEP

LR_SCHEDULES: dict[str, LRSchedule] = {
    schedule.name: schedule
    for schedule in (
        STEP,
        MILESTONES,
        COSINE,
        PLATEAU,
    )
}

DESCRIPTION = "; ".join(f"{schedule.name}: {schedule.about}" for schedule in LR_SCHEDULES.values())

READ_BY = {key: [name for name, schedule in LR_SCHEDULES.items() if key in schedule.reads] for key in OWN}
"""Which schedules read a setting that not all do."""


def lr_schedule_of(name: str | None) -> LRSchedule:
    """One of the table; None: the step schedule, which was the only one."""
    return LR_SCHEDULES[STEP.name if name is None else name]
