"""`orchestrator best`: a search that is made from a data set and a number of hours, its answers and its model.

best_file.plan_best ──> driver.start, or driver.resume ──> report.best ──> export
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.config.limits import MAX_HOURS
from orchestrator.config.search import Budget, recorded_search
from orchestrator.errors import InputError
from orchestrator.problems import Operand, Option, Problem, suggestion
from orchestrator.report.best import BestAnswers, BestOutput, BestReply, answer_best, best_output
from orchestrator.report.findings import Findings
from orchestrator.search.beginning import runner_at
from orchestrator.search.best_file import BestSearch, plan_best
from orchestrator.storage import paths
from orchestrator.storage.events import Event, SearchStarted
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import JOURNAL, Places, check_name, has_started
from orchestrator.storage.reading import read_journal

if TYPE_CHECKING:
    from orchestrator.execution.protocol import Runner
    from orchestrator.search.finish import Outcome
    from orchestrator.search.watcher import Watcher

HOURS_TAG = "orchestrator.best_hours"
"""The tag of a search that says how many hours it was given, the final runs included."""
FORM: Literal["pt2"] = "pt2"
"""The form of the exported model, which needs no further package."""

Stage = Callable[[str], None]


def hours_of(budget: Mapping[str, Any]) -> float:
    """The hours of a budget, the only limit that is taken."""
    option = Option("budget")
    if others := [key for key in budget if key != "hours"]:
        hint = suggestion(others[0], Budget.model_fields)
        if others[0] in Budget.model_fields or "hours" not in hint.names:
            raise InputError(Problem((option, others[0]), rule="only hours can be given here: hours=2"))
        raise InputError(Problem((option, others[0]), rule="no such limit", suggestion=hint))
    hours = budget.get("hours")
    if hours is None:
        raise InputError(Problem((option,), rule="missing; say how many hours it may take, such as hours=2"))
    if not isinstance(hours, int | float) or isinstance(hours, bool) or not 0 < hours <= MAX_HOURS:
        rule = f"should be a number of hours above 0, at most {MAX_HOURS:g}"
        raise InputError(Problem((option, "hours"), hours, rule))
    return float(hours)


def default_name(dataset: str) -> str:
    """The name of a data set's search, so that the same command goes on with it."""
    return check_name(f"best-{dataset.rstrip('/').rpartition('/')[2]}")


@dataclass(frozen=True)
class Begun:
    """A search that `best` has begun, and the hours that it has in all."""

    ledger: Ledger
    hours: float
    searching: float
    """Of these, the hours in which trials begin: the search's own budget."""

    def more(self, hours: float) -> dict[str, float]:
        """The budget with which it may take so many hours in all; empty if it has them already. InputError where that
        leaves none to search: the final runs that it had count, and others may follow."""
        if hours <= self.hours + 1e-9:
            return {}
        used, final_runs = self.ledger.elapsed / 3600, self.hours - self.searching
        limit = hours - final_runs
        if limit <= used:
            more = math.ceil(100 * (used + final_runs)) / 100
            rule = (
                f"{self.ledger.name} has used {used:.2g} and keeps {final_runs:.2g} for final runs: give more than "
                f"{more:g}"
            )
            raise InputError(Problem((Option("budget"), "hours"), hours, rule))
        return {"hours": limit}


def find_begun(name: str, dataset: str, places: Places) -> Begun | None:
    """The search of this name, if there is one. InputError if it is of another command or of another data set."""
    path = places.search(name) / JOURNAL
    if not has_started(path):
        return None
    events, ledger = read_journal(places.journal(name))
    first: Event = events[0]
    tag = ledger.tags.get(HOURS_TAG)
    where, choose = (Option("name"), Operand(f"'{name}'")), "choose another name"
    if tag is None or not isinstance(first, SearchStarted):
        raise InputError(Problem(where, rule=f"is a search that this command has not begun: {choose}"))
    if ledger.dataset != dataset:
        raise InputError(Problem(where, rule=f"is a search of the data set {ledger.dataset}, not {dataset}: {choose}"))
    searching = float((ledger.config.get("budget") or {}).get("hours") or 0.0)
    at_first = float((first.config.get("budget") or {}).get("hours") or 0.0)
    return Begun(ledger, float(tag) + searching - at_first, searching)


# Running it, and its end -------------------------------------------------------------------------------------------


def start_best(
    planned: BestSearch,
    runner: "Runner",
    storage: Path,
    tracking_uri: str | None,
    watcher: "Watcher",
) -> "Outcome":
    """Run a new search to its end."""
    from orchestrator.search.driver import start

    tags = {HOURS_TAG: f"{planned.plan.hours:g}"}
    return start(planned.search, runner, storage=storage, tracking_uri=tracking_uri, watcher=watcher, tags=tags)


def go_on_best(
    begun: Begun,
    hours: float,
    runner: "Runner",
    storage: Path,
    tracking_uri: str | None,
    watcher: "Watcher",
) -> "Outcome":
    """Go on with a search, which has so many hours in all from now on if that is more."""
    from orchestrator.search.driver import resume

    return resume(
        begun.ledger.name,
        runner,
        storage=storage,
        tracking_uri=tracking_uri,
        watcher=watcher,
        budget=begun.more(hours) or None,
    )


@dataclass(frozen=True)
class BestResult:
    """What a search says, and the file of its model in the current folder."""

    search: str
    answers: BestAnswers
    output: BestOutput
    path: Path | None
    page: Path | None
    """How the file is used."""
    problem: InputError | None = None
    """Why there is no file, where there is a model."""

    @property
    def replies(self) -> list[BestReply]:
        """The answers, the place of the model last."""
        where = "There is none: no trial has a result."
        if self.problem is not None:
            where = f"It was not exported: {self.problem}."
        if self.path is not None:
            where = f"{self.path}; a program that uses it: {self.page}."
        return [*self.answers.replies, BestReply(question="Where is the model?", answer=where)]

    @property
    def plain(self) -> dict[str, Any]:
        """What `orchestrator best --json` prints."""
        return self.output.plain

    def __repr__(self) -> str:
        return "\n".join(f"{reply.question} {reply.answer}" for reply in self.replies)


def finish_best(name: str, places: Places, stage: Stage) -> BestResult:
    """Compare a search with the pre-trained networks of its space, and export its model into the current folder."""
    from orchestrator.data.catalog import open_dataset
    from orchestrator.search.best_file import network_experiments
    from orchestrator.search.pretrained import measure_pretrained

    ledger = read_journal(places.journal(name))[1]
    search = recorded_search(ledger.config)
    store = open_dataset(search.dataset, places.data)
    pretrained = measure_pretrained(network_experiments(search, store), store, places, stage)
    answers = answer_best(Findings.of(ledger, storage=paths.option(places.storage)), pretrained)
    path = page = problem = None
    if answers.leader is not None:
        stage("exporting the model")
        from orchestrator.search.export import SUFFIXES, export, model_source
        from orchestrator.search.models import find_models

        try:
            source = model_source(find_models(name, places), name, places)
            exported = export(source, FORM, Path(f"{name}{SUFFIXES[FORM]}"))
            path, page = exported.path, exported.page
        except InputError as error:
            problem = error
    return BestResult(name, answers, best_output(ledger, answers, pretrained, path), path, page, problem)


def run_best(
    dataset: str,
    budget: Mapping[str, Any],
    places: Places,
    *,
    name: str | None,
    overrides: Mapping[str, Any],
    tracking_uri: str | None,
    address: str | None,
    watcher: "Watcher",
) -> BestResult:
    """All of it, from a data set to the answers: what is there goes on. TrainingFailed if it cannot."""
    from orchestrator.search.finish import raise_failure
    from orchestrator.search.preflight import warn

    hours, name = hours_of(budget), name or default_name(dataset)
    begun = find_begun(name, dataset, places)
    if begun is not None and overrides:
        key, value = next(iter(overrides.items()))
        rule = f"{name} has begun with other settings: give it another name"
        raise InputError(Problem(("settings", key), value, rule))
    stage = watcher.stage
    if begun is None:
        planned = plan_best(
            dataset,
            hours,
            places,
            name=name,
            overrides=overrides,
            at_once=None if address is None else 1,
            say=warn,
            stage=stage,
        )
        raise_failure(start_best(planned, runner_at(address), places.storage, tracking_uri, watcher))
    elif not begun.ledger.is_complete or begun.more(hours):
        raise_failure(go_on_best(begun, hours, runner_at(address), places.storage, tracking_uri, watcher))
    return finish_best(name, places, stage)
