"""The results of a search for programs, as one object."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.report import learning
from orchestrator.report.answers import answers_of
from orchestrator.report.findings import Findings
from orchestrator.report.leading import final_of
from orchestrator.report.next_steps import next_steps
from orchestrator.report.significance import between_confirmed
from orchestrator.storage import paths
from orchestrator.storage.cursors import recorded_runs
from orchestrator.storage.leaderboard import repeated_tests
from orchestrator.storage.ledger import Ledger, TrialRecord


def summary(ledger: Ledger, journal: Path) -> dict[str, Any]:
    """The search as one JSON object; ids are those of the tracker that it was last sent to, null if to none."""
    runs = recorded_runs(journal)

    def trial(record: TrialRecord) -> dict[str, Any]:
        return {
            "trial_id": record.trial_id,
            "run_id": runs.trials.get(record.trial_id),
            "state": record.state,
            "selection": ledger.selection,
            "objective": record.best,
            "learning": learning.judge(ledger, record).plain,
            **({"second_objective": record.second} if ledger.second is not None else {}),
            "params": record.params,
            "validations": record.validations,
            "best_validation": record.best_validation,
            "reason": record.reason,
            "metrics": {f"test/{name}": value for name, value in record.test.items()},
        }

    winner = ledger.winner()
    findings = Findings.of(ledger, storage=paths.option(journal.parents[2]), folder=journal.parent)
    steps = next_steps(findings)
    return {
        "name": ledger.name,
        "state": ledger.state,
        "experiment_id": runs.experiment_id,
        "parent_run_id": runs.parent_run_id,
        "objective": ledger.metric,
        "mode": ledger.mode,
        **({"second_objective": ledger.second, "front": sorted(ledger.front)} if ledger.second is not None else {}),
        **({"reason": ledger.reason} if ledger.reason else {}),
        "selection": ledger.selection,
        **answers_of(findings, steps).plain,
        "numbers": learning.plain(ledger),
        "trials": [trial(record) for record in ledger.trials.values()],
        **({"points": [ranked.plain for ranked in findings.points]} if findings.points else {}),
        "best": trial(winner) if winner else None,
        **({"favoured": trial(findings.favoured.trial)} if findings.favoured is not None else {}),
        "final": trial(final) if (final := final_of(ledger)) is not None else None,
        "finals": [trial(record) for record in ledger.finals.values()],
        "repeated": [asdict(repeated) for repeated in repeated_tests(ledger)],
        "next_steps": [step.plain for step in steps],
        "differences": [difference.plain for difference in between_confirmed(ledger)],
    }
