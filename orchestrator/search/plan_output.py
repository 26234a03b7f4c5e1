"""What a dry run tells of a search, as `--json` prints it; its keys are the heads of the lines in the terminal."""

from pydantic import Field

from orchestrator.storage.outputs import Facts, Number, Output, SettingValue


class SearchCost(Output):
    """An upper bound: early stopping only reduces it."""

    models_per_trial: int = Field(alias="models per trial")
    steps_per_model: int = Field(alias="steps per model")
    validations_per_trial: int = Field(alias="validations per trial")
    seconds_per_trial: float = Field(alias="seconds per trial, at most")
    seconds_of_all_trials: float | None = Field(None, alias="seconds of all trials, at most")
    """Absent where no limit is one of time."""
    seconds_of_final_runs: float = Field(alias="seconds of the final runs, at most")
    of_the_method: str | None = Field(None, alias="of the method")
    """That it costs many times another."""
    estimated_from: str = Field(alias="estimated from")


class Plan(Output):
    """The resolved search, and what it will cost; for a data set that is not prepared, how to prepare it."""

    name: str
    description: str
    preset: str | None = None
    algorithm: str
    algorithm_chosen: str | None = Field(None, alias="algorithm chosen because")
    scheduler: Facts
    scheduler_chosen: str | None = Field(None, alias="scheduler chosen because")
    brackets: int = 1
    objective: dict[str, str]
    second_objective: dict[str, str] | None = Field(None, alias="second objective")
    constraints: dict[str, Number] = Field(default_factory=dict)
    trials: int | str
    copies: int = Field(0, alias="copies of the best of them, if none fails")
    budget: dict[str, Number] = Field(default_factory=dict)
    seeds_of_each_point: int = Field(1, alias="seeds of each point")
    repeats_of_leading_points: int = Field(0, alias="trials of leading points with other seeds")
    points_tried_first: int = Field(0, alias="points tried first")
    points_learnt_from: int = Field(0, alias="points learnt from")
    expected_points: list[Facts] = Field(default_factory=list, alias="points expected to be good")
    """Those that are tried themselves."""
    trials_at_a_time: int | str = Field(alias="trials at a time")
    workers: dict[str, int | str]
    """A number, or as in `1 to 2`."""
    seconds_of_a_trial: Number | None = Field(None, alias="seconds of a trial, at most")
    seconds_to_next_validation: Number | None = Field(None, alias="seconds to its next validation, at most")
    final_runs: int = Field(alias="final runs")
    final_protocol: str = Field("same", alias="protocol of the final runs")
    settings: dict[str, SettingValue]
    defaults: Facts = Field(default_factory=dict, alias="defaults by the data set")
    space: Facts | list[Facts] = Field(default_factory=dict)
    data_set: str | None = Field(None, alias="data set")
    """How to prepare it."""
    images: dict[str, int] | None = None
    selection: dict[str, Number | str] | None = None
    test: dict[str, Number | str] | None = None
    cost: SearchCost | None = None
    alternatives: dict[str, str] = Field(default_factory=dict, alias="seconds of a step on this GPU")
    memory: dict[str, str] = Field(default_factory=dict)


class BestPlan(Output):
    """What `orchestrator best --dry-run` tells."""

    name: str
    dataset: str
    images: int
    classes: int
    pretrained: dict[str, float]
    """MAP@R of each network as it comes, on held-out classes."""
    methods: list[str]
    recipes: list[str]
    epochs: int
    seconds_of_a_trial: float
    trials_at_a_time: int
    hours: float
    seconds_of_the_search: float
    seconds_of_the_final_runs: float
    final_runs: int
    file: str
    """The search file."""
