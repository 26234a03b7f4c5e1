"""Early stops with two objectives, beside fronts that are peeled off one by one."""

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.driven_studies import TPE, drive, search_of, start
from support.recorded import events_of

from orchestrator.config.schedulers.front import place
from orchestrator.storage.events import Validation

TWO: dict[str, Any] = TPE | {"objectives": ["val/map_at_r", "cost/seconds"], "num_trials": 20}


@pytest.mark.parametrize("algorithm", ["nsga2", "tpe", "random"])
def test_early_stops_keep_the_better_fronts(tmp_path: Path, algorithm: str) -> None:
    """Each stop is checked by counting who dominates whom; the planted bug is one that compares the first objective."""
    conductor = start(search_of(TWO, algorithm=algorithm, scheduler={"name": "asha", "reduction_factor": 2}), tmp_path)
    drive(conductor)
    ledger, reached = conductor.ledger, defaultdict[int, list[tuple[float, float]]](list)
    bests: dict[str, float] = {}
    differ = stops = 0
    for event in events_of(tmp_path / "journal.jsonl"):
        if not isinstance(event, Validation) or event.trial_id not in ledger.trials:
            continue
        trial, value = ledger.trials[event.trial_id], event.metrics["val/map_at_r"]
        bests[event.trial_id] = max(value, bests.get(event.trial_id, -math.inf))
        if event.validation not in (1, 2, 4, 8):
            continue
        mine = reached[event.validation]  # what they have spent until this age, also where the best was before
        mine.append((-bests[event.trial_id], event.validation * (0.5 + 0.1 * trial.params["alpha"])))
        going_on = max(1, len(mine) // 2)
        behind = slow_place(mine, mine[-1]) > going_on
        stops += behind
        differ += behind != (sorted(mine).index(mine[-1]) + 1 > going_on)
        last = event.validation == trial.validations
        assert (trial.state == "pruned" and last) == (behind and not event.finished), event
    assert stops > 3 and differ > 0
    assert len(ledger.front) > 1


def slow_place(trials: list[tuple[float, float]], one: tuple[float, float]) -> int:
    """By peeling fronts off, and the crowding distance as Deb et al. (2002) write it."""
    left, place = set(trials), 1
    while True:
        front = {x for x in left if not any(y != x and y[0] <= x[0] and y[1] <= x[1] for y in left)}
        if one in front:
            break
        place += sum(trial in front for trial in trials)
        left -= front
    room = dict.fromkeys(front, 0.0)
    for goal in (0, 1):
        order = sorted(front, key=lambda x: x[goal])
        room[order[0]] = room[order[-1]] = math.inf
        for before, middle, after in zip(order, order[1:], order[2:], strict=False):
            room[middle] += (after[goal] - before[goal]) / (order[-1][goal] - order[0][goal])
    return place + sum(trial in front and room[trial] > room[one] for trial in trials)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=14))
def test_places_are_those_of_peeled_fronts(pairs: list[tuple[int, int]]) -> None:
    trials = [(float(one), float(other)) for one, other in pairs]
    assert [place(trials, one) for one in trials] == [slow_place(trials, one) for one in trials]


def test_a_stopped_trial_may_be_on_a_front_of_metrics(tmp_path: Path) -> None:
    goals = ["val/map_at_r", {"metric": "train/loss", "mode": "min"}]
    conductor = start(search_of(TWO, objectives=goals, scheduler={"name": "asha", "reduction_factor": 2}), tmp_path)
    drive(conductor)
    ended = conductor.ledger.trials
    points = {key: (-(trial.best or 0.0), trial.second or 0.0) for key, trial in ended.items()}
    beaten = {
        key
        for key, one in points.items()
        if any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in points.values())
    }
    assert set(conductor.ledger.front) == points.keys() - beaten
    assert "pruned" in {trial.state for trial in ended.values()}
