"""The Python interface: what the command line does, as functions.

    import orchestrator as dml
    search = dml.search("pfml", dataset="glyphs", epochs=20, num_trials=12, space={"delta": {"low": 0.1, "high": 0.35}})
    search.best

Wrong input is an `InputError` with the command line's message, a training that cannot go on a `TrainingFailed`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import InputError, TrainingFailed, as_mapping, in_python
from orchestrator.problems import format_value
from orchestrator.report.html.standalone import Page as Page
from orchestrator.search.lab import in_force, storage_places

if TYPE_CHECKING:
    import pyarrow as pa

    from orchestrator.claims.outputs import ClaimVerdict
    from orchestrator.config.search import Search as Resolved
    from orchestrator.execution.protocol import Runner
    from orchestrator.report.across import Across
    from orchestrator.report.comparison import Comparison
    from orchestrator.search.background import Background
    from orchestrator.search.best import BestResult
    from orchestrator.search.finish import Outcome
    from orchestrator.search.watcher import Watcher
    from orchestrator.storage.ledger import Ledger
    from orchestrator.storage.places import Places
    from orchestrator.training.embed_files import EmbeddedFiles

OnEvent = Callable[[Mapping[str, Any]], None]
"""Called with what happens to a trial: `event` (started, training, validated, ended, restarted, anew), and the trial's
id, kind, state, params, validations, best and metrics."""


@in_python
def search(
    what: str | Path | Mapping[str, Any],
    *,
    space: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
    dataset: str | None = None,
    preset: str | None = None,
    name: str | None = None,
    epochs: int | None = None,
    storage: str | Path | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    address: str | None = None,
    wait: bool = True,
    progress: bool = True,
    on_event: OnEvent | None = None,
    **keys: Any,
) -> "Search":
    """Search for the best hyperparameters of a method.

    Args:
        what: a shipped search or a method by name, a search file, or a file's content as a mapping.
        space: what is searched, in place of the file's.
        settings: fixed settings, also ones that the file searches.
        storage, tracking_uri, address, experiment: by default what the environment says, else the lab's file.
        keys: further keys of a search file, such as `num_trials`, `budget`, `algorithm`, `seed`.
        wait: return when it has ended; otherwise at once, while it runs in this process (`.wait()`, `.stop()`).
        progress: show it as the command line does.
        on_event: called for what happens to each trial, in the thread that drives the search.

    Raises:
        InputError: before anything starts, with all that is wrong.
        TrainingFailed: every trial failed (of one that runs in the background, by `wait()`).
    """
    from orchestrator.config.files import find_search, read_yaml, shipped_searches
    from orchestrator.config.search import FILE_KEYS, no_such_key
    from orchestrator.plugins import is_method
    from orchestrator.search.beginning import fresh_name, resolve_request, runner_at
    from orchestrator.search.driver import start

    if unknown := [key for key in keys if key not in FILE_KEYS]:
        raise InputError(*map(no_such_key, unknown))
    places = storage_places(storage)
    source, raw = "search", {}
    if isinstance(what, Mapping):
        raw = dict(what)
    elif isinstance(what, str) and what not in shipped_searches() and is_method(what):
        source, raw = what, {"method": what}
    else:
        path = find_search(str(what))
        source, raw = path.name, read_yaml(path)
    if space is not None:
        alternatives = [space] if isinstance(space, Mapping) else space
        if not isinstance(alternatives, Sequence) or not all(isinstance(one, Mapping) for one in alternatives):
            raise InputError(f"search: space: {format_value(space)} should map settings to ranges or choices")
        searched = {key for one in alternatives for key in one}
        fixed = {key: value for key, value in dict(raw.get("settings", {})).items() if key not in searched}
        raw = {**raw, "space": dict(space) if isinstance(space, Mapping) else [dict(one) for one in space]}
        raw = {**raw, "settings": fixed}
    overrides = as_mapping("settings", settings) | ({} if epochs is None else {"epochs": epochs})
    resolved = resolve_request(
        raw,
        places,
        source=source,
        name=name or fresh_name(Path(source).stem),
        preset=preset,
        overrides=overrides,
        changes={**keys, "dataset": dataset},
    )
    places.new_journal(resolved.name)
    runner = runner_at(in_force("address", address))
    return _start(resolved, runner, places, tracking_uri, experiment, start, wait, progress, on_event)


@in_python
def best(
    dataset: str,
    *,
    budget: Mapping[str, Any],
    name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    storage: str | Path | None = None,
    tracking_uri: str | None = None,
    address: str | None = None,
    progress: bool = True,
) -> "BestResult":
    """The best model for a data set within `budget={"hours": 2}`, as `orchestrator best`: its `replies`, `path`."""
    from orchestrator.search.best import run_best

    return run_best(
        dataset,
        as_mapping("budget", budget),
        storage_places(storage),
        name=name,
        overrides=as_mapping("settings", settings),
        tracking_uri=in_force("tracking_uri", tracking_uri),
        address=in_force("address", address),
        watcher=_watcher(progress, None),
    )


@in_python
def train(
    method: str | None = None,
    *,
    dataset: str | None = None,
    preset: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    repeats: int = 1,
    storage: str | Path | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    wait: bool = True,
    progress: bool = True,
    on_event: OnEvent | None = None,
) -> "Search":
    """Train one method once in this process, or `repeats` times over seeds under Ray, and test it. See `search`."""
    from orchestrator.execution.inline import InlineRunner
    from orchestrator.search.beginning import described_training, runner_at
    from orchestrator.search.driver import start

    places = storage_places(storage)
    settings_given = {"method": method, "dataset": dataset, "epochs": epochs, "seed": seed}
    fixed = as_mapping("settings", settings)
    for key in fixed.keys() & {key for key, value in settings_given.items() if value is not None}:
        raise InputError(f"{key}: settings has it too; keep one")
    training = described_training(settings_given, fixed, places, preset=preset, name=name, repeats=repeats)
    runner: Runner = InlineRunner() if repeats == 1 else runner_at()
    return _start(training, runner, places, tracking_uri, experiment, start, wait, progress, on_event)


@in_python
def load(name: str, *, storage: str | Path | None = None) -> "Search":
    """A search or a training of a storage by its name, whatever its state. InputError if there is none."""
    if not isinstance(name, str):
        raise InputError(f"load: name: {format_value(name)} should be the name of a search")
    places = storage_places(storage)
    places.journal(name)
    return Search(name, places.storage)


@in_python
def evaluate(
    run: str | Path, *, dataset: str, storage: str | Path | None = None, device: str = "auto"
) -> dict[str, Any]:
    """The retrieval metrics of a trained model on the test classes of a data set: `metrics`, `queries`, and the 95%
    intervals `intervals_over_classes` and `intervals_over_queries`. Of a training over folds, those of the embeddings
    side by side, and `metrics` also has the mean of its models'.

    Args:
        run: a search (its final model), SEARCH/TRIAL, an MLflow run id, or a model file.
    """
    from orchestrator.config.training import resolve_experiment
    from orchestrator.data.catalog import open_dataset
    from orchestrator.data.measured import measurable
    from orchestrator.evaluation.intervals import class_intervals, over_queries
    from orchestrator.search.beginning import check_dataset
    from orchestrator.search.models import find_models
    from orchestrator.training.embed import evaluate_model_by_query
    from orchestrator.training.folds import evaluate_folds
    from orchestrator.training.model_file import saved_model
    from orchestrator.training.splits import rows_to_test

    places = storage_places(storage)
    models = find_models(str(run), places)
    check_dataset(dataset, places.storage)
    store = open_dataset(dataset, places.data)
    training = resolve_experiment(saved_model(models[0])["experiment"], str(models[0])).training
    rows = measurable(store, rows_to_test(training, store), "test images")
    if len(models) == 1:
        result = evaluate_model_by_query(models[0], store, rows, device)
        metrics: Mapping[str, float] = result.metrics
    else:
        metrics, result, _ = evaluate_folds(models, store, rows, device)
    return {
        "metrics": dict(metrics),
        "queries": len(result.queries),
        "intervals_over_classes": class_intervals(result),
        "intervals_over_queries": over_queries(result),
    }


@in_python
def benchmark(
    methods: Sequence[str],
    *,
    budget: Mapping[str, Any] | None = None,
    num_trials: int | None = None,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    searches: int | None = None,
    storage: str | Path | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    address: str | None = None,
    **keys: Any,
) -> "Compared":
    """Which of some methods is best at an equal budget: a search with each, its winner tested over seeds, and their
    comparison. The name of one that exists continues it. With `searches` (3 or more) each method is searched so many
    times, with other seeds, and the verdict is on methods. `keys`: as of `search`, for all of them."""
    from orchestrator.search.beginning import fresh_name, runner_at
    from orchestrator.search.benchmark import Benchmark, find_benchmark, resolve_benchmark
    from orchestrator.search.benchmark_searches import run_methods

    places = storage_places(storage)
    before = None if name is None else find_benchmark(places, name)
    changes = {"budget": as_mapping("budget", budget) or None, "num_trials": num_trials, **keys}
    changes = {key: value for key, value in changes.items() if value is not None}
    if before is None and not budget and num_trials is None:
        raise InputError("budget: missing; give each method the same, such as {'epochs': 200} (or num_trials)")
    if before is None and name is not None:
        places.new_journal(name)
    fixed = as_mapping("settings", settings)
    times = searches or (1 if before is None else before.searches)
    same: dict[str, Any] = {"overrides": fixed, "changes": changes, "searches": times, "experiment": experiment}
    request = Benchmark(name=name or fresh_name("benchmark"), methods=list(methods), **same)
    resolved = resolve_benchmark(request, before)
    tracker, runner = in_force("tracking_uri", tracking_uri), runner_at(in_force("address", address))
    result = run_methods(resolved, runner, storage=places.storage, tracking_uri=tracker)
    return Compared(resolved.name, result.comparison, result.page)


@in_python
def compare(*names: str, storage: str | Path | None = None, margin: float | None = None) -> "Compared":
    """Compare searches as `orchestrator compare` does, also on several data sets; equal within a `margin`, or not."""
    from orchestrator.report.across import compare_searches
    from orchestrator.search.models import read_search

    if len(set(names)) < 2:
        raise InputError(f"names: {', '.join(names) or 'none'}: name two or more searches")
    ledgers = {name: read_search(name, storage_places(storage).storage)[0] for name in names}
    title = " and ".join(names)
    return Compared(title, compare_searches(title, ledgers, margin=margin), None)


@in_python
def claim(
    file: str | Path,
    *,
    storage: str | Path | None = None,
    tracking_uri: str | None = None,
    address: str | None = None,
) -> "ClaimVerdict":
    """Test the claim of a file, or a shipped one such as `pfml/label_noise`, until it is decided or its budget spent;
    one that began continues. The verdict has a `line` for a paper, and `datasets` with the effects and intervals."""
    from orchestrator.claims.file import read_claim
    from orchestrator.claims.running import run_claim
    from orchestrator.claims.shipped import find_claim
    from orchestrator.search.beginning import runner_at

    places = storage_places(storage)
    read = read_claim(find_claim(str(file)), places.storage)
    tracker, address = in_force("tracking_uri", tracking_uri), in_force("address", address)
    result = run_claim(read, storage=places.storage, tracking_uri=tracker, tuner=lambda: runner_at(address))
    if result.fault:
        raise TrainingFailed(str(result.stopped))
    return result.verdict


class Search:
    """A search or a training in a storage: what it found, as far as it is. Everything is read when it is asked for."""

    def __init__(self, name: str, storage: Path, background: "Background | None" = None) -> None:
        self.name, self.storage = name, storage
        self._background = background

    def __repr__(self) -> str:
        return f"<search {self.name}: {self.state}>"

    @property
    def ledger(self) -> "Ledger":
        """All that its journal says."""
        from orchestrator.search.models import read_search

        return read_search(self.name, self.storage)[0]

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return storage_places(self.storage).search(self.name)

    @property
    def state(self) -> str:
        """`starting`, `running`, `done`, `failed`, `interrupted`, or `lost`."""
        return str(self.status()["state"])

    def status(self) -> dict[str, Any]:
        """What `orchestrator status --json` prints."""
        from orchestrator.search.control import status
        from orchestrator.storage.ledger import Ledger
        from orchestrator.storage.places import JOURNAL, has_started

        if not has_started(self.folder / JOURNAL):
            return status(Ledger(name=self.name), self.folder, "starting").plain
        return status(self.ledger, self.folder).plain

    def summary(self) -> dict[str, Any]:
        """What `orchestrator report --json` prints."""
        from orchestrator.report.summary import summary
        from orchestrator.storage.places import JOURNAL

        return summary(self.ledger, self.folder / JOURNAL).plain

    def leaderboard(self) -> "pa.Table":
        """A row per trial, best first, then the final runs, as an Arrow table: `.to_pandas()`, `polars.from_arrow(...)`
        or `pandas.DataFrame.from_arrow(...)` make it a data frame."""
        from orchestrator.storage.leaderboard import leaderboard_table

        return leaderboard_table(self.ledger)

    @property
    def best(self) -> dict[str, Any] | None:
        """The winner: its `trial_id`, `params`, `objective`, `metrics`; None while no trial has a value."""
        best: dict[str, Any] | None = self.summary()["best"]
        return best

    @in_python
    def model(self, trial: str | None = None) -> "Model":
        """The final model, or a trial's, or else the best that there is. InputError if there is none."""
        from orchestrator.search.models import find_models

        model_name = self.name if trial is None else f"{self.name}/{trial}"
        models = find_models(model_name, storage_places(self.storage))
        if len(models) > 1:
            raise InputError(f"{model_name} has one model per fold: dml.Model({str(models[0])!r}) is the first")
        return Model(models[0])

    def report(self) -> "Page":
        """The page on what it found out, shown by a notebook."""
        from orchestrator.report.confused import confused_classes
        from orchestrator.report.findings import Findings
        from orchestrator.report.html.search_page import page

        ledger = self.ledger
        return Page(page(Findings.of(ledger, confused_classes(ledger, self.folder))))

    @in_python
    def wait(self, timeout: float | None = None) -> "Search":
        """Wait for its end, at most `timeout` seconds, and raise what ended it: InputError, TrainingFailed, or another
        error. Does nothing for one that does not run in this process."""
        if self._background is not None:
            self._background.join(timeout)
        return self

    def stop(self) -> None:
        """Ask it to stop; `resume` continues from each trial's last validation. InputError if it does not run."""
        from orchestrator.storage.presence import driver, send_request

        if driver(self.folder) is None:
            raise InputError(f"stop: '{self.name}' is not running (it is {self.ledger.state})")
        send_request(self.folder, "stop")

    @in_python
    def resume(
        self,
        *,
        num_trials: int | None = None,
        budget: Mapping[str, Any] | None = None,
        tracking_uri: str | None = None,
        address: str | None = None,
        progress: bool = True,
        on_event: OnEvent | None = None,
    ) -> "Search":
        """Continue after a stop or a crash, or with more trials or another budget, and wait for the end."""
        from orchestrator.search.beginning import runner_at
        from orchestrator.search.driver import resume
        from orchestrator.search.finish import raise_failure

        outcome = resume(
            self.name,
            runner_at(in_force("address", address)),
            storage=self.storage,
            tracking_uri=in_force("tracking_uri", tracking_uri),
            watcher=_watcher(progress, on_event),
            num_trials=num_trials,
            budget=budget,
        )
        raise_failure(outcome)
        return self


@dataclass(frozen=True)
class Model:
    """A trained model's file."""

    path: Path

    def embed(self, files: Sequence[str | Path] | str | Path, device: str = "auto") -> "EmbeddedFiles":
        """The embeddings of image files, or of a folder's, prepared as in the model's evaluation."""
        from orchestrator.data.archives.listing import images_of
        from orchestrator.training.embed_files import embed_files

        paths = images_of(Path(files)) if isinstance(files, str | Path) else [Path(file) for file in files]
        return embed_files(self.path, paths, device)

    def evaluate(self, dataset: str, *, storage: str | Path | None = None, device: str = "auto") -> dict[str, Any]:
        """See `evaluate`."""
        return evaluate(self.path, dataset=dataset, storage=storage, device=device)


@dataclass(frozen=True)
class Compared:
    """A comparison of searches, and the file of its page, if it was written."""

    name: str
    comparison: "Comparison | Across"
    page: Path | None

    def __repr__(self) -> str:
        return f"<comparison {self.name}>"

    @property
    def plain(self) -> dict[str, Any]:
        """What `orchestrator compare --json` prints."""
        return self.comparison.output.plain


def _start(
    resolved: "Resolved",
    runner: "Runner",
    places: "Places",
    tracking_uri: str | None,
    experiment: str | None,
    start: Callable[..., "Outcome"],
    wait: bool,
    progress: bool,
    on_event: OnEvent | None,
) -> Search:
    from orchestrator.search.finish import raise_failure

    watcher, uri = _watcher(progress, on_event), in_force("tracking_uri", tracking_uri)

    def drive() -> None:
        outcome = start(
            resolved, runner, storage=places.storage, tracking_uri=uri, experiment=experiment, watcher=watcher
        )
        raise_failure(outcome)

    if wait:
        drive()
        return Search(resolved.name, places.storage)
    from orchestrator.search.background import Background

    (background := Background(drive, f"search {resolved.name}")).start()
    return Search(resolved.name, places.storage, background)


def _watcher(progress: bool, on_event: OnEvent | None) -> "Watcher":
    from orchestrator.cli.live import Display
    from orchestrator.search.watcher import Telling, Watcher

    if on_event is not None and not callable(on_event):
        raise InputError(f"on_event: {format_value(on_event)} should be a function of one event")
    display = Display() if progress else Watcher()
    return display if on_event is None else Telling(display, on_event)
