"""A task from the journals of the searches that recorded it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.benchmarking.table import TabularCurve, TabularTask
from orchestrator.config.search import Search, recorded_search
from orchestrator.config.space import point_key
from orchestrator.errors import InputError
from orchestrator.evaluation.claims import is_end
from orchestrator.storage.events import Event, SearchStarted, TrialEnded, TrialResult, TrialStarted, Validation
from orchestrator.storage.reading import read_journal

LEFT_OUT = ("diagnostics/", "cost/")
"""Metrics that no search chooses by."""


@dataclass
class _Training:
    params: dict[str, Any]
    validations: list[Validation] = field(default_factory=list)
    test: dict[str, float] = field(default_factory=dict)
    end: TrialEnded | None = None


def collect_task(name: str, journals: Sequence[Path], *, planned: int, held_out: bool = False) -> TabularTask:
    """The task of searches that are alike but for the seed of their trainings, one journal for each seed.

    Its points are those whose training has ended with every seed (or has failed, not by a fault of its machine), in the
    order of the first search. InputError if there is none, if two searches differ in more than the seed or in their
    images, or if one stops trials early: curves have to be whole.
    """
    contents: list[dict[str, Any]] = []
    digests: list[Any] = []
    trainings: dict[int, list[_Training]] = {}
    origin: dict[str, Any] = {}
    for path in journals:
        events, ledger = read_journal(path)
        search = recorded_search(ledger.config)
        seed = search.example().training.seed
        if search.scheduler.name != "none":
            raise InputError(f"{path}: scheduler: {search.scheduler.name} stops trials early, a task has whole curves")
        if seed in trainings:
            raise InputError(f"{path}: seed: {seed} is another journal's too; a task has one journal for each seed")
        trainings[seed] = _trainings(events)
        contents.append(content_of_task(search))
        origin = origin or _origin(events)
        digests.append(ledger.tags.get("dataset.digest"))
    if not contents:
        raise InputError(f"{name}: no journal to make a task of")
    if other := [path for path, digest in zip(journals, digests, strict=True) if digest != digests[0]]:
        raise InputError(f"{other[0]}: is of another preparation of the data set than {journals[0]}")
    if different := [path for path, content in zip(journals, contents, strict=True) if content != contents[0]]:
        raise InputError(f"{different[0]}: differs from {journals[0]} in more than the seed of its trainings")
    whole = {seed: {point_key(one.params): one for one in of_seed if one.end} for seed, of_seed in trainings.items()}
    first = next(iter(whole.values()))
    keys = [key for key in first if all(key in of_seed for of_seed in whole.values())]
    return TabularTask(
        name=name,
        content=contents[0],
        points=[first[key].params for key in keys],
        seeds=sorted(whole),
        curves={(n, seed): _curve(whole[seed][key]) for n, key in enumerate(keys) for seed in whole},
        planned=planned,
        held_out=held_out,
        origin=origin,
    )


def content_of_task(search: Search) -> dict[str, Any]:
    """The search file of a task, without the seed of its trainings."""
    content = search.content()
    return {**content, "settings": {key: value for key, value in content["settings"].items() if key != "seed"}}


def _trainings(events: Sequence[Event]) -> list[_Training]:
    """The trainings of a journal in their order; those that have not ended have no end."""
    trainings: dict[str, _Training] = {}
    for event in events:
        match event:
            case TrialStarted(trial_id=trial_id, kind="trial"):
                trainings.setdefault(trial_id, _Training(event.params))
            case Validation(trial_id=trial_id) if trial_id in trainings:
                one = trainings[trial_id]
                if event.validation == len(one.validations) + 1:  # a resumed training reports it again
                    one.validations.append(event)
            case TrialResult(trial_id=trial_id) if trial_id in trainings:
                tests = {key: value for key, value in event.metrics.items() if key.startswith("test/")}
                trainings[trial_id].test |= {key.removeprefix("test/"): float(value) for key, value in tests.items()}
            case TrialEnded(trial_id=trial_id) if trial_id in trainings and _is_own(event):
                trainings[trial_id].end = event
    return list(trainings.values())


def _is_own(end: TrialEnded) -> bool:
    """Whether a training came to an end of its own: not that of its machine, its time or its code."""
    return end.state == "done" or (end.state == "failed" and end.failure == "training")


def _curve(training: _Training) -> TabularCurve:
    validations = training.validations
    names = [
        name
        for name in (validations[0].metrics if validations else {})
        if not name.startswith(LEFT_OUT) and all(name in one.metrics for one in validations)
    ]
    shares = [one.system.get("cpu_utilization_percentage") for one in validations]
    test = {key: value for key, value in training.test.items() if not key.startswith(LEFT_OUT) and not is_end(key)}
    end = training.end
    return TabularCurve(
        metrics={name: [float(one.metrics[name]) for one in validations] for name in names},
        seconds=[one.seconds for one in validations],
        cpu_seconds=[
            one.seconds * share / 100 for one, share in zip(validations, shares, strict=True) if share is not None
        ],
        test=test,
        reason=None if end is None or end.state == "done" else end.reason or "failed",
    )


def _origin(events: Sequence[Event]) -> dict[str, Any]:
    first = events[0]
    assert isinstance(first, SearchStarted)
    tags: Mapping[str, Any] = first.tags
    facts = {key: value for key, value in tags.items() if key.startswith("version.")}
    facts |= {key: tags[key] for key in ("git.commit", "git.dirty", "platform", "dataset.digest") if key in tags}
    return facts | {"date": f"{datetime.fromtimestamp(first.time / 1000, UTC):%Y-%m-%d}", "sizes": first.sizes or {}}
