"""Finding model files, and the search that a model belongs to."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import InputError, visible
from orchestrator.problems import suggestion
from orchestrator.storage import trial_files
from orchestrator.storage.cursors import recorded_runs
from orchestrator.storage.folder import faults_as_input_errors
from orchestrator.storage.journal import refresh
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.paths import NAME
from orchestrator.storage.places import JOURNAL, Places
from orchestrator.storage.reading import read_journal
from orchestrator.storage.trial_folder import BEST, HUB_WEIGHTS, MODEL, TrialPaths
from orchestrator.storage.trial_record import TrialRecord


def read_search(name: str, storage: Path) -> tuple[Ledger, Path]:
    """The ledger of a search and the path of its journal."""
    path = Places(storage.expanduser().resolve()).journal(name)
    return read_journal(path)[1], path


def find_models(named: str, places: Places, *, also: Iterable[str] = ()) -> list[Path]:
    """The model file of a path (a file, or a folder of `export --to hub`), a search (its final model, else its best),
    `SEARCH/TRIAL`, a benchmark (that of its best search), or an MLflow run id; of a training over folds, one per fold.
    `also`: other names that may be meant, for the message."""
    path = Path(named).expanduser()
    searches = places.storage / "searches"
    name, _, trial_id = named.partition("/")
    is_search = False
    if NAME.fullmatch(name):
        refresh(searches / name / JOURNAL)
        is_search = (searches / name).is_dir()
    if path.exists() and is_search:
        text = f"note: '{named}' is a path and a search: the path is taken; for the search name a trial, {name}/TRIAL"
        print(visible(text), file=sys.stderr)
    if path.is_file():
        return [path]
    if path.is_dir():
        return [path / HUB_WEIGHTS] if (path / HUB_WEIGHTS).is_file() else _models_in(path, named)
    if is_search:
        if not trial_id:
            from orchestrator.report.leading import final_of

            ledger, _ = read_search(name, places.storage)
            ranking = [trial for trial in ledger.ranking() if trial.best is not None or trial.test]
            final = final_of(ledger)
            if final is not None and final.state == "done":
                trial_id = final.trial_id
            elif ranking:
                trial_id = ranking[0].trial_id
            else:
                raise InputError(f"'{named}': no trial of this search has a model yet")
        elif trial_id.partition("/")[0] not in _trials(name, places):
            raise InputError(f"'{named}': no such trial (see orchestrator report {name})")
        return _models_in(searches / name / "trials" / trial_id, named)
    from orchestrator.search.benchmark import benchmark_comparison, find_benchmark

    if NAME.fullmatch(named) and (benchmark := find_benchmark(places, named)) is not None:
        best = benchmark_comparison(benchmark, places).members[0].ledger.name
        print(
            visible(f"note: '{named}' is a benchmark: the model of its best search, {best}, is taken"), file=sys.stderr
        )
        return find_models(best, places)
    for journal in places.journals():
        for trial, run_id in recorded_runs(journal).trials.items():
            if run_id == named:
                return _models_in(journal.parent / "trials" / trial, named)
    names = [folder.parent.name for folder in places.journals()]
    raise InputError(f"'{named}' is no model file, search, SEARCH/TRIAL or run id{suggestion(name, [*names, *also])}")


def _trials(name: str, places: Places) -> list[str]:
    ledger, _ = read_search(name, places.storage)
    return [*ledger.trials, *ledger.finals]


@dataclass(frozen=True)
class Owner:
    """The search and the trial of a model, and the trial's run in the tracker, None if it was not sent yet."""

    journal: Path
    ledger: Ledger
    trial: TrialRecord
    run_id: str | None


def owner_of(model: Path) -> Owner | None:
    """The owner of a model file; None if it is not in a search's folder."""
    place = model.resolve()
    for folder in place.parents:
        if folder.parent.name == "trials" and (journal := folder.parent.parent / JOURNAL).exists():
            ledger = read_journal(journal)[1]
            if folder.name in ledger.trials or folder.name in ledger.finals:
                run_id = recorded_runs(journal).trials.get(folder.name)
                return Owner(journal, ledger, ledger.find(folder.name), run_id)
    return None


def _models_in(folder: Path, named: str) -> list[Path]:
    models = []
    with faults_as_input_errors():
        trial_files.fetch_trial(folder)
    for trial in TrialPaths(folder).models:
        place, files = trial.folder, [file for file in (trial.model, trial.best, trial.checkpoint) if file.exists()]
        if not files:
            why = f"it has {MODEL} or {BEST}, or of an exported model config.json and {HUB_WEIGHTS}"
            if place.parent.name == "trials":
                why = "only the best trials of a search keep theirs"
            raise InputError(f"'{named}': there is no model in {place} ({why})")
        models.append(files[0])
    return models
