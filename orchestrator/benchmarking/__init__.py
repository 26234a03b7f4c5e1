"""A tabular benchmark of searches: recorded trainings, on which a search algorithm is judged in seconds.

`table` is the file and its tasks, `collecting` makes a task of the searches that recorded it, `replaying` searches over
one, `checking` compares that with a real search. See docs/benchmark_tables.md.
"""

from orchestrator.benchmarking.checking import find_difference
from orchestrator.benchmarking.collecting import collect_task
from orchestrator.benchmarking.replaying import (
    Progress,
    Replay,
    ReplayedSearches,
    TableRunner,
    evaluate_algorithm,
    replay,
)
from orchestrator.benchmarking.table import TabularCurve, TabularTask, read_task, read_tasks, write_tasks
from orchestrator.search.study import suggest

__all__ = [
    "Progress",
    "Replay",
    "ReplayedSearches",
    "TableRunner",
    "TabularCurve",
    "TabularTask",
    "collect_task",
    "evaluate_algorithm",
    "find_difference",
    "read_task",
    "read_tasks",
    "replay",
    "suggest",
    "write_tasks",
]
