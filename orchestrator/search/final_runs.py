"""Which trials are trained again at the end of a search, with which seeds, and for how long."""

from orchestrator.config.search import Search
from orchestrator.config.training import Experiment
from orchestrator.plugins import find_installed
from orchestrator.report.standing import to_confirm
from orchestrator.storage.events import FINAL
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import pluralize

FOLDS = "mean of the folds' models"
"""The description of a test over folds, for its note."""


def needs_validation(experiment: Experiment) -> bool:
    """Whether a training goes by its validations, so that its final run keeps the held-out classes."""
    return experiment.training.follows_scores or find_installed(experiment.method).needs_validation


def choose_final_runs(search: Search, ledger: Ledger) -> list[TrialRecord]:
    """The runs to train once all trials have ended: the best few trials in the order of `standing`, each with
    every seed.

    A trial that was stopped early is trained for as long as the winner, since its own best is not known: all of
    them are compared after their final runs.

    If more trials after an end have found another winner, its final run has its own name."""
    runs: list[TrialRecord] = []
    if not search.final:
        return runs
    only = search.final_runs == 1
    first_run = ledger.finals.get(FINAL)
    trials = to_confirm(ledger, search.final_trials)
    for trial in trials:
        conventional = search.final_protocol == "conventional"
        point = trial.params | ({"protocol": "conventional"} if conventional else {})
        experiment = search.experiment(point)
        note = f"retrained from trial {trial.trial_id}"
        if conventional:
            note += " as one model"
        if needs_validation(experiment) and experiment.training.selection == "validation":
            user = "learning rate's" if experiment.training.follows_scores else "method's own"
            note += f", held-out classes kept for the {user} use"
        if experiment.training.protocol == "mlrc":
            note += f", {FOLDS}"
        if experiment.training.selection == "test":
            note += ", its best validation chosen on the test classes"
        # each fold selects its own best model, maybe after more validations than the mean; so does selection on test
        selects = experiment.training.protocol == "mlrc" or experiment.training.selection == "test"
        stop_after = None if selects else trial.best_validation
        longest = trials[0].best_validation
        if stop_after and longest and trial.state == "pruned" and stop_after < longest:
            stop_after = longest
            note += f", which was stopped early, for the winner's {pluralize(longest, 'validation')}"
        for repeat in range(search.final_seeds):
            seed = experiment.training.seed + repeat
            params = point if search.final_seeds == 1 else point | {"seed": seed}
            name = f"{FINAL}-{trial.trial_id}-seed-{seed}"
            is_of_trial = first_run is not None and first_run.source == trial.trial_id
            if (only and first_run is None) or (is_of_trial and (only or repeat == 0)):
                name = FINAL  # one that was made before more seeds were asked for is the first of them
            runs.append(
                TrialRecord(
                    name, len(runs), "final", params, 0, note=note, source=trial.trial_id, stop_after=stop_after
                )
            )
    return runs
