"""Reductions at epochs that are named: torch's MultiStepLR."""

from orchestrator.config.lr_schedules.base import LRSchedule, Moment, Settings


def epochs_of(text: str) -> list[int]:
    """'190, 250' -> [190, 250]; ValueError if these are not increasing epochs from 1 on."""
    try:
        epochs = [int(part) for part in text.split(",")]
    except ValueError:
        epochs = []
    if not epochs or epochs[0] < 1 or epochs != sorted(set(epochs)):
        raise ValueError("should read like '100' or '190, 250': increasing epochs from 1 on")
    return epochs


def factor(settings: Settings, moment: Moment) -> float:
    """gamma ** (number of milestones that are complete)"""
    epochs = epochs_of(settings.lr_milestones) if settings.lr_milestones else []
    return settings.lr_gamma ** sum(milestone <= moment.epoch for milestone in epochs)


MILESTONES = LRSchedule(
    "milestones", "times lr_gamma after each epoch of lr_milestones", factor, reads=("lr_milestones",)
)
