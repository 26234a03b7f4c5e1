"""The algorithms that choose points, each a file of this folder and a line of the table."""

from collections.abc import Mapping

from orchestrator import parts
from orchestrator.config.algorithms.base import Algorithm
from orchestrator.config.algorithms.cmaes import CmaEs
from orchestrator.config.algorithms.gp import GaussianProcess
from orchestrator.config.algorithms.grid import Grid
from orchestrator.config.algorithms.nsga2 import Nsga2
from orchestrator.config.algorithms.qmc import Qmc
from orchestrator.config.algorithms.random import Random
from orchestrator.config.algorithms.tpe import Tpe

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
ALGORITHMS: Mapping[str, Algorithm] = parts.PartTable("algorithms", BUILT_IN, Algorithm)
"""By name, in the order in which messages list them."""


def is_exhaustive(name: object) -> bool:
    """Whether the algorithm of this name, of a file or a journal, tries every point."""
    return isinstance(name, str) and name in ALGORITHMS and ALGORITHMS[name].exhaustive


def learns(name: object) -> bool:
    """Whether the points of the algorithm of this name depend on results, as those of an unknown one may."""
    return not (isinstance(name, str) and name in ALGORITHMS) or ALGORITHMS[name].learns
