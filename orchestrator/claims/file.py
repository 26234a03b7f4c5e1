"""A claim's file: a hypothesis that is written down before its first training, read with all that is wrong at once."""

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from orchestrator.claims.other_images import DETECTION, OtherImages, test_of, unlike_tests, wrong_test
from orchestrator.claims.outputs import FIRST_LOOK, Kind
from orchestrator.config.algorithms import check_algorithm_name, is_exhaustive
from orchestrator.config.files import Document, find_search, read_yaml
from orchestrator.config.limits import MAX_RUNS, MAX_TRIALS
from orchestrator.config.search import Budget
from orchestrator.config.space import parse_space
from orchestrator.config.training import Training, resolve_experiment
from orchestrator.errors import InputError, Problems
from orchestrator.evaluation.measures import BY_NAME, metric_of
from orchestrator.problems import File, Inner, KeyPath, Problem, complaints, suggestion
from orchestrator.search.beginning import check_dataset
from orchestrator.storage.places import check_name
from orchestrator.text import format_assignments

BASE = ""
"""The state of an arm as it is; the other one is `changed`."""
CHANGED = "changed"
SECOND = "second metric"
"""Likewise, where the same trainings are read by another metric."""
FEWEST_RANKED = 4
"""Arms of a rank agreement: of fewer the ranks say nothing."""
METRICS = ("test/NAME", "val/NAME", "diagnostics/NAME", "train/NAME", "cost/seconds_per_epoch")
"""What a claim can be about; see docs/claims.md."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Arm(_Part):
    """One of the things that are compared: fixed settings, or what a search finds at the claim's tuning budget."""

    settings: dict[str, Any] = Field({}, description="fixed settings, the method among them")
    search: str | None = Field(None, description="a search file, or a shipped search, that tunes it first")
    metric: str | None = Field(None, description="in place of the claim's, where two metrics are compared")
    test: OtherImages | None = Field(None, description="the images that its models are tested on, if not as trained")


class Tuning(_Part):
    """How arms are tuned, and what each of them may spend, the same for all."""

    space: dict[str, Any] = Field({}, description="what is searched for each arm, beside the space of its own search")
    algorithm: str | None = Field(None, description="in place of the search files'")
    num_trials: int | None = Field(None, ge=1, le=MAX_TRIALS)
    budget: Budget = Budget()
    seed: int = Field(0, ge=0, lt=2**31)

    @field_validator("algorithm")
    @classmethod
    def _exists(cls, value: str | None) -> str | None:
        return None if value is None else check_algorithm_name(value)


class Seeds(_Part):
    """The pairs of seeds: every arm is trained with each of them."""

    first: int = Field(1, ge=0, lt=2**31 - MAX_RUNS, description="the first seed; the others follow it")
    max: int = Field(10, ge=FIRST_LOOK, le=MAX_RUNS, description="the budget: pairs at which it ends undecided")
    also: list[str] = Field([], description="other settings that take the seed's value: label_noise_seed")


class Hypothesis(_Part):
    """The content of a claim's file."""

    claim: str = Field(min_length=1, description="the claim, in one sentence")
    source: str = Field(min_length=1, description="who claims it, and where: paper, table")
    note: str = Field("", description="how this test differs from the source's")
    kind: Kind
    metric: str = Field(description="what is compared")
    second_metric: str | None = Field(None, description="rank agreement: the metric that ranks the arms likewise")
    direction: Literal["higher", "lower"] = Field("higher", description="what is claimed of `arm`, or of the first")
    smallest_effect: float = Field(gt=0, description="the smallest effect of interest, in the metric's points")
    protocol: str = Field("conventional", description="how it is tested: a training's setting")
    datasets: dict[str, dict[str, Any]] = Field(min_length=1, description="with settings of their own; or names")
    settings: dict[str, Any] = Field({}, description="of all arms")
    arms: dict[str, Arm] = Field(min_length=1)
    arm: str | None = Field(None, description="the arm that something is claimed of")
    than: list[str] = Field([], description="the arms that it is compared with, each")
    changed: dict[str, Any] = Field({}, description="difference of differences: settings whose effect is compared")
    order: list[list[str]] = Field([], description="order: groups of arms, the first claimed to be above the second")
    tuning: Tuning = Tuning()
    seeds: Seeds = Seeds()

    @field_validator("datasets", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise InputError(f"should be a list of names, or a mapping of names to settings: [{value}]")
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            return value
        if not value:
            raise InputError("name one or more")
        if len(set(value)) < len(value):
            raise InputError("one is named twice")
        return {name: {} for name in value}

    @property
    def sign(self) -> int:
        """1 if a positive difference is what is claimed."""
        return 1 if self.direction == "higher" else -1

    @property
    def points(self) -> float:
        """The points of one unit of the metric: a share is given in hundredths."""
        return 100.0 if is_share_metric(self.metric) and self.kind != "rank_agreement" else 1.0

    @property
    def states(self) -> tuple[str, ...]:
        """The states in which each arm is trained, or its trainings are read."""
        return (BASE, *{"difference_of_differences": [CHANGED], "rank_agreement": [SECOND]}.get(self.kind, []))

    @property
    def trained_arms(self) -> list[str]:
        """The arms that are compared, in the order of the file."""
        if self.kind == "rank_agreement":
            return list(self.arms)
        named = {self.arm, *self.than, *(name for group in self.order for name in group)}
        return [name for name in self.arms if name in named]

    @property
    def other_datasets(self) -> list[tuple[str, KeyPath]]:
        """Those that models are tested on, beside the ones that they are trained on, each once, and the key there."""
        tests = [(arm.test, test_of(key)) for key, arm in self.arms.items() if arm.test is not None]
        places = {name: place for test, place in tests for name in test.names()}
        return [(name, place) for name, place in sorted(places.items()) if name not in self.datasets]

    def space_of(self, arm: str) -> dict[str, Any]:
        """What is searched for an arm, beside the space of its own search: the tuning's space, less what it gives."""
        return {key: of for key, of in self.tuning.space.items() if key not in self.arms[arm].settings}

    @property
    def tuned_arms(self) -> list[str]:
        """The arms that are tuned first."""
        return [name for name in self.trained_arms if self.arms[name].search is not None or self.space_of(name)]

    def metric_of(self, arm: str, state: str = BASE) -> str:
        """What is read of an arm's trainings."""
        if state == SECOND:
            return str(self.second_metric)
        return self.arms[arm].metric or self.metric

    def trains_as(self, arm: str) -> str:
        """The first arm with the same trainings: those that differ in the metric alone are trained once."""
        own = self.arms[arm]
        return next(
            name
            for name in self.trained_arms
            if (self.arms[name].settings, self.arms[name].search) == (own.settings, own.search)
        )

    def settings_of(self, arm: str, dataset: str, state: str = BASE) -> dict[str, Any]:
        """The fixed settings of an arm's trainings, without the seed."""
        changed = self.changed if state == CHANGED else {}
        common = {"protocol": self.protocol, **self.settings, **self.datasets[dataset]}
        return {**common, **self.arms[arm].settings, **changed, "dataset": dataset}


@dataclass(frozen=True)
class Claim:
    """A claim as it was read: its name, its content, and the digest of all that defines it."""

    name: str
    path: Path
    text: str
    hypothesis: Hypothesis
    digest: str
    """SHA-256 of the file and of the search files that it names."""

    @property
    def key(self) -> str:
        """What its folder and its trainings are called by: a changed file is another claim."""
        return f"{self.name}-{self.digest[:8]}"


def is_share_metric(metric: str) -> bool:
    """Whether a metric of a claim is between 0 and 1; `test/diagnostics/introspective_recall_at_1` is as the metric
    that its name ends with."""
    if metric == DETECTION:
        return True
    prefix, _, name = metric.partition("/")
    words = name.removeprefix("diagnostics/").split("_")
    metrics = (metric_of("_".join(words[start:])) for start in range(len(words) if name.count("/") else 1))
    return prefix in ("test", "val") and any(one is not None and one.share for one in metrics)


def read_claim(path: Path, storage: Path | None = None) -> Claim:
    """The claim of a file; InputError names all that is wrong, with the lines. With a `storage`, its data sets must
    be known there."""
    raw = read_yaml(path, "claim, source, kind")
    problems = Problems()
    hypothesis, whole = _hypothesis(raw, problems)
    if whole:
        problems.found += _contradictions(hypothesis)
    for name in hypothesis.arms:
        problems.found += _wrong_settings(hypothesis, name)
    if not problems.found:
        problems.found += _same_trainings(hypothesis)
    places = [(name, ("datasets",)) for name in hypothesis.datasets] + hypothesis.other_datasets
    for dataset, place in places if storage is not None else ():
        with problems.collect():
            try:
                check_dataset(dataset, storage or path, prepared=False)
            except InputError as error:
                raise error.under(place) from None
    with problems.collect():
        check_name(path.stem, "the file's name")
    if problems.found:
        raise InputError(*_place_problems(problems, raw, path))
    content = path.read_bytes()
    return Claim(path.stem, path, content.decode("utf-8-sig"), hypothesis, _digest(content, hypothesis))


def _digest(content: bytes, hypothesis: Hypothesis) -> str:
    digest = hashlib.sha256(content)
    for arm in hypothesis.arms.values():
        if arm.search is not None:
            digest.update(find_search(arm.search).read_bytes())
    return digest.hexdigest()


SOUND: dict[str, Any] = {
    "claim": "-",
    "source": "-",
    "kind": "superiority",
    "metric": "test/map_at_r",
    "smallest_effect": 1.0,
    "datasets": {"glyphs-small": {}},
    "arms": {"-": Arm(settings={"method": "pfml"})},
}
"""Values in place of required ones that are missing or wrong, so that the others can be checked."""


def _hypothesis(raw: Document, problems: Problems) -> tuple[Hypothesis, bool]:
    """The content, and whether it is whole; what is wrong goes into `problems`, nested parts by their own keys, and is
    left out."""
    fields, sound, before = Hypothesis.model_fields, dict[str, Any](), len(problems.found)
    for key in raw:
        if key not in fields:
            hint = suggestion(key, fields)
            problems.found.append(Problem((str(key),), rule="no such key of a claim", suggestion=hint))
    parts: dict[str, type[BaseModel]] = {"tuning": Tuning, "seeds": Seeds}
    for key, value in raw.items():
        if key in parts and isinstance(value, Mapping):
            sound[key] = _part(parts[key], value, (key,), problems)
        elif key == "arms" and isinstance(value, Mapping):
            arms = {name: _arm(name, content, problems) for name, content in value.items()}
            sound[key] = {name: arm for name, arm in arms.items() if arm is not None}
        elif key in fields:
            sound[key] = value
    for key in [key for key in parts if sound.get(key, ...) is None]:
        del sound[key]
    try:
        return Hypothesis(**sound), len(problems.found) == before
    except ValidationError as error:
        problems.found += complaints(error)
        wrong = {str(details["loc"][0]) for details in error.errors()}
    rest = {key: value for key, value in sound.items() if key not in wrong}
    return Hypothesis(**{**SOUND, **rest}), False


def _arm(name: object, content: object, problems: Problems) -> Arm | None:
    if not isinstance(name, str):
        problems.found.append(Problem(("arms",), name, "an arm's name should be text"))
        return None
    with problems.collect():
        try:
            check_name(name, Inner(name))
        except InputError as error:
            raise error.under("arms") from None
    place = ("arms", Inner(name))
    if not isinstance(content, Mapping):
        problems.found.append(
            Problem(place, content, "should be a mapping with settings, search or both", begins_rule=True)
        )
        return None
    if content.get("test", ...) is None:
        problems.found.append(Problem(test_of(name), rule="is empty: name the images, or leave it out"))
    return _part(Arm, content, place, problems)


Part = TypeVar("Part", bound=BaseModel)


def _part(kind: type[Part], content: Mapping[str, Any], place: KeyPath, problems: Problems) -> Part | None:
    content = dict(content)
    for key in [key for key in content if key not in kind.model_fields]:
        hint = suggestion(key, kind.model_fields)
        problems.found.append(Problem((*place, Inner(key)), rule="no such key", suggestion=hint))
        del content[key]
    try:
        if isinstance(content.get("budget"), Mapping):
            content["budget"] = Budget(**content["budget"])
        return kind(**content)
    except ValidationError as error:
        for one in complaints(error):
            problems.found.append(replace(one, path=(*place, *(Inner(str(step)) for step in one.path))))
    except TypeError as error:
        problems.found.append(Problem(place, rule=str(error)))
    return None


def _contradictions(claim: Hypothesis) -> Iterator[Problem]:
    """What the keys of a claim say against each other."""
    yield from _wrong_metric(("metric",), claim.metric, claim.kind)
    for name, arm in claim.arms.items():
        if arm.metric is not None:
            place = ("arms", Inner(name), Inner("metric"))
            yield from _wrong_metric(place, arm.metric, claim.kind)
            if is_share_metric(arm.metric) != is_share_metric(claim.metric):
                yield Problem(place, arm.metric, f"has other units than {claim.metric}")
        metrics = [claim.metric_of(name, state) for state in claim.states]
        protocols = [claim.settings_of(name, dataset)["protocol"] for dataset in claim.datasets]
        yield from wrong_test(test_of(name), arm.test, metrics, protocols, claim.datasets)
    named = {"arm": [claim.arm] if claim.arm else [], "than": claim.than}
    named |= {"order": [name for group in claim.order for name in group]}
    misspelt = {name for names in named.values() for name in names} - claim.arms.keys()
    for key, names in named.items():
        for name in names:
            if name not in claim.arms:
                yield Problem((key,), name, "is no arm", suggestion(name, claim.arms), begins_rule=True)
        if len(names) > len(set(names)):
            yield Problem((key,), rule="an arm is named twice")
    if claim.kind == "rank_agreement":
        yield from _wrong_ranks(claim)
    elif claim.kind == "order":
        if len(claim.order) < 2 or not all(claim.order):
            yield Problem(("order",), rule="name two or more groups of arms, such as [[alpha_4], [alpha_1]]")
        if claim.arm or claim.than:
            yield Problem(("arm" if claim.arm else "than",), rule="an order has groups; leave it out")
    else:
        if claim.order:
            yield Problem(("order",), rule=f"is of the kind order, not of {claim.kind}")
        if claim.arm is None:
            yield Problem(("arm",), rule="this key is required: the arm that it is claimed of")
        if claim.arm in claim.than:
            yield Problem(("than",), claim.arm, "is compared with itself", begins_rule=True)
        if not claim.than and claim.kind not in ("trend", "equivalence"):
            rule = f"this key is required: the arms that {claim.arm or 'it'} is compared with"
            yield Problem(("than",), rule=rule)
    if claim.second_metric is not None and claim.kind != "rank_agreement":
        yield Problem(("second_metric",), rule=f"is of the kind rank_agreement, not of {claim.kind}")
    if bool(claim.changed) != (claim.kind == "difference_of_differences"):
        needed = "this key is required: the settings whose effect is compared, such as {label_noise: 0.2}"
        yield Problem(("changed",), rule=needed if not claim.changed else f"is not of the kind {claim.kind}")
    if claim.changed and claim.changed.items() <= claim.settings.items():
        yield Problem(("changed",), rule="changes nothing: the settings of all arms say the same")
    compared = claim.trained_arms
    for one, other in itertools.combinations(compared, 2):
        if claim.arms[one] == claim.arms[other]:
            yield Problem(("arms", Inner(other)), rule=f"is the same as {one}: a comparison of them decides nothing")
    for name in [name for name in claim.arms if name not in compared and not misspelt]:
        if claim.arm is not None or claim.order:
            yield Problem(("arms", Inner(name)), rule="is compared with nothing: name it, or leave it out")
    for dataset, settings in claim.datasets.items():
        for name, arm in claim.arms.items():
            for key in settings.keys() & arm.settings.keys():
                rule = f"is a setting of the arm {name} too: give it in one of the two places"
                yield Problem(("datasets", Inner(dataset), Inner(key)), rule=rule)
    if claim.kind != "difference_of_differences":
        yield from unlike_tests({name: claim.arms[name].test for name in compared}, claim.datasets)
    yield from _wrong_tuning(claim)
    for key in claim.seeds.also:
        if key not in Training.model_fields:
            hint = suggestion(key, Training.model_fields)
            yield Problem(("seeds", Inner("also")), key, "is no setting of a training", hint, begins_rule=True)


def _wrong_ranks(claim: Hypothesis) -> Iterator[Problem]:
    """Of a rank agreement: all arms are compared with each other, by two metrics."""
    for key in ("arm", "than", "order"):
        if getattr(claim, key):
            yield Problem((key,), rule="a rank agreement is of all arms; leave it out")
    if len(claim.arms) < FEWEST_RANKED:
        yield Problem(("arms",), rule=f"should be {FEWEST_RANKED} or more, so that their ranks say something")
    if claim.second_metric is None:
        yield Problem(("second_metric",), rule="this key is required: the metric whose ranks are compared")
    elif claim.second_metric == claim.metric:
        yield Problem(("second_metric",), claim.second_metric, "is the metric itself", begins_rule=True)
    else:
        yield from _wrong_metric(("second_metric",), claim.second_metric, claim.kind)
    if claim.direction == "lower":
        yield Problem(("direction",), claim.direction, "is for arms; ranks agree or do not: leave it out")
    if claim.smallest_effect >= 1:
        yield Problem(("smallest_effect",), claim.smallest_effect, "should be a rank correlation below 1")
    for name in [name for name, arm in claim.arms.items() if arm.metric is not None]:
        yield Problem(("arms", Inner(name), Inner("metric")), rule="all arms have the same two metrics; leave it out")


def _wrong_tuning(claim: Hypothesis) -> Iterator[Problem]:
    tuning, tuned = claim.tuning, claim.tuned_arms
    has_budget = tuning.num_trials is not None or bool(tuning.budget.limits())
    if tuned and not has_budget and not is_exhaustive(tuning.algorithm):
        rule = f"this key is required: num_trials or a budget, the same for {', '.join(tuned)}"
        yield Problem(("tuning",), rule=rule)
    if (has_budget or tuning.algorithm) and not tuned:
        yield Problem(("tuning",), rule="no arm has a search, and no space is given")
    shared: dict[KeyPath, dict[str, Any]] = {("settings",): claim.settings, ("changed",): claim.changed}
    shared |= {("datasets", Inner(name)): settings for name, settings in claim.datasets.items()}
    for place, settings in shared.items():
        for key in settings.keys() & tuning.space.keys():
            yield Problem((*place, Inner(key)), rule="is tuned, by tuning.space: leave it out in one of the two places")


def _wrong_metric(place: KeyPath, metric: str, kind: Kind) -> Iterator[Problem]:
    prefix, _, name = metric.partition("/")
    if prefix not in {one.partition("/")[0] for one in METRICS} or (prefix == "cost" and metric not in METRICS):
        yield Problem(place, metric, f"should be one of {', '.join(METRICS)}", begins_rule=True)
    elif metric != DETECTION and prefix in ("test", "val") and "diagnostics/" not in name and metric_of(name) is None:
        yield Problem(place, metric, "no such metric", suggestion(name, BY_NAME))
    elif kind == "trend" and prefix not in ("val", "diagnostics", "train"):
        yield Problem(place, metric, "a trend is over validations: val/NAME, diagnostics/NAME or train/NAME")


def _wrong_settings(claim: Hypothesis, name: str) -> list[Problem]:
    """What is wrong with the settings of one arm; those of all arms are reported once, as such."""
    arm, problems, here = claim.arms[name], Problems(), ("arms", Inner(name))
    of_arm: KeyPath = (*here, Inner("settings"))
    of_datasets = [(("datasets", Inner(dataset)), settings) for dataset, settings in claim.datasets.items()]
    if arm.search is not None:
        with problems.collect():
            try:
                find_search(arm.search)
            except InputError as error:
                raise error.under((*here, Inner("search"))) from None
    place: KeyPath
    for key in ("dataset", "seed", *claim.seeds.also):
        for place, settings in ((("settings",), claim.settings), (of_arm, arm.settings), *of_datasets):
            if key in settings:
                where = "datasets" if key == "dataset" else "seeds"
                rule = f"belongs under {where}, the same for all arms"
                problems.found.append(Problem((*place, Inner(key)), rule=rule))
    if claim.space_of(name) and arm.search is None:
        with problems.collect():
            fixed = claim.settings_of(name, next(iter(claim.datasets)))
            parse_space(claim.space_of(name), ("tuning", Inner("space")), fixed)
    for state, (dataset, own) in itertools.product(claim.states, claim.datasets.items()):
        fixed = claim.settings_of(name, dataset, state)
        if "method" not in fixed and arm.search is not None:
            continue  # the search names it, and is checked as a whole
        try:
            resolve_experiment(fixed, ())
        except InputError as error:
            for problem in error.details:
                key = str(problem.path[0]) if problem.path else ""
                place = of_arm
                if state == CHANGED and key in claim.changed:
                    place = ("changed",)
                elif key not in arm.settings and key in own:
                    place = ("datasets", Inner(dataset))
                elif key not in arm.settings and key in claim.settings:
                    place = ("settings",)
                elif key not in arm.settings and key == "protocol":
                    place = ()
                problems.found.append(problem.under(place))
    return problems.found


def _same_trainings(claim: Hypothesis) -> Iterator[Problem]:
    """Arms whose settings differ only where these have no effect, so that nothing would be compared."""
    own = {claim.trains_as(arm) for arm in claim.trained_arms}
    fixed = [arm for arm in claim.trained_arms if arm in own and claim.arms[arm].search is None]
    cells = itertools.product(claim.datasets, fixed)
    resolved = {cell: resolve_experiment(claim.settings_of(cell[1], cell[0]), ()) for cell in cells}
    flat = {cell: experiment.flat() for cell, experiment in resolved.items()}
    for dataset, (one, other) in itertools.product(claim.datasets, itertools.combinations(fixed, 2)):
        both = resolved[dataset, one], resolved[dataset, other]
        first, second = flat[dataset, one], flat[dataset, other]
        differing = {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}
        idle = both[0].config.idle().items() & both[1].config.idle().items()
        if differing <= {key for key, _ in idle}:
            because = [
                f"{key} has no effect with {format_assignments(names, first)}"
                for key, names in idle
                if key in differing
            ]
            rule = f"trains as {one} does on {dataset}: {'; '.join(because) or 'their settings are equal'}"
            yield Problem(("arms", Inner(other)), rule=rule)


def _place_problems(problems: Problems, raw: Document, path: Path) -> list[Problem]:
    """The problems, each once, with their lines, in the order of the file; those without one last."""
    placed = [
        replace(problem, path=(File(path), *problem.path), line=raw.line(problem.path))
        for problem in {one.text(): one for one in problems.found}.values()
    ]
    return sorted(placed, key=lambda problem: problem.line or 10**9)
