"""Which files of its trials a search keeps, and which of them its journal names for the tracker."""

import contextlib
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import InputError
from orchestrator.storage import trial_files
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.opening import remove_file
from orchestrator.storage.trial_folder import DIAGNOSTICS, INSIGHT, TrialPaths, remove_unfinished, unneeded_files
from orchestrator.storage.trial_record import TrialRecord

KEPT_MODELS = 3
"""How many of the best trials keep their model and show it in the tracker."""


class KeptArtifact(NamedTuple):
    """A file or folder that the tracker is to have: `path` within the search, for a trial's run, there in `folder`."""

    trial_id: str
    path: str
    folder: str


class KeptFiles:
    """The files of a search's trials: those of its best trials and of its final runs stay.

    `waiting` are trials that ended and may go on: they keep their checkpoints."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger, self.folder = ledger, folder
        self.untidy: dict[str, TrialRecord] = {}
        """Ended trials that may still have files that are not needed."""
        self.dropped: dict[str, Sequence[str]] = {}
        """Which files of the ended trials were deleted from an object store."""

    def take_over(self, ended: Iterable[TrialRecord], last: str | None, waiting: Iterable[str]) -> None:
        """Begin with the trials that ended before: a killed driver may have left the files of any, but what an object
        store had of them is deleted already, except for the `last` one's."""
        self.untidy = {trial.trial_id: trial for trial in ended}
        best, open_trials = self.best(), {last, *waiting}
        self.dropped = {name: unneeded_files(name in best) for name in self.untidy if name not in open_trials}

    def place(self, trial: TrialRecord) -> Path:
        """The folder of a trial."""
        return self.folder / "trials" / trial.trial_id

    def copy(self, trial: TrialRecord, waiting: Container[str]) -> None:
        """Give a copy that has not trained yet the files of the trial that it is a copy of, while that waits. Without
        them it trains from the beginning, and comes to the same. Does nothing for a trial that is no copy."""
        if trial.copied is None or trial.copied.trial_id not in waiting:
            return
        other = self.ledger.trials[trial.copied.trial_id]
        if trial.validations == other.validations == trial.copied.validation:
            with contextlib.suppress(OSError, InputError):
                trial_files.copy_files(self.place(other), self.place(trial))

    def best(self) -> set[str]:
        """The trials that keep their models."""
        return {trial.trial_id for trial in self.ledger.best_models(KEPT_MODELS)} | self.ledger.finals.keys()

    def add(self, trial: TrialRecord, waiting: Iterable[str]) -> None:
        """A trial ended, and no resume continues it."""
        for model in TrialPaths(self.place(trial)).models:
            remove_unfinished(model.folder)
        self.untidy[trial.trial_id] = trial
        self.tidy(waiting)

    def tidy(self, waiting: Iterable[str]) -> None:
        """Delete the optimiser states of ended trials that go on no more, and the models of all but the best few.

        It only looks at trials that may still have such files, so that an end costs the same after ten trials and after
        ten thousand."""
        best, kept = self.best(), set(waiting)
        for trial_id, trial in [one for one in self.untidy.items() if one[0] not in kept]:
            place, names = self.place(trial), unneeded_files(trial_id in best)
            for model in TrialPaths(place).all:
                for name in names:
                    remove_file(model.folder / name)
            if self.dropped.get(trial_id) != names:
                with contextlib.suppress(OSError):
                    trial_files.drop(place, names)
                    self.dropped[trial_id] = names
            if trial_id not in best and trial_id in self.dropped:  # it has no model to be kept again
                del self.untidy[trial_id], self.dropped[trial_id]

    def tables(self, trial: TrialRecord) -> Iterator[KeptArtifact]:
        """The small tables of a trial, however it ended."""
        place = self.place(trial)
        trial_files.fetch_trial(place, INSIGHT)
        for tables in (model.insight for model in TrialPaths(place).all):
            remove_unfinished(tables, ("*",))
            if tables.exists():
                path, folder = str(tables.relative_to(self.folder)), str(tables.relative_to(place))
                yield KeptArtifact(trial.trial_id, path, folder)

    def models(self, *, tested: bool) -> Iterator[KeptArtifact]:
        """The models and diagnostics of the best trials and the final runs; `tested`: every trial was."""
        final = list(self.ledger.finals.values())
        for trial in [*self.ledger.best_models(KEPT_MODELS), *final]:
            place = self.place(trial)
            trial_files.fetch_trial(place)
            for one in TrialPaths(place).models:
                fold = one.folder.relative_to(place)
                models = [(one.best, "model"), *([(one.model, "model")] if tested or trial in final else [])]
                diagnostics = [(path, DIAGNOSTICS) for path in sorted(one.diagnostics.glob("[!.]*"))]
                for path, under in models + diagnostics:
                    if path.exists():
                        yield KeptArtifact(trial.trial_id, str(path.relative_to(self.folder)), str(fold / under))
