"""How sure a front of two objectives is, from the tests of its trials."""

import statistics
from collections.abc import Iterator

from orchestrator.report.significance import between_confirmed, how_tested, tests_by_seed
from orchestrator.report.tested import MetricGoal, goals, is_held_out
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import join_names, pluralize

NAMED = 5
"""The maximum number of trials, and of pairs, that a sentence names."""


def front_text(ledger: Ledger) -> str:
    """What the front is worth, in a sentence or two for each objective."""
    front = [trial for trial in ledger.ranking() if trial.trial_id in ledger.front]
    if len(front) == 1:
        first = f"Trial {front[0].trial_id} alone is on the front: no other is better in either objective."
    else:
        first = f"Of the {len(front)} trials on the front none is better than another in both objectives."
    lines = [line for goal in goals(ledger) for line in _tests(ledger, front, goal)]
    if not lines:
        lines = [f"With one seed{' each, their order' if len(front) > 1 else ', that'} may be chance."]
    untested = [name for name in (ledger.metric, ledger.second or "") if name and not is_held_out(name)]
    if untested:
        lines.append(f"No test measures {join_names(untested, ' and ')}.")
    return " ".join([first, *lines])


def _tests(ledger: Ledger, front: list[TrialRecord], goal: MetricGoal) -> Iterator[str]:
    """What the tests say of one objective: means and deviations of the front's trials, and which pairs differ."""
    tests = {trial.trial_id: tests_by_seed(ledger, trial, goal.metric) for trial in front}
    tests = {name: values for name, values in tests.items() if len(values) > 1}
    if not tests:
        return
    texts = [
        f"{name} {statistics.fmean(values.values()):.4f} ± {statistics.stdev(values.values()):.4f}"
        for name, values in list(tests.items())[:NAMED]
    ]
    more = f" and {len(tests) - NAMED} more" if len(tests) > NAMED else ""
    compared = [d for d in between_confirmed(ledger, goal.metric) if d.one in tests and d.other in tests]
    real = [d for d in compared if d.real]
    line = f"Test {goal.metric}: {', '.join(texts)}{more}"
    if not compared:
        yield f"{line}."
        return
    better = [(d.one, d.other) if (d.mean > 0) == goal.larger else (d.other, d.one) for d in real]
    pairs = [f"{one} is better than {other}" for one, other in better[:NAMED]]
    if len(better) > NAMED:
        pairs.append(f"{len(better) - NAMED} other pairs differ too")
    if open_ := len(compared) - len(real):
        pairs.append(f"{pluralize(open_, 'pair')} cannot be told apart" if real else "they cannot be told apart")
    yield f"{line}; {'; '.join(pairs)} ({how_tested(compared)})."
