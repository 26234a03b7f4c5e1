"""Which searches become a row of the record: all that does not compare is said at once."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from orchestrator.config.search import Objective, Search, recorded_search
from orchestrator.config.training import Training
from orchestrator.errors import InputError
from orchestrator.problems import Option, Problem, describe
from orchestrator.report.class_tables import ClassTable, class_table
from orchestrator.report.commands import train_command
from orchestrator.report.learning import test_set, untrained_score
from orchestrator.results.outputs import AddedRow
from orchestrator.results.plan import FREE, Plan, Task, read_plan, row_name
from orchestrator.results.row import (
    FACTS,
    FORMAT,
    MEASURES,
    ROWS,
    SEARCH,
    NewRow,
    RowCost,
    RowFacts,
    RowTrial,
    curves_digest,
    digest_of,
    measured_as,
    read_facts,
    scores_digest,
    write_row,
)
from orchestrator.search.final_runs import needs_validation
from orchestrator.storage.events import Event, SearchResumed, SearchStarted, Validation
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.opening import open_file
from orchestrator.storage.places import Places
from orchestrator.storage.provenance import foreign_commits
from orchestrator.storage.reading import read_journal
from orchestrator.storage.trial_record import TrialRecord
from orchestrator.text import value_text

if TYPE_CHECKING:
    import pyarrow as pa

CPU_SHARE = "cpu_utilization_percentage"
"""Of a validation: the processor's seconds since the one before, in hundredths of those of the clock."""


def add_row(name: str, places: Places, record: Path) -> AddedRow:
    """Add a finished search to a record. The same search again changes nothing.

    Raises:
        InputError: everything on account of which it does not compare with the record's other rows, a line each.
    """
    plan = read_plan(record)
    path = places.journal(name)
    with open_file(path) as file:
        content = file.read()
    events, ledger = read_journal(path)
    search = _search_of(ledger)
    where = (f"search '{name}'",)
    task_name, problems = _find_task(plan, search, ledger)
    task = plan.tasks.get(task_name)
    space = plan.space if task is None else plan.space_of(task_name)
    problems += [
        *_journal_problems(ledger),
        *_commit_problems(events, record),
        *_budget_problems(plan, search, ledger, space),
    ]
    winner = ledger.winner()
    if task is not None:
        problems += _digest_problems(task_name, task, ledger, record)
        problems += _setting_problems(task, search, ledger, space, plan)
        problems += _space_problems(plan, task_name, search, ledger)
    runs = {} if winner is None else _runs_by_seed(ledger, winner)
    tables, of_seeds = _tables_of(plan, ledger, runs)
    problems += of_seeds
    if problems or winner is None:
        raise InputError(*(problem.under(where) for problem in problems))
    new = _new_row(plan, record, task_name, search, ledger, events, winner, runs, tables, content)
    folder = record / ROWS / new.facts.name
    if (folder / FACTS).exists():
        _refuse_another(new.facts, read_facts(folder), where, plan.metric)
        return AddedRow(name=new.facts.name, folder=str(folder), new=False)
    return AddedRow(name=new.facts.name, folder=str(write_row(new, record)), new=True)


def _search_of(ledger: Ledger) -> Search:
    try:
        return recorded_search(ledger.config)
    except ValidationError as error:
        raise InputError(f"'{ledger.name}': is no search of this version: {describe(error)}") from None


def _find_task(plan: Plan, search: Search, ledger: Ledger) -> tuple[str, list[Problem]]:
    """The task of a search by data set, protocol and network, of several the one whose settings are nearest; what is
    wrong if there is none."""
    training = search.example().training
    own = (search.dataset, training.protocol, training.backbone)
    alike = {
        name: len(list(_setting_problems(task, search, ledger, plan.space_of(name), plan)))
        for name, task in plan.tasks.items()
        if (task.dataset, task.protocol, task.settings.get("backbone")) == own
    }
    if alike:
        return min(alike, key=lambda name: alike[name]), []
    known = "; ".join(f"{t.dataset} {t.protocol} {t.settings.get('backbone')}" for t in plan.tasks.values())
    return "", [Problem(("task",), rule=f"{' '.join(own)} is no task of the record, which has {known}")]


def _journal_problems(ledger: Ledger) -> Iterator[Problem]:
    for note in ledger.notes:
        yield Problem(("journal",), rule=note)
    if ledger.state != "done":
        yield Problem(("state",), ledger.state, "should be done: resume it")
    elif not ledger.is_complete:
        yield Problem(("state",), rule="a training failed with its device and would be tried again: resume it")
    names = list(ledger.trials)
    if names != [f"{number:04d}" for number in range(len(names))]:
        yield Problem(("journal",), rule=f"trials are missing: it has {', '.join(names)}")
    for trial in ledger.trials.values():
        if trial.state == "done" and trial.validations != len(trial.curve):
            rule = f"trial {trial.trial_id} has {trial.validations} validations and {len(trial.curve)} values"
            yield Problem(("journal",), rule=rule)


def _commit_problems(events: Sequence[Event], record: Path) -> Iterator[Problem]:
    """Of code that others do not have."""
    drives = _drives(events)
    if any(tags.get("git.dirty") == "true" for tags in drives):
        yield Problem(
            ("commit",), rule="the code was changed since its commit, so nobody can run the same: commit first"
        )
    if not all("git.commit" in tags for tags in drives):
        rule = "is not known of all its trainings: run it in a checkout, so that others can run the same"
        yield Problem(("commit",), rule=rule)
    commits = dict.fromkeys(str(tags["git.commit"]) for tags in drives if "git.commit" in tags)
    for commit in foreign_commits(commits, record):
        yield Problem(("commit",), commit, "is none of the repository that has the record")


def _drives(events: Sequence[Event]) -> list[Mapping[str, Any]]:
    """The tags of a search's beginning, and of each time that it was resumed."""
    return [event.tags for event in events if isinstance(event, SearchStarted | SearchResumed)]


def _budget_problems(plan: Plan, search: Search, ledger: Ledger, space: Mapping[str, Any]) -> Iterator[Problem]:
    budget = plan.budget
    expected: dict[str, tuple[Any, Any]] = {
        "num_trials": (search.num_trials, budget.num_trials),
        "algorithm": (search.algorithm, budget.algorithm),
        "scheduler": (search.scheduler.name, budget.scheduler),
        "objective": (search.objective.metric, f"val/{plan.metric}"),
        "objective's mode": (search.objective.mode, Objective(metric=f"val/{plan.metric}").mode),
        "objectives": ([goal.metric for goal in search.goals[1:]], []),
        "constraints": (search.constraints, {}),
        "seeds": (search.seeds, 1),
        "seed": (search.seed, 0),
        "seed of the trainings": (search.settings.get("seed", 0), 0),
        "start_from": (search.start_from, []),
        "learn_from": (search.learn_from, []),
        "budget": (search.budget.limits(), {}),
        "final_protocol": (search.final_protocol, "same"),
        "selection": (ledger.selection, "validation"),
    }
    for key, (value, planned) in expected.items():
        if value != planned:
            shown = "none" if planned in ([], {}) else value_text(planned)
            yield Problem((key,), value, f"the record's is {shown}")
    ended = [trial for trial in ledger.trials.values() if trial.state == "done" or trial.failure == "training"]
    if len(ended) != budget.num_trials:
        rule = f"{len(ended)} of its trials trained to their end, the record's budget is {budget.num_trials}"
        others = [trial.trial_id for trial in ledger.trials.values() if trial.state == "failed" and trial not in ended]
        rule += f"; not by the training failed {', '.join(others)}" if others else ""
        yield Problem(("trials",), rule=rule)
    missing = {key: range_ for key, range_ in space.items() if search.raw_space.get(key) != range_}
    for key, range_ in missing.items():
        given = search.raw_space.get(key, search.settings.get(key, "its default"))
        yield Problem(("space", key), given, f"every row searches {_range_text(range_)}")
    for key in _training_keys(search) - space.keys():
        yield Problem(("space", key), rule="is searched, and is the same for all rows of a task")


def _space_problems(plan: Plan, task: str, search: Search, ledger: Ledger) -> Iterator[Problem]:
    """Of a planned method, that it is searched over other ranges than its shipped file has."""
    if ledger.method not in plan.methods:
        return
    space, own = plan.search_space(task, ledger.method), search.raw_space
    if space == own:
        return
    file = plan.entry(ledger.method).space or ledger.method
    if not isinstance(space, Mapping) or not isinstance(own, Mapping):
        yield Problem(("space",), rule=f"is not that of the search file {file}")
        return
    shared = plan.space_of(task)
    for key in [key for key in {**space, **own} if space.get(key) != own.get(key) and key not in shared]:
        if key not in space:
            yield Problem(("space", key), rule=f"is searched, and is not in the search file {file}")
        else:
            value = own.get(key, search.settings.get(key, "its default"))
            yield Problem(("space", key), value, f"the search file {file} has {space[key]}")


def _training_keys(search: Search) -> set[str]:
    return {parameter.key for parameter in search.parameters()} & Training.model_fields.keys()


def _range_text(range_: Any) -> str:
    return "{" + ", ".join(f"{key}: {value_text(value)}" for key, value in range_.items()) + "}"


def _digest_problems(name: str, task: Task, ledger: Ledger, record: Path) -> Iterator[Problem]:
    digest = str(ledger.tags.get("dataset.digest", ""))
    known = task.digest or next(
        (read_facts(path.parent).dataset_digest for path in record.glob(f"{ROWS}/{name}.*/{FACTS}")), None
    )
    if not digest:
        yield Problem(("data set",), rule="its journal has no digest of it")
    elif known is not None and digest != known:
        rule = f"its digest is {digest[:12]}, that of the record's {task.dataset} {known[:12]}: other images"
        yield Problem(("data set",), rule=rule)


def _setting_problems(
    task: Task, search: Search, ledger: Ledger, space: Mapping[str, Any], plan: Plan
) -> Iterator[Problem]:
    """Settings of its trainings that are not the task's; `space`: those that every row searches."""
    searched = {*space, *(parameter.key for parameter in search.parameters())}
    for run in ledger.everyone()[:1]:
        method = str(run.settings["method"])
        planned = task.training(method, plan.entry(method).settings)
        for key, value in planned.items():
            if key not in searched | FREE and key in run.settings and run.settings[key] != value:
                yield Problem(("settings", key), run.settings[key], f"the task's is {value_text(value)}")


def _runs_by_seed(ledger: Ledger, winner: TrialRecord) -> dict[int, TrialRecord]:
    """The winner's tested runs."""
    return {int(run.settings["seed"]): run for run in ledger.tests_of(winner)}


def _tables_of(
    plan: Plan, ledger: Ledger, runs: Mapping[int, TrialRecord]
) -> tuple[dict[str, dict[int, ClassTable]], list[Problem]]:
    """By metric and seed, and what is missing."""
    seeds = list(range(plan.seeds))
    if missing := [seed for seed in seeds if seed not in runs]:
        what = ", ".join(map(str, sorted(runs))) or "none"
        tested = f"the winner is tested with {what}; missing: {', '.join(map(str, missing))} ("
        expected = (tested, Option("final_seeds"), f" {plan.seeds})")
        return {}, [Problem(("seeds",), rule=expected)]
    tables: dict[str, dict[int, ClassTable]] = {metric: {} for metric in MEASURES}
    problems = []
    for metric in MEASURES:
        for seed in seeds:
            run = runs[seed]
            name = measured_as(metric, run.settings["protocol"])
            table = class_table(ledger, run, name, run.test[name]) if name in run.test else None
            if table is None:
                rule = f"{run.trial_id} has no table of its classes whose mean is its test {name}"
                problems.append(Problem(("scores",), rule=rule))
            else:
                tables[metric][seed] = table
    return tables, problems


def _refuse_another(new: RowFacts, old: RowFacts, where: tuple[str], metric: str) -> None:
    """The record has one row of a method on a task."""
    if new.journal_digest == old.journal_digest:
        return
    here, there = (dict(zip(facts.seeds, facts.test[metric], strict=True)) for facts in (new, old))
    furthest = max((abs(here[seed] - there[seed]) for seed in here.keys() & there.keys()), default=0.0)
    same = "no test differs" if furthest == 0 else f"its tests differ by up to {furthest:.2g}"
    rule = f"is recorded already, of another journal ({old.journal_digest[:12]}): {same}"
    if here.keys() != there.keys():
        rule += f", over {len(here)} seeds here and {len(there)} there: remove its folder to take this one"
    raise InputError(Problem((f"row '{new.name}'",), rule=rule).under(where))


def _new_row(
    plan: Plan,
    record: Path,
    task: str,
    search: Search,
    ledger: Ledger,
    events: Sequence[Event],
    winner: TrialRecord,
    runs: Mapping[int, TrialRecord],
    tables: Mapping[str, Mapping[int, ClassTable]],
    journal: bytes,
) -> NewRow:
    name, seeds = row_name(task, ledger.method), list(range(plan.seeds))
    file = search.file().encode()
    test = test_set(ledger)
    untrained = untrained_score(ledger, winner)
    tags, curves, protocol = ledger.tags, _curves_table(events, ledger), str(winner.settings["protocol"])
    command = ["orchestrator", "search", f"{record.resolve().name}/{ROWS}/{name}/{SEARCH}", "--name", name]
    facts = RowFacts(
        format=FORMAT,
        name=name,
        task=task,
        method=ledger.method,
        dataset=ledger.dataset,
        dataset_digest=str(tags["dataset.digest"]),
        protocol=protocol,
        network=plan.tasks[task].network,
        classes=len(next(iter(tables[plan.metric].values())).means),
        queries=0 if test is None else test.queries,
        winner=winner.trial_id,
        params=winner.params,
        objective=ledger.metric,
        held_out=float(winner.best or 0.0),
        test={metric: [runs[seed].test[measured_as(metric, protocol)] for seed in seeds] for metric in MEASURES},
        seeds=seeds,
        untrained=None if untrained is None else untrained["metrics"].get(plan.metric),
        gain=None if protocol == "mlrc" else runs[seeds[0]].gain,  # that would be of its models one by one
        trials={
            trial.trial_id: RowTrial(state=trial.state, params=trial.params, best=trial.best)
            for trial in ledger.trials.values()
        },
        epochs=ledger.epochs,
        cost=row_cost(events, ledger, [runs[seed] for seed in seeds]),
        command=shlex.join(command),
        train_command=_command_of(search, winner, runs[seeds[0]]),
        commit=tags.get("git.commit"),
        later_commits=_later_commits(events),
        version=tags.get("version.dml-orchestrator"),
        machine=_machine(ledger, winner),
        date=f"{datetime.fromtimestamp((ledger.ended or ledger.started) / 1000, UTC):%Y-%m-%d}",
        journal_digest=digest_of(journal),
        search_digest=digest_of(file),
        scores_digest=scores_digest(tables),
        curves_digest=curves_digest(curves),
    )
    return NewRow(facts, tables, curves, journal, file)


def _command_of(search: Search, winner: TrialRecord, run: TrialRecord) -> str | None:
    """Trains and tests the winner again as this final run did: on the whole training half, unless the method needs
    held-out classes. None if the run ended with its trial's best validation, which no setting of a training says."""
    if run.stop_after is not None and run.stop_after < winner.validations:
        return None
    holds_out = run.settings["protocol"] == "mlrc" or needs_validation(search.experiment(run.params))
    return train_command(run.settings | ({} if holds_out else {"validation_share": 0.0}))


def _later_commits(events: Sequence[Event]) -> list[str]:
    """Those at which a search was resumed, each once, but that of its beginning."""
    commits = [tags.get("git.commit") for tags in _drives(events)]
    return list(dict.fromkeys(str(one) for one in commits if one not in (None, commits[0])))


def _machine(ledger: Ledger, winner: TrialRecord) -> str:
    """`cpu, Linux-6.1-x86_64, torch 2.15.0`"""
    gpus = winner.resources.get("GPU", 0)
    kind = str(ledger.tags.get("gpu", "gpu")) if gpus else "cpu"
    parts = [kind, str(ledger.tags.get("platform", "")), f"torch {ledger.tags.get('version.torch', 'unknown')}"]
    return ", ".join(part for part in parts if part)


def _validations(events: Sequence[Event]) -> Iterator[Validation]:
    """Each once: a training that was resumed may report one again."""
    last: dict[str, int] = {}
    for event in events:
        if isinstance(event, Validation) and event.validation > last.get(event.trial_id, 0):
            last[event.trial_id] = event.validation
            yield event


def row_cost(events: Sequence[Event], ledger: Ledger, finals: Sequence[TrialRecord]) -> RowCost:
    """What a search's trials and these final runs took."""
    names = {run.trial_id for run in finals}
    counted = [event for event in _validations(events) if event.trial_id in ledger.trials or event.trial_id in names]

    def core_seconds(of: Sequence[Validation]) -> float | None:
        if any(CPU_SHARE not in event.system for event in of):
            return None
        return sum(event.seconds * event.system[CPU_SHARE] / 100 for event in of)

    of_finals = [event for event in counted if event.trial_id in names]
    training = core_seconds(of_finals)
    return RowCost(
        core_seconds=core_seconds(counted),
        seconds=sum(event.seconds for event in counted),
        gpu_hours=sum(run.hours.get("GPU", 0.0) for run in [*ledger.trials.values(), *finals]),
        training_core_seconds=None if training is None or not finals else training / len(finals),
        training_seconds=sum(event.seconds for event in of_finals) / max(1, len(finals)),
    )


def _curves_table(events: Sequence[Event], ledger: Ledger) -> "pa.Table":
    import pyarrow as pa

    kept = list(_validations(events))

    def column(key: str) -> list[float | None]:
        return [event.metrics.get(key) for event in kept]

    of = {run.trial_id: run for run in ledger.everyone()}
    shares = [event.system.get(CPU_SHARE) for event in kept]
    return pa.table(
        {
            "trial": pa.array([event.trial_id for event in kept], pa.string()).dictionary_encode(),
            "kind": pa.array([of[event.trial_id].kind for event in kept], pa.string()).dictionary_encode(),
            "seed": pa.array([int(of[event.trial_id].settings.get("seed", 0)) for event in kept], pa.int32()),
            "validation": pa.array([event.validation for event in kept], pa.int32()),
            "epoch": pa.array(column("epoch"), pa.float64()),
            "objective": pa.array(column(ledger.metric), pa.float64()),
            "val_recall_at_1": pa.array(column("val/recall_at_1"), pa.float64()),
            "train_loss": pa.array(column("train/loss"), pa.float64()),
            "seconds": pa.array([event.seconds for event in kept], pa.float64()),
            "core_seconds": pa.array(
                [
                    None if share is None else event.seconds * share / 100
                    for event, share in zip(kept, shares, strict=True)
                ],
                pa.float64(),
            ),
        }
    )
