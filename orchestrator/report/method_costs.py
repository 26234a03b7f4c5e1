"""What a training step of each method costs, as benchmarks/method_costs.py measured it."""

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from orchestrator.storage.outputs import Output

COSTS = Path(__file__).with_name("method_costs.json")
REFERENCE = "proxy_anchor"
DEAR = 10.0
"""How many times the seconds of another method are worth a warning."""


class MethodCost(Output):
    """Of a training step with 128 images and embeddings of 512 numbers."""

    seconds: float
    times: float
    """Its seconds over those of proxy_anchor."""
    megabytes: int
    """Of all tensors at once, with parameters and the optimiser's state."""
    gpu_seconds: float | None = None
    """The same step on a GPU: the median of five."""


class Costs(NamedTuple):
    """Of all methods by name, for each number of classes; of what machine and date."""

    machine: str
    date: str
    of: dict[str, dict[int, MethodCost]]
    gpu: str = ""
    """GPU and date of `gpu_seconds`."""


@cache
def method_costs() -> Costs:
    """What was measured."""
    content = json.loads(COSTS.read_text(encoding="utf-8"))
    methods = {
        name: {int(classes): MethodCost(**cost) for classes, cost in sizes.items()}
        for name, sizes in content["methods"].items()
    }
    return Costs(content["machine"], content["date"], methods, content.get("gpu", ""))


def cost_of(method: str, classes: int) -> MethodCost | None:
    """Of the measured number of classes that is nearest in proportion; None for a method that was not measured."""
    costs = method_costs().of.get(method)
    if costs is None:
        return None
    return costs[min(costs, key=lambda size: max(size, classes) / min(size, max(1, classes)))]


def dear_method(methods: Sequence[str], classes: int, *, on_gpu: bool = False) -> str | None:
    """What to know of the dearest of these methods, if it costs ten times another one of them, or, if it is alone,
    ten times the reference; None if none does."""
    costs = {name: cost for name in methods if (cost := cost_of(name, classes)) is not None}
    reference = cost_of(REFERENCE, classes)
    if on_gpu:  # `times` were measured in turn, on a CPU
        costs = {name: cost for name, cost in costs.items() if cost.gpu_seconds is not None}
    if not costs or reference is None:
        return None
    seconds = {name: cost.gpu_seconds or 0.0 if on_gpu else cost.seconds for name, cost in costs.items()}
    dearest, other = max(seconds, key=seconds.__getitem__), min(seconds, key=seconds.__getitem__)
    if len(costs) > 1:
        times = seconds[dearest] / seconds[other]
    elif on_gpu:
        other, times = REFERENCE, seconds[dearest] / (reference.gpu_seconds or math.inf)
    else:
        other, times = REFERENCE, costs[dearest].times
    if times < DEAR:
        return None
    measured = method_costs()
    where = measured.gpu if on_gpu else f"{measured.machine}, {measured.date}"
    return (
        f"{dearest}: a training step takes {times:.0f} times the seconds of one of {other}, without the backbone's "
        f"({where}; orchestrator methods --cost)"
    )
