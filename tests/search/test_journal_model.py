"""Whatever happens to a search, its journal is one that the written model accepts (benchmarks/journal_model.py)."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from journal_model import JournalModel
from support.driven_studies import EPOCHS, TPE, curve, result, search_of
from support.recorded import begin, events_of, record

from orchestrator.config.resolve import with_more_budget
from orchestrator.config.search import Search
from orchestrator.execution.protocol import Failed, Interrupted, Validated, Work
from orchestrator.search.conductor import Conductor
from orchestrator.search.final_runs import choose_final_runs
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger

SEARCHES: dict[str, dict[str, Any]] = {
    "tpe, asha": TPE | {"num_trials": 5, "retry": 1},
    "random, promotion": TPE | {"algorithm": "random", "scheduler": "promotion", "num_trials": 5},
    "random, population": TPE
    | {
        "algorithm": "random",
        "scheduler": {"name": "population", "every": 2},
        "num_trials": 4,
        "retry": 1,
        "space": {"lr": {"low": 1e-4, "high": 1e-2}, "alpha": [2, 3, 4]},
    },
    "random": TPE | {"num_trials": 4, "algorithm": "random", "scheduler": "none", "final_trials": 2},
    "grid": {key: value for key, value in TPE.items() if key not in ("num_trials", "scheduler")}
    | {"algorithm": "grid", "space": {"alpha": [1, 2], "delta": [0.1, 0.2]}, "final": False},
}
SLOTS = 2
ROUNDS = 200
"""More than any of these searches takes to its end."""


class DisturbedSearch(RuleBasedStateMachine):
    """A conductor to which anything may happen between two results."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name) / "s"
        self.work: dict[str, Work] = {}
        self.done: dict[str, int] = {}
        self.raised = 0

    @initialize(name=st.sampled_from(sorted(SEARCHES)))
    def start(self, name: str) -> None:
        self.search: Search = search_of(SEARCHES[name])
        self.journal = Journal(self.folder / "journal.jsonl")
        self._conduct([begin(self.journal, self.search)])

    def _conduct(self, events: list[Any]) -> None:
        self.conductor = Conductor(
            self.search, self.folder, data=self.folder, journal=self.journal, events=events, slots=SLOTS
        )
        self.work.clear()

    def _resume(self) -> None:
        path = self.folder / "journal.jsonl"
        self.journal = Journal(path)
        record(self.journal, "search_resumed", config=self.search.model_dump())
        self._conduct(events_of(path))

    def _running(self) -> list[str]:
        return [trial.trial_id for trial in self.conductor.ledger.running()]

    @rule()
    def begin_trials(self) -> None:
        while (work := self.conductor.next()) is not None:
            self.work[work.trial_id] = work

    def _report(self, trial_id: str, number: int) -> None:
        work = self.work[trial_id]
        value = None if work.test else curve(work.experiment.flat())[number - 1]
        self.conductor.report(result(work, number, value, work.stop_after or EPOCHS))

    @precondition(lambda self: self._running())
    @rule(data=st.data(), count=st.integers(1, EPOCHS))
    def validate(self, data: st.DataObject, count: int) -> None:
        """The next validations of a trial."""
        trial_id = data.draw(st.sampled_from(self._running()))
        for _ in range(count):
            if trial_id in self._running():
                self._report(trial_id, self.conductor.ledger.find(trial_id).validations + 1)

    @precondition(lambda self: self._validated())
    @rule(data=st.data())
    def validate_again(self, data: st.DataObject) -> None:
        """As a training does that is resumed from an older checkpoint."""
        trial_id = data.draw(st.sampled_from(self._validated()))
        self._report(trial_id, self.conductor.ledger.find(trial_id).validations)

    def _validated(self) -> list[str]:
        return [name for name in self._running() if self.conductor.ledger.find(name).validations]

    @precondition(lambda self: self._running())
    @rule(data=st.data(), failure=st.sampled_from(["device", "lost", "stall", "training", "memory"]))
    def fail(self, data: st.DataObject, failure: Any) -> None:
        trial_id = data.draw(st.sampled_from(self._running()))
        self.conductor.report(Failed(trial_id, "it failed", failure=failure))

    @precondition(lambda self: self._running())
    @rule(data=st.data())
    def lose_process(self, data: st.DataObject) -> None:
        self.conductor.report_restart(data.draw(st.sampled_from(self._running())), "killed")

    @precondition(lambda self: self._running())
    @rule(data=st.data())
    def fill_disk(self, data: st.DataObject) -> None:
        self.conductor.report(Interrupted(data.draw(st.sampled_from(self._running())), "no space left"))
        self.stop()

    @precondition(lambda self: self._running())
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """The end of a trial's process is announced: the trial goes on in another, before anything else."""
        trial_id = data.draw(st.sampled_from(self._running()))
        self.conductor.report(Interrupted(trial_id, "SIGTERM", interruption="preempted"))
        if not self.conductor.stopping:
            following = self.conductor.next()
            assert following is not None and following.trial_id == trial_id
            self.work[trial_id] = following

    @rule()
    def stop(self) -> None:
        """Ctrl-C, and a resume."""
        self.conductor.interrupt()
        self.conductor.end()
        self.journal.close()
        self._resume()

    @rule(torn=st.sampled_from([b"", b'{"event": "trial_sta', b"\0\0\0"]))
    def kill_driver(self, torn: bytes) -> None:
        """In the middle of a line, too."""
        self.journal.close()
        with (self.folder / "journal.jsonl").open("ab") as file:
            file.write(torn)
        self._resume()

    @precondition(lambda self: self.raised < 2 and not self.search.exhaustive and not self.search.scheduler.copies)
    @rule()
    def raise_trials(self) -> None:
        self.raised += 1
        self.journal.close()
        self.search = with_more_budget(self.search, (self.search.num_trials or 0) + 1, {})
        self._resume()

    @invariant()
    def the_journal_is_accepted(self) -> None:
        if hasattr(self, "journal"):
            model = JournalModel.of(Journal.read(self.folder / "journal.jsonl"), SLOTS)
            assert model.broken == []

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            for _ in range(ROUNDS):
                if self.conductor.is_finished:
                    break
                self.begin_trials()
                for trial_id in self._running():
                    self._report(trial_id, self.conductor.ledger.find(trial_id).validations + 1)
            assert self.conductor.is_finished
            self.conductor.end()
            self.journal.close()
            model = JournalModel.of(Journal.read(self.folder / "journal.jsonl"), SLOTS)
            assert model.broken == []
            for life in model.lives.values():
                values = [event["metrics"].get("val/map_at_r") for event in life.validations]
                assert life.kind == "final" or values == curve(life.params)[: len(values)]
        self.temporary.cleanup()


def disturb(examples: int = 25) -> None:
    """Searches that are disturbed, each in its own way."""
    how = settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(DisturbedSearch, settings=how)


def test_whatever_happens_the_journal_is_accepted() -> None:
    disturb()


def records_again(self: Conductor, taken: Any) -> bool:
    """A validation that is reported once more."""
    trial = self.ledger.find(taken.trial_id)
    if isinstance(taken, Validated) and trial.state == "running" and taken.number == trial.validations:
        self._record("validation", trial_id=taken.trial_id, validation=taken.number, metrics=taken.metrics, seconds=1.0)
    return report(self, taken)


def retries_for_ever(self: Conductor, trial: Any, reason: str, failure: Any) -> None:
    self._end(trial, "interrupted", reason, failure=failure)
    self.waiting.append(trial)


def forgets_running(self: Conductor) -> None:
    self.stopping = True


def begins_too_many(self: Conductor) -> Work | None:
    self.slots = 9
    return begin_next(self)


def begins_final_runs_early(self: Conductor) -> Work | None:
    runs = choose_final_runs(self.search, self.ledger) if self.ledger.winner() is not None else []
    early = [run for run in runs if self.ledger.running() and run.trial_id not in self.ledger.finals]
    return self._begin(early[0]) if early else begin_next(self)


def begins_ended_trials(self: Ledger) -> list[Any]:
    return [trial for trial in self.trials.values() if trial.state in ("done", "interrupted")]


report, begin_next = Conductor.report, Conductor.next
PLANTED: dict[str, tuple[Any, str, Any]] = {
    "a repeated validation is recorded": (Conductor, "report", records_again),
    "a failure is tried again for ever": (Conductor, "_fail", retries_for_ever),
    "trials run on after the end": (Conductor, "interrupt", forgets_running),
    "more run than there is room for": (Conductor, "next", begins_too_many),
    "a final run comes too early": (Conductor, "next", begins_final_runs_early),
    "an ended trial is begun again": (Ledger, "unfinished_trials", begins_ended_trials),
}


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED)
def test_planted_bugs_are_seen(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[planted])
    with pytest.raises(AssertionError):
        disturb()
