"""A search from its first event to its last, and taken up again after anything."""

import contextlib
import io
import os
import shutil
import signal
import sys
import tempfile
import threading
import uuid
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from pydantic import ValidationError

from orchestrator import objects
from orchestrator.checkpoint import (
    BEST,
    IMAGES,
    INSIGHT,
    MODEL,
    model_folders,
    remove_unfinished,
    write_whole,
)
from orchestrator.conductor import Conductor
from orchestrator.control import DRIVER, REQUEST, at_the_wheel, await_silence, driver, starting
from orchestrator.data.store import Store
from orchestrator.endings import say
from orchestrator.errors import InputError, storage_fault, suggestion, visible
from orchestrator.files import what_is
from orchestrator.journal import TAKEN, Journal, JournalError, lock, read_noted, refresh
from orchestrator.ledger import Ledger, TrialRecord, budget_used, counted, write_csv
from orchestrator.limits import cpus, memory
from orchestrator.presets import find_preset
from orchestrator.provenance import provenance
from orchestrator.records import go_on
from orchestrator.spec import (
    NAME,
    Search,
    Training,
    check_name,
    check_search,
    describe,
    resolve_experiment,
    with_more_budget,
    with_other_workers,
)
from orchestrator.tracking import (
    MLflowTracker,
    Tracker,
    check_tracking_uri,
    default_tracking_uri,
    events_sent,
    redact,
)
from orchestrator.views import MOST_COMPARED

JOURNAL = "journal.jsonl"
LEADERBOARD = "leaderboard.csv"
PAGE = "report/search.html"
MODEL_PAGE = str(Path(PAGE).with_name(IMAGES))
HANGUP_SECONDS = 60.0
"""How long a search whose terminal was closed has to end in order."""
TRACKER_SECONDS = 60.0
"""How long the end of a search waits for the tracker to take what it has not yet taken."""


@dataclass(frozen=True)
class Places:
    """Where things lie under a storage folder, or in the working copy of one on an object store, which what is asked
    for brings up to date."""

    storage: Path

    @property
    def data(self) -> Path:
        """The data sets."""
        return self.storage / "data"

    @property
    def artifacts(self) -> Path:
        """MLflow's artifacts, for the default tracker."""
        return self.storage / "mlartifacts"

    def search(self, name: str) -> Path:
        """The folder of one search."""
        return self.storage / "searches" / check_name(name, "NAME")

    def journal(self, name: str) -> Path:
        """The journal of a search that exists; InputError with a suggestion otherwise."""
        path = self.search(name) / JOURNAL
        refresh(path)
        where = objects.shown(self.storage)
        if not self.storage.is_dir():
            raise InputError(f"{STORAGE}: no folder {where}, so no search '{name}' in it")
        if not has_begun(path):
            if driver(path.parent):
                raise InputError(f"'{name}' is starting, there is nothing of it yet: try again in a moment")
            known = objects.folders(self.storage / "searches") or [other.parent.name for other in self.journals()]
            hint = suggestion(name, known) if known else " (none yet)"
            raise InputError(f"no search '{name}' under {where}{hint}")
        return path

    def journals(self) -> list[Path]:
        """The journals of all searches."""
        names = objects.folders(self.storage / "searches")
        if names is None:
            return sorted(path for path in (self.storage / "searches").glob(f"*/{JOURNAL}") if has_begun(path))
        paths = [self.search(name) / JOURNAL for name in names if NAME.fullmatch(name)]  # others may write there
        for path in paths:
            refresh(path)
        return [path for path in paths if has_begun(path)]

    def new_journal(self, name: str) -> Path:
        """Where the journal of a new search goes; InputError if the name was used before."""
        path = self.search(name) / JOURNAL
        refresh(path)
        if has_begun(path):
            raise InputError(
                f"--name: '{name}' exists in {objects.shown(path.parent)}: go on with it "
                f"(orchestrator resume {name} --storage {objects.shown(self.storage)}) or choose another name"
            )
        return path


def has_begun(journal: Path) -> bool:
    """Whether a journal holds its first event: a driver that died before, or had no room for it, leaves none."""
    try:
        if what_is(journal) is not None:
            return True  # something is in its place, which whoever reads it is told
        with open(journal, "rb") as file:
            return file.readline().endswith(b"\n")
    except FileNotFoundError:
        return False
    except OSError:
        return True


@dataclass(frozen=True)
class Outcome:
    """What a search came to."""

    ledger: Ledger
    state: str
    journal: Path
    tracking_uri: str
    experiment_id: str | None
    parent_run_id: str | None
    problem: str | None
    """What the tracker still misses, in one line; `sync` sends it."""
    no_views: str | None = None
    """Why the tracker's pages have no views of this search, if they have none."""
    fault: str | None = None
    """What was wrong with the disk or the machine, if that stopped the search."""


class Watcher:
    """Sees a search: the display is one."""

    def begin(self, conductor: Conductor, tracker: Tracker) -> None:
        """Before the first trial."""

    def __call__(self, event: str, trial: TrialRecord) -> None:
        """`started`, `restarted`, `anew`, `validated` or `ended`."""

    def end(self) -> None:
        """After the last event."""


class Runner(Protocol):
    """Where trials run."""

    def ready(self, search: Search, storage: Path) -> contextlib.AbstractContextManager[int]:
        """Get hold of the machines; gives how many trials run at once, InputError if not even one can, or if one of
        them does not see the storage."""

    def resources(self, search: Search) -> dict[str, float]:
        """What a trial holds on these machines: CPUs, and GPUs if it has any."""

    def run(self, conductor: Conductor) -> None:
        """Run the conductor's trials until it has no more or is stopping."""


class InlineRunner:
    """The `process` backend: one trial after the other in this process. For one training, and to debug."""

    @contextlib.contextmanager
    def ready(self, search: Search, storage: Path) -> Iterator[int]:
        from orchestrator.loop import choose_device

        choose_device(search.example().training.device)
        check_threads(search)
        yield 1

    def resources(self, search: Search) -> dict[str, float]:
        from orchestrator.loop import choose_device

        training = search.example().training
        gpu = {"GPU": 1.0} if choose_device(training.device).type == "cuda" else {}
        return {"CPU": float(training.threads)} | gpu

    def run(self, conductor: Conductor) -> None:
        from orchestrator.trial import results

        while not conductor.finished:
            work = conductor.next()
            if work is None:
                return
            for result in results(work):
                if conductor.report(result) or conductor.stopping:
                    break


def check_threads(search: Search) -> None:
    """InputError if a training asks for more threads than this machine has CPUs."""
    if (threads := search.example().training.threads) > cpus():
        raise InputError(f"threads: {threads}: this machine has {cpus()} CPUs: at most {cpus()} can be used")


STORAGE = "--storage (or ORCHESTRATOR_STORAGE)"
SCRATCH = "orchestrator-"
LONGEST_TEMPORARY = 16
"""Ray's sockets lie beneath the temporary folder, and a socket's path has 107 characters at most."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for all that is temporary here and in the processes begun from here; at the end it is removed.

    What a killed process left goes with the next one; see `sweep`.
    """
    base = Path(tempfile.gettempdir())
    if len(str(base)) > LONGEST_TEMPORARY:
        base = Path("/tmp")
    sweep(base)
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    try:
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=base, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            with open(folder / "new-lock", "w+b") as held:
                lock(held)
                (folder / "new-lock").rename(folder / "lock")  # from here on others see it, locked
                tempfile.tempdir = os.environ["TMPDIR"] = name
                try:
                    yield folder
                finally:
                    tempfile.tempdir = before[0]
                    os.environ.pop("TMPDIR")
                    if before[1] is not None:
                        os.environ["TMPDIR"] = before[1]
    finally:
        sweep(base)


def sweep(base: Path) -> None:
    """Remove the folders of killed processes: their lock is free. Ray's processes outlive a killed driver by a minute
    and may write there again when its folder is gone, and so may torch: then nothing is in it but their own, and no
    lock."""
    for folder in base.glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError):  # others' folders are closed to us
            if (folder / "lock").exists():
                with open(folder / "lock", "r+b") as file:
                    if lock(file):
                        shutil.rmtree(folder, ignore_errors=True)
            elif (found := [*folder.iterdir()]) and all(map(_orphaned, found)):
                shutil.rmtree(folder, ignore_errors=True)


def _orphaned(folder: Path) -> bool:
    return folder.name.startswith("torchinductor_") or (folder.name == "ray" and any(folder.glob("session_*")))


def writable(folder: Path, option: str = STORAGE, remedy: str = "name another folder") -> Path:
    """The absolute folder, made if need be; InputError if nothing can be written there."""
    folder = folder.expanduser().resolve()
    probe = folder / f".write-test-{uuid.uuid4().hex}"
    if folder.is_file():
        raise InputError(f"{option}: {folder} is a file: name a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"{option}: {folder} cannot be written ({error.strerror}): {remedy}") from None
    objects.check_writable(folder, option)
    return folder


def start(
    search: Search,
    runner: Runner,
    *,
    storage: Path,
    tracking_uri: str | None = None,
    watcher: Watcher | None = None,
    tags: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a new search to its end (or to Ctrl-C). InputError if its name was used before. `tags` go to the
    tracker."""
    if tracking_uri:
        check_tracking_uri(tracking_uri)  # before anything is written
    places = Places(writable(storage))
    path = places.new_journal(search.name)
    uri = tracking_address(tracking_uri, places)
    note_tracking(uri, places)
    search, chosen = suited_to_data(search, places)
    for key, because in chosen.items():
        print(visible(f"note: {key}={search.settings[key]}: {because}"), file=sys.stderr, flush=True)
    digest, sizes = check_data(search, places)
    with contextlib.ExitStack() as stack:
        with starting(path.parent):
            stack.enter_context(scratch())
            slots = stack.enter_context(runner.ready(search, places.storage))
            check_hours(search, runner)
        with opened(path) as journal:
            first = begin(
                journal,
                name=search.name,
                search_id=uuid.uuid4().hex,
                dataset=search.dataset,
                method=search.settings.get("method", "several"),
                objective=search.objective.model_dump(),
                config=search.model_dump(),
                params={"algorithm": search.algorithm, "scheduler": search.scheduler.name, "seed": search.seed},
                tags=provenance()
                | {"dataset.digest": digest, "selection": search.example().training.selection, **(tags or {})},
                tracking_uri=recorded_address(uri, places),
                sizes=sizes,
            )
            return run(search, runner, slots, places, journal, [first], uri, watcher or Watcher())


def begin(journal: Journal, **fields: Any) -> dict[str, Any]:
    """The search's first event; InputError, and no journal, if the disk does not take it."""
    try:
        return journal.append("search_started", **fields)
    except OSError as error:
        with contextlib.suppress(OSError):
            journal.path.unlink()
            journal.path.parent.rmdir()
        where = error.filename or journal.path
        raise InputError(f"{where}: cannot be written ({error.strerror}): mend that and start again") from None


def resume(
    name: str,
    runner: Runner,
    *,
    storage: Path,
    tracking_uri: str | None = None,
    watcher: Watcher | None = None,
    num_trials: int | None = None,
    budget: Mapping[str, Any] | None = None,
    workers: int | None = None,
    max_concurrent: int | None = None,
) -> Outcome:
    """Go on with a search: finished trials stay, interrupted ones go on from their last validation. Of a search
    that has come to its end nothing changes, and the tracker gets what it missed; unless it is given more trials
    (`num_trials`) or another `budget`. From now on each trial has `workers`, and there are at most `max_concurrent`."""
    places = Places(storage.expanduser().resolve())
    path = places.journal(name)
    writable(storage, remedy="mend that, then resume again")
    uri = tracking_address(tracking_uri, places, path)
    with opened(path) as journal:
        events, ledger = read_journal(path)
        for note in ledger.notes:
            print(visible(f"note: {note}"), file=sys.stderr)
        raised = num_trials is not None or bool(budget)
        bring_artifacts(path, events, ledger)
        if ledger.state in ("done", "failed") and not raised:
            for option, value in (("--workers", workers), ("--max-concurrent", max_concurrent)):
                if value is not None:
                    raise InputError(
                        f"{option}: {value}: search '{name}' is {ledger.state}, nothing is left to train; "
                        "give it more trials (--num-trials) or another --budget too"
                    )
            return conclude(ledger, path, MLflowTracker(path, uri, places.artifacts), uri)
        try:
            search = Search.model_validate(ledger.config)
        except ValidationError as error:
            raise InputError(f"{path}:1: not a search of this version: {describe(error)}") from None
        if raised:
            search = with_more_budget(search, num_trials, budget or {})
            check_room(search, ledger)
        if resized := workers is not None or max_concurrent is not None:
            search = with_other_workers(search, workers, max_concurrent)
        (digest, _), recorded = check_data(search, places), events[0]["tags"].get("dataset.digest")
        if digest != recorded:
            raise InputError(
                f"{path}: the data set '{search.dataset}' is not the one this search began with "
                f"(digest {digest[:12]}, then {str(recorded)[:12]}): its trials could not be compared"
            )
        note_tracking(uri, places)
        with scratch(), runner.ready(search, places.storage) as slots:
            check_hours(search, runner)
            changed = raised or resized
            config: dict[str, Any] = {"config": search.model_dump()} if changed else {}
            address = recorded_address(uri, places)
            events.append(journal.append("search_resumed", tags=provenance(), tracking_uri=address, **config))
            return run(search, runner, slots, places, journal, events, uri, watcher or Watcher())


def check_room(search: Search, ledger: Ledger) -> None:
    """InputError if a search that was given more trials or another budget has no room for one more trial."""
    tried = len(ledger.trials)
    if search.num_trials is not None and search.num_trials <= tried:
        raise InputError(f"--num-trials: {search.num_trials}: the search has tried {tried} points already; give more")
    if search.space.size() <= tried:
        raise InputError(f"'{search.name}' has tried all {tried} points of its space: there are no more to try")
    used = budget_used(ledger)
    for key, limit in search.budget.limits().items():
        if used[key] >= limit:
            raise InputError(f"--budget {key}={limit:g}: {used[key]:g} are used already; give more, or {key}=none")


def check_hours(search: Search, runner: Runner) -> None:
    """InputError if GPU-hours shall be counted where trials take no GPU."""
    if "GPU" in runner.resources(search):
        return
    for where, is_limited in (
        ("budget", search.budget.gpu_hours is not None),
        ("objectives", any(goal.metric == "cost/gpu_hours" for goal in search.goals)),
    ):
        if is_limited:
            instead = "cpu_hours" if where == "budget" else "cost/seconds"
            raise InputError(f"{search.source}: {where}: gpu_hours: trials take no GPU here: take {instead}")


def starting_settings(name: str, places: Places) -> list[dict[str, Any]]:
    """What a name in `start_from` stands for: a preset's settings, or those of the best k trials of an earlier
    search (`NAME` or `NAME:K`), best first."""
    if "/" in name:
        return [resolve_experiment(find_preset(name, "start_from").settings, name).flat()]
    earlier, _, words = name.partition(":")
    if words and not (words.isdecimal() and int(words) > 0):
        raise InputError(f"start_from: {name}: should read SEARCH or SEARCH:K, so many of its best trials")
    ledger = read_journal(places.journal(earlier))[1]
    best = ledger.finished()[: int(words or 1)]
    if not best:
        raise InputError(f"start_from: {name}: this search has no finished trial")
    return [resolve_experiment({**ledger.config["settings"], **trial.params}, name).flat() for trial in best]


def tracking_address(given: str | None, places: Places, journal: Path | None = None) -> str:
    """The tracker to use: the one given, else the one that the search ran with last, else the default."""
    if given:
        uri = check_tracking_uri(given)
        if uri.startswith("sqlite:"):
            writable(Path(uri.removeprefix("sqlite:///")).parent, "--tracking-uri (or MLFLOW_TRACKING_URI)")
        return uri
    before = None
    if journal is not None:
        begun = [event for event in read_journal(journal)[0] if event["event"] in ("search_started", "search_resumed")]
        before = begun[-1].get("tracking_uri") if begun else None
    if before and "***" in before:
        raise InputError(
            f"--tracking-uri: the search was tracked at {before}, whose password is not recorded: give the address"
        )
    return before or default_tracking_uri(places.storage)


def recorded_address(uri: str, places: Places) -> str | None:
    """The tracker's address as the journal keeps it: no password, and None for the storage's own database, which
    may move together with it."""
    return None if uri == default_tracking_uri(places.storage) else redact(uri)


def note_tracking(uri: str, places: Places) -> None:
    """Tell where MLflow's database is, where a user could expect it beside the rest."""
    if objects.address_of(places.storage) is not None and uri == default_tracking_uri(places.storage):
        where = uri.removeprefix("sqlite:///")
        print(f"note: MLflow's database is on this machine: {where}; --tracking-uri names a server", file=sys.stderr)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Journal]:
    """The journal, held by this process alone."""
    with objects.refused_in_one_line():
        alive = await_silence(path.parent)
    if alive is not None:
        raise InputError(f"{objects.shown(path)}: {TAKEN} ({alive['by']})")
    for file in (path.parent / name for name in (LEADERBOARD, DRIVER, REQUEST, PAGE, "study.journal")):
        if (what := what_is(file)) is not None:
            raise InputError(f"{objects.shown(file)}: is {what}, where the search writes a file: move it away")
    try:
        journal = Journal(path)
    except JournalError as error:
        raise InputError(str(error)) from None
    except OSError as error:
        where = error.filename or path
        raise InputError(f"{where}: cannot be written ({error.strerror}): mend that and try again") from None
    with journal:
        yield journal


def read_journal(path: Path) -> tuple[list[dict[str, Any]], Ledger]:
    """The events of a search and what they come to; InputError naming the line if the journal is damaged."""
    try:
        sent = events_sent(path)  # before the rest: of a search that runs, more may be sent meanwhile
        events, notes = read_noted(path)
    except JournalError as error:
        raise InputError(str(error)) from None
    ledger = Ledger.of(events, objects.shown(path))
    if (lost := sent.get(ledger.search_id, 0) - len(events)) > 0:
        where = f"{objects.shown(path)}:{len(events) + 1}"
        how = go_on(path.parent.name, len(events))
        raise InputError(f"{where}: {counted(lost, 'line')} missing, that were sent to MLflow{how}")
    ledger.notes = notes
    return events, ledger


def bring_artifacts(path: Path, events: list[dict[str, Any]], ledger: Ledger) -> None:
    """What the tracker is to be sent of a search on an object store, into the working copy; nothing on a disk."""
    if objects.address_of(path) is None:
        return
    sent = [event for event in events if event["event"] in ("artifact", "model")]
    with objects.refused_in_one_line():
        for trial_id in {event["trial_id"] for event in sent} & {trial.trial_id for trial in ledger.everyone()}:
            objects.bring_trial(path.parent / "trials" / trial_id)
        for name in {str(event["path"]) for event in sent}:
            objects.bring(path.parent / name)


def suited_to_data(search: Search, places: Places) -> tuple[Search, dict[str, str]]:
    """The search with the defaults that follow its data set, and why; see `orchestrator.defaults`."""
    from orchestrator.data.catalog import open_dataset
    from orchestrator.defaults import suited

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    found, chosen = suited(search, open_dataset(search.dataset, places.data, say=say))
    if chosen and not found.test_trials:
        check_search(found)
    return found, chosen


def check_data(search: Search, places: Places) -> tuple[str, dict[str, Any]]:
    """The data set's digest, and what numbers of it are of (`yardstick.sizes`); prepares it if need be, and refuses
    batches that its classes cannot fill, weights and images that the backbone cannot take, and settings that the method
    cannot do with. A selection on almost nothing is warned of."""
    from orchestrator.data.catalog import open_dataset
    from orchestrator.data.pipeline import check_images, describe_unreadable, find_unreadable, without
    from orchestrator.data.samplers import ClassBalancedSampler
    from orchestrator.data.splits import noisy_labels, train_labels, unused_split
    from orchestrator.effect import unreached
    from orchestrator.loop import check_image_size, data_splits, new_learner
    from orchestrator.yardstick import Measured, selection_warning, sizes

    def say(line: str) -> None:
        print(visible(line), file=sys.stderr, flush=True)

    experiment = search.example()
    training = experiment.training
    if training.selection == "test":
        say("note: selection=test: the best validation is chosen on the TEST classes, and all numbers are on these")
    store = open_dataset(training.dataset, places.data, say=say)
    splits = data_splits(training, store)
    split = splits[0]
    if note := unused_split(store):
        say(f"note: {note}")
    unreadable = find_unreadable(store, training.augmentation, threads=training.loader_threads, say=say)
    check_images(store, training.augmentation, unreadable)
    if unreadable:
        say(f"warning: {describe_unreadable(store, unreadable)}")
    found = sizes(store, [without(part, unreadable) for part in splits])
    for line in unreached(search, found["training_images"]):
        say(f"warning: {line}")
    held_out = Measured.read(found["validation"])
    split = without(split, unreadable)
    ClassBalancedSampler(
        noisy_labels(train_labels(store, split.train), share=training.label_noise, seed=training.label_noise_seed),
        classes_per_batch=training.classes_per_batch,
        images_per_class=training.images_per_class,
        seed=training.seed,
    )
    _check_memory(training, store)
    with warnings.catch_warnings():
        if search.raw_space:  # the example is a corner of the space, nobody's choice
            warnings.simplefilter("ignore")
        learner = new_learner(experiment, store, split)
    check_image_size(learner, store, split, training)
    if held_out is not None and (why := selection_warning(held_out, experiment.flat(), found["training_classes"])):
        say(f"warning: {why}")
    return str(store.manifest["digest"]), found


def _check_memory(training: Training, store: Store) -> None:
    """InputError for a batch whose images alone leave a training no memory here."""
    from orchestrator.data.transforms import CROPS

    crop = CROPS.get(training.augmentation)
    pixels = store.image(0).size if crop is None else store.channels * crop.size**2
    needed, there = 4 * pixels * training.batch_size, memory()
    if needed > there / 4:
        raise InputError(
            f"classes_per_batch: {training.classes_per_batch}: with images_per_class: {training.images_per_class} the "
            f"images of a batch take {needed / 2**30:.1f} GB, and this machine has {there / 2**30:.1f} GB of memory: "
            "lower one of them"
        )


def run(
    search: Search,
    runner: Runner,
    slots: int,
    places: Places,
    journal: Journal,
    events: list[dict[str, Any]],
    tracking_uri: str,
    watcher: Watcher,
) -> Outcome:
    """Everything from the first event to the last."""
    tracker = MLflowTracker(journal.path, tracking_uri, places.artifacts)
    tracker.notify()

    def tell(event: str, trial: TrialRecord) -> None:
        tracker.notify()
        watcher(event, trial)

    conductor = Conductor(
        search,
        journal.path.parent,
        data=places.data,
        journal=journal,
        events=events,
        slots=slots,
        resources=runner.resources(search),
        listener=tell,
    )
    remove_unfinished(conductor.folder, (LEADERBOARD, DRIVER))
    with at_the_wheel(conductor):
        try:
            with interrupts(conductor), quick_turns():
                watcher.begin(conductor, tracker)  # it writes: if nobody reads that, the search ends in order
                if not conductor.stopping:
                    runner.run(conductor)
        except KeyboardInterrupt:  # the second one: the runner has stopped at once, its records are still put in order
            conductor.stopping = True
        except OSError as error:
            if not (fault := storage_fault(error)):
                raise
            conductor.stopping, conductor.fault = True, conductor.fault or fault
        finally:
            watcher.end()
            if conductor.ledger.running() or conductor.stopping:
                conductor.interrupt()
        table = io.StringIO()
        write_csv(conductor.ledger, table)
        write_whole(conductor.folder / LEADERBOARD, table.getvalue().encode())
        objects.publish(conductor.folder / LEADERBOARD)
        journal.append("artifact", trial_id=None, path=LEADERBOARD, folder="")
        conductor.end()
    write_report(conductor.ledger, journal, places)
    return conclude(conductor.ledger, journal.path, tracker, tracking_uri, conductor.fault)


def write_report(ledger: Ledger, journal: Journal, places: Places) -> None:
    """The search's page, those of its best models, and its note for the tracker. What goes wrong here must not cost
    what was trained: it is told, and the command line can try again."""
    from orchestrator.findings import Findings, note
    from orchestrator.model_page import confused_classes
    from orchestrator.page import write_page

    if ledger.state == "done":
        dataset = ledger.config["settings"].get("dataset", Training.model_fields["dataset"].default)
        evaluate = f"orchestrator evaluate {ledger.name} --dataset {dataset} --gallery FILE"
        export = f"orchestrator export {ledger.name} --to mlflow"
        for write, what, again in (
            (write_models, "page of the model", evaluate),
            (write_mlflow_model, "MLflow model", export),
        ):
            try:
                write(ledger, journal, places)
            except Exception as error:
                print(visible(f"warning: no {what} was made ({error}); try again with: {again}"), file=sys.stderr)
    try:
        findings = Findings.of(ledger, confused_classes(ledger, journal.path.parent))
        write_page(findings, journal.path.parent / PAGE)
        objects.publish(journal.path.parent / PAGE)
        journal.append("artifact", trial_id=None, path=PAGE, folder=str(Path(PAGE).parent))
        best = [] if ledger.second is not None else ledger.finished()[:MOST_COMPARED]
        least = best[-1].best if best else None
        journal.append("note", text=note(findings), important=list(findings.importances.shares), least=least)
    except Exception as error:
        again = f"orchestrator report {ledger.name} --html FILE"
        print(visible(f"warning: no report was made ({error}); try again with: {again}"), file=sys.stderr)


def write_models(ledger: Ledger, journal: Journal, places: Places) -> None:
    """What the final model and the best few trials make of images: a page and a table with images for each, beside
    their models and in the tracker; the page of the first of them is the search's."""
    from orchestrator.data.catalog import open_dataset
    from orchestrator.model_page import model_view, shown_models, write_gallery, write_model_page

    folder = journal.path.parent
    events = Journal.read(journal.path)
    store: Any = None
    for place, trial in enumerate(shown_models(ledger)):
        store = store or open_dataset(str(trial.settings["dataset"]), places.data)
        view = model_view(ledger, trial, folder, store, events, neighbour_map=place == 0)
        if view is None:
            continue
        shown = folder / "trials" / trial.trial_id / INSIGHT
        pages = [shown / IMAGES, *([folder / MODEL_PAGE] if place == 0 else [])]
        write_model_page(view, *pages)
        table = write_gallery(view, shown, INSIGHT)
        path = str(shown.relative_to(folder))
        objects.publish(shown)
        journal.append("artifact", trial_id=trial.trial_id, path=path, folder=INSIGHT, tables=[table])
        if place == 0:
            objects.publish(folder / MODEL_PAGE)
            journal.append("artifact", trial_id=None, path=MODEL_PAGE, folder=str(Path(MODEL_PAGE).parent))


def write_mlflow_model(ledger: Ledger, journal: Journal, places: Places) -> None:
    """The final model in MLflow's form, to be logged with its run; not of a training over folds, which has several."""
    from orchestrator.data.catalog import open_dataset
    from orchestrator.export import MLFLOW_MODEL, Source, export, facts

    final, folder = ledger.final, journal.path.parent
    if final is None or final.state != "done" or len(model_folders(folder / "trials" / final.trial_id)) > 1:
        return
    place = folder / "trials" / final.trial_id
    model = place / MODEL if (place / MODEL).exists() else place / BEST
    store = open_dataset(str(final.settings["dataset"]), places.data)
    export(Source.of(model, store, facts(ledger, final)), "mlflow", place / MLFLOW_MODEL)
    path = str((place / MLFLOW_MODEL).relative_to(folder))
    objects.publish(place / MLFLOW_MODEL)
    journal.append("model", trial_id=final.trial_id, path=path)


def conclude(ledger: Ledger, journal: Path, tracker: Tracker, tracking_uri: str, fault: str | None = None) -> Outcome:
    """What the search came to, once the tracker has taken the rest."""
    tracker.notify()
    complete = tracker.close(TRACKER_SECONDS)
    return Outcome(
        ledger=ledger,
        state=ledger.state,
        journal=journal,
        tracking_uri=tracking_uri,
        experiment_id=tracker.experiment_id,
        parent_run_id=tracker.parent_run_id,
        fault=fault,
        no_views=tracker.no_views,
        problem=None if complete else (tracker.problem or f"{tracker.backlog} events were not sent in time"),
    )


@contextlib.contextmanager
def quick_turns() -> Iterator[None]:
    """Python's threads take turns every 0.2 ms, not 5: the tracker's computes, and the loop that drives the trials lets
    go of its turn at every message to them, and would wait so long each time for the next one."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def interrupts(conductor: Conductor) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) lets the search end in order, the second ends it at once. A SIGHUP, of a closed
    terminal, does what the first does, however many come, and after a while what the second does: nobody is there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            conductor.stopping = True
            if impatience.ident is None:  # not begun yet
                impatience.start()
            return
        if conductor.stopping:
            raise KeyboardInterrupt
        conductor.stopping = True
        if not sys.stderr.isatty():  # the live display says it by itself
            say("stopping in order; once more to stop at once")

    impatience = threading.Timer(HANGUP_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
    impatience.daemon = True
    heeded = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` has it
        heeded.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in heeded}
    try:
        yield
    finally:
        impatience.cancel()
        for number, handler in before.items():
            # the records of its end are left: a terminal that is closed now cuts none of them short
            signal.signal(number, (lambda *_: None) if number == signal.SIGHUP else handler)
