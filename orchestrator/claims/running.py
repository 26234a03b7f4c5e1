"""A claim as it runs: the trainings of one pair of seeds after the other, until each data set has its verdict.

All that a claim is follows from its file and the journals of its trainings, so one that was killed goes on where it was
and comes to the same verdict.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.claims.design import ClaimTraining, cells, seeds, training, tuning_search
from orchestrator.claims.hypothesis import Claim
from orchestrator.claims.other_images import ImagesResult, OtherImages, check_test, digests_of, run_other_test, test_of
from orchestrator.claims.outputs import ClaimVerdict, DatasetVerdict
from orchestrator.claims.verdict import (
    EndedTraining,
    claim_verdict,
    dataset_verdict,
    effect_text,
    metric_value,
    reservations,
)
from orchestrator.config.search import Search, recorded_search
from orchestrator.data.measured import Measured
from orchestrator.errors import InputError, Problems
from orchestrator.evaluation.measures import DEFAULT_OBJECTIVE, OBJECTIVES
from orchestrator.execution.inline import InlineRunner
from orchestrator.execution.protocol import Runner
from orchestrator.report.learning import held_out_set, judge, test_set
from orchestrator.search.beginning import check_dataset
from orchestrator.search.benchmark_searches import advance
from orchestrator.search.control import between_searches
from orchestrator.search.driver import suited_to_data
from orchestrator.search.models import find_models
from orchestrator.search.preflight import check_data, warn_once
from orchestrator.search.watcher import Watcher
from orchestrator.storage.buckets import find_bucket
from orchestrator.storage.events import Event
from orchestrator.storage.files import parse_json
from orchestrator.storage.folder import Folder
from orchestrator.storage.journal import lock, refresh
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.opening import open_file
from orchestrator.storage.places import CLAIM_PAGE, CLAIM_RECORD, CLAIM_VERDICT, JOURNAL, Places, has_started, writable
from orchestrator.storage.reading import read_journal
from orchestrator.text import params_text

LOCK = "lock"
"""The file in a claim's folder that is held by the process which tests it."""
CLAIM = "orchestrator.claim"
"""The tag of a training with the digest of the claim that it is part of: in its journal's first event."""


class _Incomplete(Exception):
    """A search ended, with trials that a plain resume would train: as after a fault of a GPU."""


@dataclass
class _Trained:
    """What the journals of a claim hold: read again only where a training may have gone on."""

    claim: Claim
    places: Places
    tell: Callable[[str], None]
    ended: dict[ClaimTraining, tuple[float | None, str, Ledger]] = field(default_factory=dict)
    tests: dict[ClaimTraining, ImagesResult] = field(default_factory=dict)
    """Of the models that were tested on other images."""
    points: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """What was chosen for an arm on a data set, once its search has ended."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why a data set has no verdict: by its name."""

    def journal(self, name: str) -> tuple[list[Event], Ledger] | None:
        """The events and the ledger of a training or search that has begun."""
        path = self.places.search(name) / JOURNAL
        refresh(path)
        return read_journal(path) if has_started(path) else None

    def check_same(self, name: str, dataset: str, tags: Mapping[str, Any]) -> None:
        """InputError if a training or search was of other images than the data set has now."""
        digest, recorded = digests_of(None, dataset, self.places)[dataset], tags.get("dataset.digest", "")
        if recorded != digest:
            raise InputError(
                f"{name}: was trained on another {dataset} (digest {recorded[:12]}, now {digest[:12]}); prepare that "
                "one, or begin another claim: a changed file"
            )

    def ledger(self, name: str) -> Ledger | None:
        """The ledger alone."""
        read = self.journal(name)
        return None if read is None else read[1]

    def value(self, cell: ClaimTraining) -> tuple[float | None, str] | None:
        """The value of a training that has ended, or None and why it has none; None while it has not ended."""
        name, hypothesis = cell.name(self.claim), self.claim.hypothesis
        if cell not in self.ended:
            if (read := self.journal(name)) is None or not read[1].is_complete:
                return None
            events, ledger = read
            self.check_same(name, cell.dataset, ledger.tags)
            self.check_point(cell, ledger)
            reasons = [trial.reason for trial in ledger.trials.values() if trial.reason]
            if ledger.state == "failed" or not any(trial.test for trial in ledger.trials.values()):
                self.ended[cell] = None, f"{name} failed: {reasons[0] if reasons else 'no test'}", ledger
            elif hypothesis.arms[cell.arm].test is not None:
                self.ended[cell] = *self.value_on_other_images(cell), ledger
            else:
                metric = hypothesis.metric_of(cell.arm, cell.state)
                self.ended[cell] = metric_value(metric, hypothesis.kind, events, ledger), "", ledger
        return self.ended[cell][:2]

    def check_point(self, cell: ClaimTraining, ledger: Ledger) -> None:
        """InputError if an arm is now tuned to another point than one of its trainings had: its search went on."""
        point, had = self.point(cell.arm, cell.dataset) or {}, ledger.config["settings"]
        if now := {key: value for key, value in point.items() if had.get(key) != value}:
            then = params_text({key: had.get(key) for key in now})
            raise InputError(
                f"{cell.name(self.claim)}: was trained with {then}, and its arm is tuned to {params_text(now)} since: "
                "begin another claim, a changed file"
            )

    def value_on_other_images(self, cell: ClaimTraining) -> tuple[float | None, str]:
        """The value of the arm's own test, or None and why it has none; one that was run is in the claim's folder."""
        name, hypothesis = cell.name(self.claim), self.claim.hypothesis
        folder, record = Folder(self.places.claim(self.claim.key)), f"tested-{name}-{cell.arm}.json"
        test = hypothesis.arms[cell.arm].test
        assert test is not None
        if (result := _recorded_result(folder.read(record))) is not None:
            now = digests_of(test, cell.dataset, self.places)
            if differing := [one for one, digest in now.items() if result.digests.get(one) != digest]:
                rule = f"was made on another {', '.join(differing)}; prepare that one, or begin another claim"
                raise InputError(f"{folder}/{record}: {rule}")
        else:
            self.tell(f"{cell.dataset}: tests {cell.arm} with seed {cell.seed} on other images")
            try:
                result = run_other_test(test, find_models(name, self.places)[0], cell.dataset, self.places)
            except InputError as error:
                return None, f"{name}: {error}"
            folder.write(record, json.dumps(result._asdict(), indent=1).encode())
        self.tests[cell] = result
        key = hypothesis.metric_of(cell.arm, cell.state).partition("/")[2]
        if key not in result.metrics:
            raise InputError(f"metric: test/{key}: not recorded by {record} (recorded: {', '.join(result.metrics)})")
        return result.metrics[key], ""

    def point(self, arm: str, dataset: str) -> dict[str, Any] | None:
        """What was chosen for an arm that is tuned; None until its search has ended, or if that has no winner."""
        if (arm, dataset) not in self.points:
            search = tuning_search(self.claim, arm, dataset)
            ledger = None if search is None else self.ledger(search.name)
            if search is None or ledger is None or not ledger.is_complete or (winner := ledger.winner()) is None:
                return None
            self.check_same(search.name, dataset, ledger.tags)
            self.points[arm, dataset] = winner.point
        return self.points[arm, dataset]

    def ended_training(self, cell: ClaimTraining) -> EndedTraining | None:
        """None while it has no value."""
        if (known := self.value(cell)) is None or known[0] is None:
            return None
        ledger, other = self.ended[cell][2], self.tests.get(cell)
        (trial,) = ledger.trials.values()
        return EndedTraining(
            name=cell.name(self.claim),
            value=known[0],
            test=trial.test if other is None else other.metrics,
            has_learned=judge(ledger, trial).verdict in ("learned", "unknown"),
        )


@contextlib.contextmanager
def _alone(claim: Claim, folder: Folder) -> Iterator[None]:
    """InputError if another process of this machine tests the claim. In an object store its journals tell it."""
    if find_bucket(folder.path / LOCK) is not None:
        yield
        return
    with open_file(folder.path / LOCK, "wb") as file:
        if not lock(file):
            raise InputError(f"{claim.name}: another process tests this claim; the same command goes on after its end")
        yield


def _recorded_result(content: bytes | None) -> ImagesResult | None:
    """None if there is none, or it is not whole."""
    try:
        result = None if content is None else ImagesResult(**parse_json(content))
        return result if result is None or all(map(math.isfinite, result.metrics.values())) else None
    except (ValueError, TypeError, AttributeError):
        return None


@dataclass(frozen=True)
class Test:
    """A claim's verdict so far, and its page."""

    __test__ = False  # it is none of pytest's

    verdict: ClaimVerdict
    page: Path
    stopped: str | None
    """Why it stopped early, if it did."""
    fault: bool
    """Whether that was a fault of the machine, not a request."""
    failure: str = ""
    """Why a training of it has no value, if one has none: its data set stays undecided, however often it is run."""


def run_claim(
    claim: Claim,
    *,
    storage: Path,
    tracking_uri: str | None = None,
    tuner: Callable[[], Runner],
    tell: Callable[[str], None] = lambda line: None,
    watcher: Callable[[str], Watcher] = lambda name: Watcher(),
) -> Test:
    """Train until the claim is decided on each of its data sets, or its budget is spent. `tuner` runs the searches of
    arms that are tuned; `tell` gets a line per step."""
    from orchestrator.claims.page import write_claim_page

    places, say = Places(writable(storage)), warn_once()
    folder, trained = Folder(places.claim(claim.key)), _Trained(claim, places, tell)
    _check(claim, places, say)
    _record(claim, folder)
    stopped, fault, stopping = None, False, False
    tags = {CLAIM: claim.digest}
    with _alone(claim, folder), between_searches(folder.path) as request:
        try:
            for search in _steps(trained):
                if stopping or request() is not None:
                    stopped = "stopped before its next training"
                    break
                runner = InlineRunner() if search.test_trials else tuner()
                before = trained.ledger(search.name)
                search = search if before is None else recorded_search(before.config)
                outcome = advance(search, runner, places, tracking_uri, watcher(search.name), tags, say)
                stopping = outcome.stopping
                if outcome.state == "interrupted":
                    stopped, fault = outcome.fault or outcome.ledger.reason or "interrupted", outcome.fault is not None
                    break
        except _Incomplete as error:
            stopped, fault = str(error), True
    verdict = _verdict(trained)
    folder.write(CLAIM_VERDICT, verdict.model_dump_json(indent=1).encode())
    with folder.output(CLAIM_PAGE) as page:
        write_claim_page(claim, verdict, page, places.storage)
    failures = filter(None, (_failure(trained, dataset) for dataset in claim.hypothesis.datasets))
    return Test(verdict, page, stopped, fault, next(failures, ""))


def _steps(trained: _Trained) -> Iterator[Search]:
    """The trainings and searches that are still needed, one by one: which comes next depends on those before."""
    claim, hypothesis, tell = trained.claim, trained.claim.hypothesis, trained.tell
    best = {}
    for dataset in hypothesis.datasets:
        for arm in hypothesis.trained_arms:
            if (search := tuning_search(claim, arm, dataset)) is not None:
                ledger = trained.ledger(search.name)
                if ledger is None or not ledger.is_complete:
                    tell(f"{dataset}: tunes {arm}")
                    yield search
                ledger = trained.ledger(search.name)
                if ledger is None or not ledger.is_complete:
                    raise _Incomplete(f"{search.name}: not all of its trials have ended")
                if ledger.winner() is None:
                    trained.failures[dataset] = f"{search.name} failed: no trial has a value"
                    break
                best[dataset, arm] = _best_point(ledger)
    open_datasets = [dataset for dataset in hypothesis.datasets if dataset not in trained.failures]
    for number, seed in enumerate(seeds(hypothesis), start=1):
        for dataset in list(open_datasets):
            verdict = _dataset_verdict(trained, dataset)
            if verdict.verdict != "undecided" or _failure(trained, dataset):
                open_datasets.remove(dataset)
                continue
            new = False
            for cell in cells(hypothesis, dataset, seed):
                if trained.value(cell) is None:
                    new = True
                    tell(f"{dataset}: pair {number}: trains {cell.arm}{f', {cell.state}' if cell.state else ''}")
                    yield training(claim, cell, best.get((dataset, cell.arm)))
                if (value := trained.value(cell)) is None or value[0] is None:
                    break
            else:
                if new:  # what an earlier run trained it has told
                    tell(_look(_dataset_verdict(trained, dataset)))


def _look(verdict: DatasetVerdict) -> str:
    effects = "; ".join(map(effect_text, verdict.effects))
    return f"{verdict.dataset}: after pair {verdict.pairs}: {effects}{reservations(verdict)}"


def _best_point(ledger: Ledger) -> dict[str, Any]:
    """The winner of a tuning search, with the search's fixed settings and what it chose epochs by."""
    settings = {key: value for key, value in ledger.config["settings"].items() if key != "seed"}
    winner, metric = ledger.winner(), ledger.config["objective"]["metric"]
    assert winner is not None
    chosen_by = {} if metric == DEFAULT_OBJECTIVE or metric not in OBJECTIVES else {"selection_metric": metric}
    return {**settings, **winner.point, **chosen_by}


def _failure(trained: _Trained, dataset: str) -> str:
    """Why a data set has no verdict: a training without a value, or a search; empty if none failed."""
    if dataset in trained.failures:
        return trained.failures[dataset]
    each = (cell for seed in seeds(trained.claim.hypothesis) for cell in cells(trained.claim.hypothesis, dataset, seed))
    return next((trained.ended[cell][1] for cell in each if cell in trained.ended and trained.ended[cell][1]), "")


def _trainings(trained: _Trained, dataset: str) -> dict[tuple[str, str], list[EndedTraining]]:
    """Those of each arm and state with the first seeds whose trainings all have a value."""
    hypothesis = trained.claim.hypothesis
    names = [(arm, state) for arm in hypothesis.trained_arms for state in hypothesis.states]
    trainings: dict[tuple[str, str], list[EndedTraining]] = {name: [] for name in names}
    for seed in seeds(hypothesis):
        row: dict[ClaimTraining, EndedTraining] = {}
        for cell in cells(hypothesis, dataset, seed):
            if (ended := trained.ended_training(cell)) is None:
                return trainings
            row[cell] = ended
        for cell, ended in row.items():
            trainings[cell.arm, cell.state].append(ended)
    return trainings


def _dataset_verdict(trained: _Trained, dataset: str) -> DatasetVerdict:
    trainings = _trainings(trained, dataset)
    first = cells(trained.claim.hypothesis, dataset, trained.claim.hypothesis.seeds.first)
    ended = [(cell, trained.ended[cell][2]) for cell in first if cell in trained.ended]
    sets = [of for cell, ledger in ended if (of := _measured_on(trained, cell, ledger)) is not None]
    points = {arm: trained.point(arm, dataset) for arm in trained.claim.hypothesis.tuned_arms}
    return dataset_verdict(
        trained.claim.hypothesis,
        dataset,
        {cell: [one.value for one in column] for cell, column in trainings.items()},
        classes=min((of.classes for of in sets), default=None),
        queries=min((of.queries for of in sets), default=None),
        trainings=trainings,
        tuned={arm: point for arm, point in points.items() if point is not None},
        problem=_failure(trained, dataset),
    )


def _measured_on(trained: _Trained, cell: ClaimTraining, ledger: Ledger) -> Measured | ImagesResult | None:
    """The set of a cell's metric: of its tests or its validations; None of diagnostics, losses and times."""
    prefix = trained.claim.hypothesis.metric_of(cell.arm, cell.state).partition("/")[0]
    if prefix == "val":
        return held_out_set(ledger)
    return (trained.tests.get(cell) or test_set(ledger)) if prefix == "test" else None


def _verdict(trained: _Trained) -> ClaimVerdict:
    claim = trained.claim
    verdicts = [_dataset_verdict(trained, dataset) for dataset in claim.hypothesis.datasets]
    names = [search.name for dataset in claim.hypothesis.datasets for search in _tunings(claim, dataset)]
    searches = [ledger for name in dict.fromkeys(names) if (ledger := trained.ledger(name)) is not None]
    ledgers = list({cell.name(claim): ledger for cell, (_, _, ledger) in trained.ended.items()}.values())
    seconds = sum(trial.seconds for ledger in (*ledgers, *searches) for trial in ledger.trials.values())
    commits = {str(ledger.tags["git.commit"]) for ledger in ledgers if "git.commit" in ledger.tags}
    commit = commits.pop() if len(commits) == 1 else None
    return claim_verdict(
        claim, verdicts, trainings=len(ledgers), searches=len(searches), seconds=seconds, commit=commit
    )


def _tunings(claim: Claim, dataset: str) -> list[Search]:
    searches = (tuning_search(claim, arm, dataset) for arm in claim.hypothesis.trained_arms)
    return [search for search in searches if search is not None]


def _check(claim: Claim, places: Places, say: Callable[[str], None]) -> None:
    """Refuse what could not be trained, before the claim is recorded: every arm in every state on every data set."""
    problems, hypothesis = Problems(), claim.hypothesis
    for name, place in hypothesis.other_datasets:
        with problems.collect():
            try:
                check_dataset(name, places.storage)
            except InputError as error:
                raise error.under(place) from None
    problems.tell()
    for dataset in hypothesis.datasets:
        for arm in hypothesis.trained_arms:
            with problems.collect():
                search = tuning_search(claim, arm, dataset)
                each = [ClaimTraining(dataset, arm, state, hypothesis.seeds.first) for state in hypothesis.states]
                for one in [training(claim, cell) for cell in each] if search is None else [search]:
                    suited = suited_to_data(one, places, say)[0]
                    check_data(suited, places, say)
                    if (test := hypothesis.arms[arm].test) is not None:
                        _check_test(test, suited, arm, dataset, places)
    problems.tell()


def _check_test(test: OtherImages, search: Search, arm: str, dataset: str, places: Places) -> None:
    try:
        check_test(test, search.example(), dataset, places)
    except InputError as error:
        raise error.under(test_of(arm)) from None


def _record(claim: Claim, folder: Folder) -> None:
    """Write the file and its digest, before the first training; InputError if another file was recorded here."""
    content = folder.read(CLAIM_RECORD)
    if content is None:
        record = {"name": claim.name, "digest": claim.digest, "file": claim.text}
        folder.write(CLAIM_RECORD, json.dumps(record, indent=1).encode())
        return
    try:
        digest = parse_json(content)["digest"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{folder.path / CLAIM_RECORD}: is no record of a claim: move it away") from None
    if digest != claim.digest:
        raise InputError(f"{folder.path / CLAIM_RECORD}: records another claim (digest {str(digest)[:12]})")
