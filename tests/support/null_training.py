"""Trainings on the null device, in a process that sees it: steps, validations, a checkpoint, and a resume."""

import contextlib
import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import training_loops
from support.null_cuda import counts
from torch import Tensor

from methods import anti_collapse
from orchestrator.check.subject import NETWORK
from orchestrator.networks.backbones import BACKBONES
from orchestrator.training import loop
from orchestrator.training.engine import Engine
from orchestrator.training.repeatable import fixed_operations

BACKBONE_SETTINGS: dict[str, dict[str, Any]] = {
    name: {"method": "proxy_anchor", "weights": "random", "backbone": name} for name in BACKBONES if name != "small_cnn"
} | {
    "LoRA": {"method": "proxy_anchor", "weights": "random", "backbone": "vit_small", "lora_rank": 2},
    "live batch norm": {
        "method": "proxy_anchor",
        "weights": "random",
        "backbone": "resnet18",
        "freeze_batch_norm": False,
    },
}
BACKBONE_SETTINGS["small_cnn"] = {"method": "proxy_anchor"}
for name in ("vit_small", "vit_small_in21k", "dino_small", "LoRA"):  # they take images of 224 pixels
    BACKBONE_SETTINGS[name]["augmentation"] = "random_crop_224"


@contextlib.contextmanager
def numbers_without_kernels() -> Iterator[None]:
    """What only kernels can say: of the rows that a mask selects there are none, and one of zeros stands for them;
    fp16's scale is 0, which is allowed."""
    rate: Callable[..., Tensor] = anti_collapse.coding_rate

    def of_a_row_at_least(rows: Tensor, *rest: Any) -> Tensor:
        return rate(rows if len(rows) else rows.new_zeros(1, rows.shape[1]), *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anti_collapse, "coding_rate", of_a_row_at_least)
        patch.setattr(loop, "SMALLEST_SCALE", 0.0)
        yield


def settings_of(name: str, precision: str) -> dict[str, Any]:
    """Those of a variant of a method, or of a backbone."""
    settings = BACKBONE_SETTINGS.get(name) or {"backbone": NETWORK.name, **training_loops.VARIANTS[name]}
    return {**settings, "device": "cuda", "precision": precision}


@dataclasses.dataclass
class Trained:
    """What a training of two validations did that was interrupted after the first."""

    fault: str | None = None
    launches: int = 0
    """The most of a step: kernels, and products of libraries."""
    waits: int = 0
    """The fewest of a step: a step may wait for the losses of those before it."""
    unordered: list[str] = dataclasses.field(default_factory=list)
    """Operations that torch says have no fixed order."""


@contextlib.contextmanager
def counted_steps() -> Iterator[list[tuple[int, int]]]:
    """Launches and waits of each step that is taken in the block."""
    steps: list[tuple[int, int]] = []
    step = Engine.step

    def counted(*arguments: Any) -> dict[str, Tensor]:
        before = counts().launches, counts().waits
        terms = step(*arguments)
        steps.append((counts().launches - before[0], counts().waits - before[1]))
        return terms

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "step", counted)
        yield steps


def trained(name: str, precision: str, data: Path, **extra: Any) -> Trained:
    """A training as a trial runs it, on the null device."""
    settings = settings_of(name, precision) | extra
    with (
        tempfile.TemporaryDirectory() as folder,
        numbers_without_kernels(),
        fixed_operations("cuda") as unordered,
        counted_steps() as steps,
    ):
        try:
            first = training_loops.train(Path(folder), data, settings, take=1)
            both = training_loops.train(Path(folder), data, settings)
        except Exception as error:
            return Trained(f"{type(error).__name__}: {error}")
    numbers = [validation[0] for validation in first + both]
    launches, waits = zip(*steps[1:], strict=True)
    wrong = None if numbers == [1, 1, 2] else f"validations {numbers}"
    return Trained(wrong, max(launches), min(waits), sorted(unordered))


def main(data: Path, names: list[str], precisions: list[str], extra: dict[str, Any]) -> None:
    """Prints each training as JSON, by its name and precision."""
    assert torch.cuda.is_available() and not torch.backends.cudnn.enabled
    results = {
        f"{name}, {precision}": dataclasses.asdict(trained(name, precision, data, **extra))
        for precision in precisions
        for name in names
    }
    print(json.dumps(results))


def run() -> None:
    """`main`, as the command's argument asks."""
    request = json.loads(sys.argv[1])
    main(Path(request["data"]), request["names"], request["precisions"], request["extra"])
