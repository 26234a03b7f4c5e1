"""One experiment: its data, method and training settings, typed and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from orchestrator.config.choices import choice_problem
from orchestrator.config.intervals import CHECKPOINT_EVERY, check_seconds, check_steps
from orchestrator.config.limits import (
    MAX_CLASSES,
    MAX_DIMENSIONS,
    MAX_EPOCHS,
    MAX_IN_BATCH,
    MAX_PER_BATCH,
    MAX_SIDE,
    MAX_THREADS,
)
from orchestrator.config.lr_schedules import DESCRIPTION as SCHEDULES_DESCRIPTION
from orchestrator.config.lr_schedules import LR_SCHEDULES, lr_schedule_of
from orchestrator.config.lr_schedules.milestones import MILESTONES, epochs_of
from orchestrator.config.lr_schedules.plateau import PATIENCE, PLATEAU
from orchestrator.config.lr_schedules.step import STEP
from orchestrator.config.optimizers import ANNOUNCED, DESCRIPTION, OPTIMIZERS, optimizer_of
from orchestrator.config.optimizers.adam import ADAM
from orchestrator.config.schedule import EXAMPLE as SCHEDULE_EXAMPLE
from orchestrator.config.schedule import checked_schedule, later_settings, wrong_changes
from orchestrator.contract import MethodConfig
from orchestrator.data.augmentations import ANNOUNCED as RECIPES_ELSEWHERE
from orchestrator.data.augmentations import AUGMENTATIONS, DEGRADATIONS, Degradation, recipe_of
from orchestrator.data.augmentations.crops import check_cut
from orchestrator.data.augmentations.extra import EXAMPLE as EXTRA_EXAMPLE
from orchestrator.data.augmentations.extra import parse_augmentations, text_of
from orchestrator.data.batches import BATCHES
from orchestrator.data.batches import DESCRIPTION as BATCHES_DESCRIPTION
from orchestrator.data.batches.class_balanced import CLASS_BALANCED
from orchestrator.data.batches.hierarchical import HIERARCHICAL, SUPER_CLASSES
from orchestrator.errors import DataError, InputError
from orchestrator.evaluation.measures import DEFAULT_OBJECTIVE, OBJECTIVES
from orchestrator.networks.backbones import architecture_of
from orchestrator.networks.backbones.base import HeadInit, LayerNorm, Pooling, not_whole
from orchestrator.networks.backbones.colours import InputConvention
from orchestrator.plugins import config_class
from orchestrator.problems import Inner, KeyPath, Problem, Step, as_path, complaints, suggestion
from orchestrator.storage.address import Address, is_address

if TYPE_CHECKING:
    SelectionMetric = str
    OptimizerName = str
    LRScheduleName = str
    BatchesName = str
    DegradationName = str
else:  # of tables, for the messages and descriptions of a Literal
    SelectionMetric = Literal[*OBJECTIVES]
    OptimizerName = Literal[*OPTIMIZERS, *ANNOUNCED]
    LRScheduleName = Literal[*LR_SCHEDULES]
    BatchesName = Literal[*BATCHES]
    DegradationName = Literal["none", *DEGRADATIONS]


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
        "classes; every number then says so",
    )
    selection_metric: SelectionMetric | None = Field(
        None,
        description="metric by which the best validation of `train` is chosen; a search chooses by its objective; "
        f"null: {DEFAULT_OBJECTIVE}",
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
        le=MAX_CLASSES,
        description="number of training and of test classes to use, the first ones, for a quick look; null: all",
    )
    label_noise: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the training labels replaced by another class; validation and test keep theirs",
    )
    label_noise_seed: int = Field(0, ge=0, lt=2**31, description="seed of the label noise")
    augmentation: str = Field(
        "affine",
        description="augmentation recipe of the training images; recipes with crop are for photographs and define how "
        "these are cut in evaluation too",
    )
    extra_augmentations: str | None = Field(
        None,
        description="torchvision's augmentations of training images beside that recipe, with their parameters, as in "
        f"'{EXTRA_EXAMPLE}'; null: none",
    )
    image_size: int | None = Field(
        None,
        ge=16,
        le=MAX_SIDE,
        description="side in pixels to which photographs are cut, in training and evaluation; null: that of the "
        "augmentation's name",
    )
    loader_threads: int | None = Field(
        None,
        ge=0,
        le=256,
        description="threads that prepare photographs ahead of the training; 0: none; null: 4, and more while the "
        "training waits for them, up to one for each core; results do not depend on it",
    )
    degradation: DegradationName = Field(
        "none", description="what makes training images uncertain, after their augmentation"
    )
    degradation_probability: float = Field(0.5, ge=0, le=1, description="probability that an image is degraded")
    degradation_extent: float | None = Field(
        None,
        gt=0,
        le=1,
        description="strength, as a share of the image's sides: what low resolution keeps, blur's standard "
        "deviation, or what is occluded; "
        "null: 0.446 (100 of 224 pixels), 0.02 or 0.5",
    )
    classes_per_batch: int = Field(16, ge=1, le=MAX_PER_BATCH, description="classes P of a class-balanced batch")
    images_per_class: int = Field(
        4, ge=1, le=MAX_PER_BATCH, description="images K per class; the global batch is P x K"
    )
    batches: BatchesName | None = Field(
        None,
        description=f"how batches are drawn; {BATCHES_DESCRIPTION}; null: {CLASS_BALANCED.name}, or as the method says",
    )
    super_classes_per_batch: int | None = Field(
        None,
        ge=1,
        le=MAX_PER_BATCH,
        description=f"super-classes of a batch of {HIERARCHICAL.name}; null: {SUPER_CLASSES}",
    )
    images_per_pass: int | None = Field(
        None,
        ge=1,
        le=MAX_IN_BATCH,
        description="images of a worker that pass the network at once, if a batch does not fit into memory: they pass "
        "it twice, the loss sees the whole batch, the result is the same; needs freeze_batch_norm; null: all",
    )
    accumulate_batches: int | None = Field(
        None,
        ge=1,
        le=MAX_EPOCHS,
        description="batches whose mean gradient makes one step of the optimiser; each has its own loss: not one "
        "larger batch (for that: images_per_pass); null: 1",
    )
    backbone: str = Field("small_cnn", description="network below the embedding head")
    weights: str = Field("default", description="'default' (pretrained), 'random', or a state-dict file")
    weights_sha256: str | None = Field(
        None, pattern="^[0-9a-fA-F]{64}$", description="digest that a state-dict file must have"
    )
    input_convention: InputConvention = Field(
        "default",
        validate_default=True,
        description="colour format of the backbone's input; 'default': its own (bn_inception: bgr_255)",
    )
    embedding_dim: int = Field(128, ge=1, le=MAX_DIMENSIONS, description="embedding size D")
    pooling: Pooling = Field("average+max", description="global pooling of the feature maps, or 'token'")
    layer_norm: LayerNorm | None = Field(None, description="layer normalisation, at test too; it has no parameters")
    head_init: HeadInit | None = Field(None, description="first weights of the embedding layer; null: torch's own")
    lora_rank: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="rank of low-rank changes (LoRA) by which the backbone is trained, its own weights frozen; null: "
        "they are trained themselves",
    )
    lora_alpha: float | None = Field(
        None, gt=0, description="the changes are multiplied by lora_alpha / lora_rank; null: by 1"
    )
    lora_layers: Literal["all", "attention"] | None = Field(
        None,
        description="which layers are changed: all linear ones and 1 x 1 convolutions, or of attention only; null: all",
    )
    freeze_batch_norm: bool = Field(True, description="freeze batch norm's statistics and affine parameters")
    freeze_patch_embedding: bool | None = Field(
        None, description="keep the layer of a vision transformer that embeds patches as it is"
    )
    cache_features: bool | None = Field(
        None, description="keep what a backbone that is never trained makes of plain images, on a CPU; null: true"
    )
    epochs: int = Field(10, ge=1, le=MAX_EPOCHS, description="epochs of training")
    validate_every: str = Field("1 epoch", description="'N epochs' or 'N steps'")
    checkpoint_every: str | None = Field(
        None,
        description="'N seconds', 'N minutes' or 'N hours' after which a checkpoint is written between validations "
        f"too, from which a training goes on exactly; results do not depend on it; null: {CHECKPOINT_EVERY}",
    )
    optimizer: OptimizerName = Field(ADAM.name, description=DESCRIPTION)
    lr: float = Field(1e-3, gt=0, description="learning rate of the network")
    backbone_lr_multiplier: float = Field(1.0, gt=0, description="factor on lr for the backbone")
    layer_decay: float = Field(1.0, gt=0, le=1, description="factor on the backbone's lr per layer from its top down")
    beta2: float = Field(0.999, ge=0, lt=1, description="second-moment decay of Adam's kind")
    optimizer_momentum: float | None = Field(
        None, ge=0, lt=1, description="momentum of sgd and nesterov (null: 0.9) or of rmsprop (null: none)"
    )
    optimizer_smoothing: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="decay of rmsprop's mean square, or of lion's momentum (beta2 in its paper); null: 0.99",
    )
    optimizer_epsilon: float | None = Field(
        None, gt=0, description="added to the root of the second moment of Adam's kind and of rmsprop; null: 1e-8"
    )
    weight_decay: float = Field(
        1e-4,
        ge=0,
        description="of all parameters, including proxies; added to the gradient, unless the optimiser decouples it",
    )
    warmup_epochs: int = Field(
        0,
        ge=0,
        le=MAX_EPOCHS,
        description="number of first epochs that train only heads and proxies; all epochs: the backbone stays frozen",
    )
    lr_schedule: LRScheduleName | None = Field(
        None, description=f"how lr falls; {SCHEDULES_DESCRIPTION}; null: {STEP.name}"
    )
    lr_warmup: str | None = Field(
        None,
        description="'N epochs' or 'N steps' at the start in which lr rises linearly to its value; null: none",
    )
    lr_patience: int | None = Field(
        None,
        ge=0,
        le=MAX_EPOCHS,
        description=f"validations without a better score that {PLATEAU.name} allows; null: {PATIENCE}",
    )
    lr_step_epochs: int = Field(
        0, ge=0, le=MAX_EPOCHS, description="number of epochs between multiplications of lr by lr_gamma; 0: never"
    )
    lr_milestones: str | None = Field(
        None, description=f"epochs after which {MILESTONES.name} reduces, separated by commas: '190, 250'"
    )
    lr_gamma: float = Field(0.5, gt=0, le=1, description="factor of the schedules step, milestones and plateau")
    schedule: str | None = Field(
        None,
        description="settings that have other values after so many validations, such as "
        f"'{SCHEDULE_EXAMPLE}'; lr_schedule and lr_warmup multiply such an lr too; null: none",
    )
    ema_decay: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="decay per step of a moving average of the network's weights, which is validated, tested and saved "
        "instead of them; null: none",
    )
    stop_patience: int | None = Field(
        None,
        ge=1,
        le=MAX_EPOCHS,
        description="validations without a better score after which a training ends; null: it takes all its epochs",
    )
    clip_value: float | None = Field(None, gt=0, description="clip each gradient entry to ± this value")
    clip_norm: float | None = Field(None, gt=0, description="clip the gradient's norm to at most this value")
    precision: Literal["float32", "tf32", "full_float32", "bf16", "fp16", "float64"] = Field(
        "float32",
        description="arithmetic of the network: float32 (on a GPU its convolutions are TF32), tf32 (its products too), "
        "full_float32 (no TF32), bf16, fp16 or float64; losses are float32 or better",
    )
    deterministic: bool | None = Field(
        None,
        description="on a GPU, operations in a fixed order, so that a seed gives the same numbers again; false: the "
        "fastest ones; null: true",
    )
    channels_last: bool = Field(False, description="channels-last memory layout: faster convolutions on a GPU")
    compile: bool = Field(False, description="torch.compile the network: slower to start, faster after")
    kernels: Literal["triton"] | None = Field(
        None,
        description="fused Triton kernels for the loss of methods that have them, in float32, on device: cuda; "
        "null: torch",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="'auto' takes a GPU if there is one")
    threads: int = Field(
        1, ge=1, le=MAX_THREADS, description="CPU threads of a training; part of what makes it repeatable"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="seed of weights, batches and augmentation")

    @field_validator("dataset")
    @classmethod
    def _address(cls, value: str) -> str:
        if is_address(value):
            try:
                return str(Address.parse(value))
            except DataError as error:
                raise InputError(Problem(rule=error.details[0].rule)) from None
        return value

    @field_validator("backbone")
    @classmethod
    def _known_backbone(cls, value: str) -> str:
        architecture_of(value)
        return value

    @field_validator("input_convention")
    @classmethod
    def _recorded_convention(cls, value: InputConvention, info: ValidationInfo) -> InputConvention:
        backbone = info.data.get("backbone")
        return architecture_of(backbone).convention if value == "default" and backbone is not None else value

    @field_validator("augmentation")
    @classmethod
    def _known_augmentation(cls, value: str) -> str:
        if value not in AUGMENTATIONS:
            raise InputError(Problem(rule="unknown recipe", suggestion=suggestion(value, AUGMENTATIONS)))
        if value in RECIPES_ELSEWHERE:
            recipe_of(value)
        return value

    @field_validator("extra_augmentations")
    @classmethod
    def _extra(cls, value: str | None) -> str | None:
        return value if value is None else text_of(parse_augmentations(value))

    @field_validator("optimizer")
    @classmethod
    def _usable_optimizer(cls, value: str) -> str:
        optimizer_of(value)
        return value

    @field_validator("validate_every", "lr_warmup", "checkpoint_every", mode="before")
    @classmethod
    def _clock(cls, value: object, info: ValidationInfo) -> object:
        check = check_seconds if info.field_name == "checkpoint_every" else check_steps
        return check(str(value)) if isinstance(value, int | float | str) else value

    @field_validator("lr_milestones")
    @classmethod
    def _milestones(cls, value: str | None) -> str | None:
        return value if value is None else ", ".join(map(str, epochs_of(value)))

    @field_validator("schedule", mode="before")
    @classmethod
    def _changes(cls, value: Any) -> str | None:
        return None if value is None else checked_schedule(value)

    @model_validator(mode="after")
    def _one_selection(self) -> Self:
        if self.selection == "test" and self.protocol == "mlrc":
            why = "cannot be combined with protocol: mlrc, whose folds hold out classes to select on"
            raise InputError(Problem(("selection",), "test", why, advice=": take protocol: conventional"))
        return self

    @model_validator(mode="after")
    def _whole_patches(self) -> Self:
        if self.image_size is not None:
            if "augmentation" in self.model_fields_set:  # else the data set chooses one: `suited`
                check_cut(self.image_size, self.augmentation)
            patch = architecture_of(self.backbone).patch
            if patch is not None and self.image_size % patch:
                raise InputError(not_whole(self.image_size, self.backbone, patch))
        return self

    @model_validator(mode="after")
    def _check_batch(self) -> Self:
        if self.batch_size > MAX_IN_BATCH:
            images = f"with images_per_class: {self.images_per_class} a batch has {self.batch_size:,} images"
            rule = f"{images}: at most {MAX_IN_BATCH:,} are allowed"
            raise InputError(Problem(("classes_per_batch",), self.classes_per_batch, rule))
        return self

    @model_validator(mode="after")
    def _parts_without_batch_norm(self) -> Self:
        if self.images_per_pass is not None and not self.freeze_batch_norm:
            rule = "needs freeze_batch_norm: true: batch norm would see parts of a batch"
            raise InputError(Problem(("images_per_pass",), self.images_per_pass, rule))
        return self

    @model_validator(mode="after")
    def _suited_to_the_chosen(self) -> Self:
        if (problem := choice_problem(self)) is not None:
            raise InputError(problem)
        return self

    @model_validator(mode="after")
    def _scores_to_follow(self) -> Self:
        schedule = self.lr_schedule if self.follows_scores else None
        scored = self.protocol == "mlrc" or self.selection == "test" or self.validation_share
        for key, value in (("lr_schedule", schedule), ("stop_patience", self.stop_patience)):
            if value is not None and not scored:
                rule = "needs validations, and validation_share: 0 holds nothing out"
                advice = ": take a share above 0, selection: test or protocol: mlrc"
                raise InputError(Problem((key,), value, rule, advice=advice))
        return self

    @model_validator(mode="after")
    def _kernels_on_a_gpu(self) -> Self:
        if self.kernels is not None:
            if self.device != "cuda":
                raise InputError(Problem(("kernels",), self.kernels, f"needs device: cuda, not {self.device}"))
            if self.precision == "float64":
                raise InputError(Problem(("kernels",), self.kernels, "computes in float32, not in precision: float64"))
        return self

    @property
    def image_degradation(self) -> Degradation | None:
        """What makes training images uncertain."""
        if self.degradation == "none":
            return None
        return Degradation(self.degradation, self.degradation_probability, self.degradation_extent)

    @property
    def follows_scores(self) -> bool:
        """Whether the learning rate depends on the validations' scores."""
        return lr_schedule_of(self.lr_schedule).follower is not None

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

    def stages(self) -> "dict[int, Experiment]":
        """What it is after so many validations, by its `schedule`: from 0 on as it is itself."""
        stages = {0: self}
        for start, training, config in later_settings(self.training.schedule, self.training, self.config):
            stages[start] = Experiment(self.method, config, training)
        return stages


def resolve_experiment(settings: Mapping[str, Any], where: Step | KeyPath) -> Experiment:
    """The experiment of flat settings; InputError names `where`, and for each error the key, the value and what
    would be right."""
    where = as_path(where)
    if "method" not in settings:
        raise InputError(Problem(where, rule="no method is named"))
    if not isinstance(settings["method"], str):
        at = (*where, "method")
        raise InputError(Problem(at, settings["method"], "should be a method's name", begins_rule=True))
    try:
        method, config = settings["method"], config_class(settings["method"])
    except InputError as error:
        raise error.under((*where, "method")) from None
    method_keys = set(config.model_fields)
    training_keys = set(Training.model_fields)
    if clash := method_keys & training_keys:
        raise InputError(f"method '{method}': {sorted(clash)[0]} is already a setting of every training")
    training_values: dict[str, Any] = {}
    method_values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, value in settings.items():
        if key in method_keys:
            method_values[key] = value
        elif key in training_keys:
            training_values[key] = value
        elif key != "method":
            see = f"orchestrator settings, orchestrator methods {method}"
            hint = suggestion(key, method_keys | training_keys, see)
            at = where if where[-1:] == (Inner(key),) else (*where, key)
            problems.append(Problem(at, rule=f"no such setting of '{method}'", suggestion=hint))
    models: list[BaseModel] = []
    for kind, values in ((Training, training_values), (config, method_values)):
        try:
            models.append(kind(**values))
        except ValidationError as error:
            problems += [problem.under(where) for problem in complaints(error)]
    if problems:
        raise InputError(*problems)
    training, hyperparameters = models
    assert isinstance(training, Training) and isinstance(hyperparameters, MethodConfig)
    if wrong := [one.under(where) for one in wrong_changes(training.schedule, method, training, hyperparameters)]:
        raise InputError(*wrong)
    return Experiment(method, hyperparameters, training)
