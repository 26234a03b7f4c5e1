"""A search of many trials: its sampler looks at some of them, and goes on after a stop as if there had been none."""

from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from support.driven_studies import TPE, play, search_of, start
from support.recorded import events_of

from orchestrator.search import thinning
from orchestrator.search.conductor import Conductor
from orchestrator.search.study import Study
from orchestrator.storage.events import TrialStarted
from orchestrator.storage.journal import Journal

SEARCHES: dict[str, dict[str, Any]] = {
    "asha": {"num_trials": 34},
    "hyperband": {"num_trials": 50, "scheduler": {"name": "hyperband", "reduction_factor": 2}},
}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MOST": 11, "KEPT": 5, "BEST": 2, "RUNNING": 2}.items():
        monkeypatch.setattr(thinning, name, value)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", SEARCHES)
def test_a_folded_journal_suggests_what_was_suggested(tmp_path: Path, name: str) -> None:
    search = search_of(TPE, **SEARCHES[name])
    conductor = start(search, tmp_path / "live", slots=4)
    play(conductor)
    assert all(len(study.trials) <= 11 + 4 for study in conductor.study.studies)
    events = events_of(tmp_path / "live" / "journal.jsonl")
    starts = [(at, e) for at, e in enumerate(events) if isinstance(e, TrialStarted) and e.kind == "trial"]
    for at, event in starts[len(starts) // 2 :: 3]:
        with Journal(tmp_path / event.trial_id / "journal.jsonl") as journal:
            folded = Conductor(search, tmp_path, data=tmp_path, journal=journal, events=events[:at], slots=4)
        assert folded.study.ask(event.trial_id, int(event.trial_id)) == event.params


@pytest.mark.usefixtures("few")
def test_every_trial_that_ends_is_learnt_from_whenever_it_began() -> None:
    study = Study(search_of(TPE, num_trials=100, scheduler="none"))
    for number in range(20):  # the first four run all the time
        study.ask(str(number), number)
        study.report(str(number), 1, number / 20)
        if number >= 4:
            study.tell(str(number), "done")
    running = {t.user_attrs["trial_id"] for t in study.studies[0].trials if t.state == TrialState.RUNNING}
    assert running == {"2", "3"}, "the newest of those that run"
    for number in range(4):
        study.report(str(number), 2, 10.0 + number)
        study.tell(str(number), "done")
    (sampled,) = study.studies
    values = {t.user_attrs["trial_id"]: t.value for t in sampled.trials if t.state == TrialState.COMPLETE}
    assert values.items() >= {"0": 10.0, "1": 11.0, "2": 12.0, "3": 13.0, "19": 0.95}.items()


def trial(number: int, state: TrialState, curve: list[float]) -> FrozenTrial:
    made = optuna.trial.create_trial(
        state=state,
        value=curve[-1] if state == TrialState.COMPLETE else None,
        intermediate_values=dict(enumerate(curve, start=1)),
    )
    made.number = number
    return made


def test_the_best_and_the_furthest_are_kept() -> None:
    random = np.random.default_rng(0).permutation(600) / 600
    done = [trial(n, TrialState.COMPLETE, [float(random[n])]) for n in range(0, 600, 2)]
    stopped = [trial(n, TrialState.PRUNED, [0.1] * (1 + n % 7) + [float(random[n])]) for n in range(1, 600, 2)]
    trials = sorted([*done, *stopped], key=lambda t: t.number)
    kept = thinning.choose_trials(trials, sign=-1.0, seed=0)
    numbers = [t.number for t in kept]
    assert len(kept) == 300 and numbers == sorted(numbers)
    best = sorted(done, key=lambda t: -(t.value or 0))[:100]
    furthest = sorted(stopped, key=lambda t: (-len(t.intermediate_values), -list(t.intermediate_values.values())[-1]))
    assert set(numbers) >= {t.number for t in [*best, *furthest[:100]]}
    worst = {t.number for t in thinning.choose_trials(trials, sign=1.0, seed=0)}
    assert not worst >= {t.number for t in best}
    assert numbers != [t.number for t in thinning.choose_trials(trials, sign=-1.0, seed=1)]
