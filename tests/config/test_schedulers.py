"""The rules of early stops, beside Optuna's pruners over the same trials."""

from collections.abc import Callable
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config.schedulers import SCHEDULERS
from orchestrator.config.schedulers.asha import Asha
from orchestrator.config.schedulers.base import Bracket
from orchestrator.config.schedulers.hyperband import Hyperband
from orchestrator.config.schedulers.median import Median

LENGTH = 9
KINDS: dict[str, tuple[Callable[[], Bracket], Callable[[], Any]]] = {
    "asha": (
        lambda: Bracket(Asha(grace_validations=2, reduction_factor=2).requirements(LENGTH)[0]),
        lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=2),
    ),
    "the second bracket of hyperband": (
        lambda: Bracket(Hyperband(reduction_factor=3).requirements(LENGTH)[1]),
        lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3, min_early_stopping_rate=1),
    ),
    "median": (
        lambda: Bracket(Median(grace_validations=3, startup_trials=2).requirements(LENGTH)[0]),
        lambda: optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=3),
    ),
}
courses = st.lists(st.integers(0, 8).map(lambda value: value / 8), min_size=LENGTH, max_size=LENGTH)


def same_stops(bracket: Bracket, pruner: Any, trials: list[list[float]], order: list[int]) -> int:
    """Train trials side by side, a validation each in this order of turns; how many both rules stopped."""
    study = optuna.create_study(direction="maximize", pruner=pruner)
    running = {number: study.ask() for number in range(len(trials))}
    ages, stopped, turns = dict.fromkeys(running, 0), 0, 0
    while running:
        number = list(running)[order[turns % len(order)] % len(running)]
        turns += 1
        ages[number] += 1
        age, trial = ages[number], running[number]
        best = max(trials[number][:age])
        trial.report(best, age)
        expected = trial.should_prune()
        assert (bracket.validate(age, -best) is not None) == expected, (number, age)
        if expected:
            stopped += 1
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        elif age == LENGTH:
            study.tell(trial, best)
            bracket.finish({past: -max(trials[number][:past]) for past in range(1, LENGTH + 1)})
        if expected or age == LENGTH:
            del running[number]
    return stopped


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(trials=st.lists(courses, min_size=1, max_size=12), order=st.lists(st.integers(0, 11), min_size=1, max_size=9))
def test_a_rule_stops_what_optuna_s_pruner_stops(kind: str, trials: list[list[float]], order: list[int]) -> None:
    rule, pruner = KINDS[kind]
    same_stops(rule(), pruner(), trials, order)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_that_asks_for_more_is_noticed(kind: str) -> None:
    trials = [[(7 * number % 10) / 10 + age / 100 for age in range(LENGTH)] for number in range(10)]
    rule, pruner = KINDS[kind]
    assert same_stops(rule(), pruner(), trials, [0]) > 1
    bracket = rule()
    requirement = bracket.requirement

    def strict(age: int, reached: Any, done: Any) -> tuple[float, str] | None:
        required = requirement(age, reached, done)
        return None if required is None else (required[0] - 0.15, required[1])

    bracket.requirement = strict
    with pytest.raises(AssertionError):
        same_stops(bracket, pruner(), trials, [0])


def test_only_asha_compares_two_objectives() -> None:
    """Hyperband and promotion are kinds of it, and have rules of their own."""
    assert [name for name, kind in SCHEDULERS.items() if kind.by_fronts] == ["asha"]
