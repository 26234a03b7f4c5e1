"""Checks of what a method keeps between steps, and of its hooks around a validation."""

import math
import re
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from orchestrator.check.subject import (
    NETWORK,
    SCORES,
    TRAINING,
    Run,
    Subject,
    check,
    require,
    require_close,
    state_of,
    training_state,
)
from orchestrator.method import Diagnostics, Embedded, Method
from orchestrator.networks.backbones import build_backbone
from orchestrator.networks.embedding import EmbeddingNetwork
from orchestrator.training.checkpoint import load_checkpoint, save_checkpoint


@check
def state_round_trip(subject: Subject) -> None:
    """Two steps, save, load, one step equals three steps, bit for bit; validations included."""
    uninterrupted = Run(subject)
    for _ in range(2):
        uninterrupted.step()
    uninterrupted.validate()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        parts = {"learner": uninterrupted.learner.state_dict(), "optimizer": uninterrupted.optimizer.state_dict()}
        save_checkpoint(path, parts | {"rng": uninterrupted.rng.get_state(), "global_rng": torch.get_rng_state()})
        saved = load_checkpoint(path)
    ends = []
    for run in (uninterrupted, Run(subject, seed=1, begun=True)):
        if run is not uninterrupted:
            run.learner.load_state_dict(saved["learner"])
            run.optimizer.load_state_dict(saved["optimizer"])
            run.rng.set_state(saved["rng"])
            run.steps, run.validations = uninterrupted.steps - 1, uninterrupted.validations - 1
        torch.set_rng_state(saved["global_rng"])
        values = run.step()
        run.validate()
        ends.append(({f"term '{name}'": value for name, value in values.items()}) | state_of(run.learner))
    require_close(ends[0], ends[1], 0.0, "without an interruption, then with one after two steps")


@check
def state_shapes(subject: Subject) -> None:
    """After `bind` no parameter or buffer comes, goes, or changes its shape or type: checkpoints load."""
    run = Run(subject, begun=True)

    def describe() -> dict[str, str]:
        return {name: f"{value.dtype} {tuple(value.shape)}" for name, value in run.learner.state_dict().items()}

    before = describe()
    run.begin()
    for _ in range(2):
        run.step()
        run.validate()
    after = describe()
    for name in before.keys() | after.keys():
        was, now = before.get(name, "absent"), after.get(name, "absent")
        require(was == now, f"{name} was {was} after bind, then {now}")


@check
def broadcast(subject: Subject) -> None:
    """Its state is out of DDP's broadcast: in buffers of its own, none in the network or its heads."""
    learner = subject.learner()
    backbone = build_backbone(NETWORK, channels=1, weights="random")
    bare = EmbeddingNetwork(backbone, TRAINING.embedding_dim, TRAINING.pooling)
    expected = {f"network.{name}" for name, _ in bare.named_buffers()} | set(learner.state_outside_synchronisation())
    sent = {name for name, _ in learner.named_buffers()} - expected
    require(not sent, f"sent to all processes at every step: {', '.join(sorted(sent))}")


@check
def begin(subject: Subject) -> None:
    """Its work before the first step works, and leaves finite numbers in the parameters it was given."""
    run = Run(subject, begun=True)
    before = {name: id(parameter) for name, parameter in run.learner.named_parameters()}
    run.begin()
    _require_usable(run, before)


@check
def after_validation(subject: Subject) -> None:
    """Its work after a validation works, leaves finite parameters, and is done in a final run too."""
    kind = subject.method
    require(
        kind.needs_validation or kind.after_validation is Method.after_validation,
        "it is not called where nothing is held out, as in a final run: set needs_validation = True",
    )
    run = Run(subject)
    before = {name: id(parameter) for name, parameter in run.learner.named_parameters()}
    for _ in SCORES:
        run.step()
        run.validate()
    _require_usable(run, before)


def _require_usable(run: Run, before: dict[str, int]) -> None:
    """Require the same parameters, all finite, and a step that works."""
    for name, parameter in run.learner.named_parameters():
        require(before.get(name) == id(parameter), f"{name} is a new parameter that no optimiser knows: use copy_")
    for name, parameter in run.learner.named_parameters():
        require(bool(torch.isfinite(parameter).all()), f"{name} is not finite")
    require(all(math.isfinite(value) for value in run.step().values()), "the next step's loss is not finite")


@check
def diagnostics(subject: Subject) -> None:
    """Its diagnostics, in a search, a final run or a test, are finite and plain, and change nothing that they see."""
    run = Run(subject)
    run.step()
    embedded, held_out = run.window.collect(), run.held_out()
    # a method may reset what it counted since the last validation, so its own buffers may change
    before = training_state(run) | _outputs_of(embedded, held_out)
    for when, arguments in {
        "a search": (embedded, held_out),
        "a final run": (embedded, None),
        "a test": (None, held_out),
    }.items():
        reported = run.method.diagnostics(*arguments)
        require(isinstance(reported, Diagnostics), f"in {when}: a {type(reported).__name__}, not Diagnostics")
        for name in (*reported.scalars, *reported.arrays, *reported.tables):
            plain = isinstance(name, str) and bool(re.fullmatch(r"[\w.-]+", name))
            require(plain, f"in {when}: {name!r} is not a valid name for a curve or a file")
        for name, value in reported.scalars.items():
            finite = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            require(finite, f"in {when}: scalar '{name}' is {value!r}, it should be a finite number")
        for name, array in reported.arrays.items():
            kind = type(array).__name__
            require(isinstance(array, np.ndarray), f"in {when}: array '{name}' is a {kind}, not one of numpy's")
            require(
                array.dtype.kind in "biufUS", f"in {when}: array '{name}' is of {array.dtype}, not of numbers or text"
            )
        for name, table in reported.tables.items():
            lengths = {len(column) for column in table.values()}
            require(len(lengths) <= 1, f"in {when}: the columns of table '{name}' are of lengths {sorted(lengths)}")
            for column, values in table.items():
                odd = [value for value in values if not isinstance(value, str | int | float | None)]
                require(not odd, f"in {when}: table '{name}', column '{column}': {_brief(odd)} is no number or text")
    after = training_state(run) | _outputs_of(embedded, held_out)
    require_close(before, after, 0.0, "before the diagnostics, then after them")


def _outputs_of(seen: Embedded | None, held_out: Embedded | None) -> dict[str, Tensor]:
    """Copies of what is passed to the diagnostics."""
    return {
        f"{which}.{name}": value.clone()
        for which, part in (("trained", seen), ("held_out", held_out))
        if part is not None
        for name, value in (part.outputs | {"labels": part.labels, "samples": part.samples}).items()
    }


def _brief(odd: list[object]) -> str:
    return " ".join(repr(odd[:1])[1:-1].split())[:80]
