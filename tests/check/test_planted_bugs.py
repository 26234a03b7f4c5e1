"""Mistakes that authors of methods make: each in a small method, with the check that names it."""

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import Field
from support.checked_methods import Good
from torch import Generator, Tensor, nn

from methods.distances import cosine_similarity
from orchestrator.check import CHECKS, Check, verdicts
from orchestrator.check.subject import Run, Subject
from orchestrator.errors import InputError, TrainingFailed
from orchestrator.method import (
    Batch,
    Diagnostics,
    Embedded,
    Engine,
    Method,
    MethodConfig,
    Network,
    Outputs,
    Scope,
    Task,
    total,
)

PLANTED: list[Any] = []


def caught_by(name: str, reason: str) -> Callable[[type[Method]], type[Method]]:
    """The check that must fail on a method, and what it must say."""

    def plant(method: type[Method]) -> type[Method]:
        PLANTED.append(pytest.param(method, name, reason, id=f"{method.__name__}-{name}"))
        return method

    return plant


class Pairs(Method):
    """A loss on pairs, right.

    L = mean over positives of (1 - s) + mean over negatives of [s]+.
    """

    name, paper = "pairs", "unpublished"

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        z = outputs["embedding"]
        positive, negative = self._masks(labels)
        s = cosine_similarity(z, z)
        return {
            "pull": ((1 - s) * positive).sum() / positive.sum().clamp(min=1),
            "push": (s.relu() * negative).sum() / negative.sum().clamp(min=1),
        }

    def _masks(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        same = labels[:, :1] == labels[:, 0]
        return same & ~torch.eye(len(labels), dtype=torch.bool), ~same


# What is kept ----------------------------------------------------------------------------------------------


@caught_by("attributes", "buffer memory keeps the graph")
class MemoryWithGraph(Good):
    """A memory that is not detached."""

    memory: Tensor

    def __init__(self, config: Good.Config, task: Task) -> None:
        super().__init__(config, task)
        self.register_buffer("memory", torch.zeros(12, task.embedding_dim))

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        self.memory = outputs["embedding"]
        return super().loss(outputs, labels)


@caught_by("attributes", r"attribute history\[0\] keeps the graph")
class ListOfGraphs(Good):
    """Losses in a list, each with its graph."""

    def __init__(self, config: Good.Config, task: Task) -> None:
        super().__init__(config, task)
        self.history: list[Tensor] = []

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        self.history.append(pull.mean())
        return pull.mean()


@caught_by("attributes", "attribute last keeps the graph")
class LastLoss(Good):
    """The last loss, kept for the diagnostics with its graph."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        self.last = pull.mean()
        return self.last


@caught_by("attributes", "attribute seen was a list of 0, then a list of 3")
class GrowingList(Good):
    """Numbers in a list that grows."""

    def __init__(self, config: Good.Config, task: Task) -> None:
        super().__init__(config, task)
        self.seen: list[float] = []

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        self.seen.append(float(pull.mean().detach()))
        return pull.mean()


@caught_by("attributes", "attribute ClassCounter.total was 0")
class ClassCounter(Good):
    """A counter of the class, which all objects share."""

    total = 0

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        type(self).total = (type(self).total + 1) % 5 + 1
        return pull.mean()


@caught_by("attributes", "attribute state.waited was 0, then 2")
class Patience(Good):
    """A plateau counted in an object of its own."""

    class State:
        waited = 0

    def __init__(self, config: Good.Config, task: Task) -> None:
        super().__init__(config, task)
        self.state = self.State()
        self.state.waited = 0

    def after_validation(self, score: float, scope: Scope) -> None:
        self.state.waited += 1


@caught_by("attributes", "attribute own_rng was a generator")
class OwnGenerator(Good):
    """A generator of its own, which no checkpoint has."""

    def __init__(self, config: Good.Config, task: Task) -> None:
        super().__init__(config, task)
        self.own_rng = Generator().manual_seed(0)

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return pull.mean() + 0 * torch.rand((), generator=self.own_rng)


@caught_by("attributes", "attribute proxies is a tensor, but no parameter")
class PlainProxies(Pairs):
    """Proxies that are not a parameter."""

    def __init__(self, config: MethodConfig, task: Task) -> None:
        super().__init__(config, task)
        self.proxies = torch.randn(task.num_classes, task.embedding_dim)

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        s = outputs["embedding"] @ F.normalize(self.proxies, dim=1).to(outputs["embedding"]).T
        return {"loss": F.cross_entropy(s, labels[:, 0])}


@caught_by("attributes", r"attribute layers\[0\]\.weight is a tensor, but no parameter")
class LayersInAList(Good):
    """Layers in a list, which torch does not see."""

    def __init__(self, config: Good.Config, task: Task) -> None:
        super().__init__(config, task)
        self.layers = [nn.Linear(task.embedding_dim, 1)]


@caught_by("attributes", "buffer average changes, but is in no checkpoint")
class Unsaved(Good):
    """A running mean that is not saved."""

    average: Tensor

    def __init__(self, config: Good.Config, task: Task) -> None:
        super().__init__(config, task)
        self.register_buffer("average", torch.zeros(()), persistent=False)

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        self.average = 0.9 * self.average + 0.1 * pull.mean().detach()
        return pull.mean()


@caught_by("state_round_trip", "with one after two steps")
class FirstStep(Good):
    """What the first step sets up is set up again after an interruption."""

    ready = False

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        if not self.ready:
            with torch.no_grad():
                self.centres.copy_(torch.ones_like(self.centres))
            self.ready = True
        return pull.mean()


@caught_by("state_shapes", "size mismatch|method.queue was")
class GrowingQueue(Good):
    """A queue that fills up."""

    queue: Tensor

    def __init__(self, config: Good.Config, task: Task) -> None:
        super().__init__(config, task)
        self.register_buffer("queue", torch.zeros(0))

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        self.queue = torch.cat([self.queue, pull.detach()])
        return pull.mean()


@caught_by("state_shapes", "method.pool was .* after bind")
class PoolInBegin(Good):
    """A buffer that only a new training gets."""

    def begin(self, scope: Scope) -> None:
        self.register_buffer("pool", scope.class_embeddings(2, scope.rng))


# The batch and the processes -------------------------------------------------------------------------------


@caught_by("two_processes", "on one process, then on two")
class LocalMean(Good):
    """The loss divided by the number of this process's images."""

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        terms = super().step(batch, network, rng)
        return terms | {"pull": terms["pull"] * len(batch.labels) / len(batch.images)}


@caught_by("two_processes", "on two processes: IndexError|on one process, then on two")
class GlobalMixing(Good):
    """Images mixed by places of the global batch."""

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        order = torch.arange(len(batch.labels)).flip(0)
        return self.loss(network(0.5 * batch.images + 0.5 * batch.images[order]), batch.labels)


@caught_by("permutation", "in another order: .*; two_processes fails too")
class Neighbours(Pairs):
    """Images mixed with their neighbours, of this process."""

    expected_failures: ClassVar[Mapping[str, str]] = {"permutation": "images are mixed in the order of the batch"}

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        return self.loss(network(0.7 * batch.images + 0.3 * batch.images.roll(1, 0)), batch.labels)


@caught_by("permutation", "in another order")
class ByPosition(Pairs):
    """Positives taken to be next to each other."""

    def _masks(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        place = torch.arange(len(labels)) // 2
        same = place[:, None] == place
        return same & ~torch.eye(len(labels), dtype=torch.bool), ~same


@caught_by("renaming", "numbered differently")
class NearClasses(Pairs):
    """Classes taken to be alike where their numbers are."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        z, y = outputs["embedding"], labels[:, 0]
        return {"loss": ((z @ z.T) * (y[:, None] - y).abs()).mean()}


@caught_by("distributed", "orchestrator.training.distributed")
class Ranked(Good):
    """Asks for its rank, by this package's own door."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        from orchestrator.training.distributed import rank

        return pull.mean() + 0 * rank()


@caught_by("global_rng", "torch's global generator")
class Dropping(Good):
    """Dropout, by the global generator."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return F.dropout(pull, 0.5).mean()


@caught_by("global_rng", "numpy's global generator")
class ShuffledStart(Good):
    """Draws in `begin`, by the global generator."""

    def begin(self, scope: Scope) -> None:
        np.random.shuffle(np.arange(3))  # noqa: NPY002


@caught_by("inputs", "the batch's labels in place")
class Relabelling(Pairs):
    """Changes the labels in place."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        labels[labels == labels.max()] = 0
        return super().loss(outputs, labels)


@caught_by("inputs", "the network's 'embedding' in place")
class Centring(Pairs):
    """Changes the embeddings in place."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        outputs["embedding"].sub_(outputs["embedding"].detach().mean(0))
        return super().loss(outputs, labels)


# Numbers ---------------------------------------------------------------------------------------------------


class Poisoned(torch.autograd.Function):
    """A gradient of its own that is not a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, on_x: Tensor) -> Tensor:
        return on_x * torch.nan


@caught_by("gradients", "the gradient of .* is not finite")
class NotANumber(Good):
    """A gradient that is not a number, of a loss that is one."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return Poisoned.apply(pull).mean()  # type: ignore[no-any-return]


@caught_by("gradients", "does not move the embeddings")
class Detached(Good):
    """Embeddings that are detached, so that only the proxies learn."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        pull = (outputs["embedding"].detach() - self.centres[labels[:, 0]]).square().sum(1)
        return {"pull": pull.mean() + 0 * outputs["embedding"].sum(), "amount": outputs["amount"].square().mean()}


@caught_by("gradients", "the gradient of method.centres is zero")
class RestingProxies(Good):
    """Proxies in the loss, but without an effect."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        own = self.centres.detach()[labels[:, 0]] + 0 * self.centres[labels[:, 0]]
        pull = (outputs["embedding"] - own).square().sum(1)
        return {"pull": pull.mean(), "amount": outputs["amount"].square().mean()}


@caught_by("terms", "term 'push' depends on the network, but is without a gradient")
class DetachedTerm(Pairs):
    """One of two terms is a number only."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        terms = super().loss(outputs, labels)
        return terms | {"push": terms["push"].detach()}


@caught_by("terms", "is torch.float32 of embeddings in float64")
class Float(Pairs):
    """Computes in float32, whatever it is given."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        return super().loss({"embedding": outputs["embedding"].float()}, labels)


@caught_by("float32", "dtype|expected")
class Double(Pairs):
    """A constant in float64, which products in float32 do not take."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        turn = torch.eye(outputs["embedding"].shape[1], dtype=torch.float64)
        return super().loss({"embedding": outputs["embedding"] @ turn}, labels)


@caught_by("coinciding_points", "the gradient of .* is not finite")
class Rooted(Pairs):
    """The root of a distance that may be zero."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        z = outputs["embedding"]
        positive, negative = self._masks(labels)
        d = (z[:, None] - z).square().sum(2).sqrt()
        return {"loss": (d * positive).sum() + ((1 - d).relu() * negative).sum()}


@caught_by("without_positives", "negatives are pulled together")
class WrongSign(Pairs):
    """Where the positives are missing, the sign is that of a similarity."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        terms = super().loss(outputs, labels)
        sign = 1 if self._masks(labels)[0].any() else -1
        return {"loss": terms["pull"] + sign * terms["push"]}


@caught_by("without_positives", "term 'pull' is nan")
class EmptyMean(Pairs):
    """The mean of nothing."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        z = outputs["embedding"]
        return super().loss(outputs, labels) | {"pull": (1 - z @ z.T)[self._masks(labels)[0]].mean()}


@caught_by("one_class", "out of bounds")
class TwoClasses(Good):
    """Takes it that there is another class."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return pull.mean() + 0 * self.centres[1].sum()


@caught_by("normalize", "in evaluation, then in training")
class NormalizedInTraining(Good):
    """Scaled in training only."""

    def normalize(self, embedding: Tensor) -> Tensor:
        return super().normalize(embedding) * (2 if self.training else 1)


@caught_by("repeatable", "computed once, then again")
class Sets(Good):
    """Depends on where an object lies in memory."""

    places: ClassVar[list[object]] = []

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        self.places.append(object())
        return pull.mean() + 1e-9 * (id(self.places[-1]) % 9973)


# What it says of itself ------------------------------------------------------------------------------------


@caught_by("device", "'cuda': take the device")
class OnTheGPU(Good):
    """Goes to the GPU if there is one."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return pull.mean() + 0 * torch.zeros((), device=device)


@caught_by("configuration", "power takes any number")
class Unbounded(Good):
    """A hyperparameter without bounds."""

    class Config(Good.Config):
        power: float = Field(1.0, description="exponent")


@caught_by("parameter_groups", "method.scale is in 0 optimiser groups")
class LeftOut(Good):
    """Groups that miss a parameter."""

    def __init__(self, config: Good.Config, task: Task) -> None:
        super().__init__(config, task)
        self.scale = nn.Parameter(torch.ones(()))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [{"params": [self.centres], "lr": lr}]


@caught_by("parameter_groups", "method.centres is in 2 optimiser groups")
class Twice(Good):
    """Groups that name a parameter twice."""

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [{"params": [self.centres], "lr": rate} for rate in (lr, 10 * lr)]


@caught_by("options", "with squared=True: gradients: the loss does not move")
class SwitchedOff(Good):
    """A switch that turns the loss off."""

    class Config(Good.Config):
        squared: bool = Field(False, description="square the distance")

    config: Config

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return (0 if self.config.squared else 1) * pull.mean() + 0.1 * self.centres.square().mean()


@caught_by("options", "with kind=second, form=b: terms: KeyError")
class Dependent(Good):
    """A choice that another one allows, and that was never tried."""

    class Config(Good.Config):
        form: Literal["a", "b"] = Field("a", description="form")
        kind: Literal["first", "second"] = Field("first", description="kind, second for form b only")

        def model_post_init(self, context: Any) -> None:
            if self.kind == "second" and self.form == "a":
                raise ValueError("kind: second is for form b")

    config: Config

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return {"first": pull.mean()}[self.config.kind]


# Hooks -----------------------------------------------------------------------------------------------------


@caught_by("begin", "takes 1 positional argument")
class NoScope(Good):
    """A `begin` that takes nothing."""

    def begin(self) -> None:  # type: ignore[override]
        pass


@caught_by("begin", "method.centres is not finite")
class DividedStart(Good):
    """A `begin` that leaves what is not a number."""

    def begin(self, scope: Scope) -> None:
        with torch.no_grad():
            self.centres.div_(0).mul_(0)


@caught_by("after_validation", "set needs_validation = True")
class Plateau(Good):
    """Reads the score, which a final run does not have."""

    needs_validation = False

    def after_validation(self, score: float, scope: Scope) -> None:
        if score < 0.4:
            scope.stop()


@caught_by("diagnostics", "scalar 'loss' is tensor")
class TensorScalar(Good):
    """A tensor, with its graph, for a number."""

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        return Diagnostics(scalars={"loss": self.centres.sum()})  # type: ignore[dict-item]


@caught_by("diagnostics", "array 'centres' is a Parameter")
class TensorArray(Good):
    """A parameter for an array."""

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        return Diagnostics(arrays={"centres": self.centres})  # type: ignore[dict-item]


@caught_by("diagnostics", "table 'norms', column 'norm': tensor.* is no number or text")
class TensorColumn(Good):
    """Tensors for the numbers of a table."""

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        return Diagnostics(tables={"norms": {"norm": list(self.centres.norm(dim=1).unbind())}})


@caught_by("diagnostics", "'a/b' is not a valid name")
class Folder(Good):
    """A name that is a path."""

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        return Diagnostics(arrays={"a/b": np.zeros(1)})


@caught_by("diagnostics", "then after them: .*embedding")
class Drawing(Good):
    """Changes what it is shown."""

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        for part in filter(None, (trained, held_out)):
            part.outputs["embedding"].sub_(1)
        return Diagnostics()


# Training steps and batches ----------------------------------------------------------------------------------


@caught_by("update", r"update\(\) changes no parameter: it should call engine.backward")
class NoEngine(Pairs):
    """A training step that trains nothing."""

    def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
        return {"pull": torch.zeros(())}


@caught_by("update", r"update\(\) changes no parameter")
class NoApply(Pairs):
    """Gradients without a step."""

    def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
        terms = engine.terms(batch)
        engine.backward(total(terms))
        return terms


@caught_by("update", "positions from 12 to 35: they must be from 0 to 27; are they rows of the data set?")
class RowsForPositions(Pairs):
    """Batches of rows of the data set."""

    def batches(self, epoch: int, labels: Tensor, samples: Tensor, rng: Generator) -> Tensor:
        size = self.task.steps_per_epoch * self.task.batch_size
        return samples.repeat(2)[:size].flip(0).view(-1, self.task.batch_size)


@caught_by("configuration", "meta_share takes 1: it is a share of each class's images, ge=0 and lt=1")
class WholeShare(Pairs):
    """A share without an end."""

    class Config(MethodConfig):
        meta_share: float = Field(0.1, ge=0, le=2, description="share of clean images")


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (0.5, r"^pairs: loss\(\) or step\(\): term 'pull' is a float, not a tensor$"),
        (torch.zeros(12), r"term 'pull' has shape \(12,\), it should be a scalar$"),
    ],
)
def test_a_training_names_a_term_that_is_none(returned: Any, says: str) -> None:
    class Odd(Pairs):
        def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
            return {"pull": returned}

    with pytest.raises(TrainingFailed, match=says):
        Run(Subject(Odd, {})).step()


@pytest.mark.parametrize("views", [0, "2", -1])
def test_views_are_a_whole_number(views: Any) -> None:
    with pytest.raises(TypeError, match=rf"views {views!r} must be a whole number from 1 on$"):
        type("Odd", (Pairs,), {"views": views})

    class Later(Pairs):
        def __init__(self, config: MethodConfig, task: Task) -> None:
            super().__init__(config, task)
            self.views = views

    with pytest.raises(InputError, match=rf"^pairs: views {views!r} must be a whole number from 1 on$"):
        Subject(Later, {}).learner()


def test_an_error_in_a_method_is_placed() -> None:
    class Misspelt(Pairs):
        def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
            return {"pull": outputs["itme"].sum()}

    reasons = {verdict.reason for verdict in verdicts(Misspelt) if verdict.name in ("terms", "update")}
    (reason,) = reasons
    says = r"NoOutput: outputs have no 'itme' \(known: embedding\), in loss, test_planted_bugs.py line \d+"
    assert re.fullmatch(says, reason)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (lambda outputs: outputs["raw"], "NoOutput: outputs have no 'raw': set reads_raw = True"),
        (lambda outputs: outputs["embeding"], "NoOutput: outputs have no 'embeding' (did you mean 'embedding'?)"),
    ],
)
def test_an_output_that_is_not_there_is_named(asked: Callable[[Outputs], Tensor], says: str) -> None:
    class Asking(Pairs):
        def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
            return super().loss(outputs, labels) | {"more": asked(outputs).mean()}

        def retrieval(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
            return asked(outputs), outputs["embedding"]

    told = {verdict.name: verdict.reason for verdict in verdicts(Asking) if verdict.name in ("terms", "retrieval")}
    assert all(reason.startswith(says) for reason in told.values()) and len(told) == 2


def test_a_clean_batch_that_was_not_asked_for_is_named() -> None:
    class Clean(Pairs):
        def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
            return engine.terms(batch.meta)  # type: ignore[arg-type]

    with pytest.raises(TrainingFailed, match=r"^pairs: engine.terms\(\) got nothing \(None\), .* field meta_share"):
        Run(Subject(Clean, {})).step()


def test_one_mistake_has_one_message() -> None:
    class Number(Pairs):
        def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
            return {"pull": 0.5}  # type: ignore[dict-item]

    cheap = {"terms", "gradients", "update", "caching", "global_rng", "float32", "bf16"}
    reasons = {verdict.reason for verdict in verdicts(Number) if verdict.name in cheap}
    assert reasons == {"pairs: loss() or step(): term 'pull' is a float, not a tensor"}


@pytest.mark.parametrize(("method", "name", "reason"), PLANTED)
def test_a_planted_bug_is_named(method: type[Method], name: str, reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        Check(method, name)()


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in ("documentation", "options")])
def test_a_loss_on_pairs_that_is_right_passes(name: str) -> None:
    Check(Pairs, name)()


# Expected failures -----------------------------------------------------------------------------------------


class Crashing(Pairs):
    """Declares that it does not hold something, and crashes there."""

    expected_failures: ClassVar[Mapping[str, str]] = {
        "one_class": "needs two classes",
        "without_negatives": "needs negatives",
        "permutation": "the order counts",
    }

    def __init__(self, config: MethodConfig, task: Task) -> None:
        super().__init__(config, task)
        if task.num_classes < 2:
            raise InputError("crashing: needs two classes")

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        if (labels == labels[0]).all():
            raise IndexError("list index out of range")
        return super().loss(outputs, labels)

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        return self.loss(network(0.7 * batch.images + 0.3 * batch.images.roll(1, 0)), batch.labels)


def test_an_expected_failure_excuses_no_crash_and_no_other_number_on_two_processes() -> None:
    told = {verdict.name: (verdict.state, verdict.reason) for verdict in verdicts(Crashing)}
    assert told["one_class"] == ("expected failure", "needs two classes")
    assert told["without_negatives"][0] == "failed"
    assert told["without_negatives"][1].startswith(
        "IndexError: list index out of range, in loss, test_planted_bugs.py line "
    )
    assert told["without_negatives"][1].endswith(" (more than the expected failure: needs negatives)")
    assert told["permutation"][0] == "failed" and "two_processes fails too" in told["permutation"][1]
