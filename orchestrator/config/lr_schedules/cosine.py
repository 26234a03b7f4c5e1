"""Half a cosine, without restarts.

Source: Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, ICLR 2017.
"""

import math

from orchestrator.config.lr_schedules.base import LRSchedule, Moment, Settings


def factor(settings: Settings, moment: Moment) -> float:
    """(1 + cos(pi t / T)) / 2 of the t-th of the T steps after the warm-up, counted from 0."""
    done, steps = max(0, moment.step - moment.warmup), max(1, moment.total - moment.warmup)
    return (1 + math.cos(math.pi * done / steps)) / 2


COSINE = LRSchedule("cosine", "half a cosine over all steps down to 0", factor)
