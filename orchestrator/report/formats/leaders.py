"""The leaderboard's cells, for any format."""

from collections.abc import Mapping

from orchestrator.evaluation.measures import HEADLINES
from orchestrator.report import learning
from orchestrator.report.claims import claim_of_test
from orchestrator.report.findings import Findings
from orchestrator.report.points import spread_of
from orchestrator.report.significance import Difference
from orchestrator.storage.leaderboard import Interval, repeated_tests, value_columns
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import value_text


def leaders(findings: Findings) -> tuple[list[str], list[tuple[TrialRecord, list[str], bool]]]:
    """Heads, and for each trial its cells and whether it is the winner; tests are those of its final runs."""
    ledger = findings.ledger
    keys, columns = findings.keys, value_columns(ledger)
    tests: dict[str | None, Mapping[str, Interval | float]] = {}
    tests |= {run.source or run.trial_id: run.test for run in ledger.everyone() if run.test}
    tests |= {group.source or group.trial_ids[0]: group.metrics for group in repeated_tests(ledger)}
    tested = [name for name in HEADLINES if any(name in values for values in tests.values())]
    rows = []
    for trial in ledger.ranking():
        cells = [trial.trial_id, learning.state_word(ledger, trial)]
        cells += [value_text(trial.params[key]) if key in trial.params else "" for key in keys]
        cells += ["" if (value := of(trial)) is None else f"{value:.4f}" for of in columns.values()]
        cells += [] if ledger.second is None else ["*" if trial.trial_id in ledger.front else ""]
        cells += [_tested_cell(ledger, tests.get(trial.trial_id, {}), name) for name in tested]
        rows.append((trial, cells, trial is findings.winner))
    heads = ["trial", "state", *keys, *columns, *(["front"] if ledger.second is not None else [])]
    return [*heads, *(f"test {name}{_over(ledger, name)}" for name in tested)], rows


def seed_rows(findings: Findings) -> tuple[list[str], list[list[str]]]:
    """Heads, and for each point of a grid over seeds its cells, best first."""
    keys = [setting.key for setting in findings.searched]
    rows = []
    for ranked in findings.points:
        point = ranked.point
        spread_there = spread_of(findings.ledger, ranked)
        ends = "" if spread_there is None else f"{spread_there.low:.4f} to {spread_there.high:.4f}"
        spread = "" if spread_there is None else f" ± {spread_there.standard_deviation:.4f}"
        cells = [value_text(point.params[key]) if key in point.params else "" for key in keys]
        rows.append([*cells, str(len(point.values)), f"{point.mean:.4f}{spread}", ends, ranked.answer or "best"])
    metric = findings.ledger.metric
    return [*keys, "seeds", f"{metric}, mean and deviation", "95% of the mean over seeds", "told apart"], rows


def _tested_cell(ledger: Ledger, test: Mapping[str, Interval | float], name: str) -> str:
    """`0.5440 (0.4970 to 0.5960)`, `0.5210 ± 0.0010 (0.4801 to 0.5619)`: the head says what the interval is over."""
    value = test.get(name)
    if value is None:
        return ""
    interval = claim_of_test(ledger, {n: v.mean if isinstance(v, Interval) else v for n, v in test.items()}, name)
    ends = "" if interval is None or interval.low is None else f" ({interval.low:.4f} to {interval.high:.4f})"
    if isinstance(value, Interval):
        return f"{value.mean:.4f} ± {value.standard_deviation:.4f}{ends}"
    return f"{value:.4f}{ends}"


def _over(ledger: Ledger, name: str) -> str:
    """What the intervals of a leaderboard's tests are over, for the head of a metric."""
    tests = [claim_of_test(ledger, run.test, name) for run in ledger.everyone() if run.test]
    populations = {one.over for one in tests if one is not None and one.low is not None}
    return f" (95% over {' or '.join(sorted(populations))})" if populations else ""


def difference_text(difference: Difference) -> str:
    """`0003 - 0007: +0.0120 (95%: 0.0080 to 0.0160): real`"""
    verdict = {"yes": "real", "no": "not distinguishable"}.get(difference.answer, difference.answer)
    return f"{difference.one} - {difference.other}: {difference.text}: {verdict}"
