"""The events of a journal, a type each: `Event` is their union. A record is parsed where a journal is read or written,
so that no invalid event is folded."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, WrapValidator

from orchestrator.errors import InputError
from orchestrator.problems import describe
from orchestrator.storage.costs import check_limited

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
CostLimits = dict[Annotated[str, AfterValidator(check_limited)], Annotated[FiniteFloat, Field(gt=0)]]
"""The largest allowed value of each limited cost."""
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Value = str | bool | Whole | FiniteFloat | None
"""Of one searched setting."""
Setting = str | bool | Whole | FiniteFloat | list[Any] | dict[str, Any] | None
Metrics = dict[str, Whole | FiniteFloat]
TrialId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]
"""A folder's name; checked, because others may write to the storage."""
FINAL = "final"
"""The id of a search's only final run; of several, the prefix of their ids."""
Attempts = Annotated[int, Field(ge=0, le=1000)]
Interval = Annotated[list[FiniteFloat], Field(min_length=2, max_length=2)]
State = Literal["done", "pruned", "failed", "interrupted"]
Failure = Literal["device", "lost", "stall", "timeout", "memory", "training", "code"]
"""Why a trial failed. `device`: its GPU could no longer be used, and a resume tries it again. `lost`: its process was
killed. `stall`, `timeout`: it took too long to its next validation, or to its end. `memory`: it needs more than
there is. `training`: it cannot go on, as with a loss that is not finite. `code`: an error in the code."""
Interruption = Literal["preempted", "storage"]
"""Why a trial was interrupted. `preempted`: the end of its process was announced, and it goes on in another.
`storage`: a fault of the disk, or of an object store."""
MAY_PASS = ("device", "lost", "stall")
"""The failures that another attempt may not have: those that `retry` counts."""


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class Goal(_Shape):
    metric: str
    mode: Literal["max", "min"]


class _Named(_Shape):
    """Settings of which some have to be texts; a missing one is told where it is needed."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Setting] = {}

    name: str = ""
    method: str = ""
    grace_validations: Count = 1


class _SearchConfig(_Shape):
    second_objective: Goal | None = None
    constraints: CostLimits = {}
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
    KIND: ClassVar[str]

    seq: int = 0
    time: Time = 0
    elapsed: Seconds | None = None
    """Seconds that the search has run; None where it is not recorded."""


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


class Excess(_Shape):
    """What the best of so many trials is expected to lose on other classes of this kind."""

    value: FiniteFloat
    trials: Whole
    classes: Whole


class Gain(_Shape):
    """The mean over queries of a trial's network less that of its untrained one, on the same queries."""

    metric: str
    difference: FiniteFloat
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    """The 95% interval over the classes; None for too few of them."""
    up: Count
    """How many of the classes are better."""
    classes: Count


class _Sizes(_Shape):
    """What the numbers are measured on; None for a set that there is none of, where nothing is held out."""

    validation: _Set | None = None
    test: _Set | None = None
    training_classes: Count = 0
    training_images: Count = 0
    remarks: list[str] = []


class _TrainingSettings(_Shape):
    """A training's settings: those used in calculations have types, the others are plain values."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Setting] = {}

    epochs: FiniteFloat = 0
    seed: Whole = 0
    embedding_dim: Whole = 0
    method: str = ""
    dataset: str = ""
    backbone: str = ""
    protocol: str = ""
    selection: str = ""


def _as_recorded(value: Any, validate: Any) -> Any:
    validate(value)
    return value


if TYPE_CHECKING:
    Config = dict[str, Any]
    Settings = dict[str, Any]
    Sizes = dict[str, Any]
    UntrainedScore = dict[str, Any]
else:  # mappings that hold more than is checked here
    Config = Annotated[_SearchConfig, WrapValidator(_as_recorded)]
    """Of a search, as search files have it."""
    Settings = Annotated[_TrainingSettings, WrapValidator(_as_recorded)]
    """All settings of a training."""
    Sizes = Annotated[_Sizes, WrapValidator(_as_recorded)]
    """What the numbers are measured on (`data.measured.sizes`)."""
    UntrainedScore = Annotated[_Untrained, WrapValidator(_as_recorded)]
    """Of a network before its training (`training.untrained.measure`)."""


class SearchStarted(_Event):
    KIND: ClassVar = "search_started"

    format: Whole = 1
    name: str
    search_id: Annotated[str, Field(min_length=1)]
    dataset: str
    method: str
    objective: Goal
    config: Config
    params: dict[str, Setting]
    tags: dict[str, Any]
    tracking_uri: str | None = None
    first_stop: Count | None = None
    """The first validation after which a trial may be stopped; None if none is. Older journals lack it."""
    sizes: Sizes | None = None


class SearchResumed(_Event):
    KIND: ClassVar = "search_resumed"

    tags: dict[str, Any] = Field(default_factory=dict)
    tracking_uri: str | None = None
    config: Config | None = None


class RecordedBest(_Shape):
    trial_id: TrialId
    objective: FiniteFloat | None


class SearchEnded(_Event):
    KIND: ClassVar = "search_ended"

    state: Literal["done", "failed", "interrupted"]
    best: RecordedBest | None = None
    reason: str | None = None


class Copied(_Shape):
    """A trial that goes on from another one's checkpoint, with other settings from there on."""

    trial_id: TrialId
    """Of the other one."""
    validation: Annotated[Whole, Field(ge=1)]
    """After which of its validations."""
    replaces: TrialId
    """The trial that ended for it."""


class TrialStarted(_Event):
    KIND: ClassVar = "trial_started"

    trial_id: TrialId
    kind: Literal["trial", "final"]
    params: dict[str, Value]
    config: Settings = Field(default_factory=dict)
    tags: dict[str, Any] = Field(default_factory=dict)
    note: str | None = None
    source: TrialId | None = None
    idle: dict[str, str] | None = None
    resources: dict[str, Amount] = Field(default_factory=dict)
    attempts: Attempts = 0
    copied: Copied | None = None
    stop_after: Annotated[Whole, Field(ge=0)] | None = None


class Validation(_Event):
    KIND: ClassVar = "validation"

    trial_id: TrialId
    validation: Annotated[Whole, Field(ge=1)]
    metrics: Metrics
    seconds: Seconds
    finished: bool = False
    unordered: list[str] = Field(default_factory=list)
    system: Metrics = Field(default_factory=dict)

    def hours(self, resources: Mapping[str, float], workers: object) -> dict[str, float]:
        """What it took of a trial's resources, which are those of its most workers, where the search's `workers` are
        `{low, high}`."""
        high = workers["high"] if isinstance(workers, Mapping) else 0
        share = self.system.get("workers", high) / high if high else 1.0
        return {kind: share * amount * self.seconds / 3600 for kind, amount in resources.items()}


class TrialResult(_Event):
    KIND: ClassVar = "result"

    trial_id: TrialId
    metrics: Metrics
    untrained: UntrainedScore | None = None
    best_interval: Interval | None = None
    gain: Gain | None = None
    excess: Excess | None = None
    """Of the best trial's value. Older journals lack it."""


class TrialEnded(_Event):
    KIND: ClassVar = "trial_ended"

    trial_id: TrialId
    state: State
    reason: str | None
    failure: Failure | None = None
    """Of a trial that failed, or is `interrupted` because it is begun again after that. Older journals lack it."""
    interruption: Interruption | None = None
    """Of a trial that was interrupted by itself, not with its search. Older journals lack it."""


class Artifact(_Event):
    KIND: ClassVar = "artifact"

    trial_id: TrialId | None
    path: str
    folder: str | None = None
    tables: list[str] = Field(default_factory=list)


class ModelWritten(_Event):
    KIND: ClassVar = "model"

    trial_id: TrialId
    path: str


class Note(_Event):
    KIND: ClassVar = "note"

    text: str
    important: list[str] = Field(default_factory=list)
    least: FiniteFloat | None = None


Event = (
    SearchStarted
    | SearchResumed
    | TrialStarted
    | Validation
    | TrialResult
    | Artifact
    | ModelWritten
    | Note
    | TrialEnded
    | SearchEnded
)
KINDS: dict[str, type[Event]] = {kind.KIND: kind for kind in get_args(Event)}
"""The types by the word for them in a record, its `event`."""


def parse(record: Mapping[str, Any]) -> Event:
    """The event of a journal's record. InputError if it is of no known kind, or a field is missing or invalid."""
    kind = record["event"]
    if kind not in KINDS:
        raise InputError(f"unknown event {kind!r:.60}")
    try:
        return KINDS[kind].model_validate(record)
    except ValidationError as error:
        raise InputError(f"'{kind}' is not as it should be: {describe(error):.300}") from None


def last_start(events: Sequence[Event]) -> SearchStarted | SearchResumed:
    """The last event that began or resumed the search."""
    return next(event for event in reversed(events) if isinstance(event, SearchStarted | SearchResumed))


def is_untrained_score(score: Mapping[str, Any]) -> bool:
    """Whether a journal takes it as the score of an untrained network."""
    try:
        _Untrained.model_validate({"key": "", **score})
    except ValidationError:
        return False
    return True


def check_journal_format(record: Mapping[str, Any], where: str) -> None:
    """InputError for a journal that a later version began, in a format that this one does not know."""
    number = record.get("format")
    if record["event"] == SearchStarted.KIND and isinstance(number, int) and number > FORMAT:
        raise InputError(
            f"{where}: the search was begun by a later version, in format {number} of the journal; this version reads "
            f"format {FORMAT}: install a later dml-orchestrator"
        )


def named_settings(space: Any) -> Iterator[str]:
    """The settings that a space names, as search files and journals hold it, with those of its branches. Parts of an
    invalid form are skipped: parsing the space reports them."""
    for alternative in space if isinstance(space, list) else [space]:
        for key, parameter in alternative.items() if isinstance(alternative, dict) else ():
            yield str(key)
            choices = parameter.get("choices") if isinstance(parameter, dict) else None
            for branch in choices.values() if isinstance(choices, dict) else ():
                yield from named_settings(branch)
