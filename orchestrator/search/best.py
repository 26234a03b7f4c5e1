"""From a data set and a number of hours to a search file: which methods, networks and recipes, for how many epochs.

short_list.yaml ─┐
data set ────────┼─> the pre-trained networks as they come, seconds of an epoch ──> size ──> a search like any other
hours ───────────┘
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.config.files import read_yaml, shipped_searches
from orchestrator.config.limits import MAX_HOURS, cpus
from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Budget, Search, recorded_search
from orchestrator.config.space import parse_space
from orchestrator.config.training import Training, resolve_experiment
from orchestrator.errors import DataError, InputError
from orchestrator.evaluation.claims import FEWEST_CLASSES
from orchestrator.problems import SET, File, Operand, Option, Problem, suggestion
from orchestrator.report.best import BestAnswers, Pretrained, answer_best
from orchestrator.report.findings import Findings
from orchestrator.report.selection import FEW_CLASSES
from orchestrator.search.beginning import check_dataset, resolve_request
from orchestrator.search.plan_output import BestPlan
from orchestrator.search.pretrained import measure_pretrained
from orchestrator.storage import paths
from orchestrator.storage.events import Event, SearchStarted
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import Places, check_name, has_started
from orchestrator.storage.reading import read_journal
from orchestrator.text import join_names, pluralize, span

if TYPE_CHECKING:
    from orchestrator.config.training import Experiment
    from orchestrator.data.store import Store

SHORT_LIST = Path(__file__).with_name("short_list.yaml")
HOURS_TAG = "orchestrator.best_hours"
"""The tag of a search that says how many hours it was given, the final runs included."""
OVERHEAD = 60.0
"""Seconds for the start of processes, the pages and the export."""
MIN_EPOCHS, MAX_EPOCHS = 3, 30
OF_NETWORK = (
    *("weights", "weights_sha256", "input_convention", "image_size", "pooling"),
    *("device", "seed", "validation_share", "class_subset"),
)
"""Settings that change what a network without a training is measured as, or on."""
LENGTHS = 4
"""A search lasts at least as long as so many whole trainings one after another: most trials are stopped early."""

Stage = Callable[[str], None]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    why: str


class ListedMethod(_Part):
    """A method, searched over its shipped space."""

    point: dict[str, Any]


class ListedBackbone(_Part):
    """A network with pre-trained weights."""

    gpu: bool = False


class Recipe(_Part):
    """How much of the network learns."""

    augmentation: str = Field(description="of photographs")
    drawn: str = Field(description="of small images of one size")
    space: dict[str, Any] = {}


class ShortList(BaseModel):
    """The content of `short_list.yaml`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    methods: dict[str, ListedMethod]
    backbones: dict[str, ListedBackbone]
    recipes: dict[str, Recipe]
    settings: dict[str, Any]
    space: dict[str, Any]
    point: dict[str, Any]
    search: dict[str, Any]


class Pace(NamedTuple):
    """Seconds of an epoch of a trial with its validation, and of a final run, which trains on the held-out classes
    too."""

    trial: float
    final: float


@dataclass(frozen=True)
class Size:
    """What fits into the hours: which recipes, for how many epochs, and how the seconds are shared out."""

    recipes: tuple[str, ...]
    epochs: int
    search: float
    last_trials: float
    """Of trials that run when the search's hours are over."""
    final_runs: float


@dataclass(frozen=True)
class BestSearch:
    """A search that can start, and what it was made from."""

    search: Search
    plan: BestPlan
    pretrained: list[Pretrained]


def read_short_list() -> ShortList:
    """The methods, networks and recipes, each with the reason why it is in the list."""
    return ShortList.model_validate(dict(read_yaml(SHORT_LIST)))


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


# A search that has begun -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begun:
    """A search that `best` has begun, and the hours that it has in all."""

    ledger: Ledger
    hours: float
    searching: float
    """Of these, the hours in which trials begin: the search's own budget."""

    def more(self, hours: float) -> dict[str, float]:
        """The budget with which it may take so many hours in all; empty if it has them already."""
        return {"hours": self.searching + hours - self.hours} if hours > self.hours + 1e-9 else {}


def find_begun(name: str, dataset: str, places: Places) -> Begun | None:
    """The search of this name, if there is one. InputError if it is of another command or of another data set."""
    path = places.search(name) / "journal.jsonl"
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


# A new one ---------------------------------------------------------------------------------------------------------


def plan_best(
    dataset: str,
    hours: float,
    places: Places,
    *,
    name: str,
    overrides: Mapping[str, Any],
    at_once: int | None,
    say: Callable[[str], None],
    stage: Stage,
) -> BestSearch:
    """Measure the pre-trained networks, time a few steps, and make the search that fits into the hours. `at_once`: how
    many trials run at a time; None: as many as this machine has GPUs, or CPUs. InputError for what cannot be searched,
    and for too few hours."""
    from orchestrator.data.catalog import open_dataset
    from orchestrator.training.device import choose_device

    begun = time.monotonic()
    check_dataset(dataset, places.storage)
    short_list = read_short_list()
    store = open_dataset(dataset, places.data, say=say)
    _check_classes(store)
    device = choose_device(str(overrides.get("device", "auto"))).type
    made = _Maker(short_list, dataset, store, dict(overrides))
    for method in made.methods:
        resolve_experiment({**overrides, "method": method}, SET)
    backbones = [overrides["backbone"]] if "backbone" in overrides else made.backbones_for(device)
    pretrained = _pretrained(made, backbones, places, say, stage)
    backbones = [network.backbone for network in pretrained]
    stage("timing a few steps")
    paces = made.paces(backbones)
    at_once = at_once or _slots(device)
    seeds = int(short_list.search["final_seeds"])
    seconds = 3600 * hours - (time.monotonic() - begun)
    size = fit_size(seconds, paces, at_once, seeds, made.overrides.get("epochs"))
    for recipe in paces.keys() - set(size.recipes):
        say(f"note: {recipe}: left out, as whole trainings of it do not fit into {span(3600 * hours)}")
    raw = made.content(backbones, size.recipes, size.epochs, hours)
    raw["budget"] = {"hours": round(size.search / 3600, 5)}
    free = {key: value for key, value in overrides.items() if key not in ("method", "backbone", "epochs")}
    search = resolve_request(raw, places, source="best", name=name, overrides=free, changes={})
    plan = BestPlan(
        name=name,
        dataset=dataset,
        images=len(store),
        classes=store.num_classes,
        pretrained={network.backbone: round(network.held_out, 6) for network in pretrained},
        methods=search.methods,
        recipes=list(size.recipes),
        epochs=size.epochs,
        seconds_of_a_trial=round(size.epochs * max(paces[one].trial for one in size.recipes), 1),
        trials_at_a_time=at_once,
        hours=hours,
        seconds_of_the_search=round(size.search, 1),
        seconds_of_the_final_runs=round(size.final_runs, 1),
        final_runs=search.final_runs,
        file=search.file(),
    )
    return BestSearch(search, plan, pretrained)


def answers_of_search(name: str, places: Places, stage: Stage) -> tuple[Ledger, BestAnswers, list[Pretrained]]:
    """What a search says so far, beside the pre-trained networks of its space, the best of them first."""
    from orchestrator.data.catalog import open_dataset

    ledger = read_journal(places.journal(name))[1]
    search = recorded_search(ledger.config)
    store = open_dataset(search.dataset, places.data)
    made = _Maker(read_short_list(), search.dataset, store, dict(search.settings))
    searched = [p.choices for p in search.parameters() if p.key == "backbone"]
    backbones = searched[0] if searched else [search.settings["backbone"]]
    pretrained = measure_pretrained([made.bare(str(one)) for one in backbones], store, places, stage)
    return ledger, answer_best(Findings.of(ledger, storage=paths.option(places.storage)), pretrained), pretrained


def fit_size(seconds: float, paces: Mapping[str, Pace], at_once: int, seeds: int, epochs: int | None = None) -> Size:
    """How many epochs a training can have so that LENGTHS of the dearest recipe fit one after another, beside the
    trials that run when the search's time is over and the final runs; recipes that do not fit with MIN_EPOCHS (or the
    `epochs` given) are left out. InputError if none does."""
    rest, rounds = seconds - OVERHEAD, math.ceil(seeds / at_once)
    by_cost = sorted(paces, key=lambda recipe: -paces[recipe].trial)
    fewest, needed = epochs or MIN_EPOCHS, math.inf
    for place, dearest in enumerate(by_cost):
        pace = paces[dearest]
        unit = (LENGTHS + 1) * pace.trial + rounds * pace.final
        count = epochs or min(MAX_EPOCHS, math.floor(rest / unit))
        needed = min(needed, fewest * unit + OVERHEAD)
        if count >= fewest and count * unit <= rest:
            trial, finals = count * pace.trial, count * rounds * pace.final
            recipes = tuple(recipe for recipe in paces if recipe in by_cost[place:])
            return Size(recipes, count, rest - trial - finals, trial, finals)
    needed += max(0.0, 0.1 * needed)  # the measurement of another start may be slower
    rule = (
        f"too short for a search with {pluralize(seeds, 'final run')} of {pluralize(fewest, 'epoch')} on this machine: "
        f"about {math.ceil(100 * needed / 3600) / 100:g} hours are needed"
    )
    raise InputError(Problem((Option("budget"), "hours"), rule=rule))


def _check_classes(store: "Store") -> None:
    from orchestrator.data.splits import rows_for_testing, too_few_classes

    if (problem := too_few_classes(store)) is not None:
        raise DataError(problem)
    tested = len({int(label) for label in store.labels[rows_for_testing(store)]})
    trained = store.num_classes - tested
    if min(tested, trained) < FEWEST_CLASSES:
        raise DataError(
            f"{store.name}: {pluralize(store.num_classes, 'class', 'classes')}, of which {tested} test: too few to say "
            f"how good a model is on classes never seen; {2 * FEWEST_CLASSES} are the least, 50 are better"
        )


def _held_out(store: "Store") -> dict[str, float]:
    """A larger share of the training classes for the choice, where the usual one is of fewer than FEW_CLASSES; at most
    half."""
    from orchestrator.training.splits import data_splits

    split = data_splits(Training(), store)[0]
    half = len(split.train_classes) + len(split.validation_classes)
    if len(split.validation_classes) >= FEW_CLASSES:
        return {}
    return {"validation_share": round(min(0.5, FEW_CLASSES / half), 3)}


def _slots(device: str) -> int:
    if device == "cuda":
        import torch

        return max(1, torch.cuda.device_count())
    return cpus()


def _pretrained(
    made: "_Maker", backbones: Sequence[str], places: Places, say: Callable[[str], None], stage: Stage
) -> list[Pretrained]:
    """Those whose weights can be had; InputError if there is none."""
    measured, refused = [], []
    for backbone in backbones:
        try:
            measured += measure_pretrained([made.bare(backbone)], made.store, places, stage)
        except InputError as error:
            refused.append(error)
            if len(backbones) > 1:
                say(f"note: {backbone} is left out: {error}")
    if not measured:
        raise refused[0]
    return sorted(measured, key=lambda network: -network.held_out)


class _Maker:
    """Makes the contents of search files for one data set."""

    def __init__(self, short_list: ShortList, dataset: str, store: "Store", overrides: dict[str, Any]) -> None:
        from orchestrator.search.defaults import photograph_sign

        self.list, self.dataset, self.store, self.overrides = short_list, dataset, store, overrides
        self.drawn = photograph_sign(store) is None
        self.settings = {**short_list.settings, **_held_out(store)}
        self.methods = list(short_list.methods)
        if (method := overrides.get("method")) is not None:
            if method not in shipped_searches():
                hint = suggestion(method, shipped_searches())
                raise InputError(Problem((SET, "method"), method, "has no shipped search", hint))
            self.methods = [method]

    def backbones_for(self, device: str) -> list[str]:
        """The listed ones that are not too slow here."""
        return [name for name, one in self.list.backbones.items() if device == "cuda" or not one.gpu]

    def augmentation(self, recipe: str) -> str:
        """The recipe's, for these images."""
        of = self.list.recipes[recipe]
        return of.drawn if self.drawn else of.augmentation

    def bare(self, backbone: str) -> "Experiment":
        """The experiment of a network that does not train: with its features kept where they can be."""
        settings = {**self.settings, **{key: self.overrides[key] for key in OF_NETWORK if key in self.overrides}}
        epochs = Training.model_fields["epochs"].default
        settings |= {"method": "triplet", "dataset": self.dataset, "backbone": backbone, "warmup_epochs": epochs}
        return resolve_experiment(settings | {"augmentation": self.augmentation("frozen")}, SET)

    def content(self, backbones: Sequence[str], recipes: Sequence[str], epochs: int, hours: float) -> dict[str, Any]:
        """A search file."""
        of, settings = self.list, {"epochs": epochs, **self.settings}
        space: dict[str, Any] = dict(of.space)
        warm = {recipe: epochs if recipe == "frozen" else min(1, epochs - 1) for recipe in recipes}
        if len(backbones) > 1:
            space["backbone"] = list(backbones)
        else:
            settings["backbone"] = backbones[0]
        opened = {
            self.augmentation(recipe): {"warmup_epochs": [warm[recipe]], **of.recipes[recipe].space}
            for recipe in recipes
        }
        if len(recipes) > 1:
            space["augmentation"] = {"choices": opened}
        else:
            settings |= {"augmentation": self.augmentation(recipes[0]), "warmup_epochs": warm[recipes[0]]}
            space |= of.recipes[recipes[0]].space
        spaces = {method: dict(read_yaml(shipped_searches()[method])["space"]) for method in self.methods}
        head: dict[str, Any] = {}
        if len(spaces) > 1:
            space["method"] = {"choices": spaces}
        else:
            head, space = {"method": self.methods[0]}, space | spaces[self.methods[0]]
        parsed = parse_space(space, (File("best"), "space"), settings | head)
        points = [
            {
                **of.point,
                "method": method,
                "backbone": backbones[0],
                "augmentation": self.augmentation(recipe),
                "warmup_epochs": warm[recipe],
                **(of.methods[method].point if method in of.methods else {}),
            }
            for method, recipe in _alternate(self.methods, recipes)
        ]
        networks = join_names(backbones, " and ")
        return {
            "description": f"The best model for {self.store.name} within {hours:g} h, of {networks}.",
            **head,
            "dataset": self.dataset,
            "settings": settings,
            "space": space,
            "learn_from": [parsed.part(point) for point in points],
            **of.search,
        }

    def paces(self, backbones: Sequence[str]) -> dict[str, Pace]:
        """The seconds of an epoch of each recipe, of the slowest network."""
        from orchestrator.data.protocol import steps_per_epoch
        from orchestrator.search.defaults import suit_defaults
        from orchestrator.search.plan import time_training
        from orchestrator.training.splits import data_splits

        recipes = list(self.list.recipes)
        free = {key: value for key, value in self.overrides.items() if key not in ("method", "backbone", "epochs")}
        raw = self.content(backbones, recipes, MAX_EPOCHS, 1)
        search, _ = suit_defaults(
            resolve_search(raw, name="best", source="best", overrides=free, num_trials=1), self.store
        )
        paces: dict[str, Pace] = {}
        for recipe in recipes:
            for backbone in backbones:
                epochs = MAX_EPOCHS if recipe == "frozen" else 1
                params = {"backbone": backbone, "augmentation": self.augmentation(recipe), "warmup_epochs": epochs}
                fixed = {key for key in params if key in free}
                point = {**search.space.first(), **{k: v for k, v in params.items() if k not in fixed}}
                experiment = search.experiment(point)
                split = data_splits(experiment.training, self.store)[0]
                timed, batch = time_training(experiment, self.store, split), experiment.training.batch_size
                whole = len(split.train) + len(split.validation)
                trial = steps_per_epoch(len(split.train), batch) * timed.step + timed.validation
                final = steps_per_epoch(whole, batch) * timed.step
                before = paces.get(recipe, Pace(0.0, 0.0))
                paces[recipe] = Pace(max(before.trial, trial), max(before.final, final))
        return paces


def _alternate(methods: Sequence[str], recipes: Sequence[str]) -> list[tuple[str, str]]:
    """Each method with each recipe, so that the first ones have all methods and more than one recipe."""
    turns = range(len(recipes))
    return [
        (method, recipes[(number + turn) % len(recipes)]) for turn in turns for number, method in enumerate(methods)
    ]
