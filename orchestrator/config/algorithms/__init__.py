"""The algorithms that choose points, each a file of this folder and a line of the table."""

from collections.abc import Mapping
from typing import Any

from orchestrator import parts
from orchestrator.config.algorithms.base import Algorithm
from orchestrator.config.algorithms.cmaes import CmaEs
from orchestrator.config.algorithms.gp import GaussianProcess
from orchestrator.config.algorithms.grid import Grid
from orchestrator.config.algorithms.hub import HubSampler, is_hub_name
from orchestrator.config.algorithms.nsga2 import Nsga2
from orchestrator.config.algorithms.qmc import Qmc
from orchestrator.config.algorithms.random import Random
from orchestrator.config.algorithms.tpe import Tpe
from orchestrator.errors import InputError
from orchestrator.problems import Problem, suggestion

BUILT_IN: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Tpe(),
        GaussianProcess(),
        CmaEs(),
        Nsga2(),
        Qmc(),
        Random(),
        Grid(),
    )
}


class _Table(parts.PartTable):
    """Those of OptunaHub's registry are in it too, but not listed."""

    def __getitem__(self, name: str) -> Any:
        return HubSampler(name) if is_hub_name(name) else super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        return is_hub_name(name) or super().__contains__(name)


ALGORITHMS: Mapping[str, Algorithm] = _Table("algorithms", BUILT_IN, Algorithm)
"""By name, in the order in which messages list them."""


def check_algorithm_name(name: str) -> str:
    """The name of an algorithm; InputError if there is none of it."""
    if name not in ALGORITHMS:
        raise InputError(Problem(rule="unknown", suggestion=suggestion(name, ALGORITHMS)))
    return name


def is_exhaustive(name: object) -> bool:
    """Whether the algorithm of this name, of a file or a journal, tries every point."""
    return isinstance(name, str) and name in ALGORITHMS and ALGORITHMS[name].exhaustive


def learns(name: object) -> bool:
    """Whether the points of the algorithm of this name depend on results, as those of an unknown one may."""
    return not (isinstance(name, str) and name in ALGORITHMS) or ALGORITHMS[name].learns
