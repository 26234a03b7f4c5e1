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
from orchestrator.config.limits import cpus
from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search
from orchestrator.config.space import parse_space
from orchestrator.config.training import Training, resolve_experiment
from orchestrator.errors import DataError, InputError
from orchestrator.evaluation.claims import FEWEST_CLASSES
from orchestrator.problems import SET, File, Option, Problem, suggestion
from orchestrator.report.best import Pretrained
from orchestrator.report.selection import FEW_CLASSES
from orchestrator.search.beginning import check_dataset, resolve_request
from orchestrator.search.plan_output import BestPlan
from orchestrator.search.pretrained import measure_pretrained
from orchestrator.storage.places import Places
from orchestrator.text import join_names, pluralize, span

if TYPE_CHECKING:
    from orchestrator.config.training import Experiment
    from orchestrator.data.store import Store

SHORT_LIST = Path(__file__).with_name("short_list.yaml")
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
    """A search that can start, and what is told of it."""

    search: Search
    plan: BestPlan


def read_short_list() -> ShortList:
    """The methods, networks and recipes, each with the reason why it is in the list."""
    return ShortList.model_validate(dict(read_yaml(SHORT_LIST)))


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
    made = FileMaker(short_list, dataset, store, dict(overrides))
    for method in made.methods:
        resolve_experiment({**overrides, "method": method}, SET)
    backbones = [overrides["backbone"]] if "backbone" in overrides else made.backbones_for(device)
    pretrained = _pretrained(made, backbones, places, say, stage)
    backbones = [network.backbone for network in pretrained]
    stage("timing a few steps")
    paces = made.paces(backbones)
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()  # the trials' processes need it
    at_once = at_once or _slots(device)
    seeds = int(short_list.search["final_seeds"])
    spent = time.monotonic() - begun
    size = fit_size(3600 * hours - spent, paces, at_once, seeds, made.overrides.get("epochs"), spent)
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
    return BestSearch(search, plan)


def network_experiments(search: Search, store: "Store") -> "list[Experiment]":
    """The experiments of a search's networks as they come."""
    made = FileMaker(read_short_list(), search.dataset, store, dict(search.settings))
    searched = [p.choices for p in search.parameters() if p.key == "backbone"]
    backbones = searched[0] if searched else [search.example().training.backbone]
    return [made.bare(str(one)) for one in backbones]


def fit_size(
    seconds: float,
    paces: Mapping[str, Pace],
    at_once: int,
    seeds: int,
    epochs: int | None = None,
    spent: float = 0.0,
) -> Size:
    """How many epochs a training can have so that LENGTHS of the dearest recipe fit one after another, beside the
    trials that run when the search's time is over and the final runs; recipes that do not fit with MIN_EPOCHS (or the
    `epochs` given) are left out. InputError if none does; `spent` seconds went before these."""
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
    needed = 1.1 * (needed + spent)  # another start may measure slower steps
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
    made: "FileMaker", backbones: Sequence[str], places: Places, say: Callable[[str], None], stage: Stage
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


class FileMaker:
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
        fixed = {key: value for key, value in self.overrides.items() if key not in ("method", "backbone", "epochs")}
        free = {key: of_key for key, of_key in space.items() if key not in fixed}
        parsed = parse_space(free, (File("best"), "space"), settings | head | fixed)
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
