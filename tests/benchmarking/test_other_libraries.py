"""What a search of another library is charged for: the epochs that it trains, on a clock of recorded seconds."""

from collections.abc import Sequence
from typing import Any

import pytest
from peers import OptunaPeer, Run, epochs_to_goal

from orchestrator.benchmarking import TabularCurve, TabularTask

CONTENT = {
    "method": "triplet",
    "dataset": "glyphs-small",
    "settings": {"epochs": 4},
    "num_trials": 4,
    "space": {"margin": {"low": 0.1, "high": 0.5}},
}
MARGINS = [0.1, 0.2, 0.3, 0.4]


def task() -> TabularTask:
    """Four points of four validations of an epoch each, better by their margin; the best fails at its end."""
    curves = {
        (number, 0): TabularCurve(
            {"epoch": [1.0, 2.0, 3.0, 4.0], "val/map_at_r": [margin * step for step in (0.4, 0.6, 0.8, 1.0)]},
            [1.0 + number] * 4,
            [],
            reason="it fails" if margin == 0.4 else None,
        )
        for number, margin in enumerate(MARGINS)
    }
    return TabularTask("made", CONTENT, [{"margin": margin} for margin in MARGINS], [0], curves, planned=4)


class Scripted:
    """A peer that asks for these runs, stops them after so many validations, and notes what it is told."""

    def __init__(self, runs: Sequence[Run], stop_at: int = 99) -> None:
        self.runs, self.stop_at, self.told = list(runs), stop_at, list[Any]()

    def ask(self) -> Run:
        return self.runs.pop(0)

    def validated(self, run: Run, number: int, best: float) -> bool:
        self.told.append((run.key, number, round(best, 4)))
        return number >= self.stop_at

    def ended(self, run: Run, best: float | None, *, stopped: bool) -> None:
        self.told.append((run.key, best if best is None else round(best, 4), stopped))


def test_every_validation_is_paid_until_the_goal() -> None:
    peer = Scripted([Run(0, {"margin": 0.1}), Run(1, {"margin": 0.3})])
    assert epochs_to_goal(task(), peer, 0.24, 0, slots=1) == 4 + 3
    assert peer.told[:5] == [(0, 1, 0.04), (0, 2, 0.06), (0, 3, 0.08), (0, 4, 0.1), (0, 0.1, False)]


def test_a_stopped_trial_is_paid_as_far_as_it_came_and_one_that_goes_on_for_what_is_new() -> None:
    runs = [Run("a", {"margin": 0.3}, until=2), Run("b", {"margin": 0.2}, until=1), Run("a", {"margin": 0.3}, until=4)]
    peer = Scripted(runs)
    assert epochs_to_goal(task(), peer, 0.3, 0, slots=1) == 2 + 1 + 2
    assert [one for one in peer.told if len(one) == 3 and isinstance(one[2], bool)] == [
        ("a", 0.18, False),
        ("b", 0.08, False),
    ]
    stopped = Scripted([Run(0, {"margin": 0.1}), Run(1, {"margin": 0.3})], stop_at=2)
    with pytest.raises(IndexError):  # it asks for a third
        epochs_to_goal(task(), stopped, 0.3, 0, slots=1)
    assert stopped.told[-1] == (1, 0.18, True)


def test_a_suggestion_is_the_nearest_point_that_was_not_tried_and_several_share_the_clock() -> None:
    same = [Run(number, {"margin": 0.11}) for number in range(4)]
    peer = Scripted(same)
    assert epochs_to_goal(task(), peer, 0.39, 0, slots=1) == 16  # the fourth is the farthest; it fails after its value
    peer = Scripted([Run(number, {"margin": 0.11}) for number in range(5)])
    assert epochs_to_goal(task(), peer, 0.9, 0, slots=4) is None
    firsts = [one[0] for one in peer.told if one[1] == 1]
    assert firsts == [0, 1, 2, 3]  # by their seconds
    assert (3, None, False) in peer.told


def test_optuna_comes_to_the_best_of_four_points() -> None:
    epochs = epochs_to_goal(task(), OptunaPeer(task(), 0, pruner="none"), 0.4 * 0.99, 0, slots=2)
    assert epochs is not None and 4 <= epochs <= 16
