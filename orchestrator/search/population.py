"""What a copy of a trial changes: some settings, from one of its validations on."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from orchestrator.config.schedule import SCHEDULABLE, Change, parse_schedule, schedule_text, values_text
from orchestrator.config.schedulers.population import Population, changeable
from orchestrator.config.search import Search
from orchestrator.config.space import Parameter
from orchestrator.config.training import Experiment
from orchestrator.storage.events import Copied
from orchestrator.storage.trial_record import TrialRecord

DRAWS = 20
"""How often other values are drawn where another copy has the same."""


def copy_of(search: Search, trials: Mapping[str, TrialRecord], copied: Copied) -> TrialRecord:
    """The next of a search's trials, which goes on from another one's checkpoint, as no other does.

    Each searched setting that may change while a training runs is, by chance, another one of its range (`resample`), or
    what it was times or over `factor`. Its point says so as a `schedule`: trained from the beginning, it is the same.
    """
    assert isinstance(search.scheduler, Population)
    other, number = trials[copied.trial_id], len(trials)
    experiment = search.experiment(other.params)
    searched = [one for one in search.parameters() if one.key in other.params]
    may_change = changeable(searched, {*SCHEDULABLE, *experiment.config.schedulable})
    before = parse_schedule(other.params["schedule"]) if "schedule" in other.params else ()
    earlier = [trial.params for trial in trials.values() if trial.copied]
    params: dict[str, Any] = {}
    changes: dict[str, int | float] = {}
    for attempt in range(DRAWS):
        draw = np.random.default_rng((search.seed, number, attempt))
        changes = {one.key: _vary(one, _value_of(experiment, one.key), search.scheduler, draw) for one in may_change}
        params = other.params | {"schedule": schedule_text([*before, Change(copied.validation, changes)])}
        if params not in earlier:
            break
    note = f"copy of {other.trial_id} after validation {copied.validation} with {values_text(changes)}"
    trial = TrialRecord(f"{number:04d}", number, "trial", params, 0, note=note)
    trial.copied = copied
    return trial


def _value_of(experiment: Experiment, key: str) -> float:
    """The value that a setting has at the end of its schedule."""
    *_, last = experiment.stages().values()
    return float(getattr(last.training if key in SCHEDULABLE else last.config, key))


def _vary(parameter: Parameter, value: float, scheduler: Population, draw: np.random.Generator) -> int | float:
    """Another value of the range: instead of one outside of it its end, at the end the other way."""
    random, step, place = draw.random() < scheduler.resample, 1 if draw.random() < 0.5 else -1, draw.random()
    if parameter.kind == "categorical":
        choices: list[int | float] = sorted(parameter.choices)
        at = choices.index(value)
        if random:
            return [*choices[:at], *choices[at + 1 :]][int(place * (len(choices) - 1))]
        return choices[at + step if 0 <= at + step < len(choices) else at - step]
    if random or value == 0:
        return _rounded(parameter, parameter.at_place(place))
    least = parameter.step or (1 if parameter.kind == "int" else 0)
    for way in (step, -step):  # the other way at an end of the range
        for number in (value * scheduler.factor**way, value + way * least):
            if (other := _rounded(parameter, number)) != value:
                return other
    return _rounded(parameter, value)


def _rounded(parameter: Parameter, value: float) -> int | float:
    """The nearest value of the range; where it is continuous, with four digits."""
    value = min(max(value, parameter.low), parameter.high)
    if parameter.kind == "int" or parameter.step:
        return parameter.at_place(parameter.place(value))
    return min(max(float(f"{value:.4g}"), parameter.low), parameter.high)
