"""What a check works on: a method in a small training, and the errors when something does not hold."""

import random
import sys
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any, cast

import numpy as np
import torch
from torch import Generator, Tensor, nn

from orchestrator.config.search import VALIDATION_METRICS
from orchestrator.config.training import Training
from orchestrator.data.pipeline import Reader
from orchestrator.data.samplers import rank_rows
from orchestrator.data.store import Store
from orchestrator.data.transforms import augment
from orchestrator.errors import TrainingFailed, is_interrupt, place_of
from orchestrator.method import Batch, Diagnostics, Embedded, Method, MethodConfig, Scope, Task, total
from orchestrator.networks.backbones.base import Architecture
from orchestrator.networks.backbones.network import Backbone
from orchestrator.training.batches import Batches
from orchestrator.training.distributed import rank, world_size
from orchestrator.training.embed import embed_split
from orchestrator.training.engine import Engine
from orchestrator.training.learner import Learner
from orchestrator.training.optimizer import build_optimizer
from orchestrator.training.scope import build_scope
from orchestrator.training.splits import LabelledImages
from orchestrator.training.window import Window

CLASSES, HELD_OUT, IMAGES_PER_CLASS, SIZE = 7, 3, 4, 12
TRAINING = Training(
    embedding_dim=8, pooling="average", classes_per_batch=6, images_per_class=2, device="cpu", precision="float64"
)
CPU = torch.device("cpu")


def _one_layer(channels: int, class_token: bool = False) -> Backbone:
    body = nn.Sequential(nn.Conv2d(channels, 16, 4, stride=4, bias=False), nn.GroupNorm(4, 16), nn.ReLU())
    half = [0.5] * channels
    return Backbone(body, feature_dim=16, channels=channels, mean=half, std=half, layers={"blocks": r"^(\d+)"})


NETWORK = Architecture(
    "one layer", about="a network for checks: methods see only what comes out of it", build=_one_layer
)
SCORES = (0.3, 0.5, 0.4, 0.4)


class CheckFailed(AssertionError):
    """What does not hold, in one line."""


class Unexcused(AssertionError):
    """What does not hold, and cannot be excused by an expected failure."""


class CheckSkipped(unittest.SkipTest):
    """Why a check cannot be run here; pytest treats it as a skip."""


CHECKS: dict[str, Callable[["Subject"], None]] = {}
"""All checks by name; the first line of each one's docstring says what it holds."""


def check(function: Callable[["Subject"], None]) -> Callable[["Subject"], None]:
    """Make a function one of the checks, under its name; a method that ends the process fails it."""

    @wraps(function)
    def ending_nothing(subject: "Subject") -> None:
        try:
            function(subject)
        except SystemExit as error:
            raise Unexcused(exit_message(error)) from error
        except KeyboardInterrupt as error:
            if is_interrupt(error):
                raise
            raise Unexcused("the method raised KeyboardInterrupt") from error

    CHECKS[function.__name__] = ending_nothing
    return ending_nothing


def exit_message(error: SystemExit) -> str:
    """The message about a method that wants to end the process."""
    return f"the method called sys.exit({'' if error.code is None else error.code})"


def require(holds: bool, otherwise: str) -> None:
    """CheckFailed with `otherwise` if it does not hold."""
    if not holds:
        raise CheckFailed(otherwise)


class MadeImages:
    """A data set in memory, each class a pattern of its own with noise: the part of a Store that the loop reads."""

    def __init__(self) -> None:
        generator = Generator().manual_seed(0)
        classes = CLASSES + HELD_OUT
        patterns = torch.rand(classes, 1, 1, SIZE, SIZE, generator=generator)
        noise = torch.rand(classes, IMAGES_PER_CLASS, 1, SIZE, SIZE, generator=generator)
        # the held-out classes come first, so that a training image's row is not its position among them
        order = np.roll(np.arange(classes), HELD_OUT)
        self._images = ((0.6 * patterns + 0.4 * noise) * 255).to(torch.uint8)[order].flatten(0, 1)
        self.labels = np.repeat(order, IMAGES_PER_CLASS)

    def images(self, rows: np.ndarray[Any, Any]) -> Tensor:
        """(N, 1, H, W) uint8."""
        return self._images[torch.from_numpy(rows)]


MADE = MadeImages()
HELD_OUT_ROWS = np.arange(HELD_OUT * IMAGES_PER_CLASS)
TRAIN_ROWS = np.arange(len(HELD_OUT_ROWS), len(MADE.labels))
IMAGES = LabelledImages(TRAIN_ROWS, MADE.labels[TRAIN_ROWS])
NONE = LabelledImages(TRAIN_ROWS[:0], MADE.labels[:0])
SUPER_CLASSES = tuple(label % 3 for label in range(CLASSES))
STEPS_PER_EPOCH = len(TRAIN_ROWS) // TRAINING.batch_size


def rows_of_step(step: int) -> np.ndarray[Any, Any]:
    """Rows of a global batch: all classes but one, two images of each, different ones at each step."""
    classes = [(step + i) % CLASSES for i in range(TRAINING.classes_per_batch)]
    places = [label * IMAGES_PER_CLASS + (2 * step + k) % IMAGES_PER_CLASS for label in classes for k in (0, 1)]
    return TRAIN_ROWS[places]


@dataclass(frozen=True)
class Subject:
    """The method under test with its hyperparameters."""

    method: type[Method]
    hyperparameters: dict[str, Any]

    def config(self) -> MethodConfig:
        return self.method.Config(**self.hyperparameters)

    def learner(
        self,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        num_classes: int = CLASSES,
        super_classes: tuple[int, ...] = SUPER_CLASSES,
    ) -> Learner:
        """A new learner; all global random numbers are seeded, as at the start of a training."""
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
        np.random.seed(seed)  # noqa: NPY002 (what a method might use)
        random.seed(seed)
        learner = Learner(
            self.method,
            self.config(),
            Task(
                num_classes=num_classes,
                embedding_dim=TRAINING.embedding_dim,
                feature_dim=0,
                class_names=tuple(f"class {label}" for label in range(num_classes)),
                batch_size=TRAINING.batch_size,
                num_samples=len(MADE.labels),
                steps_per_epoch=STEPS_PER_EPOCH,
                total_steps=STEPS_PER_EPOCH * TRAINING.epochs,
                super_classes=super_classes[:num_classes],
            ),
            channels=1,
            backbone=NETWORK,
            weights="random",
            weights_sha256=None,
            pooling=TRAINING.pooling,
        )
        return learner.to(dtype)

    @cached_property
    def views(self) -> int:
        """How often the method wants each image in a batch."""
        with own_random_numbers():
            return self.learner().method.views

    @cached_property
    def batch_parts(self) -> int | None:
        """The parts of a batch that no process divides."""
        with own_random_numbers():
            return self.learner().method.batch_parts

    def batch(
        self,
        rows: np.ndarray[Any, Any],
        *,
        labels: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
        step: int = 0,
        meta: bool = False,
    ) -> Batch:
        """This rank's block of these images, and the labels of all; other labels than their own if given. `meta`: it is
        the clean second batch of another."""
        place = rank_rows(len(rows), rank(), world_size(), self.batch_parts)
        block = rows[place]
        recipes = ["none", *["affine"] * (0 if meta else self.views - 1)]
        first, *more = (
            augment(MADE.images(block), block, recipe="affine" if view else "none", seed=0, epoch=0, view=view).to(
                dtype
            )
            for view, recipe in enumerate(recipes)
        )
        clean = None
        if getattr(self.config(), "meta_share", 0.0) and not meta:
            others = rows - rows % IMAGES_PER_CLASS + (rows + 2) % IMAGES_PER_CLASS  # other images of the same classes
            clean = self.batch(others, dtype=dtype, step=step, meta=True)
        true_labels = torch.from_numpy(MADE.labels[rows].astype(np.int64))[:, None]
        batch_labels = true_labels if labels is None else labels[:, None]
        return Batch(first, batch_labels, torch.tensor(rows), place, step, tuple(more), clean)


def terms_of(learner: Learner, batch: Batch) -> dict[str, Tensor]:
    """The loss terms of one batch, with the random generator at its start."""
    try:
        terms, _ = learner(batch, Generator().manual_seed(0))
    except TrainingFailed as error:
        raise CheckFailed(f"{error}{place_of(error)}") from error
    return cast(dict[str, Tensor], terms)


class Run:
    """A training in steps, as in the loop; `begun` if it continues from a loaded state."""

    def __init__(
        self, subject: Subject, *, seed: int = 0, begun: bool = False, images_per_pass: int | None = None
    ) -> None:
        self.subject = subject
        self.learner = subject.learner(seed=seed)
        self.optimizer = build_optimizer(self.learner, TRAINING)
        self.rng = Generator().manual_seed(0)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        training = TRAINING.model_copy(update={"images_per_pass": images_per_pass})
        self.engine = Engine(self.learner, training, self.optimizer, scaler, self.rng, CPU)
        self.batches = Batches(self.method, TRAINING, IMAGES, NONE, Reader(cast(Store, MADE)), CPU)
        self.window = Window(keep_outputs=True)
        self.steps = self.validations = 0
        if not begun:
            self.begin()

    @property
    def method(self) -> Method:
        return self.learner.method

    def begin(self) -> None:
        """The method's work before the first step."""
        self.method.begin(self.scope())

    def scope(self) -> Scope:
        """The scope as the loop builds it."""
        return build_scope(self.learner, self.optimizer, cast(Store, MADE), IMAGES, self.rng, CPU, [])

    def step(self) -> dict[str, float]:
        """One optimiser step; the values of the loss terms."""
        rows = rows_of_step(self.steps)
        if type(self.method).batches is not Method.batches:
            epoch, place = divmod(self.steps, STEPS_PER_EPOCH)
            rows = TRAIN_ROWS[self.batches.draw(epoch)[place]]
        batch = self.subject.batch(rows, step=self.steps)
        terms = self.engine.step(batch, 0)
        self.window.add(self.steps + 1, 1, terms, self.engine.seen, batch)
        self.steps += 1
        return {name: float(term.detach()) for name, term in terms.items()}

    def held_out(self) -> Embedded:
        return embed_split(self.learner, cast(Store, MADE), HELD_OUT_ROWS, CPU)

    def validate(self) -> Diagnostics:
        """The method's diagnostics, then its work after a validation with a synthetic score."""
        diagnostics = self.method.diagnostics(self.window.collect(), self.held_out())
        self.window.clear()
        score = SCORES[self.validations % len(SCORES)]
        metrics = dict.fromkeys(VALIDATION_METRICS, score)
        self.method.after_validation(score, replace(self.scope(), metrics=metrics))
        self.validations += 1
        return diagnostics


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Restore the global generators at the end."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])


def require_close(
    first: Mapping[str, Any], second: Mapping[str, Any], tolerance: float, when: str, least: float = 1.0
) -> None:
    """Require equal numbers or arrays under the same names, to within `tolerance` (relative, below `least` to it)."""
    require(first.keys() == second.keys(), f"{when}: {sorted(first)} became {sorted(second)}")
    for name, value in first.items():
        a = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        b = second[name].detach().cpu().numpy() if isinstance(second[name], Tensor) else np.asarray(second[name])
        require(a.shape == b.shape, f"{when}: {name} has shape {a.shape}, then {b.shape}")
        if a.dtype == np.bool_ or not a.size:
            require(np.array_equal(a, b), f"{when}: {name} differs")
            continue
        same = a == b  # infinities too
        gap = np.abs(np.where(same, 0, a.astype(np.float64)) - np.where(same, 0, b))
        with np.errstate(invalid="ignore"):
            worst = int(np.argmax(gap / np.maximum(np.abs(a), least)))
        bound = tolerance * max(abs(float(a.flat[worst])), least)
        near = float(gap.flat[worst]) <= min(bound, sys.float_info.max)  # false for NaN, and for one infinity
        require(near, f"{when}: {name} is {a.flat[worst]:.10g}, then {b.flat[worst]:.10g}")


def require_finite(subject: Subject, batch: Batch, *, num_classes: int = CLASSES) -> None:
    """Require that the loss of a batch and its gradient on everything are finite."""
    learner = subject.learner(num_classes=num_classes)
    terms = terms_of(learner, batch)
    for name, term in terms.items():
        require(bool(torch.isfinite(term)), f"term '{name}' is {float(term.detach())}")
    if not total(terms).requires_grad:
        return
    total(terms).backward()  # type: ignore[no-untyped-call]
    for name, parameter in learner.named_parameters():
        finite = parameter.grad is None or bool(torch.isfinite(parameter.grad).all())
        require(finite, f"the gradient of {name} is not finite")


def training_state(run: Run) -> dict[str, Tensor]:
    """The network and the method's parameters, without its buffers."""
    initial = {f"method.{name}": value.detach().clone() for name, value in run.method.named_parameters()}
    return state_of(run.learner.network) | initial


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
