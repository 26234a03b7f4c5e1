"""Parts of a search's page that say what its numbers are worth: tests with their intervals, what learned nothing."""

from collections.abc import Iterator

from orchestrator.report.claims import in_range, means, single_tests, test_rows
from orchestrator.report.html.elements import Cell, Folded, Table, score_cell, state_cell
from orchestrator.report.learning import judge, state_word, verdict_line
from orchestrator.storage.leaderboard import Repeated, repeated_tests
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import FINISHED, TrialRecord

TESTS = 5
"""The maximum number of single tests that have a table of their own, final runs first."""


def learned_cell(ledger: Ledger, trial: TrialRecord) -> Cell:
    """The state of a trial; if it breaks a constraint, or learned nothing, that in red, with the reason."""
    if trial.violations:
        return state_cell(state_word(ledger, trial), "failed", trial.reason or "")
    if trial.state in FINISHED and (judgement := judge(ledger, trial)).bad:
        why = "; ".join(filter(None, (judgement.why, judgement.diverged)))
        return state_cell(state_word(ledger, trial), "failed", why)
    return state_cell(trial.state)


def search_state(ledger: Ledger, lost: bool) -> Cell:
    """The state of a search; in red if it learned nothing, or nobody drives it any more."""
    state = "lost" if lost else ledger.state
    if verdict_line(ledger):
        return state_cell(f"{state}, learned nothing", "failed")
    return state_cell(state, "failed" if lost else "")


def seeds_table(name: str, ledger: Ledger, group: Repeated) -> Table:
    """Mean and deviation of a repeated test, its interval over seeds, and the mean ends of those over classes and
    queries."""
    heads, rows = test_rows(ledger, means(group))
    heads = ["metric", "mean", "deviation", "over seeds: low", "high", *heads[2:]]
    cells = []
    for metric, mean, *others in rows:
        spread = in_range(metric, group.metrics[metric])
        values = (mean, spread.standard_deviation, spread.low, spread.high, *others)
        cells.append([metric, *map(score_cell, values)])
    return Table(name, heads, cells)


def single_tables(ledger: Ledger) -> Iterator[Folded]:
    """A table for each test that is not one of several seeds: values, 95% intervals, chance."""
    for number, run in enumerate(single_tests(ledger, repeated_tests(ledger))[:TESTS]):
        heads, rows = test_rows(ledger, run.test)
        cells = [[metric, *map(score_cell, values)] for metric, *values in rows]
        what = "the final run" if run.kind == "final" else f"trial {run.trial_id}"
        title = f"Test of {what}, with 95% intervals"
        yield Folded(title, Table(f"test-{number}", heads, cells), opened=number == 0)
