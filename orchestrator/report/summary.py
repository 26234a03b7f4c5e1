"""The results of a search for programs, as one object."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from orchestrator.report import learning
from orchestrator.report.answers import AnswerOutput, LeadOutput, answers_of
from orchestrator.report.findings import Findings
from orchestrator.report.leading import final_of
from orchestrator.report.next_steps import next_steps
from orchestrator.report.points import PointOutput
from orchestrator.report.significance import Apart, between_confirmed
from orchestrator.report.steps import NextStep
from orchestrator.storage import paths
from orchestrator.storage.cursors import recorded_runs
from orchestrator.storage.leaderboard import Repeated, repeated_tests
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.outputs import Output, SettingValue
from orchestrator.storage.trial_record import TrialRecord


class TrialOutput(Output):
    """A trial or a final run; `metrics` are those of the test."""

    trial_id: str
    run_id: str | None
    state: Literal["running", "done", "pruned", "failed", "interrupted"]
    selection: str
    objective: float | None
    learning: learning.Learning
    second_objective: float | None = None
    violations: dict[str, float] = Field(default_factory=dict)
    """The constraints that it breaks, each with the excess as a share of the limit."""
    params: dict[str, SettingValue]
    validations: int
    best_validation: int | None
    reason: str | None
    metrics: dict[str, float]


class Summary(Output):
    """A search with its trials: ids are those of the tracker, null if nothing was sent."""

    name: str
    state: str
    experiment_id: str | None
    parent_run_id: str | None
    objective: str
    mode: str
    second_objective: str | None = None
    front: list[str] = Field(default_factory=list)
    constraints: dict[str, float] = Field(default_factory=dict)
    """The largest allowed value of each limited cost."""
    reason: str | None = None
    selection: str
    answers: list[AnswerOutput]
    """Those that its page begins with."""
    leads: list[LeadOutput]
    command: str | None
    """The first of the next steps' commands."""
    numbers: learning.Numbers
    trials: list[TrialOutput]
    points: list[PointOutput] = Field(default_factory=list)
    best: TrialOutput | None
    favoured: TrialOutput | None = None
    """Another trial that the tests hold to be better than the best one."""
    final: TrialOutput | None
    finals: list[TrialOutput]
    repeated: list[Repeated]
    next_steps: list[NextStep]
    differences: list[Apart]


def summary(ledger: Ledger, journal: Path) -> Summary:
    """The search as one JSON object; ids are those of the tracker that it was last sent to, null if to none."""
    runs = recorded_runs(journal)

    def trial(record: TrialRecord) -> TrialOutput:
        second: dict[str, Any] = {} if ledger.second is None else {"second_objective": record.second}
        second |= {"violations": record.violations} if ledger.constraints else {}
        return TrialOutput(
            trial_id=record.trial_id,
            run_id=runs.trials.get(record.trial_id),
            state=record.state,
            selection=ledger.selection,
            objective=record.best,
            learning=learning.judge(ledger, record).output,
            **second,
            params=record.params,
            validations=record.validations,
            best_validation=record.best_validation,
            reason=record.reason,
            metrics={f"test/{name}": value for name, value in record.test.items()},
        )

    winner, final = ledger.winner(), final_of(ledger)
    findings = Findings.of(ledger, storage=paths.option(journal.parents[2]), folder=journal.parent)
    steps = next_steps(findings)
    answers = answers_of(findings, steps)
    optional: dict[str, Any] = {}
    if ledger.second is not None:
        optional |= {"second_objective": ledger.second, "front": sorted(ledger.front)}
    if ledger.constraints:
        optional["constraints"] = ledger.constraints
    if ledger.reason:
        optional["reason"] = ledger.reason
    if findings.points:
        optional["points"] = [ranked.output for ranked in findings.points]
    if findings.favoured is not None:
        optional["favoured"] = trial(findings.favoured.trial)
    return Summary(
        name=ledger.name,
        state=ledger.state,
        experiment_id=runs.experiment_id,
        parent_run_id=runs.parent_run_id,
        objective=ledger.metric,
        mode=ledger.mode,
        selection=ledger.selection,
        answers=[answer.output for answer in answers.each],
        leads=[lead.output for lead in answers.leads],
        command=answers.command,
        numbers=learning.numbers_of(ledger),
        trials=[trial(record) for record in ledger.trials.values()],
        best=None if winner is None else trial(winner),
        final=None if final is None else trial(final),
        finals=[trial(record) for record in ledger.finals.values()],
        repeated=repeated_tests(ledger),
        next_steps=[step.output for step in steps],
        differences=[difference.output for difference in between_confirmed(ledger)],
        **optional,
    )
