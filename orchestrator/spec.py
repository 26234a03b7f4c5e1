"""The typed experiment and search files. Unknown keys are refused with a suggestion; scalars are YAML 1.2.

Settings are flat: the training's (`lr`, `epochs`, ...) and the method's (`delta`, `alpha`, ...) share one
namespace, so that a file, `--set` and a search space all name a hyperparameter in the same way.
"""

import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from orchestrator.backbones import InputConvention, check_backbone_name
from orchestrator.data.remote import BUCKET, FORM, Address, is_address
from orchestrator.data.store import DataError
from orchestrator.data.transforms import AUGMENTATIONS, Degradation
from orchestrator.errors import InputError, Problems, shown, suggestion
from orchestrator.learner import Pooling
from orchestrator.limits import (
    MOST_CLASSES,
    MOST_CONCURRENT,
    MOST_DIMENSIONS,
    MOST_EPOCHS,
    MOST_HOURS,
    MOST_IN_BATCH,
    MOST_PER_BATCH,
    MOST_RUNS,
    MOST_THREADS,
    MOST_TRIALS,
    MOST_WORKERS,
)
from orchestrator.method import MethodConfig, find_method
from orchestrator.yaml_file import Document, yaml_text

SEARCH_SPACES = Path(__file__).resolve().parent.parent / "search_spaces"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
NAME_CHARACTERS = 100
MOST_POINTS = MOST_TRIALS
"""A grid has at most so many."""
LARGEST_INTEGER = 2**53
"""Up to here a float, as samplers have it, is the integer."""
VALIDATE_EVERY = re.compile(r"([1-9][0-9]{0,8}) (epoch|step)s?")


class Training(BaseModel):
    """Everything about a training but its method: data, network, optimiser, clock, seeds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    dataset: str = Field("glyphs", description="name of the data set, or s3://bucket/prefix")
    protocol: Literal["conventional", "mlrc", "classification"] = Field(
        "conventional",
        description="one model, classes held out to validate on; or MLRC: four models over four folds of the training "
        "classes, in lockstep; or one model of all classes, on the data set's own training and test images",
    )
    selection: Literal["validation", "test"] = Field(
        "validation",
        description="what the best validation is chosen on: held-out training classes, or, as most papers do, the test "
        "classes, and every number carries the word",
    )
    selection_metric: (
        Literal[
            "val/map_at_r",
            "val/r_precision",
            "val/mean_average_precision_at_1000",
            "val/recall_at_1",
            "val/recall_at_2",
            "val/recall_at_4",
            "val/recall_at_8",
        ]
        | None
    ) = Field(
        None,
        description="metric by which the best validation of `train` is chosen; a search chooses by its objective; "
        "null: val/map_at_r",
    )
    validation_share: float = Field(
        0.3,
        ge=0,
        le=0.9,
        description="share of the training classes held out for validation (conventional protocol), or of each class's "
        "training images (classification)",
    )
    class_subset: int | None = Field(
        None,
        ge=2,
        le=MOST_CLASSES,
        description="take only the first so many training and test classes, for a quick look; null: all",
    )
    label_noise: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the training labels replaced by another class; validation and test keep theirs",
    )
    label_noise_seed: int = Field(0, ge=0, lt=2**31, description="seed of which labels are replaced, and by what")
    augmentation: str = Field(
        "affine",
        description="recipe of the training images' augmentation; those with crop are for photographs, and say how "
        "these are cut in evaluation too",
    )
    loader_threads: int = Field(
        4,
        ge=0,
        le=256,
        description="threads that prepare photographs ahead of the training; 0: none; no result depends on it",
    )
    degradation: Literal["none", "low_resolution", "blur", "occlusion"] = Field(
        "none", description="what makes training images uncertain, after their augmentation"
    )
    degradation_probability: float = Field(0.5, ge=0, le=1, description="probability that an image is degraded")
    degradation_extent: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the sides: that low resolution keeps, of blur's standard deviation, or occluded; "
        "null: 0.446 (100 of 224 pixels), 0.02 or 0.5",
    )
    classes_per_batch: int = Field(16, ge=1, le=MOST_PER_BATCH, description="classes P of a class-balanced batch")
    images_per_class: int = Field(
        4, ge=1, le=MOST_PER_BATCH, description="images K per class; the global batch is P x K"
    )
    backbone: str = Field("small_cnn", description="network below the embedding head")
    weights: str = Field("default", description="'default' (pretrained), 'random', or a state-dict file")
    weights_sha256: str | None = Field(
        None, pattern="^[0-9a-fA-F]{64}$", description="digest that a state-dict file must have"
    )
    input_convention: InputConvention = Field(
        "default",
        validate_default=True,
        description="how colours are given to the backbone; 'default': its own way (bn_inception: bgr_255)",
    )
    embedding_dim: int = Field(128, ge=1, le=MOST_DIMENSIONS, description="embedding size D")
    pooling: Pooling = Field("average+max", description="global pooling of the feature maps, or 'token'")
    freeze_batch_norm: bool = Field(True, description="keep batch norm's statistics and affine parameters")
    epochs: int = Field(10, ge=1, le=MOST_EPOCHS, description="epochs of training")
    validate_every: str = Field("1 epoch", description="'N epochs' or 'N steps'")
    optimizer: Literal["adam", "adamw"] = Field("adam", description="Adam, or AdamW (decoupled weight decay)")
    lr: float = Field(1e-3, gt=0, description="learning rate of the network")
    backbone_lr_multiplier: float = Field(1.0, gt=0, description="factor on lr for the backbone")
    layer_decay: float = Field(1.0, gt=0, le=1, description="factor on the backbone's lr per layer from its top down")
    beta2: float = Field(0.999, ge=0, lt=1, description="Adam's second-moment decay")
    weight_decay: float = Field(
        1e-4, ge=0, description="of all parameters, proxies too; Adam adds it to the gradient, AdamW does not"
    )
    warmup_epochs: int = Field(0, ge=0, le=MOST_EPOCHS, description="first epochs that train heads and proxies only")
    lr_step_epochs: int = Field(
        0, ge=0, le=MOST_EPOCHS, description="multiply lr by lr_gamma every so many epochs; 0: never"
    )
    lr_gamma: float = Field(0.5, gt=0, le=1, description="factor of the step schedule")
    clip_value: float | None = Field(None, gt=0, description="clip each gradient entry to +-this")
    clip_norm: float | None = Field(None, gt=0, description="clip the gradient's norm to this")
    precision: Literal["float32", "bf16", "fp16", "float64"] = Field(
        "float32", description="arithmetic of the network; losses are float32 or better"
    )
    channels_last: bool = Field(False, description="channels-last memory layout: faster convolutions on a GPU")
    compile: bool = Field(False, description="torch.compile the network: slower to start, faster after")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="'auto' takes a GPU if there is one")
    threads: int = Field(
        1, ge=1, le=MOST_THREADS, description="CPU threads of a training; part of what makes it repeatable"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="seed of weights, batches and augmentation")

    @field_validator("dataset")
    @classmethod
    def _address(cls, value: str) -> str:
        if is_address(value):
            try:
                return str(Address.parse(value))
            except DataError as error:
                raise ValueError(BUCKET if BUCKET in str(error) else FORM) from None
        return value

    @field_validator("backbone")
    @classmethod
    def _known_backbone(cls, value: str) -> str:
        check_backbone_name(value)
        return value

    @field_validator("input_convention")
    @classmethod
    def _recorded_convention(cls, value: InputConvention, info: ValidationInfo) -> InputConvention:
        return "bgr_255" if value == "default" and info.data.get("backbone") == "bn_inception" else value

    @field_validator("augmentation")
    @classmethod
    def _known_augmentation(cls, value: str) -> str:
        if value not in AUGMENTATIONS:
            raise ValueError(f"unknown recipe{suggestion(value, AUGMENTATIONS)}")
        return value

    @field_validator("validate_every")
    @classmethod
    def _clock(cls, value: str) -> str:
        if not VALIDATE_EVERY.fullmatch(value):
            raise ValueError("should read like '1 epoch' or '25 steps', with a number from 1 to 999999999")
        return value

    @model_validator(mode="after")
    def _one_selection(self) -> Self:
        if self.selection == "test" and self.protocol == "mlrc":
            raise ValueError(
                "selection: 'test': not with protocol: mlrc, whose folds hold out classes to select on: "
                "take protocol: conventional"
            )
        return self

    @model_validator(mode="after")
    def _a_batch(self) -> Self:
        if self.batch_size > MOST_IN_BATCH:
            raise ValueError(
                f"classes_per_batch: {self.classes_per_batch}: with images_per_class: {self.images_per_class} a batch "
                f"has {self.batch_size:,} images: at most {MOST_IN_BATCH:,} are taken"
            )
        return self

    @property
    def degraded(self) -> Degradation | None:
        """What makes training images uncertain."""
        if self.degradation == "none":
            return None
        return Degradation(self.degradation, self.degradation_probability, self.degradation_extent)

    @property
    def batch_size(self) -> int:
        """Images of the global batch."""
        return self.classes_per_batch * self.images_per_class


@dataclass(frozen=True)
class Experiment:
    """One training, resolved: a method with its hyperparameters, and everything else."""

    method: str
    config: MethodConfig
    training: Training

    def flat(self) -> dict[str, Any]:
        """All settings under their names, as plain values; `resolve_experiment` takes them back."""
        return {"method": self.method, **self.training.model_dump(), **self.config.model_dump()}


def resolve_experiment(settings: Mapping[str, Any], where: str) -> Experiment:
    """The experiment of flat settings; InputError names `where`, and of each thing that is wrong the key, the value and
    what would be right."""
    if "method" not in settings:
        raise InputError(f"{where}: no method is named")
    if not isinstance(settings["method"], str):
        raise InputError(f"{where}: method: {shown(settings['method'])} should be a method's name")
    try:
        method = find_method(settings["method"])
    except InputError as error:
        raise InputError(f"{where}: method: {error}") from None
    method_keys = set(method.Config.model_fields)
    training_keys = set(Training.model_fields)
    if clash := method_keys & training_keys:
        raise InputError(f"method '{method.name}': {sorted(clash)[0]} is already a setting of every training")
    mine: dict[str, Any] = {}
    its: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in settings.items():
        if key in method_keys:
            its[key] = value
        elif key in training_keys:
            mine[key] = value
        elif key != "method":
            known = method_keys | training_keys
            problems.append(f"{where}: {key}: no such setting of '{method.name}'{suggestion(key, known)}")
    made: list[BaseModel] = []
    for kind, values in ((Training, mine), (method.Config, its)):
        try:
            made.append(kind(**values))
        except ValidationError as error:
            problems += [f"{where}: {complaint}" for complaint in complaints(error)]
    if problems:
        raise InputError(*problems)
    training, config = made
    assert isinstance(training, Training) and isinstance(config, MethodConfig)
    return Experiment(method.name, config, training)


def _sound(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that are right by themselves, beneath a method that is there."""
    sound = {"method": settings["method"]}
    for key, value in settings.items():
        try:
            resolve_experiment(sound | {key: value}, "")
        except InputError:
            continue
        sound[key] = value
    return sound


def describe(error: ValidationError) -> str:
    """pydantic's first complaint as `field: value: what would be right`."""
    return complaints(error)[0]


def complaints(error: ValidationError) -> list[str]:
    """pydantic's complaints, one of each field, as `field: value: what would be right`."""
    found: dict[str, str] = {}
    for number, its in enumerate(error.errors()):
        found.setdefault(str(its["loc"][0]) if its["loc"] else f" {number}", _complaint(its))
    return list(found.values())


def _complaint(its: Any) -> str:
    parts = [str(part) for part in its["loc"] if part not in ("int", "float", "str") and "[" not in str(part)]
    name, message = ".".join(parts), its["msg"].removeprefix("Value error, ")
    if its["type"] == "extra_forbidden":
        return f"{name}: no such key"
    if its["type"] == "missing":
        return f"{name}: this key is required"
    if its["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", its["ctx"]["expected"])
        message += suggestion(its["input"], known) if len(known) > 3 else ""
    for theirs, ours in WORDS.items():
        message = message.replace(theirs, ours)
    message = re.sub(r" or instance of \w+", "", message)
    given = re.sub(r"://[^\s'\"]*@", "://***@", shown(its["input"]))  # an address may hold a password
    return f"{name}: {given}: {message[:1].lower() + message[1:]}" if name else message


WORDS = {
    "Input should be": "should be",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "text",
    "a valid list": "a list",
    "a valid dictionary": "a mapping",
    "String should match pattern '^[0-9a-fA-F]{64}$'": "should be 64 hexadecimal digits",
}
"""pydantic's words, and those of somebody who writes a search file."""


# Files -----------------------------------------------------------------------------------------------------


def shipped_searches() -> dict[str, Path]:
    """The search files that come with the package, by name."""
    return {path.stem: path for path in sorted(SEARCH_SPACES.glob("*.yaml"))}


def find_search(name: str) -> Path:
    """A search file by path, or a shipped one by name."""
    path = Path(name).expanduser()
    if path.suffix in (".yaml", ".yml") or "/" in name:
        if path.is_dir():
            raise InputError(f"{name}: is a folder, not a search file (shipped ones: {', '.join(shipped_searches())})")
        if not path.is_file():
            raise InputError(f"{name}: no such search file (shipped ones: {', '.join(shipped_searches())})")
        return path.resolve()
    shipped = shipped_searches()
    if name not in shipped:
        raise InputError(f"unknown search '{name}'{suggestion(name, shipped)}")
    return shipped[name]


def check_name(name: str, option: str = "--name") -> str:
    """A search's name is a folder name and part of addresses."""
    if len(name) > NAME_CHARACTERS:
        raise InputError(f"{option}: '{name[:20]}...' has {len(name)} characters; at most {NAME_CHARACTERS} are taken")
    if not NAME.fullmatch(name):
        raise InputError(
            f"{option}: '{name}' should be letters, digits, '.', '_' or '-', beginning with a letter or digit"
        )
    return name


# Space -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """One searched setting. `path` is unique in the space; a branch is active for its choice only."""

    key: str
    path: str
    kind: Literal["int", "float", "categorical"]
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    choices: tuple[Any, ...] = ()
    branches: Mapping[Any, tuple["Parameter", ...]] = field(default_factory=dict)

    def count(self) -> float:
        """How many values it has; infinitely many in a continuous range."""
        if self.kind == "categorical":
            return len(self.choices)
        step = self.step or (1.0 if self.kind == "int" else 0.0)
        if not step:
            return 1 if self.low == self.high else math.inf
        steps = (Decimal(repr(self.high)) - Decimal(repr(self.low))) / Decimal(repr(step))
        return math.floor(float(steps) + 1e-9) + 1

    def values(self) -> list[Any]:
        """All its values; ValueError if there are infinitely many."""
        if self.kind == "categorical":
            return list(self.choices)
        if not math.isfinite(count := self.count()):
            raise ValueError(f"{self.key} has infinitely many values")
        if self.kind == "int":
            return [int(self.low) + i * int(self.step or 1) for i in range(int(count))]
        return [self._at(place) for place in range(int(count))]

    def _at(self, place: int) -> float:
        """The value so many steps above the low end, as its decimals say it: 0.1 + 2 x 0.1 is 0.3."""
        return float(Decimal(repr(self.low)) + place * Decimal(repr(self.step or 0.0)))

    def on_grid(self, value: float) -> float:
        """The value of the grid next to this one; of a range without steps the value itself."""
        return self._at(round((value - self.low) / self.step)) if self.step else value

    def take(self, value: Any) -> Any:
        """This value as the parameter has it; InputError says what would be right."""
        if self.kind == "categorical":
            same = [c for c in self.choices if c == value and isinstance(c, bool) == isinstance(value, bool)]
            if not same:
                raise InputError(f"{shown(value)} is none of the choices{suggestion(value, map(str, self.choices))}")
            return same[0]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InputError(f"{shown(value)} should be a number")
        if not self.low <= value <= self.high:
            raise InputError(f"{value:g} is outside of the space ({self.low:g} to {self.high:g})")
        step = self.step or (1 if self.kind == "int" else None)
        if step is not None:
            nearest = self.on_grid(value) if self.step else round(value)
            if abs(nearest - value) > max(1e-6 * step, 4 * math.ulp(value)):
                raise InputError(f"{value:g} is none of the steps of {step:g} from {self.low:g}")
            value = nearest
        return int(value) if self.kind == "int" else float(value)


@dataclass(frozen=True)
class Space:
    """A union of alternatives (nearly always one), each a list of parameters."""

    alternatives: tuple[tuple[Parameter, ...], ...]

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter, branches included."""

        def walk(parameters: tuple[Parameter, ...]) -> Iterator[Parameter]:
            for parameter in parameters:
                yield parameter
                for branch in parameter.branches.values():
                    yield from walk(branch)

        for alternative in self.alternatives:
            yield from walk(alternative)

    def size(self) -> float:
        """How many points it holds; infinite with a continuous parameter. Of more than MOST_POINTS, which no search
        tries, those that are the same in several alternatives or branches are counted several times."""

        def product(parameters: tuple[Parameter, ...]) -> float:
            return math.prod(expand(parameter) for parameter in parameters)

        def expand(parameter: Parameter) -> float:
            rest = parameter.count() - len(parameter.branches)
            return rest + sum(product(branch) for branch in parameter.branches.values())

        most = sum(product(alternative) for alternative in self.alternatives)
        return most if most > MOST_POINTS else len(self.grid())

    def first(self) -> dict[str, Any]:
        """One of its points: every range at its low end, every choice the first."""

        def point(parameters: tuple[Parameter, ...]) -> dict[str, Any]:
            values: dict[str, Any] = {}
            for parameter in parameters:
                value = parameter.choices[0] if parameter.kind == "categorical" else parameter.low
                values[parameter.key] = int(value) if parameter.kind == "int" else value
                values |= point(parameter.branches.get(value, ()))
            return values

        return point(self.alternatives[0])

    def point(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The point with these values, of which there may be more; InputError if one is missing or out of place."""

        def walk(parameters: tuple[Parameter, ...]) -> dict[str, Any]:
            taken: dict[str, Any] = {}
            for parameter in parameters:
                if parameter.key not in values:
                    raise InputError(f"{parameter.key}: is missing; a point gives every setting that is searched")
                try:
                    value = parameter.take(values[parameter.key])
                except InputError as error:
                    raise InputError(f"{parameter.key}: {error}") from None
                taken |= {parameter.key: value} | walk(parameter.branches.get(value, ()))
            return taken

        return walk(self.alternatives[0])

    def grid(self) -> list[dict[str, Any]]:
        """Every point once, the last parameter varying fastest; needs finitely many values."""

        def expand(parameter: Parameter) -> list[dict[str, Any]]:
            points = []
            for value in parameter.values():
                branch = product(parameter.branches.get(value, ()))
                points += [{parameter.key: value} | point for point in branch]
            return points

        def product(parameters: tuple[Parameter, ...]) -> list[dict[str, Any]]:
            combinations = itertools.product(*(expand(parameter) for parameter in parameters))
            return [{k: v for part in parts for k, v in part.items()} for parts in combinations]

        seen: dict[str, dict[str, Any]] = {}
        for alternative in self.alternatives:
            for point in product(alternative):
                seen.setdefault(repr(sorted(point.items())), point)
        return list(seen.values())


class _Range(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    type: Literal["int", "float", "categorical"] | None = None
    low: float | None = None
    high: float | None = None
    log: bool = False
    step: float | None = Field(None, gt=0)
    choices: list[Any] | dict[Any, Any] | None = None

    @field_validator("choices", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        if not isinstance(value, list | dict | None):
            raise ValueError("should be a list of values, or a mapping of words to spaces of their own")
        return value


def _parse_parameters(raw: Any, where: str, fixed: Mapping[str, Any], prefix: str = "") -> tuple[Parameter, ...]:
    if not isinstance(raw, dict):
        raise InputError(f"{where}: should map settings to ranges, not be a {type(raw).__name__}")
    problems, parsed = Problems(), []
    for key, given in raw.items():
        with problems.noted():
            parsed.append(_parse_parameter(str(key), given, f"{where}.{key}", fixed, prefix))
    problems.tell()
    return tuple(parsed)


def _parse_parameter(key: str, raw: Any, where: str, fixed: Mapping[str, Any], prefix: str) -> Parameter:
    if isinstance(raw, list):
        raw = {"choices": raw}
    if not isinstance(raw, dict):
        raise InputError(
            f"{where}: {shown(raw)} should be a list of choices or a range such as {{low: 0.1, high: 0.35}}"
        )
    if unknown := [word for word in raw if word not in _Range.model_fields]:
        hints = [f"{where}: {word}: no such key{suggestion(word, _Range.model_fields)}" for word in unknown]
        raise InputError(*hints)
    try:
        given = _Range(**raw)
    except ValidationError as error:
        raise InputError(*(f"{where}: {complaint}" for complaint in complaints(error))) from None
    path = prefix + key
    if given.choices is not None or given.type == "categorical":
        if given.low is not None or given.high is not None or given.log or given.step is not None:
            raise InputError(f"{where}: a categorical setting has choices only, no low, high, log or step")
        if not given.choices:
            raise InputError(f"{where}: choices: an empty list; name at least one value")
        branches: dict[Any, tuple[Parameter, ...]] = {}
        problems = Problems()
        for choice in given.choices:
            with problems.noted():
                if not isinstance(choice, str | int | float | None):
                    raise InputError(
                        f"{where}: choices: {shown(choice)} should be a single value, not a {type(choice).__name__}"
                    )
                if isinstance(given.choices, dict) and not isinstance(choice, str):
                    raise InputError(f"{where}: choices: {shown(choice)}: only a word can open a space of its own")
                sub = given.choices[choice] if isinstance(given.choices, dict) else None
                rest = dict(fixed) | {key: choice}
                _check_value(key, choice, where, fixed)
                branches[choice] = _parse_parameters(sub or {}, f"{where}.{choice}", rest, f"{path}={choice}/")
        problems.tell()
        choices = tuple(given.choices)
        if len({repr(choice) for choice in choices}) < len(choices):
            raise InputError(f"{where}: choices: {shown(list(choices))} names a value twice")
        return Parameter(key, path, "categorical", choices=choices, branches=branches)
    if given.low is None or given.high is None:
        raise InputError(f"{where}: a range needs both low and high (or give a list of choices)")
    if given.low > given.high:
        raise InputError(f"{where}: low {given.low:g} is above high {given.high:g}")
    if given.log and given.low <= 0:
        raise InputError(f"{where}: low {given.low:g}: a logarithmic range starts above 0")
    if given.log and given.step is not None:
        raise InputError(f"{where}: step: not together with log")
    if given.step is not None and 0 < given.high - given.low < given.step:
        raise InputError(f"{where}: step: {given.step:g} is more than the whole range, {given.low:g} to {given.high:g}")
    kind = given.type or ("int" if _is_integer_setting(key, fixed) else "float")
    low, high, step = given.low, given.high, given.step
    if kind == "int":
        for name, value in (("low", low), ("high", high), ("step", step or 1)):
            if value != int(value):
                raise InputError(f"{where}: {name}: {value:g} should be a whole number")
            if abs(value) > LARGEST_INTEGER:
                raise InputError(f"{where}: {name}: {value:g} should be at most {LARGEST_INTEGER}")
        _check_value(key, int(low), where, fixed)
        _check_value(key, int(high), where, fixed)
    else:
        _check_value(key, low, where, fixed)
        _check_value(key, high, where, fixed)
    return Parameter(key, path, kind, low=low, high=high, log=given.log, step=step)


def _check_value(key: str, value: Any, where: str, fixed: Mapping[str, Any]) -> None:
    """A value of the space must be one that the experiment would take."""
    settings = dict(fixed) | {key: value}
    if "method" not in settings:
        # the method is searched elsewhere in this space: only training settings can be checked here
        settings["method"] = next(iter(settings.pop("_methods", [])), None)
    if settings["method"] is None:
        raise InputError(f"{where}: no method is named: give the key method: NAME")
    settings.pop("_methods", None)
    resolve_experiment(settings, where)


def _is_integer_setting(key: str, fixed: Mapping[str, Any]) -> bool:
    fields = dict(Training.model_fields)
    names = [fixed["method"]] if "method" in fixed else list(fixed.get("_methods", []))
    for name in names:
        fields |= find_method(name).Config.model_fields
    annotation = fields[key].annotation if key in fields else None
    return annotation is int or (int in get_args(annotation) and float not in get_args(annotation))


def parse_space(raw: Any, where: str, settings: Mapping[str, Any]) -> Space:
    """The space of a search file, each bound and choice checked against the method's config."""
    if raw == {}:
        return Space(((),))  # a single training
    alternatives = raw if isinstance(raw, list) else [raw]
    problems, parsed = Problems(), []
    if not alternatives or any(not alternative for alternative in alternatives):
        raise InputError(f"{where}: the space is empty; give at least one setting a range or choices")
    for number, alternative in enumerate(alternatives):
        place = f"{where}[{number}]" if isinstance(raw, list) else where
        fixed = dict(settings)
        with problems.noted():
            if isinstance(alternative, dict) and isinstance(alternative.get("method"), dict | list):
                choices = alternative["method"]
                choices = choices.get("choices") if isinstance(choices, dict) else choices
                if not isinstance(choices, list | dict) or not choices or not all(isinstance(c, str) for c in choices):
                    raise InputError(f"{place}.method: {shown(choices)} should be a list of methods' names")
                fixed.pop("method", None)
                fixed["_methods"] = list(choices)
            parsed.append(_parse_parameters(alternative, place, fixed))
    problems.tell()
    return Space(tuple(parsed))


# Search ----------------------------------------------------------------------------------------------------


VALIDATION_METRICS = ["val/map_at_r", "val/r_precision", "val/mean_average_precision_at_1000", "train/loss"]
VALIDATION_METRICS += [f"val/recall_at_{k}" for k in (1, 2, 4, 8)]
COSTS = ["cost/seconds", "cost/gpu_hours"]
"""What a training took until its best validation; only as the second of two objectives."""


class Objective(BaseModel):
    """What is optimised: a metric of the held-out classes; as the second of two also a cost."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    metric: str = "val/map_at_r"
    mode: Literal["max", "min"] = "max"

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str) -> str:
        known = VALIDATION_METRICS + COSTS
        if value not in known:
            raise ValueError(f"not a metric of a validation{suggestion(value, known)}")
        return value

    @model_validator(mode="after")
    def _cheap(self) -> Self:
        if self.metric in COSTS and self.mode == "max":
            raise ValueError(f"mode: 'max': {self.metric} should be small: leave mode out, or give min")
        return self

    @property
    def best_key(self) -> str:
        """Where trackers find the best value: `best/val_map_at_r`."""
        return "best/" + self.metric.replace("/", "_")


class Scheduler(BaseModel):
    """Who is stopped early. All of them count validations, and compare the best so far.

    asha: at each rung only the best 1 / reduction_factor of the trials go on. median: who is below the median of the
    finished trials at the same validation stops. hyperband: brackets of asha, from the most impatient to none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    name: Literal["asha", "median", "hyperband", "none"] = "none"
    grace_validations: int = Field(1, ge=1, le=MOST_EPOCHS, description="validations before a trial may be stopped")
    reduction_factor: int = Field(3, ge=2, le=MOST_TRIALS, description="one in so many trials passes a rung")
    startup_trials: int = Field(5, ge=1, le=MOST_TRIALS, description="trials that end before the median stops any")
    max_validations: int | None = Field(
        None,
        ge=1,
        le=10**9,
        description="validations of a whole trial, for hyperband; default: from epochs and validate_every",
    )


SCHEDULER_KEYS = {
    "none": {"name"},
    "asha": {"name", "grace_validations", "reduction_factor"},
    "median": {"name", "grace_validations", "startup_trials"},
    "hyperband": {"name", "grace_validations", "reduction_factor", "max_validations"},
}
"""What of `Scheduler` has a meaning for which."""


class Budget(BaseModel):
    """What ends a search before its number of trials does. Its final runs come on top."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    epochs: int | None = Field(None, ge=1, le=10**9, description="epochs of all trials together, never exceeded")
    hours: float | None = Field(
        None, gt=0, le=MOST_HOURS, description="wall time while the search runs, not while it rests"
    )
    gpu_hours: float | None = Field(
        None, gt=0, le=MOST_HOURS, description="GPUs that trials hold, times their training time"
    )
    cpu_hours: float | None = Field(
        None, gt=0, le=MOST_HOURS, description="CPUs that trials hold, times their training time"
    )
    trials_without_improvement: int | None = Field(
        None, ge=1, le=MOST_TRIALS, description="so many trials ended since the best one"
    )

    def limits(self) -> dict[str, float]:
        """Those that are set."""
        return {key: value for key, value in self.model_dump().items() if value is not None}


@dataclass(frozen=True)
class Preset:
    """A paper's settings for one data set and backbone; see `orchestrator.presets`."""

    name: str
    source: str
    settings: dict[str, Any]
    readings: dict[str, str]
    unstated: dict[str, str]


Algorithm = Literal["tpe", "gp", "cmaes", "nsga2", "qmc", "random", "grid"]
FinalProtocol = Literal["same", "conventional"]


class Search(BaseModel):
    """A resolved search: fixed settings, space, algorithm, budget, objective."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    name: str
    source: str = Field(description="file or name that it was read from, for messages")
    description: str = ""
    preset: str | None = Field(None, description="name of the preset that settings were taken from")
    settings: dict[str, Any]
    raw_space: Any
    algorithm: Algorithm = "tpe"
    num_trials: int | None = Field(None, ge=1, le=MOST_TRIALS)
    budget: Budget = Budget()
    start_from: list[dict[str, Any]] = Field([], description="points that are tried before any other")
    scheduler: Scheduler = Scheduler()
    objective: Objective = Objective()
    second_objective: Objective | None = Field(None, description="with it, the search is for the front of both")
    seed: int = Field(0, ge=0, lt=2**31)
    max_concurrent: int | None = Field(None, ge=1, le=MOST_CONCURRENT)
    workers: int = Field(1, ge=1, le=MOST_WORKERS, description="processes that train a trial together")
    trial_timeout: float | None = Field(
        None,
        gt=0,
        le=3600 * MOST_HOURS,
        allow_inf_nan=False,
        description="seconds that a trial, or a final run, may take",
    )
    stall_timeout: float | None = Field(
        None,
        gt=0,
        le=3600 * MOST_HOURS,
        allow_inf_nan=False,
        description="seconds that it may take to its next validation",
    )
    gpus_per_trial: float | None = Field(
        None, gt=0, le=1, description="share of a GPU that a single-worker trial takes; default: a whole one"
    )
    test_trials: bool = Field(False, description="test each trial too: for a single training, never for a search")
    final: bool = Field(True, description="train the winner again on the whole training half and test it")
    final_workers: int | None = Field(
        None, ge=1, le=MOST_WORKERS, description="processes of the final run; default: as a trial"
    )
    final_trials: int = Field(1, ge=1, le=MOST_RUNS, description="so many of the best trials have final runs")
    final_seeds: int = Field(1, ge=1, le=MOST_RUNS, description="final runs of each of them, one per seed")
    final_protocol: FinalProtocol = Field(
        "same", description="protocol of the final runs: the trials', or, of a search over folds, conventional"
    )

    @property
    def final_runs(self) -> int:
        """How many final runs there are at most."""
        return self.final_trials * self.final_seeds if self.final else 0

    @property
    def workers_of_final(self) -> int:
        """Processes that train the winner again."""
        return self.final_workers or self.workers

    @property
    def space(self) -> Space:
        """The parsed space."""
        return parse_space(self.raw_space, f"{self.source}: space", self.settings)

    @property
    def goals(self) -> list[Objective]:
        """The objective, or both."""
        return [self.objective, *([self.second_objective] if self.second_objective else [])]

    @property
    def max_validations(self) -> int | None:
        """Validations of a whole trial, where they are known without the data."""
        if self.scheduler.max_validations is not None:
            return self.scheduler.max_validations
        training = self.example().training
        match = VALIDATE_EVERY.fullmatch(training.validate_every)
        if match is None or match[2] != "epoch" or {"epochs", "validate_every"} & {p.key for p in self.parameters()}:
            return None
        return math.ceil(training.epochs / int(match[1]))

    @property
    def brackets(self) -> int:
        """Hyperband's brackets: floor(log_factor(max_validations / grace_validations)) + 1."""
        scheduler, most, count = self.scheduler, self.max_validations or 0, 0
        while scheduler.grace_validations * scheduler.reduction_factor**count <= most:
            count += 1
        return count

    @property
    def most_epochs(self) -> int:
        """The epochs of its longest trial."""
        searched = [p for p in self.parameters() if p.key == "epochs"]
        ends = [int(end) for p in searched for end in (p.choices or [p.high])]
        return max([self.example().training.epochs, *ends])

    def parameters(self) -> list[Parameter]:
        """Every parameter of the space, branches included."""
        return list(self.space.parameters())

    @property
    def dataset(self) -> str:
        """The data set's name."""
        return str(self.settings.get("dataset", Training.model_fields["dataset"].default))

    def example(self) -> Experiment:
        """The experiment of one point of the space, for what all of them share."""
        return self.experiment(self.space.first())

    def experiment(self, params: Mapping[str, Any]) -> Experiment:
        """The experiment of one point of the space."""
        return resolve_experiment({**self.settings, **params}, self.source)

    def file(self) -> str:
        """The text of a search file that means this search, whatever presets and options it was made of."""
        keys = [key for key in FILE_KEYS if key not in ("method", "dataset", "settings", "space", "objectives")]
        changed = self.model_dump(include={*keys, "second_objective"}, exclude_defaults=True)
        settings = dict(self.settings)
        found: dict[str, Any] = {key: settings.pop(key) for key in ("method", "dataset") if key in settings}
        found |= {"settings": settings, "space": self.raw_space, **changed}
        if self.second_objective is not None:
            found.pop("objective", None)
            found.pop("second_objective")
            found["objectives"] = [goal.model_dump() for goal in self.goals]
        return yaml_text({key: found[key] for key in FILE_KEYS if key in found})


Section = TypeVar("Section", bound=BaseModel)

FILE_KEYS: dict[str, Any] = {
    "description": str,
    "method": str,
    "dataset": str,
    "settings": dict,
    "space": (dict, list),
    "algorithm": str,
    "num_trials": int,
    "budget": dict,
    "start_from": list,
    "scheduler": (str, dict),
    "objective": (str, dict),
    "objectives": list,
    "seed": int,
    "max_concurrent": int,
    "workers": int,
    "trial_timeout": (int, float),
    "stall_timeout": (int, float),
    "gpus_per_trial": (int, float),
    "final": bool,
    "final_workers": int,
    "final_trials": int,
    "final_seeds": int,
    "final_protocol": str,
}


EXPECTED = {
    str: "text",
    int: "a whole number",
    (int, float): "a number",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
    (dict, list): "a mapping (or a list of them)",
    (str, dict): "a name or a mapping",
}


def resolve_search(
    raw: Mapping[str, Any],
    *,
    name: str,
    source: str,
    preset: Preset | None = None,
    overrides: Mapping[str, Any] | None = None,
    find_settings: Callable[[str], list[dict[str, Any]]] | None = None,
    **changes: Any,
) -> Search:
    """A search from a file's content. `preset` goes before the file's settings, but what the space searches stays
    searched; `overrides` (of `--set`) pin settings, also searched ones; `changes` replace top-level keys
    (`num_trials`, `seed`, `dataset`, ...) where not None, `budget` key by key; messages call them by their options.
    `find_settings` gives the settings that a name in `start_from` stands for."""
    changes = {key: value for key, value in changes.items() if value is not None}
    try:
        return _resolved(raw, name, source, preset, dict(overrides or {}), find_settings, changes)
    except InputError as error:
        placed = [_placed(problem, raw, source, changes) for problem in error.problems]
        raise InputError(*sorted(placed, key=lambda problem: _line(problem, source))) from None


def _line(problem: str, source: str) -> int:
    """The line of the file that a complaint names, for complaints in the file's order; those without come last."""
    words = problem.removeprefix(f"{source}, line ").partition(":")[0]
    return int(words) if words != problem and words.isdigit() else sys.maxsize


def _placed(problem: str, raw: Mapping[str, Any], source: str, changes: Mapping[str, Any]) -> str:
    """A complaint about the file with its line there, and one about an option by its name."""
    for key in changes:
        for stated in (f"{source}: {key}: ", f"{source}: {key}."):
            if problem.startswith(stated):
                return f"--{key.replace('_', '-')}: {problem.removeprefix(stated)}"
    words = problem.removeprefix(f"{source}: ")
    line = raw.line(words) if isinstance(raw, Document) and words != problem else None
    return problem if line is None else f"{source}, line {line}: {words}"


def _resolved(
    raw: Mapping[str, Any],
    name: str,
    source: str,
    preset: Preset | None,
    overrides: dict[str, Any],
    find_settings: Callable[[str], list[dict[str, Any]]] | None,
    changes: dict[str, Any],
) -> Search:
    problems = Problems()
    with problems.noted():
        check_name(name)
    wrong = {key: why for key, value in raw.items() if (why := _wrong_key(key, value)) is not None}
    problems.found += [f"{source}: {why}" for why in wrong.values()]
    raw = {key: value for key, value in raw.items() if key not in wrong}
    merged = raw | changes
    settings = dict(raw.get("settings", {})) | {key: raw[key] for key in ("method", "dataset") if key in raw}
    if preset is not None:
        settings, merged["space"] = _with_preset(preset, settings, raw.get("space"), overrides, source)
    if "dataset" in changes:
        settings["dataset"] = changes["dataset"]
    seed = merged.get("seed")
    if isinstance(seed, int) and 0 <= seed < 2**31 and ("seed" in changes or "seed" not in settings):
        settings["seed"] = seed  # another is told as the search's own
    raw_space = merged.get("space")
    if raw_space is None and "space" not in wrong:
        problems.found.append(f"{source}: space: this key is required: what should be searched?")
    if isinstance(raw_space, list):
        raw_space = [_without(alternative, overrides) for alternative in raw_space]
    else:
        raw_space = _without(raw_space, overrides)
    given = overrides.keys()
    method = overrides.get("method", settings.get("method"))
    method_is_known = method is None and "method" not in wrong
    if method is not None:
        before = len(problems.found)
        with problems.noted():
            resolve_experiment({"method": method}, "--set" if "method" in overrides else f"{source}: settings")
        method_is_known = len(problems.found) == before
    if method is not None and method_is_known:
        with problems.noted():
            resolve_experiment({"method": method, **overrides}, "--set")
        overrides = _sound({"method": method, **overrides})
        settings = {key: value for key, value in settings.items() if key in overrides or key not in given} | overrides
        with problems.noted():
            resolve_experiment(settings, f"{source}: settings")
        settings = _sound(settings)
    else:
        settings |= overrides
    with problems.noted():
        _refuse_fixed_and_searched(raw_space, settings, source)
    if method_is_known and raw_space is not None:
        with problems.noted():
            parse_space(raw_space, f"{source}: space", settings)
    made: dict[str, Any] = {}
    with problems.noted():
        goals = _goals(merged, source)
        made |= {"objective": goals[0], "second_objective": goals[1] if len(goals) > 1 else None}
        settings = _by_objective(settings, raw_space, goals[0], preset, overrides, source)
    with problems.noted():
        made["budget"] = _budget(raw.get("budget", {}), changes.get("budget"), source)
    with problems.noted():
        made["scheduler"] = _scheduler(merged.get("scheduler", "none"), source)
    for key, kind in (("algorithm", Algorithm), ("final_protocol", FinalProtocol)):
        if key in merged and merged[key] not in get_args(kind):
            unknown = merged.pop(key)
            problems.found.append(f"{source}: {key}: {shown(unknown)} is unknown{suggestion(unknown, get_args(kind))}")
    plain = FILE_KEYS.keys() & Search.model_fields.keys() - {
        "budget",
        "scheduler",
        "objective",
        "settings",
        "start_from",
    }
    made |= {key: merged[key] for key in plain if key in merged}
    made |= {"settings": settings, "raw_space": raw_space, "preset": None if preset is None else preset.name}
    try:
        search = Search(name=name, source=source, **made)
    except ValidationError as error:
        problems.found += [f"{source}: {complaint}" for complaint in complaints(error)]
    problems.tell()
    check_search(search)
    points = _starting_points(search, merged.get("start_from", []), find_settings)
    return search.model_copy(update={"start_from": points})


def _wrong_key(key: Any, value: Any) -> str | None:
    """What is wrong with a key of a search file, as far as it alone can tell."""
    if key not in FILE_KEYS:
        return f"{key}: no such key of a search{suggestion(key, FILE_KEYS)}"
    if not isinstance(value, FILE_KEYS[key]) or (isinstance(value, bool) and FILE_KEYS[key] is not bool):
        return f"{key}: {shown(value)} should be {EXPECTED[FILE_KEYS[key]]}"
    return None


def with_other_workers(search: Search, workers: int | None, max_concurrent: int | None) -> Search:
    """The same search with so many workers per trial and trials at a time, where not None. InputError if so many cannot
    share its batch."""
    config = search.model_dump() | {
        "workers": search.workers if workers is None else workers,
        "max_concurrent": search.max_concurrent if max_concurrent is None else max_concurrent,
    }
    changed = Search.model_validate(config)
    check_search(changed)
    return changed


def with_more_budget(search: Search, num_trials: int | None, budget: Mapping[str, Any]) -> Search:
    """The same search with another number of trials (where not None) and other limits; a limit of None is lifted."""
    if search.test_trials:
        raise InputError(f"'{search.name}' is a training, not a search: it has no budget to raise")
    config = search.model_dump()
    config["num_trials"] = search.num_trials if num_trials is None else num_trials
    config["budget"] = _budget(config["budget"], budget, "--budget").model_dump()
    raised = Search.model_validate(config)
    check_search(raised)
    return raised


def _goals(merged: Mapping[str, Any], source: str) -> list[Objective]:
    if "objectives" not in merged:
        return [_objective(merged.get("objective", {}), f"{source}: objective")]
    if "objective" in merged:
        raise InputError(f"{source}: objective: objectives says it too; keep one")
    given = merged["objectives"]
    if len(given) != 2:
        raise InputError(f"{source}: objectives: {len(given)} given; two are needed (one alone is: objective)")
    goals = [_objective(goal, f"{source}: objectives[{place}]") for place, goal in enumerate(given)]
    if goals[0].metric == goals[1].metric:
        raise InputError(f"{source}: objectives: {goals[0].metric} is named twice")
    return goals


def _objective(value: Any, where: str) -> Objective:
    """Losses and costs are minimised unless the mode is given."""
    if not isinstance(value, str | dict):
        raise InputError(f"{where}: {shown(value)} should be {EXPECTED[(str, dict)]}")
    given = {"metric": value} if isinstance(value, str) else dict(value)
    if given.get("metric") in ("train/loss", *COSTS):
        given.setdefault("mode", "min")
    return _section(Objective, "metric", given, where)


def _scheduler(value: Any, source: str) -> Scheduler:
    where = f"{source}: scheduler"
    scheduler = _section(Scheduler, "name", value, where)
    for key in value if isinstance(value, dict) else ():
        if key not in SCHEDULER_KEYS[scheduler.name]:
            others = ", ".join(name for name, keys in SCHEDULER_KEYS.items() if key in keys)
            raise InputError(f"{where}: {key}: has no meaning for '{scheduler.name}' (it is for {others})")
    return scheduler


def _budget(given: Mapping[str, Any], changes: Mapping[str, Any] | None, source: str) -> Budget:
    problems = Problems()
    for limits, where in ((given, f"{source}: budget"), (changes or {}, "--budget")):
        unknown = [key for key in limits if key not in Budget.model_fields]
        problems.found += [f"{where}: {key}: no such limit{suggestion(key, Budget.model_fields)}" for key in unknown]
        try:
            Budget(**{key: limit for key, limit in limits.items() if key not in unknown})
        except ValidationError as error:
            problems.found += [f"{where}: {complaint}" for complaint in complaints(error)]
    problems.tell()
    return Budget(**{**given, **(changes or {})})


def _starting_points(
    search: Search, given: Sequence[Any], find_settings: Callable[[str], list[dict[str, Any]]] | None
) -> list[dict[str, Any]]:
    """The points of `start_from`, each once: mappings as they are, and what names stand for."""
    points: list[dict[str, Any]] = []
    ours = search.settings.get("method")
    if given and search.algorithm == "grid":
        raise InputError(f"{search.source}: start_from: a grid tries every point anyway; leave it out")
    problems, space = Problems(), search.space
    for place, entry in enumerate(given):
        where = f"{search.source}: start_from: {entry if isinstance(entry, str) else f'point {place + 1}'}"
        with problems.noted():
            if isinstance(entry, str):
                if find_settings is None:
                    raise InputError(f"{where}: nothing is known here that has a name; give the point itself")
                found = find_settings(entry)
            elif isinstance(entry, dict):
                found = [entry]
            else:
                raise InputError(f"{where}: {shown(entry)} should be a point (a mapping), a preset or a search")
            for settings in found:
                if isinstance(entry, str) and ours is not None and (its := settings.get("method", ours)) != ours:
                    raise InputError(f"{where}: is of the method '{its}', and this search of '{ours}'")
                try:
                    point = space.point(settings)
                    if unknown := [] if isinstance(entry, str) else [key for key in settings if key not in point]:
                        raise InputError(f"{unknown[0]}: is not searched{suggestion(str(unknown[0]), point)}")
                except InputError as error:
                    raise InputError(f"{where}: {error}") from None
                if point not in points:
                    points.append(point)
    problems.tell()
    if search.num_trials is not None and len(points) > search.num_trials:
        raise InputError(f"{search.source}: start_from: {len(points)} points, but num_trials: {search.num_trials}")
    return points


def idle_settings(search: Search) -> list[str]:
    """A line for each of the method's settings that is given or searched, though the others leave it no effect."""
    searched = {parameter.key for parameter in search.space.parameters()}
    experiment = search.example()
    values = experiment.flat()
    lines = []
    for key, because in experiment.config.idle().items():
        if key in searched | search.settings.keys() and searched.isdisjoint({"method", *because}):
            others = ", ".join(f"{name}={json.dumps(values[name])}" for name in because)
            lines.append(f"{key} has no effect with {others}")
    if experiment.training.selection == "test" and "validation_share" in search.settings:
        lines.append('validation_share has no effect with selection="test"')
    return lines


def _section(kind: type[Section], short: str, value: Any, where: str) -> Section:
    """A mapping of its own keys, or its main key's value alone."""
    given = {short: value} if isinstance(value, str) else {str(key): item for key, item in value.items()}
    unknown = [key for key in given if key not in kind.model_fields]
    problems = [f"{where}: {key}: no such key{suggestion(key, kind.model_fields)}" for key in unknown]
    try:
        made = kind(**{key: item for key, item in given.items() if key not in unknown})
    except ValidationError as error:
        problems += [f"{where}: {complaint}" for complaint in complaints(error)]
    if problems:
        raise InputError(*problems)
    return made


def _with_preset(
    preset: Preset, settings: Mapping[str, Any], space: Any, overrides: Mapping[str, Any], source: str
) -> tuple[dict[str, Any], Any]:
    """The settings and the space of a search, the preset's settings over the file's.

    Hyperparameters of a base objective stay with it: where the objective is searched, the preset's are left out.
    """
    method = preset.settings["method"]
    searched = set(_searched(space)) - overrides.keys()
    if "method" in searched:
        raise InputError(f"--preset {preset.name}: is of one method, but {source} searches over methods")
    if settings.get("method", method) != method:
        raise InputError(
            f"--preset {preset.name}: is of '{method}', but {source} searches '{settings['method']}': "
            f"give a preset of that, or a search of '{method}'"
        )
    dependent = find_method(method).Config.dependent
    left_out = searched.union(*(dependent.get(key, ()) for key in searched))
    stated = {key: value for key, value in beneath(preset.settings, overrides).items() if key not in left_out}
    if isinstance(space, list):  # alternatives that do not search such a setting take it from the preset
        dropped = {key: [value] for key, value in preset.settings.items() if key in searched}
        space = [dropped | alternative if isinstance(alternative, dict) else alternative for alternative in space]
    return beneath(settings, stated) | stated, space


def beneath(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """What of `lower` holds beneath `upper`: not the hyperparameters of a base objective that `upper` changes."""
    method = upper.get("method", lower.get("method"))
    config = find_method(method).Config if isinstance(method, str) else MethodConfig
    gone: set[str] = set()
    for key, dependent in config.dependent.items():
        default = config.model_fields[key].default
        if key in upper and upper[key] != lower.get(key, default):
            gone |= dependent
    return {key: value for key, value in lower.items() if key not in gone}


def _searched(space: Any) -> Iterator[str]:
    """The settings that a space names, those of its branches too; what is no space is refused elsewhere."""
    for alternative in space if isinstance(space, list) else [space]:
        for key, given in alternative.items() if isinstance(alternative, dict) else ():
            yield key
            choices = given.get("choices") if isinstance(given, dict) else None
            for branch in choices.values() if isinstance(choices, dict) else ():
                yield from _searched(branch)


def _without(alternative: Any, pinned: Mapping[str, Any]) -> Any:
    return {k: v for k, v in alternative.items() if k not in pinned} if isinstance(alternative, dict) else alternative


def _by_objective(
    settings: dict[str, Any],
    raw_space: Any,
    objective: Objective,
    preset: Preset | None,
    overrides: Mapping[str, Any],
    source: str,
) -> dict[str, Any]:
    """The settings without a preset's `selection_metric`: a search chooses epochs as it chooses trials. InputError if
    the file or `--set` give another one than the objective."""
    key = "selection_metric"
    if key in _searched(raw_space):
        raise InputError(f"{source}: space: {key}: a search chooses by its objective, {objective.metric}")
    if preset is not None and key in preset.settings and key not in overrides:
        return {name: value for name, value in settings.items() if name != key}
    if settings.get(key) not in (None, objective.metric):
        where = "--set" if key in overrides else f"{source}: settings"
        raise InputError(
            f"{where}: {key}: {settings[key]!r}: a search chooses by its objective, {objective.metric}: "
            f"give objective: {settings[key]} in its file"
        )
    return settings


def _refuse_fixed_and_searched(raw_space: Any, settings: Mapping[str, Any], source: str) -> None:
    keys = dict.fromkeys(
        key
        for alternative in (raw_space if isinstance(raw_space, list) else [raw_space])
        for key in (alternative if isinstance(alternative, dict) else ())
    )
    if both := [key for key in keys if key in settings and key != "method"]:
        raise InputError(*(f"{source}: {key}: both fixed in settings and searched in space; keep one" for key in both))


def check_search(search: Search) -> None:
    """InputError with all that does not go together."""
    problems = Problems()
    for check in (_check_space, _check_algorithm, _check_scheduler, _check_selection, _check_final, _check_workers):
        with problems.noted():
            check(search)
    problems.tell()


def _check_space(search: Search) -> None:
    space = search.space
    if not any(space.parameters()):
        raise InputError(f"{search.source}: space: it is empty; give at least one setting a range or choices")
    if search.algorithm == "grid":
        for parameter in space.parameters():
            if parameter.count() == math.inf:
                raise InputError(
                    f"{search.source}: space.{parameter.key}: a grid needs choices or a step, not a continuous range"
                )
        if (size := space.size()) > MOST_POINTS:
            raise InputError(
                f"{search.source}: space: a grid of {size:.3g} points: at most {MOST_POINTS:,} can be tried; give its "
                "ranges larger steps"
            )
    elif len(space.alternatives) > 1:
        raise InputError(f"{search.source}: space: a list of spaces (their union) is for algorithm: grid only")
    elif search.num_trials is None and not search.budget.limits():
        raise InputError(
            f"{search.source}: num_trials: this key is required for algorithm: {search.algorithm} (or a budget)"
        )
    if search.budget.epochs is not None and search.budget.epochs < search.most_epochs:
        raise InputError(
            f"{search.source}: budget.epochs: {search.budget.epochs}: one trial takes {search.most_epochs} alone"
        )


def _check_selection(search: Search) -> None:
    space = search.space
    for parameter in space.parameters():
        if parameter.key == "selection":
            raise InputError(
                f"{search.source}: space.selection: what is selected on cannot be searched; fix it in settings"
            )
    selection = search.settings.get("selection", Training.model_fields["selection"].default)
    if selection == "test" and any(parameter.key == "validation_share" for parameter in space.parameters()):
        raise InputError(
            f"{search.source}: space.validation_share: nothing is held out with selection: test; leave it out"
        )
    share = search.settings.get("validation_share", Training.model_fields["validation_share"].default)
    if not share and selection == "validation":
        raise InputError(f"{search.source}: validation_share: 0 leaves a search nothing to select on; give 0.3, say")


def _check_final(search: Search) -> None:
    if search.num_trials is not None and search.final_trials > search.num_trials:
        raise InputError(
            f"{search.source}: final_trials: {search.final_trials}: there are {search.num_trials} trials only"
        )
    space = search.space
    first = search.experiment(space.first()).training
    if first.seed + search.final_seeds > 2**31:
        raise InputError(f"{search.source}: final_seeds: {search.final_seeds} seeds from {first.seed} on pass 2^31 - 1")
    searched = {parameter.key for parameter in space.parameters()}
    if search.final_protocol == "conventional" and (first.protocol != "mlrc" or "protocol" in searched):
        raise InputError(
            f"{search.source}: final_protocol: conventional: confirms trials over folds: set protocol: mlrc too"
        )


def _check_workers(search: Search) -> None:
    if search.gpus_per_trial not in (None, 1) and search.workers > 1:
        raise InputError(
            f"{search.source}: gpus_per_trial: {search.gpus_per_trial:g}: workers that train together take a whole GPU "
            "each; leave it out, or give workers: 1"
        )
    batch = search.example().training.batch_size
    for key, workers in (("workers", search.workers), ("final_workers", search.workers_of_final)):
        if batch % workers:
            raise InputError(
                f"{search.source}: {key}: {workers} workers cannot share the global batch of {batch} images evenly "
                "(classes_per_batch x images_per_class): make it a multiple"
            )


def _check_algorithm(search: Search) -> None:
    """Which algorithm can do what."""
    where, parameters = f"{search.source}: algorithm: {search.algorithm}", search.parameters()
    several = search.second_objective is not None
    if search.algorithm in ("gp", "cmaes", "nsga2", "qmc"):
        for parameter in parameters:
            if any(parameter.branches.values()):
                raise InputError(
                    f"{where}: cannot search choices that open a space of their own (space.{parameter.key}): "
                    "take tpe, random or grid"
                )
    if search.algorithm == "cmaes":
        for parameter in parameters:
            if parameter.kind == "categorical":
                raise InputError(
                    f"{where}: searches ranges only, space.{parameter.key} has choices: give it low and high, or take "
                    "tpe, gp or qmc"
                )
        if sum(parameter.low < parameter.high for parameter in parameters) < 2:
            raise InputError(f"{where}: needs two ranges or more: take tpe or gp")
    if search.algorithm in ("gp", "cmaes") and several:
        raise InputError(f"{where}: has one objective only: take nsga2, tpe, qmc, random or grid")
    if search.algorithm == "nsga2" and not several:
        raise InputError(f"{where}: is for two objectives (objectives: [...]): take tpe, gp or cmaes for one")
    if search.objective.metric in COSTS:
        raise InputError(
            f"{search.source}: objective: {search.objective.metric}: a cost can be the second of two objectives only"
        )


def _check_scheduler(search: Search) -> None:
    """Whether trials can be stopped early as asked."""
    where = f"{search.source}: scheduler: {search.scheduler.name}"
    if search.scheduler.name != "none" and search.second_objective is not None:
        raise InputError(
            f"{where}: not with two objectives: which of two curves is the better one is not defined; give none"
        )
    if search.scheduler.name != "hyperband":
        return
    if search.max_validations is None:
        raise InputError(f"{where}: max_validations: how many validations has a whole trial? (asha need not know)")
    if search.brackets < 2:
        raise InputError(
            f"{where}: {search.max_validations} validations make one bracket only: lower grace_validations or "
            "reduction_factor, validate more often, or take asha"
        )


def chosen_by(training: Training) -> Objective:
    """By what a training on its own chooses its best validation."""
    return Objective() if training.selection_metric is None else Objective(metric=training.selection_metric)


def single_training(
    name: str, settings: Mapping[str, Any], *, repeats: int = 1, preset: Preset | None = None
) -> Search:
    """One training, or its repetitions over consecutive seeds, as a search, so that it is recorded, resumed and
    reported like any other."""
    training = resolve_experiment(settings, "train").training
    fixed = {key: value for key, value in settings.items() if key != "seed" or repeats == 1}
    seeds = list(range(training.seed, training.seed + repeats))
    resolve_experiment({**settings, "seed": seeds[-1]}, "train")
    return Search(
        name=check_name(name),
        source="train",
        preset=None if preset is None else preset.name,
        settings=fixed,
        raw_space={"seed": seeds} if repeats > 1 else {},
        algorithm="grid" if repeats > 1 else "tpe",
        num_trials=repeats,
        objective=chosen_by(training),
        test_trials=True,
        final=False,
    )
