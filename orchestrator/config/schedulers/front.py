"""Trials with two objectives, compared at equal age."""

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Sequence

from orchestrator.config.schedulers.base import Bracket

Losses = tuple[float, float]
"""Of both objectives; less is better."""


class FrontBracket(Bracket):
    """At each rung the best 1 / reduction_factor of the trials go on, in the order of NSGA-II: those on a better front
    first, on one front those with more room around them.

    Source: Schmucker et al., Multi-objective Asynchronous Successive Halving, 2021, with the selection `NSGA-II`.
    """

    def __init__(self, is_rung: Callable[[int], bool], reduction_factor: int) -> None:
        super().__init__(lambda age, reached, done: None)
        self.is_rung, self.reduction_factor = is_rung, reduction_factor
        self.losses: defaultdict[int, list[Losses]] = defaultdict(list)
        """At each rung those of all trials that came there, in the order of the journal."""

    def is_behind(self, age: int, losses: Losses) -> bool:
        """Add a trial's losses so far, after `age` validations; whether it is not among the best."""
        if not self.is_rung(age):
            return False
        others = self.losses[age]
        others.append(losses)
        return place(others, losses) > max(1, len(others) // self.reduction_factor)


def place(trials: Sequence[Losses], one: Losses) -> int:
    """The place of one of the trials, from 1: 1 more than how many are on a better front, or on its own with more room
    around them. Equals share a place."""
    fronts = fronts_of(trials)
    before = sum(fronts[other] < fronts[one] for other in trials)
    same = [other for other in trials if fronts[other] == fronts[one]]
    room = room_around(same)
    return 1 + before + sum(room[other] > room[one] for other in same)


def fronts_of(trials: Sequence[Losses]) -> dict[Losses, int]:
    """The number of each one's front, from 0: of those that none dominates, of those that only these dominate, ..."""
    fronts: dict[Losses, int] = {}
    least: list[float] = []  # of the second loss on each front so far; the first is no less than that of all before
    for losses in sorted(set(trials)):
        number = bisect.bisect_right(least, losses[1])
        least[number : number + 1] = [losses[1]]
        fronts[losses] = number
    return fronts


def room_around(front: Sequence[Losses]) -> dict[Losses, float]:
    """The crowding distance of each of a front: the sum over both losses of the distance between its neighbours, as a
    share of the front's width; infinite at both ends."""
    each = sorted(set(front))
    widths = [abs(each[-1][goal] - each[0][goal]) for goal in range(2)]  # above 0 where one is between the ends
    room = dict.fromkeys(each, math.inf)
    for before, one, after in zip(each, each[1:], each[2:], strict=False):
        room[one] = sum(abs(after[goal] - before[goal]) / widths[goal] for goal in range(2))
    return room
