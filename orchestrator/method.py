"""The Method contract: what a deep-metric-learning method is, and the registry that finds them.

Shape suffixes: B samples of the global batch, L labels of a sample, D embedding size, C classes.
"""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal, Protocol, cast

import numpy as np
import torch
from pydantic import ValidationError
from torch import Generator, Tensor, nn

from orchestrator.contract import BUILT_IN, family_of, method_entry_points, unknown_method
from orchestrator.contract import ENTRY_POINTS as ENTRY_POINTS
from orchestrator.contract import MethodConfig as MethodConfig
from orchestrator.errors import InputError as InputError  # methods may raise it for files that they cannot read
from orchestrator.errors import is_interrupt
from orchestrator.problems import complaints as complaints  # of the configs of methods in a method
from orchestrator.problems import suggestion

Outputs = dict[str, Tensor]
"""The network's outputs for a batch: `embedding` (B, D), and one entry per head of the method."""

Network = Callable[[Tensor], Outputs]
"""Maps this rank's images to the outputs of the *global* batch, gathered over ranks."""


SharedSum = Callable[[Callable[[int, int], Tensor]], Tensor]
"""Sums part(i, n) over the shares i = 0 ... n - 1, each computed on a different rank; all ranks get the same sum."""


def _as_it_is(rows: Tensor) -> Tensor:
    return rows


def unit(rows: Tensor) -> Tensor:
    """Rows (..., D) at unit length, as F.normalize gives them; but one shorter than 1e-12 stays as it is, gradient
    included, where F.normalize multiplies by 1e12, which is infinite in half precision."""
    length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    found: Tensor = rows / torch.where(length < 1e-12, 1, length)
    return found


def generator_on(rng: Generator, device: torch.device) -> Generator:
    """A generator of this device for the draws of a step: `rng` itself on the CPU, elsewhere a new one, whose seed
    `rng` draws. So GPUs of one type draw the same, and so does a resumed training."""
    if device.type == rng.device.type:
        return rng
    return Generator(device).manual_seed(int(torch.randint(2**62, (), generator=rng)))


def _alone(part: Callable[[int, int], Tensor]) -> Tensor:
    return part(0, 1)


@dataclass(frozen=True)
class Task:
    """The facts from which a method may derive its sizes.

    `class_names` are those of the training classes, in the order of the batches' labels, and `super_classes` the number
    of the super-class of each, if the data set has them; both are empty when a saved model is only loaded, so values
    derived from them belong in a buffer. `batch_size` is the global batch size, `steps_per_epoch` and `total_steps` the
    length of an epoch and of the whole training; 0 without training. `num_samples` is the number of images of the data
    set: a batch's `samples` are below it. A method that cannot work with these facts raises InputError from `__init__`.
    """

    num_classes: int
    embedding_dim: int
    feature_dim: int
    class_names: tuple[str, ...] = ()
    batch_size: int = 0
    num_samples: int = 0
    steps_per_epoch: int = 0
    total_steps: int = 0
    super_classes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Batch:
    """`images` (n, channels, H, W): this rank's block, about B / world size of the batch's B images; ranks may have
    unequal ones. `labels` (B, L) and `samples` (B,): the whole global batch's.

    `labels` is padded with -1; two samples are positive if they share any label. L is 1 without Mixup. `samples` are
    the images' rows in the data set: the same number is the same image. `rows` are this rank's rows of the whole batch:
    `labels[rows]` belong to `images`. `step` counts from 0.

    `views` are `images` and their further augmentations, if the method asks for several. `meta` is a clean batch of
    other images, if it asks for one.
    """

    images: Tensor
    labels: Tensor
    samples: Tensor
    rows: slice = field(default_factory=lambda: slice(None))
    step: int = 0
    more_views: tuple[Tensor, ...] = ()
    meta: "Batch | None" = None

    @property
    def views(self) -> tuple[Tensor, ...]:
        return (self.images, *self.more_views)


@dataclass(frozen=True)
class Embedded:
    """The network's results for images, without gradients and on the CPU: the outputs of each, `labels` (N,) and
    `samples` (N,), as in a batch. `retrieval` holds the rows that the method's hook of that name gives for images that
    are ranked, None where it is not overridden or nothing is ranked; `others` those of its `embeddings`, by name."""

    outputs: Outputs
    labels: Tensor
    samples: Tensor
    retrieval: tuple[Tensor, Tensor] | None = None
    others: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Diagnostics:
    """What a method reports: numbers per validation; arrays and tables (column name -> column), which are kept as
    files of the best validation."""

    scalars: dict[str, float] = field(default_factory=dict)
    arrays: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    tables: dict[str, dict[str, list[Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Scope:
    """What `begin` and `after_validation` may use.

    `class_embeddings(n, rng)` embeds n random training images of each class in eval mode -> raw (C, n, D);
    `embed(samples)` embeds these training images, all if None, in eval mode, with their labels in training;
    `metrics` are all numbers of the validation by name, such as `val/recall_at_1` and `train/loss`, empty in `begin`;
    `reset_moments(parameters)` resets the optimiser's state of these parameters, `moments(parameters)` gives a copy of
    it (for each its step () and two moments in turn, Adam's mean and mean square or what another optimiser has instead,
    zeros if there is none or it is frozen), and
    `set_moments(parameters, moments)` restores such a copy; `rng` is equal on all ranks; `stop()` ends the training
    after this validation.
    """

    rng: Generator
    class_embeddings: Callable[[int, Generator], Tensor]
    embed: Callable[[Tensor | None], Embedded]
    reset_moments: Callable[[list[nn.Parameter]], None]
    moments: Callable[[list[nn.Parameter]], list[Tensor]]
    set_moments: Callable[[list[nn.Parameter], list[Tensor]], None]
    stop: Callable[[], None]
    metrics: Mapping[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """What `update` may use. Gradients are those of the whole batch on one device, equal on all ranks; precision,
    loss scaling, clipping, warm-up and gradient caching are the engine's.

    A tensor's name is that of a parameter: `network.head.weight`, `method.proxies.weight`.
    """

    rng: Generator

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The trained parameters by name."""

    def terms(self, batch: Batch, parameters: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """The terms of the method's `step`, in which these `parameters` take the place of the learner's, for a virtual
        step. Each call in one update draws the same random numbers; each changes what `step` keeps, as a memory."""

    def outputs(self, images: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Outputs:
        """The outputs of the global batch for this rank's block of any images."""

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss to `.grad` of the trained parameters. It may free the graph of the loss."""

    def gradients(
        self, loss: Tensor, of: Mapping[str, Tensor] | None = None, *, create_graph: bool = False
    ) -> dict[str, Tensor]:
        """The gradient of a loss on these tensors, on the trained parameters if None; zeros where it does not depend on
        them. It keeps the graph; with `create_graph` the gradients have one too."""

    def apply(self, only: Iterable[str] | None = None) -> None:
        """Clip the gradients, make the optimiser's step, and forget them; only of these parameters if given."""


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """The loss: the sum of its terms, in float64."""
    return torch.stack([term.double() for term in terms.values()]).sum()


class Method(nn.Module):
    """Turns embeddings into named loss terms. A pure loss only overrides `loss`.

    A method sees the gathered outputs of the whole global batch, as if on one device, and never imports
    torch.distributed: every rank computes the same loss, and DDP's mean gradient is exactly the one-device
    gradient. A costly sum can be split over the ranks by `shared_sum`, with the same value and gradients:
    `self.shared_sum(part)` adds up the scalars part(i, n), i < n, of which each rank computes one. What a method
    computes of this rank's images itself, (n, ...), `self.gather` makes (B, ...) of, with exact gradients;
    it takes one row of each image, or several. Many random numbers are drawn on the device, by a generator
    `self.generator_on(rng, device)` of its own, on which all ranks draw the same: `torch.rand(shape, generator=it,
    device=it.device).to(device)`. Its mutable state
    lives in parameters and buffers, and is therefore in every checkpoint; a buffer must not
    change its shape after `bind`. State is equal on all ranks by construction, so it is never synchronised.

    A subclass gives `name`, `paper`, a `Config`, and a docstring with its formula. If the config has a field
    `meta_share`, this share of each class's training images is held back, with labels free of label noise, for
    `batch.meta`. A misspelt hook or a config that is not a `MethodConfig` is a TypeError when the class is defined.
    Code shared by several methods goes into a base class, `class Shared(Method, abstract=True)`, which is not itself a
    method.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    latex: ClassVar[str] = ""
    """The docstring's formula in LaTeX, for the documentation; an empty line between two formulas. Not inherited."""
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    needs_validation: ClassVar[bool] = False
    """True: keeps the held-out classes in its final run too, because its algorithm reads their score."""
    expected_failures: ClassVar[Mapping[str, str]] = {}
    """Conformance checks that the method cannot pass, each with the reason; they are listed, not hidden."""
    sampler: Literal["class_balanced", "uniform"] = "class_balanced"
    """`uniform` for training that must not see classes (label-free methods). A class attribute, or set by `__init__`
    if it depends on the config; read once, at the start of the training."""
    views: int = 1
    """How often each image is in a batch, each time augmented anew. A class attribute, or set by `__init__`."""
    batch_parts: int | None = None
    """Equal parts of a batch of which each process has whole ones; None: the batch is shared out by images. A class
    attribute, or set by `__init__`."""
    reads_raw: ClassVar[bool] = False
    """True: outputs have `raw` (B, D) too, the embedding before `normalize`."""

    _abstract: ClassVar[bool] = True

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._abstract = abstract
        where = f"{cls.__module__}.{cls.__qualname__}"
        for attribute in ("name", "paper", "latex"):
            if not abstract and not isinstance(getattr(cls, attribute, None), str):
                raise TypeError(f"{where}: a method needs a class attribute `{attribute}`, a string")
        if not (isinstance(cls.Config, type) and issubclass(cls.Config, MethodConfig)):
            raise TypeError(f"{where}: Config must derive from orchestrator.method.MethodConfig")
        if not cls.Config.model_config.get("frozen") or cls.Config.model_config.get("extra") != "forbid":
            raise TypeError(f"{where}: Config must stay frozen and refuse unknown keys")
        if cls.sampler not in ("class_balanced", "uniform"):
            raise TypeError(f"{where}: sampler {cls.sampler!r} must be 'class_balanced' or 'uniform'")
        if not isinstance(views := cls.views, int) or views < 1:
            raise TypeError(f"{where}: views {views!r} must be a whole number from 1 on")
        hook_names = {name for name in vars(Method) if not name.startswith("_")}
        hooks = {name for name in hook_names if callable(getattr(Method, name, None))}
        for name, value in vars(cls).items():
            if name.startswith("_") or name in hook_names or not callable(value) or hasattr(nn.Module, name):
                continue
            hint = suggestion(name, hooks)
            if hint.names:
                raise TypeError(f"{where}: '{name}' is not a hook{hint}; start the name of an own method with '_'")

    def __init__(self, config: MethodConfig, task: Task) -> None:
        super().__init__()
        self.config = config
        self.task = task
        self.shared_sum: SharedSum = _alone
        self.gather: Callable[[Tensor], Tensor] = _as_it_is
        self.generator_on: Callable[[Generator, torch.device], Generator] = generator_on

    def bind(self, network: nn.Module) -> None:
        """Called once, before DDP and the optimiser: allocate what depends on the network.

        `network(images)` gives the outputs of these images alone, the embedding before `normalize`. Before each step it
        and the method are put into training mode (frozen batch norm stays in evaluation mode), for validations into
        evaluation mode. Keep a reference to it only in a tuple: as an attribute it would become a submodule.
        """

    def use_kernels(self, kernels: str) -> None:
        """Called once, before the first step, if the setting `kernels` names some: they compute the loss from now on.

        Code that imports a library of kernels lies in a subpackage or module called `kernels` of the method's package,
        which is imported here, not with the methods. InputError if the method has none, or not with its config.
        """
        raise InputError(f"kernels: {kernels!r}: {self.name} has none: leave it out")

    def heads(self) -> nn.ModuleDict:
        """Extra outputs on the backbone's pooled features (B, feature_dim); created here, owned by the network."""
        return nn.ModuleDict()

    def normalize(self, embedding: Tensor) -> Tensor:
        """How raw embeddings (B, D) are normalised, in training and in evaluation: to unit length by default."""
        return unit(embedding)

    def retrieval(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
        """How images are ranked: from the outputs of N of them, in eval mode and without gradients, their rows as
        queries and their rows as items of a gallery, both (N, K), of floating point and finite. A query's items are
        ranked by the inner product q_i . g_j of its query row and their gallery rows, the largest first.

        An image's rows depend on this image alone. Every validation and test, `evaluate`, the pages' neighbours and
        exported models use them; clusters (NMI), maps and diagnostics are of the embedding. By default both are the
        embedding, whose Euclidean distance ranks: for unit rows that is the order of inner products, and it stays the
        distance where `normalize` gives others.
        """
        return outputs["embedding"], outputs["embedding"]

    def embeddings(self, outputs: Outputs) -> Mapping[str, Tensor]:
        """Other embeddings that the model offers, by name, as shorter ones: from the outputs of N images, in eval mode
        and without gradients, (N, K) each, of floating point and finite, ranked by their Euclidean distance. None by
        default.

        An image's rows depend on this image alone. Every validation and test gives their recall at 1 and MAP@R as
        `<name>_recall_at_1` and `<name>_map_at_r`; `export --embedding NAME` writes a model that gives one of them.
        """
        return {}

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Optimiser groups over the method's own parameters; `lr` is the network's learning rate."""
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return [{"params": parameters, "lr": lr}] if parameters else []

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        """Named loss terms of one batch. Override it to mix inputs or to run the network more than once.

        `network` takes any part of this rank's images, as long as each rank gives as many, and is in training mode.
        `rng` (on the CPU) draws the same numbers on every rank and is part of the checkpoint; many numbers are drawn on
        the device, from `self.generator_on(rng, device)`. By default several
        `views` of the batch follow each other, (views B, D), each with the batch's labels.
        """
        views = [network(images) for images in batch.views]
        if len(views) == 1:
            return self.loss(views[0], batch.labels)
        outputs = {name: torch.cat([view[name] for view in views]) for name in views[0]}
        return self.loss(outputs, batch.labels.repeat(len(views), 1))

    def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
        """One training step; returns the named terms that are recorded. Override it for what one backward pass cannot
        do: two optimisers in turn, gradients of single terms, a virtual step."""
        terms = engine.terms(batch)
        engine.backward(total(terms))
        engine.apply()
        return terms

    def batches(self, epoch: int, labels: Tensor, samples: Tensor, rng: Generator) -> Tensor:
        """Positions among the training images of the epoch's batches, (task.steps_per_epoch, task.batch_size), for a
        method with a sampler of its own. By default the training's sampler gives them.

        `labels` and `samples` (N,) are the training images' classes and rows in the data set. Called on every rank at
        the epoch's start, after the work of the validation before; `rng` depends on the epoch only.
        """
        raise NotImplementedError(f"{type(self).__name__} has no sampler of its own")

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        """Named scalar terms from `outputs["embedding"]` (B, D) and `labels` (B, L); their sum is minimised."""
        raise NotImplementedError(f"{type(self).__name__} must override loss() or step()")

    def begin(self, scope: Scope) -> None:
        """Called on every rank before the first step of a new training, but not of a resumed one."""

    def after_validation(self, score: float, scope: Scope) -> None:
        """Called on every rank after each validation, once its model is saved, with its MAP@R on the held-out classes.

        The score is always `val/map_at_r`: the same hyperparameters train the same model under
        every objective, and the published algorithms read this score (CCP's patience). An algorithm that
        reads another number takes it from `scope.metrics`. Not called if no classes are held out: a method that
        overrides it sets `needs_validation`.
        """

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        """Called at each validation, on every rank.

        `trained` holds the batches since the last validation, as used in training; `held_out` the images of the
        held-out classes, with the data set's own class numbers as labels, or None if no classes are held out. For the
        test it is called once, with the test classes' images as `held_out` and `trained` None.
        """
        return Diagnostics()


# The registry ---------------------------------------------------------------------------------------------


@cache
def registry() -> dict[str, type[Method]]:
    """Every installed method by name.

    A package named by an entry point of the group `orchestrator.methods` registers every Method class defined
    in it. A package that fails to load is left out, and so is a method whose name is taken or whose Config refuses
    its own defaults; `plugin_problems` says which and why.
    """
    methods, _ = _discover()
    return methods


def plugin_problems() -> list[str]:
    """One line per plugin, or method of a plugin, that was left out: its distribution and the reason."""
    _, problems = _discover()
    return list(problems)


def find_method(name: str) -> type[Method]:
    """The method class called `name`; InputError with a suggestion otherwise."""
    if (family := family_of(name)) is not None:
        registry()  # whose packages are imported first
        return cast(type[Method], family.build(name))
    if name not in registry():
        raise unknown_method(name, registry(), plugin_problems())
    return registry()[name]


def is_loaded() -> bool:
    """Whether the plugins were imported in this process."""
    return _discover.cache_info().currsize > 0


@cache
def _discover() -> tuple[dict[str, type[Method]], tuple[str, ...]]:
    methods: dict[str, type[Method]] = {}
    problems: list[str] = []
    for entry in method_entry_points():
        distribution = entry.dist.name if entry.dist else "this package"
        try:
            candidates = list(_methods_of(entry))
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # a broken plugin must not affect the others
            if is_interrupt(error):
                raise
            if entry is BUILT_IN and isinstance(error, InputError):
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            problems.append(f"plugin '{entry.name}' of {distribution} was left out: {reason}")
            continue
        for method in candidates:
            namesake = methods.get(method.name)
            if reason := _unusable(method):
                problems.append(f"method '{method.name}' of {distribution} was left out: {reason}")
            elif namesake is not None and namesake is not method:
                problems.append(
                    f"method '{method.name}' of {distribution} ({method.__module__}) was left out: "
                    f"{namesake.__module__} has that name already"
                )
            else:
                methods[method.name] = method
    return methods, tuple(problems)


def _unusable(method: type[Method]) -> str:
    """Why a method cannot be configured, "" if it can: it has all defaults, and they are within their bounds."""
    try:
        method.Config(**method.Config().model_dump())
    except Exception as error:  # a validator may raise anything
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            return f"its Config refuses its own defaults: {field}: {first['msg']}"
        return " ".join(f"its Config cannot be made: {type(error).__name__}: {error}".split())
    return ""


def _methods_of(entry: EntryPoint) -> Iterator[type[Method]]:
    package = _import_built_in() if entry is BUILT_IN else importlib.import_module(entry.value)
    inside = pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + ".")
    names = (info.name for info in inside if "kernels" not in info.name.split("."))
    modules = [package, *map(importlib.import_module, names)]
    for module in modules:
        for value in vars(module).values():
            is_method = isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__
            if is_method and not value._abstract:
                yield value


def _import_built_in() -> ModuleType:
    """Our `methods`, which lies beside this package, whatever else of that name is first on the path. InputError if
    another one has been imported in this process."""
    beside = str(Path(__file__).resolve().parent.parent)
    if BUILT_IN.value not in sys.modules and (spec := PathFinder.find_spec(BUILT_IN.value, [beside])) and spec.loader:
        sys.modules[BUILT_IN.value] = package = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(package)
        except BaseException:
            del sys.modules[BUILT_IN.value]
            raise
    package = importlib.import_module(BUILT_IN.value)
    _refuse_shadow(package.__file__)
    return package


def _refuse_shadow(imported: str | None) -> None:
    """Refuse a user's own folder called `methods` that comes first on the path of the driver or of a worker."""
    expected = Path(__file__).resolve().parent.parent / "methods" / "__init__.py"
    root = expected.parents[2]
    if imported and root.name == "py_modules_files" and Path(imported).resolve().parents[2] == root:
        return  # on a cluster node, each package sent by the driver has a folder of its own
    if imported is None or Path(imported).resolve() != expected:
        raise InputError(
            f"the package 'methods' was imported from {imported or 'a folder without __init__.py'}, "
            f"which shadows {expected}: rename that folder or start from another directory"
        )
