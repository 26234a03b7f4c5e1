"""What a search does next: every decision of the driver, except how trials are run. Does not import Ray.

Each decision is journaled with all its inputs before it takes effect; ledger and study are folds of the journal.
A search that died is resumed by folding its journal again and starting its unfinished trials first.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.config.search import Search
from orchestrator.config.shaping import untrained_key
from orchestrator.config.training import Experiment
from orchestrator.config.workers import most
from orchestrator.evaluation.claims import SUFFIXES
from orchestrator.execution.protocol import Failed, Interrupted, Result, Work
from orchestrator.report.effect import count_training_images, idle_params
from orchestrator.report.limits import no_feasible_trial
from orchestrator.search.constraints import Constraints
from orchestrator.search.excess import excess_of
from orchestrator.search.final_runs import FOLDS, choose_final_runs, needs_validation
from orchestrator.search.gains import gain_of, interval_of
from orchestrator.search.kept_files import KeptFiles
from orchestrator.search.population import copy_of
from orchestrator.search.repeats import choose_repeat, count_left
from orchestrator.search.spending import spent_limit
from orchestrator.search.study import Study
from orchestrator.storage import paths
from orchestrator.storage.costs import COSTS, SPENT, excesses, violation_text
from orchestrator.storage.events import MAY_PASS, Copied, Event, Failure, TrialEnded, TrialStarted, Validation
from orchestrator.storage.folder import Folder
from orchestrator.storage.journal import Journal
from orchestrator.storage.leaderboard import chosen_value
from orchestrator.storage.ledger import Ledger, best_key
from orchestrator.storage.trial_record import ENDED, FINISHED, TrialRecord
from orchestrator.training.untrained import find_score, save_score, score_metrics, valid

Listener = Callable[[str, TrialRecord], None]
"""Called with each event, as `Watcher` says, and its trial."""


class Conductor:
    """The driver of one search. `next` hands out work, `report` takes results, `interrupt` and `end` close it."""

    def __init__(
        self,
        search: Search,
        folder: Path,
        *,
        data: Path,
        journal: Journal,
        events: list[Event],
        slots: int,
        resources: Mapping[str, float] | None = None,
        listener: Listener | None = None,
        study: Study | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`events` is the content of the journal (at least `search_started`); `resources` the CPUs and GPUs that a
        trial holds; `study` chooses the points, by default one kept in the folder; `clock` counts seconds."""
        self.search, self.folder, self.data, self.journal, self.slots = search, folder, data, journal, slots
        self.resources = dict(resources or {})
        self.listener: Listener = listener or (lambda event, trial: None)
        self.ledger = Ledger(folder=folder)
        self.study = study or Study(search, folder / "study.journal")
        self.files = KeptFiles(self.ledger, folder)
        self.waiting: list[TrialRecord] = []
        self.clocks: dict[str, tuple[float, float]] = {}
        """Of each trial with a process: when it got its first process, and when it last reported."""
        self.lost_workers: dict[str, tuple[str, ...]] = {}
        """Of each trial whose process was restarted: why, if known."""
        self.stopping = False
        """Running trials are interrupted, and no new trial begins."""
        self.pausing = False
        """Running trials continue to their end, and no new trial begins."""
        self.stopped_by: str | None = None
        self.fault: str | None = None
        """The fault of the disk or the machine, if the search is stopping because of it."""
        self.measuring: dict[str, str] = {}
        """Which trial measures which untrained network."""
        self.exhausted = False
        self.clock = clock or time.monotonic
        self.started_at, self.elapsed_before = self.clock(), 0.0
        self._replay(events)
        self.constraints = Constraints(search, self.ledger)

    def _replay(self, events: list[Event]) -> None:
        stopped: set[str] = set()
        for event in events:
            self.ledger.apply(event)
            if not isinstance(event, TrialStarted | Validation | TrialEnded) or event.trial_id in self.ledger.finals:
                continue
            trial = self.ledger.trials[event.trial_id]
            if self.search.rounds and "seed" in trial.params:
                continue  # a point again, of which the study is told once
            match event:
                case TrialStarted(copied=Copied() as copied) if trial.trial_id not in self.study.numbers:
                    self.study.enter_copy(trial.trial_id, trial.number, event.params, copied)
                case TrialStarted() if trial.trial_id not in self.study.numbers:
                    self.study.enter(trial.trial_id, trial.number, event.params, event.attempts)
                case TrialStarted() if trial.trial_id in self.study.waiting:
                    stopped.discard(trial.trial_id)
                    self.study.resume(trial.trial_id)
                case Validation():
                    value = event.metrics.get(self.search.objective.metric)
                    stop = value is not None and self.study.report(
                        trial.trial_id, event.validation, value, self._second(trial)
                    )
                    if stop and not event.finished:
                        stopped.add(trial.trial_id)
                case TrialEnded() if not trial.goes_on:
                    self._tell(trial, event.state)
        self.ledger.rename(self.search.name)
        self.elapsed_before = self.ledger.elapsed
        ended = [trial for trial in self.ledger.everyone() if trial.state in ENDED and not trial.retryable]
        last = next((event.trial_id for event in reversed(events) if isinstance(event, TrialEnded)), None)
        self.files.take_over(ended, last, self.study.waiting)
        for trial in self.ledger.unfinished_trials():
            trial.state = "running"
            if trial.trial_id in stopped or trial.violations:
                self._end_early(trial)  # the driver died between the decision and its record
            else:
                trial.state = "interrupted"
                self.waiting.append(trial)
        self.waiting += self.ledger.trials_to_retry()

    def next(self) -> Work | None:
        """The next trial; None if no trial can be started now. One that is known to break a limit ends untrained."""
        while (trial := self._choose()) is not None:
            if (work := self._begin(trial)) is not None:
                return work
        return None

    def _choose(self) -> TrialRecord | None:
        running = self.ledger.running()
        if self.stopping or self.pausing or len(running) >= self.slots:
            return None
        if self.waiting:
            return self.waiting.pop(0)
        if (copied := self._copy_due()) is not None:
            copy = copy_of(self.search, self.ledger.trials, copied)
            self.study.enter_copy(copy.trial_id, copy.number, copy.params, copied)
            return copy
        if (promoted := self._promotion()) is not None:
            self.study.resume(promoted.trial_id)
            return promoted
        if self._has_points():
            trial_id = f"{(number := len(self.ledger.trials)):04d}"
            params = self.study.ask(trial_id, number, self.constraints.may_hold)
            if params is not None:
                folds = self.search.test_trials and self.search.experiment(params).training.protocol == "mlrc"
                return TrialRecord(trial_id, number, "trial", params, 0, note=FOLDS if folds else None)
            self.exhausted = True
        if (repeat := self._next_repeat()) is not None:
            return repeat
        if any(trial.kind == "trial" for trial in running) or len(running) >= self.final_slots:
            return None
        runs = (run for run in choose_final_runs(self.search, self.ledger) if run.trial_id not in self.ledger.finals)
        return next(runs, None)

    def spent_budget(self, trial: TrialRecord | None = None, *, repeat: bool = False) -> str | None:
        """The budget that leaves no room for the rest of this trial, else for another point or `repeat`, in words."""
        epochs = self.search.most_epochs if trial is None else trial.epochs_planned - trial.epochs
        return spent_limit(self.search, self.ledger, self.elapsed_seconds / 3600, self.slots, epochs, repeat=repeat)

    def _copy_due(self) -> Copied | None:
        copied = self.study.copy_due()
        return copied if copied and self.spent_budget(self.ledger.trials[copied.trial_id]) is None else None

    def _promotion(self) -> TrialRecord | None:
        trial = self.ledger.trials.get(self.study.promotion() or "")  # it was stopped early, and is to go on now
        return trial if trial and self.spent_budget(trial) is None else None

    def _has_points(self) -> bool:
        if self.exhausted or self.constraints.reason_to_end is not None:
            return False
        return count_left(self.search, self.ledger, self.study.max_points) > 0 and self.spent_budget() is None

    def _next_repeat(self) -> TrialRecord | None:
        return None if self.spent_budget(repeat=True) else choose_repeat(self.search, self.ledger)

    @property
    def elapsed_seconds(self) -> float:
        """Seconds that the search ran, over all its resumes; not affected by changes of the system clock."""
        return self.elapsed_before + self.clock() - self.started_at

    @property
    def final_slots(self) -> int:
        """How many final runs run at once: fewer, if one takes more workers than a trial."""
        return max(1, self.slots * most(self.search.workers) // most(self.search.workers_of_final))

    @property
    def is_finished(self) -> bool:
        """No trial is running and none will be started."""
        return not self.ledger.running() and (self.stopping or self.pausing or self.complete)

    @property
    def all_begun(self) -> bool:
        """No trial is left to begin; final runs may follow. With a budget of epochs none runs any more either: one that
        is stopped early would leave some; nor where one that runs may let another one go on, or other seeds follow."""
        waits = self.search.budget.epochs is not None or self.search.rounds or self.search.scheduler.promotes
        running = waits and any(trial.kind == "trial" for trial in self.ledger.running())
        if self.waiting or running or self._promotion() is not None or self._copy_due() is not None:
            return False
        return not self._has_points() and self._next_repeat() is None

    @property
    def complete(self) -> bool:
        """Every trial and the final run have ended: a resume would have nothing to do."""
        begun = not self.ledger.unfinished_trials() and self.all_begun
        return begun and all(run.trial_id in self.ledger.finals for run in choose_final_runs(self.search, self.ledger))

    def _begin(self, trial: TrialRecord) -> Work | None:
        experiment, search, final = self._start(trial), self.search, trial.kind == "final"
        trial = self.ledger.find(trial.trial_id)
        self.files.copy(trial, self.study.waiting)
        self.listener("started", trial)
        costs = {} if final else self.constraints.costs_of(trial.settings)
        self._note_costs(trial, costs)
        if trial.violations:
            self._end_early(trial)
            return None
        return Work(
            trial_id=trial.trial_id,
            experiment=experiment,
            data=paths.portable(self.data),
            folder=paths.portable(self.trial_folder(trial)),
            objective=search.objective.model_dump(),
            stop_after=self._stop_after(trial, experiment),
            hold_out=not final or needs_validation(experiment),
            test=final or search.test_trials,
            untrained=self._is_to_measure(trial, experiment),
            costs=self.constraints.measures and not final and not costs,
            untrained_on_test=final,
            workers=search.workers_of_final if final else search.workers,
            trial_timeout=search.trial_timeout,
            stall_timeout=search.stall_timeout,
            max_restarts=search.max_restarts,
        )

    def process_started(self, trial_id: str, now: float) -> None:
        """As `TrialSource` says."""
        self.clocks[trial_id] = self.clocks.get(trial_id, (now, now))[0], now

    def overdue(self, now: float) -> dict[str, Failed]:
        """The trials with a process that took too long, each with its end."""
        ends, search = {}, self.search
        for trial_id, (started, heard) in self.clocks.items():
            if (limit := search.stall_timeout) is not None and now - heard > limit:
                ends[trial_id] = Failed(trial_id, f"stall_timeout: no validation within {limit:g} s", failure="stall")
            elif (limit := search.trial_timeout) is not None and now - started > limit:
                ends[trial_id] = Failed(trial_id, f"trial_timeout: no end within {limit:g} s", failure="timeout")
        return ends

    def _start(self, trial: TrialRecord) -> Experiment:
        experiment = self.search.experiment(trial.params)
        more: dict[str, Any] = {}
        if trial.kind == "trial":
            images = count_training_images(self.ledger)
            more["idle"] = idle_params(experiment.config, experiment.flat(), trial.params, images)
            more["resources"] = self.resources
        if trial.kind == "final":
            more["stop_after"] = trial.stop_after
        if trial.copied is not None:
            more["copied"] = trial.copied.model_dump()
        if attempts := self.study.attempts.get(trial.trial_id, 0):
            more["attempts"] = attempts
        self._record(
            "trial_started",
            trial_id=trial.trial_id,
            kind=trial.kind,
            params=trial.params,
            config=experiment.flat(),
            tags={"selection": experiment.training.selection}
            | ({} if trial.note is None else {"orchestrator.note": trial.note}),
            note=trial.note,
            source=trial.source,
            **more,
        )
        return experiment

    def _untrained_key(self, trial: TrialRecord) -> str:
        digest = str(self.ledger.tags.get("dataset.digest"))
        return untrained_key(trial.settings, digest, on_test=trial.kind == "final")

    def _is_to_measure(self, trial: TrialRecord, experiment: Experiment) -> bool:
        """Whether a trial has to measure its untrained network: it is not measured, and no other trial is doing so. Of
        the final runs the winner's first one measures it on the test classes."""
        if trial.kind == "final":
            winner = self.ledger.winner()
            first = next(iter(self.ledger.final_runs_of(winner)), None)
            if first is None or first.trial_id != trial.trial_id:
                return False
        trial_id = trial.trial_id
        digest = str(self.ledger.tags.get("dataset.digest"))
        key = untrained_key(experiment.flat(), digest, on_test=trial.kind == "final")
        if key in self.ledger.untrained:
            return False
        if (score := find_score(self.folder.parent.parent, key)) is not None:
            self._note_untrained(trial_id, key, score)
            return False
        measuring = self.measuring.get(key, "")
        other = self.ledger.trials.get(measuring) or self.ledger.finals.get(measuring)
        if other is not None and other.trial_id != trial_id and other.state == "running":
            return False
        self.measuring[key] = trial_id
        return True

    def _note_untrained(self, trial_id: str, key: str, untrained: Mapping[str, Any]) -> None:
        score = {name: part for name, part in untrained.items() if name != "by_class"}  # those stay in the storage
        self._record(
            "result", sync=False, trial_id=trial_id, metrics=score_metrics(untrained), untrained={"key": key, **score}
        )

    def _stop_after(self, trial: TrialRecord, experiment: Experiment) -> int | None:
        training = experiment.training
        if trial.source and trial.stop_after is None and training.protocol != "mlrc" and training.selection != "test":
            return self.ledger.find(trial.source).best_validation  # the run began before its length was recorded
        return trial.stop_after

    def trial_folder(self, trial: TrialRecord) -> Path:
        """The folder of a trial's checkpoints."""
        return self.files.place(trial)

    def report(self, result: Result) -> bool:
        """Take a trial's result; True if the trial is to be stopped. Known results are ignored."""
        trial = self.ledger.find(result.trial_id)
        if trial.state != "running":
            return True
        if trial.trial_id in self.clocks:
            self.process_started(trial.trial_id, time.monotonic())
        if result.anew is not None:
            note = f"begun anew: {result.anew}"
            self._start(replace(trial, note=f"{trial.note}; {note}" if trial.note else note))
            self.listener("anew", trial)
        if isinstance(result, Failed):
            self._fail(trial, result.reason, result.failure)
            return True
        if isinstance(result, Interrupted):
            if result.interruption == "preempted":
                self.waiting.insert(0, trial)  # it goes on before anything else
            else:
                self.stopping, self.fault = True, result.reason
            self._end(trial, "interrupted", result.reason, interruption=result.interruption)
            return True
        if bad := [f"{name} is {v}" for name, v in result.metrics.items() if not math.isfinite(v)]:
            self._fail(trial, f"{bad[0]} at validation {result.number}", "training")
            return True
        if (untrained := result.untrained) is not None and valid(untrained):
            key = self._untrained_key(trial)
            if key not in self.ledger.untrained:
                self._note_untrained(trial.trial_id, key, untrained)
                save_score(self.folder.parent.parent, key, untrained)
        stop = False
        if result.lost_workers and result.lost_workers != self.lost_workers.get(trial.trial_id):
            self.lost_workers[trial.trial_id] = result.lost_workers
            self.listener("restarted", trial)
        if result.costs:
            self._note_costs(trial, self.constraints.costs_of(trial.settings) or result.costs)
        elif result.number == 0 and result.untrained is None:
            self.listener("training", trial)
        if result.number > trial.validations:
            value = None  # of a final run, or if no classes are held out
            if trial.trial_id in self.study.numbers:
                value = result.metrics.get(self.search.objective.metric)
            if value is not None:
                self.study.check(trial.trial_id, result.number, value)
            self._record(
                "validation",
                sync=False,  # a resumed training reports it again, and an end waits for the disk
                trial_id=trial.trial_id,
                validation=result.number,
                metrics=result.metrics,
                seconds=result.seconds,
                finished=result.finished,
                **({"unordered": list(result.unordered)} if result.unordered else {}),
                **({"system": dict(result.system)} if result.system else {}),
            )
            if value is not None:  # the record has the second objective
                stop = self.study.report(trial.trial_id, result.number, value, self._second(trial))
            self.listener("validated", trial)
        if result.finished:
            if result.test:
                tests = {f"test/{name}": value for name, value in result.test.items()}
                self._record("result", sync=False, trial_id=trial.trial_id, metrics=tests)
            self._end(trial, "done", result.reason or violation_text(trial, self.ledger.constraints) or None)
        elif stop or trial.violations:
            self._end_early(trial)
        return trial.state != "running"

    def report_restart(self, trial_id: str, reason: str) -> None:
        """A trial's process was lost, and the trial continues in another."""
        if (trial := self.ledger.find(trial_id)).state == "running":
            self.lost_workers[trial_id] = (reason,)
            self.listener("restarted", trial)

    def lost(self, end: Failed) -> None:
        """End a trial whose process could not be kept alive; after a disk fault it is only interrupted."""
        if self.ledger.find(end.trial_id).state == "running":
            fault = Folder(self.folder).fault()
            self.report(Interrupted(end.trial_id, fault) if fault else end)

    def _fail(self, trial: TrialRecord, reason: str, failure: Failure | None) -> None:
        """End an attempt of a trial. Another one follows if the failure may pass and the search has retries left."""
        again = failure in MAY_PASS and trial.failures < self.search.retry
        self._end(trial, "interrupted" if again else "failed", reason, failure=failure)
        if again:
            self.waiting.append(trial)

    def interrupt(self) -> None:
        """Start no more trials and record the running ones as interrupted; a resume continues them."""
        self.stopping = True
        for trial in self.ledger.running():
            self._end(trial, "interrupted", f"the {self.ledger.kind} was {self.stopped_by or 'interrupted'}")

    def _end(self, trial: TrialRecord, state: str, reason: str | None = None, **why: Any) -> None:
        if trial.best is not None and state in FINISHED:
            best = {best_key(k): v for k, v in trial.best_metrics.items() if k.startswith("val/")}
            best |= {self.search.objective.best_key: trial.best, "best/validation": trial.best_validation or 0}
            if self.search.second_objective is not None and trial.second is not None:
                best[self.search.second_objective.best_key] = trial.second
            self._record("result", sync=False, trial_id=trial.trial_id, metrics=best)
        if state in FINISHED:
            for tables in self.files.tables(trial):
                self._record("artifact", sync=False, **tables._asdict())
        self.clocks.pop(trial.trial_id, None)
        self.lost_workers.pop(trial.trial_id, None)
        why = {name: value for name, value in why.items() if value is not None}
        self._record("trial_ended", trial_id=trial.trial_id, state=state, reason=reason, **why)
        if not trial.goes_on:
            if trial.trial_id in self.study.numbers:
                self._tell(trial, state)
            self.files.add(trial, self.study.waiting)
        self.listener("ended", trial)

    def _note_costs(self, trial: TrialRecord, costs: Mapping[str, float]) -> None:
        if costs.keys() - trial.costs.keys():
            self._record("result", sync=False, trial_id=trial.trial_id, metrics=costs)
            self.constraints.note(trial)

    def _second(self, trial: TrialRecord) -> float | None:
        """The second objective by which a trial is compared at its age: what it has spent until now, else the value at
        its best validation."""
        name = self.ledger.second
        return COSTS[name].of(trial) if name in SPENT else trial.second

    def _end_early(self, trial: TrialRecord) -> None:
        """End a trial that is stopped early, or breaks a limit."""
        self._end(trial, "pruned", violation_text(trial, self.ledger.constraints) or None)

    def _tell(self, trial: TrialRecord, state: str) -> None:
        self.study.tell(trial.trial_id, state, trial.second, excesses(trial, self.ledger.constraints))

    def end(self) -> str:
        """Close the search: `done`, `interrupted` if trials are unfinished, or `failed` if no trial gave a value."""
        finished = any(trial.state == "done" and not trial.violations for trial in self.ledger.trials.values())
        state = "interrupted" if not self.complete else "done" if finished or self.ledger.winner() else "failed"
        if state != "interrupted":
            self.study.give_up()
            self.files.tidy(self.study.waiting)
        if state == "done":
            for model in self.files.models(tested=self.search.test_trials):
                self._record("artifact", **model._asdict())
        reason = self.stopped_by if state == "interrupted" else None
        if (
            state != "interrupted"
            and len(self.ledger.trials) - self.ledger.copies < self.study.budget
            and not self.exhausted
        ):
            reason = self.constraints.reason_to_end or self.spent_budget()
        reason = reason if state == "interrupted" else no_feasible_trial(self.ledger) or reason
        winner = self.ledger.winner()
        if winner is not None:
            self._interval(winner)
            if excess := excess_of(self.ledger, winner, self.trial_folder):
                self._record("result", sync=False, trial_id=winner.trial_id, metrics={}, excess=excess.model_dump())
            for trial in [one for one in (winner, *self.ledger.tests_of(winner)[:1]) if one.gain is None]:
                score = find_score(self.folder.parent.parent, self._untrained_key(trial))
                if gain := gain_of(trial, self.trial_folder(trial), score, self.search.objective.metric):
                    self._record("result", sync=False, trial_id=trial.trial_id, metrics={}, gain=gain.model_dump())
        best = {"trial_id": winner.trial_id, "objective": chosen_value(self.ledger, winner)} if winner else None
        self._record("search_ended", state=state, best=best, reason=reason)
        return state

    def _interval(self, trial: TrialRecord) -> None:
        if (ends := interval_of(trial, self.trial_folder(trial), self.search.objective.metric)) is not None:
            best = {f"{self.search.objective.best_key}_over_classes{s}": v for s, v in zip(SUFFIXES, ends, strict=True)}
            self._record("result", sync=False, trial_id=trial.trial_id, metrics=best, best_interval=ends)

    def _record(self, event: str, *, sync: bool = True, **fields: Any) -> None:
        try:
            recorded_event = self.journal.append(event, sync=sync, elapsed=round(self.elapsed_seconds, 3), **fields)
        except OSError as error:  # an unrecorded event must not take effect: start no more trials
            error.filename = error.filename or str(self.journal.path)
            self.stopping, self.fault = True, f"{error.filename}: {error.strerror or error}"
            raise
        self.ledger.apply(recorded_event)
