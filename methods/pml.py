"""The losses of pytorch-metric-learning as methods, `pml/NAME`, with its miners, reducers and distances by name.

A class is made for a loss when it is asked for; nothing of that package is imported before. The arguments of a loss's
constructor that are numbers, words or truth values are hyperparameters, with its defaults; those of the chosen miner,
reducer and distance too, after `miner_`, `reducer_` and `distance_`.

Musgrave et al., "PyTorch Metric Learning", arXiv 2020.
"""

import contextlib
import copy
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from pydantic import Field, create_model
from torch import Generator, Tensor, nn

from orchestrator.method import Batch, InputError, Method, MethodConfig, Network, Task

PREFIX = "pml/"
MODULES = {
    "loss": ("pytorch_metric_learning.losses", "BaseMetricLossFunction"),
    "miner": ("pytorch_metric_learning.miners", "BaseMiner"),
    "reducer": ("pytorch_metric_learning.reducers", "BaseReducer"),
    "distance": ("pytorch_metric_learning.distances", "BaseDistance"),
}
"""Where the classes of each part are, and what they derive from."""
PAPER = "Musgrave et al., PyTorch Metric Learning, arXiv 2020"
PARTS = ("miner", "reducer", "distance")
DEFAULTS = {"miner": "all pairs or triplets", "reducer": "the loss's own", "distance": "the loss's and miner's own"}
FROM_THE_TASK = {"num_classes": "num_classes", "embedding_size": "embedding_dim", "descriptors_dim": "embedding_dim"}
"""Arguments without a default, and the task's fields that are given for them."""
LEFT_OUT = ("collect_stats", "embedding_reg_weight", "weight_reg_weight", "is_inverted", "normalize_embeddings")
"""Arguments of no use here: of regularisers, which are not taken, and of embeddings, which have unit length."""
FIXED = {"BatchHardMiner": ("pos_strategy", "neg_strategy"), "AvgNonZeroReducer": ("low",)}
"""Arguments that a class gives to its base class itself."""
WHOLE = ("num_bins", "pos_per_bin", "neg_per_bin", "centers_per_class", "sub_centers")
"""Arguments that are whole numbers; others take fractions, whatever their default."""
WHOLE_MARGIN = {"LargeMarginSoftmaxLoss", "SphereFaceLoss"}
"""Their `margin` is a whole number: an angle's multiple."""
POSITIVE = ("temperature", "scale", "softmax_scale", "gamma", "la", "alpha", "beta", "p", "power")
CHOICES: Mapping[str, Any] = {
    "type_of_triplets": Literal["all", "easy", "semihard", "hard"],
    "pos_strategy": Literal["easy", "semihard", "hard", "all"],
    "neg_strategy": Literal["easy", "semihard", "hard", "all"],
    "variant": Literal["O", "Ds", "Dq", "Iu", "Ib"],
}
ALL = ("triplets_per_anchor",)
"""Whole numbers, or the word `all`, which is null here."""
OPTIONAL = ("low", "high", "alpha")
"""Numbers whose default is None."""
BOUND = 1_000_000
OF_THE_PAPER = {"RankedListLoss": {"margin": 0.4, "Tn": 10.0}}
"""Defaults for arguments that have none in the package."""
LEFT_BEHIND = ("divisor", "num_pairs")
"""Attributes in which some keep a number of the last batch, which nothing reads."""

REFUSED = {
    "ClassWeightedReducer": "its weights are a list",
    "DoNothingReducer": "it gives no scalar",
    "MultipleReducers": "it takes reducers",
    "EmbeddingsAlreadyPackagedAsTriplets": "its batches are triplets in order",
    "DynamicSoftMarginLoss": "its histogram keeps the graphs of earlier batches",
    "GenericPairLoss": "it is a base class",
    "HistogramLoss": "it fails where embeddings coincide",
    "InstanceLoss": "its labels are rows of the batch",
    "ManifoldLoss": "it takes no labels",
    "NCALoss": "it is NaN for a batch without positives",
    "P2SGradLoss": "it is NaN where an embedding is zero",
    "SignalToNoiseRatioContrastiveLoss": "it is infinite where an embedding is zero; the method snr is not",
    "SmoothAPLoss": "it takes batches in the order of their classes only; the method smooth_ap does not",
    "TupletMarginLoss": "its gradient is not finite where embeddings coincide",
    "VICRegLoss": "it takes two views and no labels; the method vicreg is the same",
}
"""Classes that cannot be used, each with the reason."""
CENTRES = {"renaming": "its centres are columns, several for each class, which the check does not rename"}
EXPECTED = {
    "NPairsLoss": {"permutation": "its pairs are the first of each class in the order of the batch"},
    "SoftTripleLoss": CENTRES,
    "SubCenterArcFaceLoss": CENTRES,
}
"""Checks that a loss cannot pass, each with the reason."""


class LossMethod(Method, abstract=True):
    """A loss of pytorch-metric-learning on the gathered embeddings of the whole batch."""

    _peer: ClassVar[type[nn.Module]]
    """The class of the loss."""

    def __init__(self, config: MethodConfig, task: Task) -> None:
        super().__init__(config, task)
        values = config.model_dump()
        try:
            distance = _build_part("distance", values)
            shared = {} if distance is None else {"distance": distance}
            reducer = _build_part("reducer", values)
            required = {argument: getattr(task, FROM_THE_TASK[argument]) for argument in _task_arguments(self._peer)}
            self.objective = self._peer(
                **required,
                **_call_arguments(self._peer, values),
                **shared,
                **({} if reducer is None else {"reducer": reducer}),
            )
            self.miner = _build_part("miner", values, **shared)
            if self._peer.__name__ == "ContrastiveLoss" and getattr(self.objective.distance, "is_inverted", False):
                _require_above(values["pos_margin"], values["neg_margin"])
            self._try_out()
            _keep_tensors(self)
        except (TypeError, ValueError, AssertionError, KeyError, RuntimeError) as error:
            chosen = [f"{part}: {values[part]}" for part in PARTS if values[part] is not None]
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(
                f"{self.name} cannot be made{' with ' if chosen else ''}{', '.join(chosen)}: {reason}"
            ) from None

    def _try_out(self) -> None:
        """Compute the loss of four rows once, so that parts that do not fit each other are told at the start."""
        rows = torch.eye(4, self.task.embedding_dim)
        labels = torch.tensor([0, 0, 1, 1]).clamp(max=self.task.num_classes - 1)
        with torch.no_grad(), _drawing_from(0, rows.device):
            self._compute(rows, labels)

    def _compute(self, embeddings: Tensor, labels: Tensor) -> Any:
        mined = None if self.miner is None else copy.copy(self.miner)(embeddings, labels)  # some keep what they mined
        loss = self.objective(embeddings, labels, mined)
        for module in self.objective.modules():
            for name in LEFT_BEHIND:
                vars(module).pop(name, None)
        return loss

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return super().parameter_groups(lr * getattr(self.config, "proxy_lr_multiplier", 1.0))

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        embeddings = network(batch.images)["embedding"]
        if batch.labels.shape[1] > 1:
            raise InputError(f"{self.name} takes one label of each image")
        labels, seed = batch.labels[:, 0], int(torch.randint(2**62, (), generator=rng))
        with torch.autocast(embeddings.device.type, enabled=False), _drawing_from(seed, embeddings.device):
            embeddings = _detach_zero_rows(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)))
            return {"loss": self._compute(embeddings, labels)}


def _require_above(pos_margin: float, neg_margin: float) -> None:
    if pos_margin <= neg_margin:
        raise ValueError("of a similarity pos_margin should be above neg_margin: the loss would move nothing")


def _detach_zero_rows(rows: Tensor) -> Tensor:
    """The rows (B, D), those of length 0 without a gradient: normalised once more, theirs would be 1e12 times as long,
    which is infinite in half precision."""
    return torch.where(torch.linalg.vector_norm(rows, dim=1, keepdim=True) < 1e-12, rows.detach(), rows)


def _keep_tensors(module: nn.Module) -> None:
    """Make buffers of the tensors that a module and those in it keep as attributes, so that checkpoints have them."""
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, Tensor):
                delattr(part, name)
                part.register_buffer(name, value)


@contextlib.contextmanager
def _drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """In this block the global generators of torch and numpy begin at this seed; afterwards they are as before."""
    kept = np.random.get_state()  # noqa: NPY002 (what the package draws from)
    elsewhere = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(elsewhere, device_type=device.type if elsewhere else None):
        (torch.manual_seed if elsewhere else torch.default_generator.manual_seed)(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(kept)  # noqa: NPY002


# From constructors to hyperparameters --------------------------------------------------------------------------------


def _constructors(kind: type) -> Iterator[Mapping[str, inspect.Parameter]]:
    """The parameters of a class's constructor, and of those that it hands its further arguments to."""
    for base in kind.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters
            yield parameters
            if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
                return


def _arguments(kind: type) -> Mapping[str, Any]:
    """The arguments that are hyperparameters, with their defaults."""
    taken: dict[str, Any] = dict(OF_THE_PAPER.get(kind.__name__, {}))
    for name, one in (pair for parameters in _constructors(kind) for pair in parameters.items()):
        simple = type(one.default) in (bool, int, float, str) or (name in OPTIONAL and one.default is None)
        if simple and name not in (*LEFT_OUT, *FIXED.get(kind.__name__, ())):
            taken.setdefault(name, one.default)
    return taken


def _task_arguments(kind: type) -> tuple[str, ...]:
    """The arguments of a loss that the task gives."""
    named = [pair for parameters in _constructors(kind) for pair in parameters.items()]
    return tuple(name for name, one in named if name in FROM_THE_TASK and one.default is one.empty)


def _field(defaults: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """The hyperparameter of an argument: its type, default, bounds and description. `defaults` are those of the classes
    that take it; no two differ."""
    said, default = f"{name} of {', '.join(defaults)}", next(iter(defaults.values()))
    if name in ALL:
        return int | None, Field(None, ge=1, le=10_000, description=f"{said}; null: all")
    if name in CHOICES:
        return CHOICES[name], Field(default, description=said)
    if isinstance(default, bool | str):
        return type(default), Field(default, description=said)
    kind: type = float
    if name in WHOLE or (name == "margin" and not WHOLE_MARGIN.isdisjoint(defaults)):
        kind, bounds = int, {"ge": 1, "le": 10_000}
    else:
        bounds = {"gt": 0, "le": BOUND} if name in POSITIVE else {"ge": -BOUND, "le": BOUND}
    field = Field(None if default is None else kind(default), description=said, **cast(Any, bounds))
    return (kind | None if default is None else kind), field


def _classes(part: str) -> dict[str, type[nn.Module]]:
    """The classes of a part of a loss by name: `loss`, `miner`, `reducer`, `distance`."""
    module, base_name = MODULES[part]
    kinds = {name: kind for name, kind in vars(import_module(module)).items() if isinstance(kind, type)}
    base = kinds[base_name]
    usable = (name for name, kind in kinds.items() if issubclass(kind, base) and kind is not base)
    return {name: kinds[name] for name in sorted(usable) if name not in REFUSED}


def _build_part(part: str, values: Mapping[str, Any], **more: Any) -> nn.Module | None:
    """The chosen miner, reducer or distance with its arguments; None if none is chosen."""
    if (name := values[part]) is None:
        return None
    kind = _classes(part)[name]
    return kind(**_call_arguments(kind, values, f"{part}_"), **more)


def _call_arguments(kind: type, values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The arguments of a class by these hyperparameters."""
    given = {name: values[prefix + name] for name in _arguments(kind)}
    return given | {name: "all" for name in ALL if name in given and given[name] is None}


@cache
def _fields_of_parts() -> tuple[dict[str, Any], dict[str, frozenset[str]]]:
    """The hyperparameters that choose parts and give them arguments; and the classes that take each of the latter."""
    fields: dict[str, Any] = {}
    owners: dict[str, frozenset[str]] = {}
    for part in PARTS:
        kinds = _classes(part)
        fields[part] = (Literal[*kinds] | None, Field(None, description=f"{part} by name; null: {DEFAULTS[part]}"))
        by_argument: dict[str, dict[str, Any]] = {}
        for owner, kind in kinds.items():
            for argument, default in _arguments(kind).items():
                by_argument.setdefault(argument, {})[owner] = default
        for argument, defaults in by_argument.items():
            owners[f"{part}_{argument}"] = frozenset(defaults)
            fields[f"{part}_{argument}"] = _field(defaults, argument)
    return fields, owners


class PartsConfig(MethodConfig):
    """The hyperparameters of a loss, and of the parts that are chosen for it."""

    def idle(self) -> dict[str, tuple[str, ...]]:
        """The arguments of parts that are not chosen."""
        _, owners = _fields_of_parts()
        parts = {name: name.partition("_")[0] for name in owners}
        return {name: (part,) for name, part in parts.items() if getattr(self, part) not in owners[name]}


def names() -> list[str]:
    """The losses that can be methods, as `pml/NAME`."""
    return [PREFIX + name for name in _classes("loss")]


@cache
def build_method(name: str) -> type[Method]:
    """The method called `pml/NAME`, one of `names`."""
    loss = name.removeprefix(PREFIX)
    kind = _classes("loss")[loss]
    fields = {argument: _field({loss: default}, argument) for argument, default in _arguments(kind).items()}
    if _task_arguments(kind):
        said = "learning rate of the loss's own weights over the network's"
        fields["proxy_lr_multiplier"] = (float, Field(10.0, gt=0, le=BOUND, description=said))
    parts, _ = _fields_of_parts()
    config = create_model("Config", __base__=PartsConfig, __module__=__name__, **cast(Any, fields | parts))
    config.__qualname__ = f"{loss}.Config"
    about = f"""{loss} of pytorch-metric-learning, of the whole batch's unit embeddings.

    L = {loss}(embeddings, labels, pairs or triplets of the miner)

    Each argument of the loss is a hyperparameter, with its default there. `miner`, `reducer` and `distance` choose its
    parts by name, the distance for the miner too; their arguments follow their names, as `miner_epsilon`.
    """
    body = {"__doc__": about, "__module__": __name__, "name": name, "paper": PAPER, "_peer": kind, "Config": config}
    body["expected_failures"] = EXPECTED.get(loss, {})
    return cast(type[Method], type(loss, (LossMethod,), body))


def __getattr__(name: str) -> type[Method]:
    """The class of a loss by its name, so that other processes can be sent methods."""
    if name.startswith("_") or name not in _classes("loss"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return build_method(PREFIX + name)
