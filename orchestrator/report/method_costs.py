"""What a training step of each method costs, as benchmarks/method_costs.py measured it."""

import json
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


class Costs(NamedTuple):
    """Of all methods by name, for each number of classes; of what machine and date."""

    machine: str
    date: str
    of: dict[str, dict[int, MethodCost]]


@cache
def method_costs() -> Costs:
    """What was measured."""
    content = json.loads(COSTS.read_text(encoding="utf-8"))
    methods = {
        name: {int(classes): MethodCost(**cost) for classes, cost in sizes.items()}
        for name, sizes in content["methods"].items()
    }
    return Costs(content["machine"], content["date"], methods)


def cost_of(method: str, classes: int) -> MethodCost | None:
    """Of the measured number of classes that is nearest in proportion; None for a method that was not measured."""
    found = method_costs().of.get(method)
    if found is None:
        return None
    return found[min(found, key=lambda size: max(size, classes) / min(size, max(1, classes)))]


def dear_method(methods: Sequence[str], classes: int) -> str | None:
    """What to know of the dearest of these methods, if it costs ten times another one of them, or, if it is alone,
    ten times the reference; None if none does."""
    costs = {name: cost for name in methods if (cost := cost_of(name, classes)) is not None}
    if not costs:
        return None
    dearest = max(costs, key=lambda name: costs[name].seconds)
    other = min(costs, key=lambda name: costs[name].seconds)
    times = costs[dearest].times if len(costs) == 1 else costs[dearest].seconds / costs[other].seconds
    if times < DEAR:
        return None
    measured = method_costs()
    return (
        f"{dearest}: a training step takes {times:.0f} times the seconds of one of "
        f"{REFERENCE if len(costs) == 1 else other}, without the backbone's ({measured.machine}, {measured.date}; "
        "orchestrator methods --cost)"
    )
