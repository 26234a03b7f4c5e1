"""Steps of whole epochs."""

from orchestrator.config.lr_schedules.base import LRSchedule, Moment, Settings


def factor(settings: Settings, moment: Moment) -> float:
    """gamma ** floor(epoch / n)"""
    return settings.lr_gamma ** (moment.epoch // settings.lr_step_epochs) if settings.lr_step_epochs else 1.0


STEP = LRSchedule("step", "times lr_gamma every lr_step_epochs", factor, reads=("lr_step_epochs",))
