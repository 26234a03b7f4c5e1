"""The conformance checks: every method passes them, and for each there is a broken method that fails there."""

import dataclasses
import itertools
import random
import signal
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import Field
from support.checked_methods import Good
from torch import Generator, Tensor, nn

from orchestrator.check import (
    CHECKS,
    EXCUSED,
    Check,
    CheckFailed,
    CheckSkipped,
    check_method,
    method_checks,
    processes,
    verdicts,
)
from orchestrator.method import (
    Batch,
    Diagnostics,
    Embedded,
    Engine,
    Method,
    Network,
    Outputs,
    Scope,
    Task,
    registry,
)
from orchestrator.training.distributed import rank

SMALLER: dict[str, dict[str, Any]] = {"hier": {"hierarchical_proxies": 20, "triplets": 5}}
"""Of methods whose defaults take seconds a step."""


@pytest.mark.parametrize("check", method_checks(*registry().values()), ids=str)
def test_every_method_conforms(check: Check) -> None:
    dataclasses.replace(check, hyperparameters=SMALLER.get(check.method.name, {}))()


@pytest.mark.parametrize(
    ("name", "hyperparameters"),
    [
        ("contrastive", {"references": "batch+memory", "memory_start": 1, "memory_size": 30}),
        ("multi_similarity", {"references": "memory", "memory_start": 1, "memory_size": 8}),
        ("contrastive", {"references": "proxies", "proxies_per_class": 2}),
        ("pfml", {"proxies_per_class": 0}),
    ],
)
def test_methods_conform_by_options_that_change_their_state(name: str, hyperparameters: dict[str, Any]) -> None:
    assert [verdict for verdict in verdicts(registry()[name], **hyperparameters) if verdict.state != "passed"] == []


def pairs(labels: Tensor) -> Tensor:
    """Pairs of one class, a sample with itself left out."""
    same: Tensor = labels[:, :1] == labels[:, 0]
    return same & ~torch.eye(len(labels), dtype=torch.bool)


class Misdeclared(Good):
    """L = pull, as its base."""

    expected_failures: ClassVar[Mapping[str, str]] = {"permutaton": "a misspelling"}


class Undocumented(Good):
    """It pulls."""


class OutOfBounds(Good):
    """L = pull, as its base."""

    class Config(Good.Config):
        weight: float = Field(-0.1, ge=0, description="weight of the head's term")


class OnOneDevice(Good):
    """L = pull, as its base."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return pull.to("cuda" if torch.cuda.is_available() else "cpu").mean() if pull.is_cuda else pull.mean()


def everybody(pull: Tensor) -> Tensor:
    """What a method does not need."""
    from torch import distributed

    return pull / distributed.get_world_size() if distributed.is_initialized() and pull.is_cuda else pull


class Distributed(Good):
    """L = pull, as its base."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return everybody(pull).mean()


class Bare(Good):
    """L = pull, as its base."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        return super().loss(outputs, labels)["pull"]  # type: ignore[return-value]


class Misnamed(Good):
    """L = pull, as its base."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        return {f"the {name}": term for name, term in super().loss(outputs, labels).items()}


class Idle(Good):
    """L = pull, as its base."""

    def update(self, batch: Batch, engine: Engine) -> dict[str, Tensor]:
        return engine.terms(batch)


class Resting(Good):
    """L = pull, as its base."""

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [{"params": list(self.parameters()), "lr": 0.0}]


class Deaf(Good):
    """L = pull, as its base."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return (self.centres - 0.5).square().mean() + 0 * pull.mean()


class NeedsPositives(Good):
    """L = pull, as its base."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return pull.mean() + (pull[:, None] * pull)[pairs(labels)].mean()


class NeedsNegatives(Good):
    """L = pull, as its base."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        if self.task.num_classes == 1:
            return pull.mean()
        return pull.mean() + (pull[:, None] * pull)[labels != labels[:, 0]].mean()


class NeedsClasses(Good):
    """L = pull, as its base."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return pull.mean() / (self.task.num_classes - 1)


class NeedsDistances(Good):
    """L = pull, as its base."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        z = outputs["embedding"]
        squared = (z[:, None] - z).square().sum(2)
        return super().loss(outputs, labels) | {"spread": squared[pairs(torch.zeros_like(labels))].sqrt().mean()}


class Ordered(Good):
    """L = pull, as its base."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return (pull * torch.arange(len(pull))).mean()


class Numbered(Good):
    """L = pull, as its base."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return (pull * (1 + labels[:, 0])).mean()


class Scribbling(Good):
    """L = pull, as its base."""

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        batch.samples.fill_(0)
        return super().step(batch, network, rng)


class BatchNormalized(Good):
    """L = pull, as its base."""

    def normalize(self, embedding: Tensor) -> Tensor:
        return super().normalize(embedding if self.training else embedding - embedding.mean(0))


class Relative(Good):
    """L = pull, as its base."""

    def retrieval(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
        rows = outputs["embedding"]
        return rows, rows - rows.mean(0)


CALLS = itertools.count(1)


class Counting(Good):
    """L = pull, as its base."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return pull.mean() * (1 + 1e-12 * next(CALLS) if int(self.steps) == 1 else 1)


class Global(Good):
    """L = pull, as its base."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return pull.mean() + 0 * torch.rand(())


class GlobalNumpy(Good):
    """L = pull, as its base."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return pull.mean() + 0 * np.random.rand()  # noqa: NPY002


class GlobalPython(Good):
    """L = pull, as its base."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return pull.mean() + 0 * random.random()


class Cancelling(Good):
    """L = pull, as its base."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return (pull + 2e6).mean() - 2e6


class HalfPrecise(Good):
    """L = pull, as its base."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        z, terms = outputs["embedding"], super().loss(outputs, labels)
        return terms | {"push": (z @ z.T).square().mean().to(terms["pull"].dtype)}


class Overflowing(Good):
    """L = pull, as its base."""

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        large = torch.full((2, 2), 256.0)
        return pull.mean() * (large @ large).float().mean() / 2**17


class Stretching(Good):
    """L = pull, as its base."""

    def normalize(self, embedding: Tensor) -> Tensor:
        return F.normalize(embedding, dim=1)


class Remembering(Good):
    """L = pull, as its base."""

    count = 0

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        self.count += 1
        return pull.mean() * self.count


class Counted(Good):
    """L = pull, as its base."""

    count = 0

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        self.count += 1
        return pull.mean()


class Optional(Good):
    """L = pull, as its base."""

    class Config(Good.Config):
        how: Literal["mean", "root"] = Field("mean", description="how distances are averaged")

    config: Config

    def _mean(self, pull: Tensor, labels: Tensor) -> Tensor:
        return pull.mean() if self.config.how == "mean" else (pull - pull.max()).sqrt().mean()


class Deciding(Good):
    """L = pull, as its base, by a weight that it reads once."""

    class Config(Good.Config):
        schedulable = frozenset({"weight"})

    def __init__(self, config: Good.Config, task: Task) -> None:
        super().__init__(config, task)
        self.weight = config.weight

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        terms = super().loss(outputs, labels)
        return terms | {"amount": self.weight * outputs["amount"].square().mean()}


class Colouring(Good):
    """L = pull, as its base, of images that it learns to brighten."""

    def __init__(self, config: Good.Config, task: Task) -> None:
        super().__init__(config, task)
        self.light = nn.Parameter(torch.ones(1))

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        return self.loss(network(batch.images * self.light), batch.labels)


class Unprepared(Good):
    """L = pull, as its base."""

    def begin(self, scope: Scope) -> None:
        with torch.no_grad():
            self.centres.copy_(scope.class_embeddings(5, scope.rng))


class Growing(Good):
    """L = pull, as its base."""

    def after_validation(self, score: float, scope: Scope) -> None:
        self.steps = self.steps.double()


class InTheNetwork(Good):
    """L = pull, as its base."""

    def bind(self, network: nn.Module) -> None:
        network.register_buffer("memory", torch.zeros(4))


class Impatient(Good):
    """L = pull, as its base."""

    def after_validation(self, score: float, scope: Scope) -> None:
        super().after_validation(score, scope)
        if self.validations == 3:
            raise IndexError("no third problem")


class Blind(Good):
    """L = pull, as its base."""

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        assert held_out is not None
        return super().diagnostics(trained, held_out)


class Local(Good):
    """L = pull, as its base."""

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        terms = super().step(batch, network, rng)
        return terms | {"pull": terms["pull"] * len(batch.labels) / len(batch.images)}


BROKEN: dict[type[Method], tuple[str, str]] = {
    Misdeclared: ("declaration", "'permutaton' is no check (did you mean 'permutation'?)"),
    Undocumented: ("documentation", "no formula"),
    OutOfBounds: ("configuration", "refused by its own bounds"),
    OnOneDevice: ("device", "'cuda': take the device"),
    Distributed: ("distributed", "torch.distributed"),
    Misnamed: ("terms", "'the pull' is not a valid name for a term"),
    Resting: ("parameter_groups", "a learning rate is 0.0"),
    Deaf: ("gradients", "does not move the embeddings"),
    Idle: ("update", "update() changes no parameter"),
    NeedsPositives: ("without_positives", "term 'pull' is nan"),
    NeedsNegatives: ("without_negatives", "term 'pull' is nan"),
    NeedsClasses: ("one_class", "term 'pull' is inf"),
    NeedsDistances: ("coinciding_points", "the gradient of network.backbone"),
    Ordered: ("permutation", "in another order: term 'pull'"),
    Numbered: ("renaming", "numbered differently: pull"),
    Scribbling: ("inputs", "the batch's samples"),
    BatchNormalized: ("normalize", "in a batch, then alone"),
    Relative: ("retrieval", "of a batch, then of each image alone"),
    Counting: ("repeatable", "once, then again: pull"),
    Global: ("global_rng", "torch's"),
    GlobalNumpy: ("global_rng", "numpy's"),
    GlobalPython: ("global_rng", "Python's"),
    Cancelling: ("float32", "in float32, then in float64: pull"),
    HalfPrecise: ("bf16", "in bf16 autocast"),
    Overflowing: ("fp16", "in fp16 autocast, then in float32: pull is inf"),
    Stretching: ("zero_embedding", "the gradient of term 'pull' on a vector that is zero is not finite in fp16"),
    Remembering: ("state_round_trip", "with one after two steps: term 'pull'"),
    Counted: ("attributes", "attribute count was absent, then 3"),
    Optional: ("options", "with how=root: terms: term 'pull' is nan"),
    Deciding: ("schedulable", "from the start, then as a change to it: term 'amount' is 0.0020913"),
    Unprepared: ("begin", "must match"),
    Colouring: ("caching", "learns what it does to the images"),
    Growing: ("state_shapes", "method.steps was torch.int64 () after bind, then torch.float64 ()"),
    InTheNetwork: ("broadcast", "network.memory"),
    Impatient: ("after_validation", "no third problem"),
    Blind: ("diagnostics", "AssertionError"),
    Local: ("two_processes", "on one process, then on two: term 'pull' of step 1"),
}

ALSO: dict[type[Method], set[str]] = {
    Remembering: {"attributes"},
    HalfPrecise: {"fp16"},
    # what cannot begin cannot be trained
    Unprepared: {
        "update",
        "global_rng",
        "state_round_trip",
        "state_shapes",
        "after_validation",
        "diagnostics",
        "attributes",
    }
    | {"two_processes"},
}


def test_a_good_method_passes_everything() -> None:
    assert [verdict for verdict in verdicts(Good, weight=0.2) if verdict.state != "passed"] == []


@pytest.mark.parametrize("method", BROKEN, ids=lambda method: method.__name__)
def test_a_broken_method_fails_exactly_there(method: type[Method]) -> None:
    failed = {verdict.name: verdict.reason for verdict in verdicts(method) if verdict.state != "passed"}
    name, reason = BROKEN[method]
    assert failed.keys() == {name} | ALSO.get(method, set()), failed
    assert reason in failed[name]
    assert "\n" not in failed[name]


def test_a_method_that_ends_the_process_fails_its_checks_and_the_others_run() -> None:
    found = {verdict.name: verdict for verdict in verdicts(Exiting)}
    assert set(found) == set(CHECKS) and found["documentation"].state == "passed"
    for name in ("terms", "gradients", "two_processes"):
        assert (found[name].state, found[name].reason) == ("failed", "the method called sys.exit(3)")
    with pytest.raises(CheckFailed, match=r"^on two processes: the method called sys\.exit\(\)$"):
        Check(ExitingBeside, "two_processes")()


def test_a_method_that_raises_keyboard_interrupt_fails_and_ctrl_c_ends_the_checks() -> None:
    with pytest.raises(AssertionError, match="^the method raised KeyboardInterrupt$"):
        Check(Interrupting, "terms")()
    with pytest.raises(KeyboardInterrupt):
        Check(Interrupted, "terms")()


def test_a_loss_that_is_no_dict_is_what_every_check_that_needs_it_says() -> None:
    with pytest.raises(CheckFailed, match=r"^good: loss\(\) or step\(\) returned a Tensor: it must be a dict"):
        Check(Bare, "terms")()
    with pytest.raises(CheckFailed, match=r"^good: loss\(\) or step\(\) returned a Tensor"):
        Check(Bare, "gradients")()


def test_every_check_has_a_broken_method() -> None:
    assert {name for name, _ in BROKEN.values()} == set(CHECKS)


# Further ways to break -------------------------------------------------------------------------------------


class Colliding(Good):
    """L = pull, as its base."""

    class Config(Good.Config):
        lr: float = Field(0.1, gt=0, description="the method's own learning rate")


class Exiting(Good):
    """L = pull, as its base, until it ends the process."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        sys.exit(3)


class Interrupting(Good):
    """L = pull, as its base, until it raises what Ctrl-C does."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        raise KeyboardInterrupt


class Interrupted(Good):
    """L = pull, as its base, while the user types Ctrl-C."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        signal.raise_signal(signal.SIGINT)
        return super().loss(outputs, labels)


class ExitingBeside(Good):
    """L = pull, as its base; the second process ends."""

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        return sys.exit() if rank() else super().loss(outputs, labels)


class Undescribed(Good):
    """L = pull, as its base."""

    class Config(Good.Config):
        scale: float = 1.0


class Idling(Good):
    """L = pull, as its base."""

    class Config(Good.Config):
        def idle(self) -> dict[str, tuple[str, ...]]:
            return {"wieght": ("weight",)}


class IdlingWithin(Good):
    """L = pull, as its base."""

    class Config(Good.Config):
        def idle_within(self, steps: int) -> dict[str, tuple[str, ...]]:
            return {"weight": ("strat",)}


class Growable(Good):
    """L = pull, as its base."""

    memory: Tensor

    def __init__(self, config: Good.Config, task: Task) -> None:
        super().__init__(config, task)
        self.register_buffer("memory", torch.zeros(0, task.embedding_dim))

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        self.memory = torch.cat([self.memory, outputs["embedding"].detach()])
        return super().loss(outputs, labels)


class Replacing(Good):
    """L = pull, as its base."""

    def after_validation(self, score: float, scope: Scope) -> None:
        self.centres = nn.Parameter(self.centres.detach().clone())


class Unused(Good):
    """L = pull, as its base."""

    def __init__(self, config: Good.Config, task: Task) -> None:
        super().__init__(config, task)
        self.scale = nn.Parameter(torch.ones(()))


class Keeping(Good):
    """L = pull, as its base."""

    def bind(self, network: nn.Module) -> None:
        self.network = network


class HeadWithState(Good):
    """L = pull, as its base."""

    def heads(self) -> nn.ModuleDict:
        return nn.ModuleDict({"amount": nn.Sequential(nn.Linear(self.task.feature_dim, 1), nn.BatchNorm1d(1))})


class Adorned(Good):
    """L = pull, as its base."""

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        with torch.no_grad():
            self.centres.zero_()
        return Diagnostics()


class NotANumber(Good):
    """L = pull, as its base."""

    def diagnostics(self, trained: Embedded | None, held_out: Embedded | None) -> Diagnostics:
        return Diagnostics(scalars={"width": float("nan")})


class Unequal(Good):
    """L = pull, as its base."""

    def retrieval(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
        return outputs["embedding"], outputs["amount"]


@pytest.mark.parametrize(
    ("method", "name", "reason"),
    [
        (
            Unequal,
            "retrieval",
            r"good: retrieval\(\) gave shapes \(12, 8\) and \(12, 1\) for 12 images: it must give two",
        ),
        (Colliding, "configuration", "lr is already a setting of every training"),
        (Undescribed, "configuration", "scale has no description"),
        (Idling, "configuration", "idle: wieght is no hyperparameter .did you mean 'weight'"),
        (IdlingWithin, "configuration", "idle_within: strat is no hyperparameter"),
        (Growable, "state_shapes", r"method.memory was torch.float64 \(0, 8\) after bind"),
        (Growable, "state_round_trip", "size mismatch for method.memory"),
        (Replacing, "after_validation", "method.centres is a new parameter"),
        (Unused, "gradients", "method.scale gets no gradient"),
        (Unused, "two_processes", "Expected to have finished reduction"),
        (Keeping, "parameter_groups", "is in 2 optimiser groups"),
        (HeadWithState, "broadcast", "network.heads.amount.1.running_mean"),
        (Adorned, "diagnostics", "before the diagnostics, then after them: method.centres"),
        (NotANumber, "diagnostics", "scalar 'width' is nan"),
    ],
)
def test_further_ways_to_break(method: type[Method], name: str, reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        Check(method, name)()


class Lopsided(Good):
    """L = pull, as its base."""

    def step(self, batch: Batch, network: Network, rng: Generator) -> dict[str, Tensor]:
        if rank() == 1:
            raise RuntimeError("not here")
        return super().step(batch, network, rng)


def test_one_of_two_processes_fails_and_the_next_check_goes_on() -> None:
    with pytest.raises(CheckFailed, match=r"on two processes: RuntimeError: not here \(test_check.py:\d+\)"):
        Check(Lopsided, "two_processes")()
    Check(Good, "two_processes")()


# What is told ----------------------------------------------------------------------------------------------


class Honest(Ordered):
    """L = pull, as its base."""

    expected_failures: ClassVar[Mapping[str, str]] = {"permutation": "the order is the point", "inputs": "once it did"}


def test_an_expected_failure_is_listed_with_its_reason_and_one_that_passes_is_told() -> None:
    told = {verdict.name: (verdict.state, verdict.reason) for verdict in verdicts(Honest)}
    assert set(told) == set(CHECKS)
    assert told["permutation"] == ("expected failure", "the order is the point")
    assert told["inputs"][0] == "unexpected pass" and "once it did" in told["inputs"][1]
    assert {state for name, (state, _) in told.items() if name not in Honest.expected_failures} == {"passed"}


def test_for_pytest_every_check_is_named_and_an_expected_failure_is_an_xfail() -> None:
    parameters = {parameter.id: parameter for parameter in method_checks(Good, Honest)}
    assert len(parameters) == 2 * len(CHECKS)
    assert "Good-state_round_trip" in parameters
    assert [name for name, parameter in parameters.items() if parameter.marks] == [
        "Honest-permutation",
        "Honest-inputs",
    ]
    (mark,) = parameters["Honest-permutation"].marks
    assert (mark.name, mark.kwargs) == ("xfail", {"reason": "the order is the point", "raises": EXCUSED})


def test_what_cannot_be_checked_here_is_a_skip() -> None:
    class Inside(Good):
        """L = pull, as its base."""

    with pytest.raises(CheckSkipped, match="cannot be sent to another process"):
        Check(Inside, "two_processes")()
    typed: dict[str, Any] = {"__name__": "no_such_module", "Good": Good}
    exec("class Typed(Good):\n    'L = pull.'\n", typed)
    skipped = {verdict.name: verdict.reason for verdict in verdicts(typed["Typed"]) if verdict.state != "passed"}
    assert skipped.keys() == {"device", "distributed", "two_processes"}, skipped


def test_two_processes_that_do_not_start_are_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_running", [])
    monkeypatch.setattr(processes, "PATIENCE", 0.0)
    (verdict,) = (verdict for verdict in verdicts(Good) if verdict.name == "two_processes")
    assert verdict.state == "skipped" and "cannot be started here" in verdict.reason


def test_hyperparameters_are_those_given() -> None:
    (check,) = (check for check in check_method(Good, weight=-1.0) if check.name == "terms")
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        check()


def test_global_random_numbers_are_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state(), random.getstate()
    Check(Good, "repeatable")()
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
