"""What a model file, a checkpoint or an exported folder must hold before any of it is used.

They may come from a stranger: torch loads no code from them (`weights_only`), and here each value gets its type.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from torch import Tensor, nn

from orchestrator.data.manifest import MODES
from orchestrator.errors import InputError
from orchestrator.problems import describe

Shape = TypeVar("Shape", bound=BaseModel)

FORMAT = 1
"""The format of the model files and exported folders that this version writes and reads."""
UNPROVEN = 100_000
"""The most classes that a file may claim without a tensor or a list of that length: the network is built before its
weights are compared."""
MAX_IMAGES = 1_000_000_000


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, arbitrary_types_allowed=True)


class _Settings(_Strict):
    """Of these every user of a file reads; the others are checked as settings."""

    method: str
    dataset: str


class _Kept(_Strict):
    importer: str = ""
    encoding: str | None = None
    size: Annotated[int, Field(ge=1)] | None = None
    orientation: Literal["stored", "applied"] = "stored"
    transparency: Literal["dropped", "white"] = "dropped"


class _TrainedOn(_Strict):
    dataset: str
    classes: list[str]
    pictures: Tensor


def _grey_or_colour(channels: int) -> int:
    if channels not in MODES:
        raise ValueError("should be 1 (grey) or 3 (RGB)")
    return channels


class _Model(_Strict):
    """The facts of `model_file.model_state`, without the weights; those with a default are not in older files."""

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
    experiment: _Settings
    dataset_digest: str
    channels: Annotated[int, AfterValidator(_grey_or_colour)]
    num_classes: Annotated[int, Field(ge=1)]
    num_samples: Annotated[int, Field(ge=0, le=MAX_IMAGES)] = 0
    kept: _Kept | None = None
    trained_on: _TrainedOn | None = None


class _Folder(_Strict):
    """What rebuilds the state of an exported folder, beside the facts of its model."""

    names: Annotated[dict[str, str], Field(min_length=1)]
    doubled: str | None = None


class _Checkpoint(_Strict):
    """The parts of a checkpoint that the loop itself reads."""

    model: dict[str, Any]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    rng: Tensor
    global_rng: list[Tensor]
    step: Annotated[int, Field(ge=0)]
    best: FiniteFloat | None
    history: list[dict[str, Any]]
    averaged: dict[str, Any] | None = None
    engine: dict[str, Any] = {}
    batches: dict[str, Any] = {}
    rates: dict[str, Any] = {}


def check_model(saved: Any, where: str) -> dict[str, Any]:
    """A `model_state` as it was read; InputError, in one line, if it is none."""
    if not isinstance(saved, dict) or not {"learner", "experiment"} <= saved.keys():
        raise InputError(f"{where}: holds no model of this tool")
    if "format" in saved and type(saved["format"]) is int and saved["format"] > FORMAT:
        raise InputError(
            f"{where}: has format {saved['format']}, this version reads {FORMAT}: install a later dml-orchestrator"
        )
    facts = _validate(_Model, saved, where)
    state = saved["learner"]
    if not isinstance(state, Mapping) or not state:
        raise InputError(f"{where}: damaged: learner: should be the weights by name")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InputError(f"{where}: damaged: learner: {name!r:.60} should be a tensor")
        if value.layout is not torch.strided or value.is_complex() or value.is_quantized or value.is_meta:
            raise InputError(f"{where}: damaged: learner: {name!r:.60} should be a plain tensor of real numbers")
    sizes = [size for value in state.values() for size in value.shape]
    sizes += [] if facts.trained_on is None else [len(facts.trained_on.classes)]
    if facts.num_classes > max(UNPROVEN, *sizes):
        raise InputError(f"{where}: damaged: num_classes: {facts.num_classes}, and its weights are of fewer")
    return saved


def check_folder(facts: Mapping[str, Any], where: str) -> None:
    """InputError unless these facts of an exported folder name its weights."""
    _validate(_Folder, facts, where)


def check_checkpoint(saved: dict[str, Any], where: str) -> dict[str, Any]:
    """The state of a training as it was read; InputError if it is none."""
    _validate(_Checkpoint, saved, where)
    check_model(saved["model"], where)
    return saved


@contextmanager
def blame_file(where: str | Path, what: str) -> Iterator[None]:
    """What a file holds is taken over in this block: whatever fails there is the file's fault, told in one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        text = " ".join(str(error).partition("Learner:\n")[2].split() or str(error).split()) or type(error).__name__
        raise InputError(f"{where}: {what} ({text[:200]})") from None


def load_weights(learner: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Load a learner's weights; InputError unless they have its names, shapes and kinds, and are finite. A method's
    own buffers may be infinite, such as a score that nothing has beaten yet."""
    with blame_file(where, "its weights are not those of its settings"):
        for name, current in learner.state_dict().items():
            if name in state and current.is_floating_point() != state[name].is_floating_point():
                raise TypeError(f"{name} is of {state[name].dtype}, it should be of {current.dtype}")
        learner.load_state_dict(state)
    trained = {name for name, _ in learner.named_parameters()}
    for name, value in learner.state_dict().items():
        if not value.is_floating_point():
            continue
        wrong = ~value.isfinite() if name in trained or name.startswith("network.") else value.isnan()
        if wrong.any():
            raise InputError(f"{where}: {int(wrong.sum())} of {value.numel()} numbers of {name} are not finite")


def _validate(shape: type[Shape], value: Any, where: str) -> Shape:
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise InputError(f"{where}: damaged: {describe(error)}") from None
