"""Named conformance checks: what every method must hold, so that a search and its numbers can be trusted.

Each check trains the method on a small network and made images, in float64 on the CPU, by the parts that the training
loop is made of. For one's own tests:

    @pytest.mark.parametrize("check", method_checks(MyMethod), ids=str)
    def test_conforms(check):
        check()

so that a failure reads `MyMethod-state_round_trip`. On the command line: `orchestrator check NAME`.
"""

import ast
import atexit
import copy
import importlib
import importlib.util
import inspect
import json
import math
import multiprocessing
import pickle
import random
import re
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from pydantic import ValidationError
from torch import Generator, Tensor, nn

from orchestrator.backbones import build_backbone
from orchestrator.checkpoint import load_checkpoint, save_checkpoint
from orchestrator.data.samplers import rank_block
from orchestrator.data.splits import Split
from orchestrator.data.store import Store
from orchestrator.data.transforms import augment
from orchestrator.distributed import data_parallel, process_group, rank, world_size
from orchestrator.errors import InputError, suggestion
from orchestrator.learner import EmbeddingNetwork, Learner
from orchestrator.loop import Window, build_optimizer, build_scope, embed_split
from orchestrator.method import Batch, Diagnostics, Embedded, Method, MethodConfig, Outputs
from orchestrator.spec import Training, describe

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

CLASSES, HELD_OUT, IMAGES_PER_CLASS, SIZE = 7, 3, 4, 12
TRAINING = Training(
    embedding_dim=8, pooling="average", classes_per_batch=6, images_per_class=2, device="cpu", precision="float64"
)
CPU = torch.device("cpu")
SCORES = (0.3, 0.5, 0.4, 0.4)
PATIENCE = 240.0
"""Seconds that two processes may take to start, or to answer; longer than gloo waits."""


class CheckFailed(AssertionError):
    """What does not hold, in one line."""


class CheckSkipped(unittest.SkipTest):
    """Why a check cannot be run here; pytest takes it for a skip."""


@dataclass(frozen=True)
class Check:
    """One named check of a method; call it to run it. It raises if the method does not hold it."""

    method: type[Method]
    name: str
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def expected_failure(self) -> str | None:
        """The reason for which the method declares that it cannot pass."""
        return self.method.expected_failures.get(self.name)

    def __call__(self) -> None:
        with _own_random_numbers():
            CHECKS[self.name](Subject(self.method, dict(self.hyperparameters)))

    def __str__(self) -> str:
        return f"{self.method.__name__}-{self.name}"


@dataclass(frozen=True)
class Verdict:
    """What became of a check, and the reason in one line ("" where it passed)."""

    name: str
    state: Literal["passed", "failed", "expected failure", "unexpected pass", "skipped"]
    reason: str = ""


def check_method(method: type[Method], **hyperparameters: Any) -> Iterator[Check]:
    """The checks of a method, by its defaults but for the `hyperparameters` given."""
    for name in CHECKS:
        yield Check(method, name, hyperparameters)


def method_checks(*methods: type[Method]) -> "list[ParameterSet]":
    """All checks of these methods for `pytest.mark.parametrize`; a declared failure is an xfail with its reason."""
    import pytest

    def marks(check: Check) -> tuple[pytest.MarkDecorator, ...]:
        reason = check.expected_failure
        return () if reason is None else (pytest.mark.xfail(reason=reason),)

    checks = [check for method in methods for check in check_method(method)]
    return [pytest.param(check, marks=marks(check), id=str(check)) for check in checks]


def verdicts(method: type[Method], **hyperparameters: Any) -> Iterator[Verdict]:
    """Run the checks of a method one by one; nothing is raised."""
    for check in check_method(method, **hyperparameters):
        expected = check.expected_failure
        try:
            check()
        except CheckSkipped as skipped:
            yield Verdict(check.name, "skipped", str(skipped))
        except Exception as error:
            kind = "" if isinstance(error, CheckFailed) else f"{type(error).__name__}: "
            reason = " ".join(f"{kind}{error}".split())
            yield (
                Verdict(check.name, "failed", reason)
                if expected is None
                else Verdict(check.name, "expected failure", expected)
            )
        else:
            yield (
                Verdict(check.name, "passed")
                if expected is None
                else Verdict(
                    check.name, "unexpected pass", f"declared as an expected failure ({expected}); take that back"
                )
            )


def config_of(method: type[Method], hyperparameters: Mapping[str, Any]) -> MethodConfig:
    """The method's configuration; InputError for hyperparameters that it refuses."""
    for name in hyperparameters:
        if name not in method.Config.model_fields:
            raise InputError(
                f"{name}: no such hyperparameter of '{method.name}'{suggestion(name, method.Config.model_fields)}"
            )
    try:
        return method.Config(**hyperparameters)
    except ValidationError as error:
        raise InputError(f"method '{method.name}': {describe(error)}") from None


CHECKS: dict[str, Callable[["Subject"], None]] = {}
"""All checks by name; the first line of each one's docstring says what it holds."""


def _check(function: Callable[["Subject"], None]) -> Callable[["Subject"], None]:
    CHECKS[function.__name__] = function
    return function


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CheckFailed(otherwise)


# A training in small ---------------------------------------------------------------------------------------


class MadeImages:
    """A data set in memory, each class a pattern of its own under noise: as much of a Store as the loop reads."""

    def __init__(self) -> None:
        generator = Generator().manual_seed(0)
        classes = CLASSES + HELD_OUT
        patterns = torch.rand(classes, 1, 1, SIZE, SIZE, generator=generator)
        noise = torch.rand(classes, IMAGES_PER_CLASS, 1, SIZE, SIZE, generator=generator)
        self._images = ((0.6 * patterns + 0.4 * noise) * 255).to(torch.uint8).flatten(0, 1)
        self.labels = np.repeat(np.arange(classes), IMAGES_PER_CLASS)

    def images(self, rows: np.ndarray[Any, Any]) -> Tensor:
        """(N, 1, H, W) uint8."""
        return self._images[torch.from_numpy(rows)]


MADE = MadeImages()
TRAIN_ROWS = np.arange(CLASSES * IMAGES_PER_CLASS)
HELD_OUT_ROWS = np.arange(len(TRAIN_ROWS), len(MADE.labels))


def rows_of_step(step: int) -> np.ndarray[Any, Any]:
    """Rows of a global batch: all classes but one, two images of each, other ones at each step."""
    classes = [(step + i) % CLASSES for i in range(TRAINING.classes_per_batch)]
    return np.array([label * IMAGES_PER_CLASS + (2 * step + k) % IMAGES_PER_CLASS for label in classes for k in (0, 1)])


@dataclass(frozen=True)
class Subject:
    """The method under test with its hyperparameters."""

    method: type[Method]
    hyperparameters: dict[str, Any]

    def config(self) -> MethodConfig:
        return self.method.Config(**self.hyperparameters)

    def learner(self, *, seed: int = 0, dtype: torch.dtype = torch.float64, num_classes: int = CLASSES) -> Learner:
        """A new learner; all global random numbers are seeded, as at the start of a training."""
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (what a method might use)
        random.seed(seed)
        learner = Learner(
            self.method,
            self.config(),
            num_classes=num_classes,
            channels=1,
            backbone="small_cnn",
            weights="random",
            weights_sha256=None,
            embedding_dim=TRAINING.embedding_dim,
            pooling=TRAINING.pooling,
        )
        return learner.to(dtype)


def batch_of(rows: np.ndarray[Any, Any], *, labels: Tensor | None = None, dtype: torch.dtype = torch.float64) -> Batch:
    """This rank's block of these images, and the labels of all; others than their own where given."""
    block = rank_block(rows, rank(), world_size())
    images = augment(MADE.images(block), block, recipe="none", seed=0, epoch=0).to(dtype)
    own = torch.from_numpy(MADE.labels[rows].astype(np.int64))
    return Batch(images, (own if labels is None else labels)[:, None], torch.tensor(rows))


def terms_of(learner: Learner, batch: Batch) -> dict[str, Tensor]:
    """The loss terms of one batch, the random generator at its start."""
    terms, _ = learner(batch, Generator().manual_seed(0))
    return cast(dict[str, Tensor], terms)


def total_of(terms: dict[str, Tensor]) -> Tensor:
    return torch.stack([term.double() for term in terms.values()]).sum()


class Run:
    """A training in steps, as the loop does it."""

    def __init__(self, subject: Subject, *, seed: int = 0) -> None:
        self.learner = subject.learner(seed=seed)
        self.module = data_parallel(self.learner, unsynchronised=self.learner.state_outside_synchronisation())
        self.optimizer = build_optimizer(self.learner, TRAINING)
        self.rng = Generator().manual_seed(0)
        self.window = Window(keep_outputs=True)
        self.steps = self.validations = 0

    @property
    def method(self) -> Method:
        return self.learner.method

    def step(self) -> dict[str, float]:
        """One optimiser step; the values of the loss terms."""
        batch = batch_of(rows_of_step(self.steps))
        self.module.train()
        terms, seen = self.module(batch, self.rng)
        self.optimizer.zero_grad(set_to_none=True)
        total_of(terms).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.window.add(terms, seen, batch)
        self.steps += 1
        return {name: float(term.detach()) for name, term in terms.items()}

    def held_out(self) -> Embedded:
        return embed_split(self.learner, cast(Store, MADE), HELD_OUT_ROWS, CPU)

    def validate(self) -> Diagnostics:
        """The method's diagnostics, then its work after a validation with a made score."""
        diagnostics = self.method.diagnostics(self.window.embedded(), self.held_out())
        self.window.clear()
        labels = MADE.labels[TRAIN_ROWS]
        classes = np.arange(CLASSES), np.arange(CLASSES, CLASSES + HELD_OUT)
        split = Split(TRAIN_ROWS, HELD_OUT_ROWS, HELD_OUT_ROWS, classes[0], classes[1], classes[1])
        store = cast(Store, MADE)
        scope = build_scope(self.learner, self.optimizer, store, split, labels, self.rng, CPU, [])
        self.method.after_validation(SCORES[self.validations % len(SCORES)], scope)
        self.validations += 1
        return diagnostics


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """Leaves the global generators as they were found."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])


def _require_close(first: Mapping[str, Any], second: Mapping[str, Any], tolerance: float, when: str) -> None:
    """Numbers or arrays under the same names, equal but for `tolerance` (relative, and absolute below 1)."""
    _require(first.keys() == second.keys(), f"{when}: {sorted(first)} became {sorted(second)}")
    for name, value in first.items():
        a = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        b = second[name].detach().cpu().numpy() if isinstance(second[name], Tensor) else np.asarray(second[name])
        _require(a.shape == b.shape, f"{when}: {name} has shape {a.shape}, then {b.shape}")
        if a.dtype == np.bool_ or not a.size:
            _require(np.array_equal(a, b), f"{when}: {name} differs")
            continue
        same = a == b  # infinities too
        gap = np.abs(np.where(same, 0, a.astype(np.float64)) - np.where(same, 0, b))
        worst = int(np.argmax(gap / np.maximum(np.abs(a), 1)))
        bound = tolerance * max(abs(float(a.flat[worst])), 1.0)
        near = float(gap.flat[worst]) <= bound  # false for NaN
        _require(near, f"{when}: {name} is {a.flat[worst]:.10g}, then {b.flat[worst]:.10g}")


def _require_finite(subject: Subject, batch: Batch, *, num_classes: int = CLASSES) -> None:
    """The loss of a batch and its gradient on everything."""
    learner = subject.learner(num_classes=num_classes)
    terms = terms_of(learner, batch)
    for name, term in terms.items():
        _require(bool(torch.isfinite(term)), f"term '{name}' is {float(term.detach())}")
    if not total_of(terms).requires_grad:
        return
    total_of(terms).backward()  # type: ignore[no-untyped-call]
    for name, parameter in learner.named_parameters():
        finite = parameter.grad is None or bool(torch.isfinite(parameter.grad).all())
        _require(finite, f"the gradient of {name} is not finite")


def _trained(run: Run) -> dict[str, Tensor]:
    """The network and the method's parameters, without its buffers."""
    own = {f"method.{name}": value.detach().clone() for name, value in run.method.named_parameters()}
    return _state(run.learner.network) | own


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


# What it says of itself ------------------------------------------------------------------------------------


@_check
def declaration(subject: Subject) -> None:
    """Its name is in snake_case, and each failure that it expects is a check's, with a reason."""
    method = subject.method
    _require(
        bool(re.fullmatch(r"[a-z][a-z0-9_]*", method.name)), f"name '{method.name}' should be in snake_case, as pfml"
    )
    for name, reason in method.expected_failures.items():
        _require(name in CHECKS, f"expected_failures: '{name}' is no check{suggestion(name, CHECKS)}")
        _require(bool(str(reason).strip()), f"expected_failures: '{name}' has no reason")


@_check
def documentation(subject: Subject) -> None:
    """Its docstring has its formula, and `paper` names its source with a year, or says that it is unpublished."""
    method = subject.method
    _require(bool((method.__doc__ or "").strip()), "it has no docstring")
    _require(bool(re.search(r"\S+ = \S", method.__doc__ or "")), "its docstring has no formula, such as L = ...")
    sourced = bool(re.search(r"\b(19|20)\d\d\b|unpublished", method.paper))
    _require(sourced, f"paper '{method.paper}' should be authors, title, venue and year, or 'unpublished'")


@_check
def configuration(subject: Subject) -> None:
    """Its defaults are within their bounds; each hyperparameter is described, none is a setting of every training."""
    kind = subject.method.Config
    for name, info in kind.model_fields.items():
        _require(name not in Training.model_fields, f"{name} is already a setting of every training")
        _require(not info.is_required(), f"{name} has no default")
        _require(bool((info.description or "").strip()), f"{name} has no description")
    config = subject.config()
    for name in {name for key, because in config.idle().items() for name in (key, *because)} - kind.model_fields.keys():
        raise CheckFailed(f"idle: {name} is no hyperparameter{suggestion(name, kind.model_fields)}")
    values = config.model_dump()
    try:
        kind(**values)
    except ValueError as error:
        raise CheckFailed(f"a default is refused by its own bounds: {error}") from None
    # searches, journals and checkpoints keep hyperparameters as plain values
    try:
        again = kind(**json.loads(json.dumps(values)))
    except (TypeError, ValueError) as error:
        raise CheckFailed(f"the hyperparameters cannot be kept as JSON: {error}") from None
    _require(again == config, "hyperparameters kept as JSON come back as others")


@_check
def device(subject: Subject) -> None:
    """Its code names no accelerator: no `.cuda()`, no `device="cuda"`."""
    for where, node in _code(subject.method):
        for call in ast.walk(node):
            if not isinstance(call, ast.Call):
                continue
            called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            named = [word.value for word in call.keywords if word.arg == "device"]
            named += call.args if called in ("to", "device") else []
            fixed = [arg.value for arg in named if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            found = [name for name in fixed if re.fullmatch(r"(cuda|mps|xpu)(:\d+)?", name)]
            _require(
                not found and not (isinstance(call.func, ast.Attribute) and called in ("cuda", "mps", "xpu")),
                f"{where}:{call.lineno}: {ast.unparse(call)}: take the device of a tensor that is given",
            )


@_check
def distributed(subject: Subject) -> None:
    """Its code does not use torch.distributed: a method sees the whole global batch."""
    doors = re.compile(r"torch\.(distributed|nn\.parallel)\b")
    for where, node in _code(subject.method):
        for part in ast.walk(node):
            found: list[str] = []
            if isinstance(part, ast.Import):
                found = [alias.name for alias in part.names]
            elif isinstance(part, ast.ImportFrom):
                found = [f"{part.module}.{alias.name}" for alias in part.names]
            elif isinstance(part, ast.Attribute):
                found = [ast.unparse(part)]
            line = getattr(part, "lineno", 0)
            for name in found:
                _require(not doors.match(name), f"{where}:{line}: {name}: every rank sees the whole batch already")


def _code(method: type[Method]) -> Iterator[tuple[str, ast.AST]]:
    """(file, statement) of the classes of a method, and of all that they name in the modules of the same package."""
    packages = {method.__module__.split(".")[0], "methods"}
    queue = [(cls.__module__, cls.__name__) for cls in method.__mro__]
    seen: set[tuple[str, str]] = set()
    while queue:
        module_name, name = place = queue.pop()
        if place in seen or module_name.split(".")[0] not in packages:
            continue
        seen.add(place)
        module = importlib.import_module(module_name)
        where, statements = _statements(module_name)
        for node in statements.get(name, ()):
            yield where, node
            if isinstance(node, ast.ImportFrom):
                parent = module_name if hasattr(module, "__path__") else module_name.rpartition(".")[0]
                source = "." * node.level + (node.module or "")
                source = importlib.util.resolve_name(source, parent) if node.level else source
                queue += [(source, alias.name) for alias in node.names if name in (alias.asname, alias.name)]
                continue
            for part in ast.walk(node):
                if isinstance(part, ast.Name):
                    queue.append((module_name, part.id))
                elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                    owner = vars(module).get(part.value.id)
                    if inspect.ismodule(owner):
                        queue.append((owner.__name__, part.attr))


@cache
def _statements(module_name: str) -> tuple[str, dict[str, list[ast.AST]]]:
    """The file of a module, and its statements by the names that they give; classes inside of others too."""
    module = importlib.import_module(module_name)
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        raise CheckSkipped(f"the source of {module_name} cannot be read") from None
    found: dict[str, list[ast.AST]] = {}
    top = list(tree.body)
    for node in [*top, *(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n not in top)]:
        names: list[str] = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.asname or alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        for name in names:
            found.setdefault(name, []).append(node)
    return Path(module.__file__ or module_name).name, found


# The loss of a batch ---------------------------------------------------------------------------------------


@_check
def terms(subject: Subject) -> None:
    """The loss is named scalars, finite, in float32 or better, with a gradient."""
    found = terms_of(subject.learner(), batch_of(rows_of_step(0)))
    _require(isinstance(found, dict) and len(found) > 0, f"the loss is a {type(found).__name__}, not a dict of terms")
    for name, term in found.items():
        _require(isinstance(name, str) and bool(re.fullmatch(r"[\w./-]+", name)), f"{name!r} is no name for a term")
        _require(isinstance(term, Tensor), f"term '{name}' is a {type(term).__name__}, not a tensor")
        _require(term.ndim == 0, f"term '{name}' has shape {tuple(term.shape)}, it should be a scalar")
        wide = term.is_floating_point() and term.dtype.itemsize >= 4
        _require(wide, f"term '{name}' is {term.dtype}, it should be float32 or better")
        _require(bool(torch.isfinite(term)), f"term '{name}' is {float(term.detach())}")
    _require(total_of(found).requires_grad, "the loss has no gradient")


@_check
def parameter_groups(subject: Subject) -> None:
    """Every parameter is in exactly one optimiser group, at a learning rate above zero."""
    for group in build_optimizer(subject.learner(), TRAINING).param_groups:
        rate = float(group["lr"])
        _require(math.isfinite(rate) and rate > 0, f"a learning rate is {rate}")


@_check
def gradients(subject: Subject) -> None:
    """Every parameter gets a gradient, and the network's is not zero."""
    learner = subject.learner()
    total_of(terms_of(learner, batch_of(rows_of_step(0)))).backward()  # type: ignore[no-untyped-call]
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad and parameter.numel():
            _require(parameter.grad is not None, f"{name} gets no gradient")
    gradient = learner.network.head.weight.grad
    _require(gradient is not None and bool(gradient.any()), "the loss does not move the embeddings")


@_check
def without_positives(subject: Subject) -> None:
    """Finite on a batch in which no two samples share a class."""
    _require_finite(subject, batch_of(np.arange(0, len(TRAIN_ROWS), IMAGES_PER_CLASS)[:6]))


@_check
def without_negatives(subject: Subject) -> None:
    """Finite on a batch of one class among several."""
    rows = rows_of_step(0)
    _require_finite(subject, batch_of(rows, labels=torch.full((len(rows),), 3)))


@_check
def one_class(subject: Subject) -> None:
    """Finite where the training has one class only."""
    rows = rows_of_step(0)
    _require_finite(subject, batch_of(rows, labels=torch.zeros(len(rows), dtype=torch.long)), num_classes=1)


@_check
def coinciding_points(subject: Subject) -> None:
    """Finite where all embeddings of a batch coincide, its gradient too."""
    batch = batch_of(rows_of_step(0))
    _require_finite(subject, Batch(batch.images[:1].expand_as(batch.images).clone(), batch.labels, batch.samples))


@_check
def permutation(subject: Subject) -> None:
    """The order of the batch changes nothing: neither the terms nor any gradient."""
    rows = rows_of_step(0)
    order = np.random.default_rng(0).permutation(len(rows))
    found = []
    for chosen in (rows, rows[order]):
        learner = subject.learner()
        values = terms_of(learner, batch_of(chosen))
        total_of(values).backward()  # type: ignore[no-untyped-call]
        moved = {f"the gradient of {n}": p.grad for n, p in learner.named_parameters() if p.grad is not None}
        found.append({f"term '{name}'": term for name, term in values.items()} | moved)
    _require_close(found[0], found[1], 1e-9, "with the batch in another order")


@_check
def renaming(subject: Subject) -> None:
    """The numbers of the classes change nothing, if what the method keeps of each class is renamed along.

    A method without numbers of its own is held to it exactly. Of one that has any, each parameter and buffer of
    floating point with a row per class (or M rows per class, class by class), or with a column per class, is put in
    the new order first; whatever has no dimension of that size must not matter.
    """
    renamed = torch.tensor([3, 0, 6, 1, 5, 2, 4])  # class c becomes renamed[c]
    old = torch.argsort(renamed)
    rows = rows_of_step(0)
    plain = subject.learner()
    other = subject.learner()
    own = [*other.method.parameters(), *other.method.buffers()]
    own += [*other.network.heads.parameters(), *other.network.heads.buffers()]
    with torch.no_grad():
        for tensor in own:
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            for dim, size in enumerate(tensor.shape):
                if size == CLASSES:
                    tensor.copy_(tensor.index_select(dim, old))
                elif dim == 0 and size % CLASSES == 0:
                    tensor.copy_(tensor.view(CLASSES, -1)[old].view_as(tensor))
    labels = torch.from_numpy(MADE.labels[rows].astype(np.int64))
    first = terms_of(plain, batch_of(rows))
    second = terms_of(other, batch_of(rows, labels=renamed[labels]))
    _require_close(first, second, 1e-9, "with the classes numbered otherwise")


@_check
def inputs(subject: Subject) -> None:
    """It does not write into the batch, nor into what the network says of it."""
    learner = subject.learner()
    batch = batch_of(rows_of_step(0))
    before = copy.deepcopy((batch.images, batch.labels, batch.samples))
    shown: list[tuple[Outputs, Outputs]] = []

    def network(images: Tensor) -> Outputs:
        outputs = learner.outputs(images)
        shown.append((outputs, {name: output.detach().clone() for name, output in outputs.items()}))
        return dict(outputs)

    learner.method.step(batch, network, Generator().manual_seed(0))
    for name, kept in zip(("images", "labels", "samples"), before, strict=True):
        _require(torch.equal(getattr(batch, name), kept), f"it changes the batch's {name} in place")
    for outputs, kept_outputs in shown:
        for name, output in outputs.items():
            _require(torch.equal(output.detach(), kept_outputs[name]), f"it changes the network's '{name}' in place")


@_check
def normalize(subject: Subject) -> None:
    """An embedding is normalised by itself, whatever else is in the batch, and stays finite."""
    method = subject.learner().method.eval()
    points = torch.randn(5, TRAINING.embedding_dim, dtype=torch.float64, generator=Generator().manual_seed(0))
    points[4] = 0
    together = method.normalize(points.clone())
    alone = torch.cat([method.normalize(point[None].clone()) for point in points])
    _require(together.shape == points.shape, f"(B, D) = {tuple(points.shape)} became {tuple(together.shape)}")
    _require(bool(torch.isfinite(together).all()), "a normalised embedding is not finite")
    _require_close({"an embedding": together}, {"an embedding": alone}, 1e-12, "normalised in a batch, then alone")


@_check
def repeatable(subject: Subject) -> None:
    """The same state, batch and random generator give the same bits."""
    batch = batch_of(rows_of_step(0))
    first, second = (terms_of(subject.learner(), batch) for _ in range(2))
    _require_close(first, second, 0.0, "computed once, then again")


@_check
def global_rng(subject: Subject) -> None:
    """It draws from the generator that it is given, never from the global ones of torch, numpy or Python."""
    run = Run(subject)
    before = torch.get_rng_state(), str(np.random.get_state()), random.getstate()  # noqa: NPY002
    run.step()
    run.validate()
    after = torch.get_rng_state(), str(np.random.get_state()), random.getstate()  # noqa: NPY002
    _require(torch.equal(before[0], after[0]), "it draws from torch's global generator: draw from rng")
    _require(before[1] == after[1], "it draws from numpy's global generator: draw from rng")
    _require(before[2] == after[2], "it draws from Python's global generator: draw from rng")


@_check
def float32(subject: Subject) -> None:
    """In float32 its terms and gradients are those of float64, to 1e-3 and 1e-2."""
    _require_precise(subject, half=False, of_terms=1e-3, of_gradients=1e-2)


@_check
def bf16(subject: Subject) -> None:
    """Under bf16 autocast its terms and gradients are those of float64 on the same outputs, to 5e-2 and 0.2."""
    _require_precise(subject, half=True, of_terms=5e-2, of_gradients=0.2)


def _require_precise(subject: Subject, *, half: bool, of_terms: float, of_gradients: float) -> None:
    """What the network says is the same for both, so that the method's own arithmetic is compared."""
    rows = rows_of_step(0)
    said: list[Outputs] = []
    results: list[tuple[dict[str, Tensor], list[Tensor]]] = []
    for dtype in (torch.float32, torch.float64):
        learner = subject.learner(dtype=dtype)
        leaves: list[Outputs] = []

        def network(
            images: Tensor, learner: Learner = learner, leaves: list[Outputs] = leaves, dtype: torch.dtype = dtype
        ) -> Outputs:
            if dtype == torch.float32:
                said.append({name: output.detach() for name, output in learner.outputs(images).items()})
            given = said[len(leaves)]
            leaves.append({name: output.to(dtype, copy=True).requires_grad_() for name, output in given.items()})
            return dict(leaves[-1])

        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half and dtype == torch.float32):
            found = learner.method.step(batch_of(rows, dtype=dtype), network, Generator().manual_seed(0))
        points = [output for outputs in leaves for output in outputs.values()]
        moved = torch.autograd.grad(total_of(found), points, allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(points, moved, strict=True)]
        results.append(({name: term.detach().double() for name, term in found.items()}, filled))
    (rough, rough_gradients), (exact, exact_gradients) = results
    kind = "bf16 autocast" if half else "float32"
    _require_close(rough, exact, of_terms, f"in {kind}, then in float64")
    size = math.sqrt(sum(float(g.square().sum()) for g in exact_gradients))
    pairs = zip(rough_gradients, exact_gradients, strict=True)
    gap = math.sqrt(sum(float((g.double() - e).square().sum()) for g, e in pairs))
    _require(
        gap <= of_gradients * size + 1e-9, f"in {kind} the gradient on the embeddings is off by {gap:.2g} of {size:.2g}"
    )


# Its state -------------------------------------------------------------------------------------------------


@_check
def state_round_trip(subject: Subject) -> None:
    """Two steps, save, load, one step equals three steps, bit for bit; validations included."""
    whole = Run(subject)
    for _ in range(2):
        whole.step()
    whole.validate()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        parts = {"learner": whole.learner.state_dict(), "optimizer": whole.optimizer.state_dict()}
        save_checkpoint(path, parts | {"rng": whole.rng.get_state(), "global_rng": torch.get_rng_state()})
        saved = load_checkpoint(path)
    ends = []
    for run in (whole, Run(subject, seed=1)):
        if run is not whole:
            run.learner.load_state_dict(saved["learner"])
            run.optimizer.load_state_dict(saved["optimizer"])
            run.rng.set_state(saved["rng"])
            run.steps, run.validations = whole.steps - 1, whole.validations - 1
        torch.set_rng_state(saved["global_rng"])
        values = run.step()
        run.validate()
        ends.append(({f"term '{name}'": value for name, value in values.items()}) | _state(run.learner))
    _require_close(ends[0], ends[1], 0.0, "without an interruption, then with one after two steps")


@_check
def state_shapes(subject: Subject) -> None:
    """After `bind` no parameter or buffer comes, goes, or changes its shape or type: checkpoints load."""
    run = Run(subject)

    def described() -> dict[str, str]:
        return {name: f"{value.dtype} {tuple(value.shape)}" for name, value in run.learner.state_dict().items()}

    before = described()
    for _ in range(2):
        run.step()
        run.validate()
    after = described()
    for name in before.keys() | after.keys():
        was, now = before.get(name, "absent"), after.get(name, "absent")
        _require(was == now, f"{name} was {was} after bind, then {now}")


@_check
def broadcast(subject: Subject) -> None:
    """Its state is out of DDP's broadcast: in buffers of its own, none in the network or its heads."""
    learner = subject.learner()
    backbone = build_backbone("small_cnn", channels=1, weights="random")
    bare = EmbeddingNetwork(backbone, TRAINING.embedding_dim, TRAINING.pooling)
    expected = {f"network.{name}" for name, _ in bare.named_buffers()} | set(learner.state_outside_synchronisation())
    sent = {name for name, _ in learner.named_buffers()} - expected
    _require(not sent, f"sent to all processes at every step: {', '.join(sorted(sent))}")


@_check
def after_validation(subject: Subject) -> None:
    """Its work after a validation does not raise, and leaves finite numbers in the parameters it was given."""
    run = Run(subject)
    before = {name: id(parameter) for name, parameter in run.learner.named_parameters()}
    for _ in SCORES:
        run.step()
        run.validate()
    for name, parameter in run.learner.named_parameters():
        _require(before.get(name) == id(parameter), f"{name} is a new parameter that no optimiser knows: use copy_")
    for name, value in _state(run.method).items():
        _require(not value.is_floating_point() or bool(torch.isfinite(value).all()), f"{name} is not finite")
    _require(all(math.isfinite(value) for value in run.step().values()), "the next step's loss is not finite")


@_check
def diagnostics(subject: Subject) -> None:
    """Its diagnostics do not raise, in a search, a final run or a test; they are finite and change nothing trained."""
    run = Run(subject)
    run.step()
    trained, held_out = run.window.embedded(), run.held_out()
    # what a method counted since the last validation it may begin anew, so its buffers are its own
    before = _trained(run)
    for when, shown in {
        "a search": (trained, held_out),
        "a final run": (trained, None),
        "a test": (None, held_out),
    }.items():
        found = run.method.diagnostics(*shown)
        _require(isinstance(found, Diagnostics), f"in {when}: a {type(found).__name__}, not Diagnostics")
        for name, value in found.scalars.items():
            finite = isinstance(value, int | float) and math.isfinite(value)
            _require(finite, f"in {when}: scalar '{name}' is {value!r}, it should be a finite number")
        for name, array in found.arrays.items():
            _require(isinstance(array, np.ndarray), f"in {when}: array '{name}' is a {type(array).__name__}")
        for name, table in found.tables.items():
            lengths = {len(column) for column in table.values()}
            _require(len(lengths) <= 1, f"in {when}: the columns of table '{name}' are of lengths {sorted(lengths)}")
    after = _trained(run)
    _require_close(before, after, 0.0, "before the diagnostics, then after them")


# Two processes ---------------------------------------------------------------------------------------------


@_check
def two_processes(subject: Subject) -> None:
    """One process equals two that share the batch: terms and state after three steps and a validation."""
    if world_size() > 1:
        raise CheckSkipped("this process is in a process group already")
    try:
        work = pickle.dumps(subject)
    except Exception as error:
        raise CheckSkipped(f"{subject.method.__qualname__} cannot be sent to another process: {error}") from None
    one = _train(subject)
    first, second = _pair().run(work)
    _require_close(one, first, 1e-9, "on one process, then on two")
    _require_close(first, second, 0.0, "on the first of two processes, then on the second")


def _train(subject: Subject) -> dict[str, Any]:
    """The terms of three steps with a validation, and the state at the end, as numpy's arrays."""
    run = Run(subject)
    values: dict[str, Any] = {}
    for step in range(3):
        values |= {f"term '{name}' of step {step + 1}": value for name, value in run.step().items()}
        if step == 1:
            run.validate()
    return values | {name: value.numpy() for name, value in _state(run.learner).items()}


class _Pair:
    """Two processes in one gloo group that wait for work; started once, and anew after one got stuck."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="orchestrator-check-")
        context = multiprocessing.get_context("spawn")
        self.ends: list[Connection] = []
        self.processes: list[Any] = []
        for index in range(2):
            mine, its = context.Pipe()
            arguments = (index, Path(self.folder.name) / "rendezvous", its)
            self.processes.append(context.Process(target=_serve, args=arguments, daemon=True))
            self.processes[-1].start()
            its.close()
            self.ends.append(mine)
        for answer in self._answers():
            if answer is not None:
                self.close()
                raise CheckSkipped(f"two processes cannot be started here: {answer}")

    @property
    def ready(self) -> bool:
        return bool(self.processes)

    def _answers(self) -> list[Any]:
        """What both say, in rank order; text is a failure. Ends the processes if one of them is stuck."""
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + PATIENCE
        while len(answers) < len(self.ends) and time.monotonic() < deadline:
            for index, end in enumerate(self.ends):
                if index in answers or not end.poll(0.005):
                    continue
                try:
                    answers[index] = end.recv()
                except (EOFError, OSError):
                    answers[index] = "one of two processes ended"
                if isinstance(answers[index], str):  # the other may wait for this one for ever
                    deadline = min(deadline, time.monotonic() + 2)
        missing = [index for index in range(len(self.ends)) if index not in answers]
        failed = [answer for answer in answers.values() if isinstance(answer, str)]
        if missing:
            self.close()
            return failed or ["one of two processes waits for ever"]
        return [answers[index] for index in sorted(answers)]

    def run(self, work: bytes) -> list[dict[str, Any]]:
        """The results of both in rank order."""
        for end in self.ends:
            end.send((sys.path, work))
        answers = self._answers()
        for answer in answers:
            if isinstance(answer, str):
                if answer.startswith(UNKNOWN_THERE):
                    raise CheckSkipped(answer)
                raise CheckFailed(f"on two processes: {answer}")
        return answers

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(timeout=10)
        for end in self.ends:
            end.close()
        self.processes, self.ends = [], []
        self.folder.cleanup()


UNKNOWN_THERE = "another process cannot import it"
_running: list[_Pair] = []


def _pair() -> _Pair:
    if not _running or not _running[0].ready:
        _running[:] = [_Pair()]
    return _running[0]


@atexit.register
def _close_pair() -> None:
    for pair in _running:
        pair.close()


def _serve(index: int, rendezvous: Path, connection: Connection) -> None:
    torch.set_num_threads(1)
    with process_group(index, 2, rendezvous):
        connection.send(None)
        while True:
            try:
                path, work = connection.recv()
            except (EOFError, KeyboardInterrupt):
                return
            sys.path[:] = path
            try:
                subject = pickle.loads(work)
            except Exception as error:
                connection.send(f"{UNKNOWN_THERE} ({type(error).__name__}: {error})")
                continue
            try:
                connection.send(_train(subject))
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                connection.send(f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})")
