"""An equal budget for every method: one search per method over its own space, in sequence, then the comparison.

Each is an ordinary search, named BENCHMARK-METHOD, with its own journal; the benchmark itself is one small file that
lists them. To resume it, the driver looks for the searches that are missing or unfinished.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.config.algorithms import is_exhaustive
from orchestrator.config.files import find_search, read_yaml, shipped_searches
from orchestrator.config.limits import MAX_RUNS
from orchestrator.config.resolve import resolve_search
from orchestrator.config.schedulers.none import NoStops
from orchestrator.config.search import Search, recorded_search
from orchestrator.errors import InputError
from orchestrator.plugins import installed_methods, is_method
from orchestrator.problems import SET, Bare, Operand, Option, Problem, describe, suggestion
from orchestrator.storage import paths
from orchestrator.storage.buckets import find_bucket
from orchestrator.storage.folder import Folder
from orchestrator.storage.journal import refresh
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.paths import address_of, display_path
from orchestrator.storage.places import BENCHMARK_RECORD, JOURNAL, Places, check_name, has_started
from orchestrator.storage.reading import read_journal

if TYPE_CHECKING:
    from orchestrator.report.comparison import Comparison

OWN_BUDGET = ("num_trials", "budget", "start_from", "final", "final_trials", "final_seeds", "final_workers", "seed")
"""A search file's values for these are ignored here: they are the same for all searches."""
SEEDS = 5
"""Final runs of each winner by default."""
SEEDS_APART = 1000
"""The seeds of one search of a method and of its next: no training has the seed of another search's."""


class Benchmark(BaseModel):
    """The definition of a benchmark."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    methods: list[str] = Field(min_length=1, description="methods, shipped searches, or search files")
    overrides: dict[str, Any] = Field({}, description="settings fixed for all")
    changes: dict[str, Any] = Field({}, description="data set, budget, seeds and so on, for all")
    searches: int = Field(1, ge=1, le=MAX_RUNS, description="searches of each method, each with other seeds")
    experiment: str | None = Field(None, description="of the tracker, for its runs; the data set's name if None")

    @property
    def labels_by_search(self) -> dict[str, tuple[str, int]]:
        """The label of the method, and the number from 1, of each search."""
        names = [Path(method).stem for method in self.methods]
        numbers = range(1, self.searches + 1)
        return {label_of_search(name, number): (name, number) for number in numbers for name in names}

    @property
    def labels(self) -> dict[str, str]:
        """The method of each label in the comparison; a label is the file's name, and the number of a search after the
        first."""
        files = {Path(method).stem: method for method in self.methods}
        return {label: files[name] for label, (name, _) in self.labels_by_search.items()}

    def member(self, label: str) -> str:
        """The name of its search."""
        return check_name(f"{self.name}-{label}")

    def search(self, label: str) -> Search:
        """The search of one method, with the benchmark's budget instead of its file's."""
        path = _space_of(self.labels[label])
        raw = read_yaml(path).without(OWN_BUDGET)
        stops = {} if "scheduler" in raw else {"scheduler": NoStops.name}  # by no rule: the same for all
        changes = {"final_seeds": SEEDS, **stops, **self.changes}
        if (number := self.labels_by_search[label][1]) > 1:
            changes["seed"] = int(changes.get("seed", 0)) + (number - 1) * SEEDS_APART
        try:
            return resolve_search(
                raw, name=self.member(label), source=path.name, overrides=self.overrides, find_settings=None, **changes
            )
        except InputError as error:
            alone = ("; ", SET, " is for all of them: a setting of one method belongs in a search file of its own")
            raise InputError(
                *(one.with_advice(alone) if one.path[:1] == (SET,) else one for one in error.details)
            ) from None


def label_of_search(method: str, number: int) -> str:
    """`pfml`, `pfml-2`"""
    return method if number == 1 else f"{method}-{number}"


def find_benchmark(places: Places, name: str) -> Benchmark | None:
    """The benchmark of this name; None if there is none."""
    path = places.benchmark(name) / BENCHMARK_RECORD
    find_bucket(path)  # a store that cannot be asked is no fault of this file
    try:
        content = Folder(path.parent, patient=False).read(path.name)
        return None if content is None else Benchmark.model_validate_json(content)
    except OSError as error:
        # a store that does not answer is at fault itself: the name may be a search's
        where = error.filename or path if address_of(path) is None else display_path(places.storage)
        raise InputError(f"{where}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        raise InputError(f"{path}: not a benchmark of this version: {describe(error):.300}") from None
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def resolve_benchmark(given: Benchmark | None, before: Benchmark | None) -> Benchmark:
    """The benchmark to run: methods may be added, and the budget may change; everything else stays."""
    if before is None:
        if given is None:
            raise InputError(Problem((Option("methods"),), rule="missing; give two or more, such as pfml,proxy_anchor"))
        if len(given.methods) < 2:
            only = given.methods[0]
            raise InputError(
                Problem(
                    (Option("methods"),),
                    Bare(only),
                    f"give two or more to compare; for one: orchestrator search {only}",
                )
            )
        return given
    if given is None:
        return before
    for option, now, then in ((None, given.changes, before.changes), (SET, given.overrides, before.overrides)):
        for key, value in now.items():
            if key not in ("budget", "num_trials") and value != then.get(key, value if key == "final_seeds" else None):
                began = f"benchmark '{before.name}' began with {then.get(key, 'none')}; leave it out, or take another "
                at = (Option(key),) if option is None else (option, Operand(key))
                raise InputError(Problem(at, Bare(value), (began, Option("name"))))
    if given.searches != before.searches > 1:
        rule = (
            f"benchmark '{before.name}' has {before.searches} of each method; with more after a look at these, its "
            "verdict would err more often than it says: take another ",
            Option("name"),
        )
        raise InputError(Problem((Option("searches"),), given.searches, rule))
    labels = {Path(method).stem: method for method in (*before.methods, *given.methods)}
    by_name = {Path(method).stem: method for method in before.methods}
    clash = [label for label in labels if labels[label] != by_name.get(label, labels[label])]
    if clash:
        was = by_name[clash[0]]
        raise InputError(
            Problem((Option("methods"),), rule=f"'{clash[0]}' was {was} before; give the new file another name")
        )
    changes = before.changes | {k: v for k, v in given.changes.items() if k in ("budget", "num_trials")}
    more = {"methods": list(labels.values()), "changes": changes, "searches": given.searches}
    return before.model_copy(update={**more, "experiment": given.experiment or before.experiment})


def members(benchmark: Benchmark, places: Places) -> dict[str, Ledger]:
    """The ledgers of its started searches."""
    journals = {label: places.search(benchmark.member(label)) / JOURNAL for label in benchmark.labels}
    for path in journals.values():
        refresh(path)
    return {label: read_journal(path)[1] for label, path in journals.items() if has_started(path)}


def benchmark_comparison(benchmark: Benchmark, places: Places, margin: float | None = None) -> "Comparison":
    """The comparison so far, `margin` as `Comparison.of` takes it; InputError if no search has begun."""
    from orchestrator.report.comparison import Comparison

    started = members(benchmark, places)
    if not started:
        raise InputError(f"benchmark '{benchmark.name}': none of its searches has started")
    return Comparison.of(
        benchmark.name,
        started,
        [label for label in benchmark.labels if label not in started],
        paths.option(places.storage),
        margin,
        benchmark.labels_by_search if benchmark.searches > 1 else None,
    )


def to_do(benchmark: Benchmark, places: Places) -> dict[str, Search]:
    """Its searches that have not begun or not ended, or had another budget."""
    if len(benchmark.labels) < len(benchmark.methods) * benchmark.searches:
        raise InputError(Problem((Option("methods"),), rule=f"{', '.join(benchmark.methods)}: one is named twice"))
    for method in benchmark.methods:
        _space_of(method)  # report a misspelling before errors in the budget
    started, remaining = members(benchmark, places), {}
    for label in benchmark.labels:
        ledger = started.get(label)
        search = benchmark.search(label) if ledger is None else _search_with_new_budget(ledger, benchmark)
        if ledger is not None and ledger.is_complete:
            exhausted = search.space.size() <= len(ledger.trials)
            if exhausted or search.model_dump() == recorded_search(ledger.config).model_dump():
                continue
        remaining[label] = search
    return remaining


def _search_with_new_budget(ledger: Ledger, benchmark: Benchmark) -> Search:
    """A started search, with the budget given now."""
    try:
        search = recorded_search(ledger.config)
    except ValidationError as error:
        raise InputError(f"search '{ledger.name}': not of this version: {describe(error)}") from None
    limits = dict.fromkeys(type(search.budget).model_fields) | benchmark.changes.get("budget", {})
    num_trials = benchmark.changes.get("num_trials")
    config = search.model_dump() | {"budget": limits}
    if not search.exhaustive or num_trials is not None:
        config["num_trials"] = num_trials
    return Search.model_validate(config)


def _space_of(method: str) -> Path:
    """The search file of a method: the one given or named like it, else the shipped one that searches it."""
    shipped = shipped_searches()
    if ("/" in method and not is_method(method)) or method.endswith((".yaml", ".yml")) or method in shipped:
        return find_search(method)
    if is_method(method):
        spaces = {name: read_yaml(path) for name, path in shipped.items()}
        matching = [name for name, raw in spaces.items() if raw.get("method") == method]
        matching.sort(key=lambda name: is_exhaustive(spaces[name].get("algorithm")))
        if matching:
            return shipped[matching[0]]
        raise InputError(
            Problem((Option("methods"),), Bare(method), "no search of this method is shipped: give its search file")
        )
    hint = suggestion(method, {*installed_methods(), *shipped}, "orchestrator methods")
    raise InputError(Problem((Option("methods"),), Bare(method), "no such method or search", hint))
