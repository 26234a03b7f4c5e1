"""The fields of each journal event; checked when a journal is read, so that no invalid event is folded."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from orchestrator.errors import InputError, describe

FORMAT = 1
"""The format of the journals that this version writes; it reads earlier ones too. A field with a default needs no new
format; an event or another meaning of a field does."""
LATEST = 253_402_214_400_000
"""The last representable date, in milliseconds since the epoch."""

Time = Annotated[int, Field(ge=0, le=LATEST)]
Seconds = Annotated[FiniteFloat, Field(ge=0, le=LATEST / 1000)]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Amount = Annotated[FiniteFloat, Field(ge=0, le=1e9)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Value = str | bool | Whole | FiniteFloat | None
"""Of one searched setting."""
Setting = str | bool | Whole | FiniteFloat | list[Any] | dict[str, Any] | None
Metrics = dict[str, FiniteFloat]
TrialId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]
"""A folder's name; checked, because others may write to the storage."""
Attempts = Annotated[int, Field(ge=0, le=1000)]
Interval = Annotated[list[FiniteFloat], Field(min_length=2, max_length=2)]
State = Literal["done", "pruned", "failed", "interrupted"]
Failure = Literal["device"]
"""Why a trial failed, where that decides what follows. `device`: only because its GPU could no longer be used; a resume
tries it again."""


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True)


class _Goal(_Shape):
    metric: str
    mode: Literal["max", "min"]


class _Named(_Shape):
    """Settings of which some have to be texts; a missing one is told where it is needed."""

    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, Setting] = {}

    name: str = ""
    method: str = ""
    grace_validations: Count = 1


class _Config(_Shape):
    second_objective: _Goal | None = None
    scheduler: _Named | None = None
    settings: _Named = _Named()
    budget: dict[str, FiniteFloat | None] | None = None
    num_trials: Count | None = None
    final_trials: Count = 1
    final_seeds: Count = 1
    seeds: Count = 1
    algorithm: str = ""
    raw_space: dict[str, Any] | list[dict[str, Any]] | None = None
    test_trials: bool = False
    dataset: str = ""


class _Event(_Shape):
    event: str
    seq: int = 0
    time: Time = 0
    elapsed: Seconds = 0


class _Set(_Shape):
    """What an evaluated set consists of, as far as it is recorded."""

    classes: Count = 0
    images: Count = 0
    queries: Count = 0
    chance: dict[str, Share] = {}
    folds: Count = 1
    one_query: Share = 0
    query_classes: Count | None = None
    without_match: Count = 0


class _Untrained(_Shape):
    """The score of a network before its training."""

    key: str
    split: Literal["validation", "test"]
    metrics: Metrics
    intervals: dict[str, Interval] = {}
    of: _Set | None = None


class _Excess(_Shape):
    """How much too high a best value is, as the best of several."""

    value: FiniteFloat
    trials: Whole
    classes: Whole


class _Gain(_Shape):
    """How much better a trial is than its untrained network, paired by class."""

    metric: str
    difference: FiniteFloat
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    up: Count
    classes: Count


class _Sizes(_Shape):
    """What the numbers are measured on; None for a set that there is none of, where nothing is held out."""

    validation: _Set | None = None
    test: _Set | None = None
    training_classes: Count = 0
    training_images: Count = 0
    remarks: list[str] = []


class _SearchStarted(_Event):
    format: Whole = 1
    name: str
    search_id: Annotated[str, Field(min_length=1)]
    dataset: str
    method: str
    objective: _Goal
    config: _Config
    params: dict[str, Setting]
    tags: dict[str, Any]
    tracking_uri: str | None = None
    first_stop: Count | None = None
    """The first validation after which a trial may be stopped; None if none is. Older journals lack it."""
    sizes: _Sizes | None = None
    hyperparameters: dict[str, list[str]] = {}
    """Of its methods, those added later with a default that changes what is computed (`MethodConfig.formerly`)."""


class _SearchResumed(_Event):
    tags: dict[str, Any] = {}
    tracking_uri: str | None = None
    config: _Config = _Config()


class _Best(_Shape):
    trial_id: TrialId
    objective: FiniteFloat | None


class _SearchEnded(_Event):
    state: Literal["done", "failed", "interrupted"]
    best: _Best | None = None
    reason: str | None = None


class _Training(_Shape):
    """A training's settings: those used in calculations have types, the others are plain values."""

    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, Setting] = {}

    epochs: FiniteFloat = 0
    seed: Whole = 0
    embedding_dim: Whole = 0
    method: str = ""
    dataset: str = ""
    backbone: str = ""
    protocol: str = ""
    selection: str = ""


class _TrialStarted(_Event):
    trial_id: TrialId
    kind: Literal["trial", "final"]
    params: dict[str, Value]
    config: _Training = _Training()
    tags: dict[str, Any] = {}
    note: str | None = None
    source: TrialId | None = None
    idle: dict[str, str] | None = None
    resources: dict[str, Amount] = {}
    attempts: Attempts = 0
    stop_after: Annotated[Whole, Field(ge=0)] | None = None


class _Validation(_Event):
    trial_id: TrialId
    validation: Annotated[Whole, Field(ge=1)]
    metrics: Metrics
    seconds: Seconds
    finished: bool = False
    unordered: list[str] = []
    system: Metrics = {}


class _Result(_Event):
    trial_id: TrialId
    metrics: Metrics
    untrained: _Untrained | None = None
    best_interval: Interval | None = None
    gain: _Gain | None = None
    excess: _Excess | None = None
    """Of the best trial's value. Older journals lack it."""


class _TrialEnded(_Event):
    trial_id: TrialId
    state: State
    reason: str | None
    failure: Failure | None = None
    """Only of a trial that failed. Older journals lack it."""


class _Artifact(_Event):
    trial_id: TrialId | None
    path: str
    folder: str | None = None
    tables: list[str] = []


class _Model(_Event):
    trial_id: TrialId
    path: str


class _Note(_Event):
    text: str
    important: list[str] = []
    least: FiniteFloat | None = None


SHAPES: dict[str, type[_Shape]] = {
    "search_started": _SearchStarted,
    "search_resumed": _SearchResumed,
    "trial_started": _TrialStarted,
    "validation": _Validation,
    "result": _Result,
    "artifact": _Artifact,
    "model": _Model,
    "note": _Note,
    "trial_ended": _TrialEnded,
    "search_ended": _SearchEnded,
}


def check(event: Any) -> None:
    """InputError unless the event is known and has all its fields."""
    kind = event["event"]
    if kind not in SHAPES:
        raise InputError(f"unknown event {kind!r:.60}")
    try:
        SHAPES[kind].model_validate(event)
    except ValidationError as error:
        raise InputError(f"'{kind}' is not as it should be: {describe(error):.300}") from None


def is_untrained_score(found: Mapping[str, Any]) -> bool:
    """Whether a journal takes it as the score of an untrained network."""
    try:
        _Untrained.model_validate({"key": "", **found})
    except ValidationError:
        return False
    return True


def check_format(event: Mapping[str, Any], where: str) -> None:
    """InputError for a journal that a later version began, in a format that this one does not know."""
    given = event.get("format")
    if event["event"] == "search_started" and isinstance(given, int) and given > FORMAT:
        raise InputError(
            f"{where}: the search was begun by a later version, in format {given} of the journal; this version reads "
            f"format {FORMAT}: install a later dml-orchestrator"
        )


def named_settings(space: Any) -> Iterator[str]:
    """The settings that a space names, as search files and journals hold it, with those of its branches. Parts of an
    invalid form are skipped: parsing the space reports them."""
    for alternative in space if isinstance(space, list) else [space]:
        for key, given in alternative.items() if isinstance(alternative, dict) else ():
            yield str(key)
            choices = given.get("choices") if isinstance(given, dict) else None
            for branch in choices.values() if isinstance(choices, dict) else ():
                yield from named_settings(branch)
