"""By which metrics of their tests a search's trials are compared."""

from dataclasses import dataclass

from orchestrator.evaluation.measures import YARDSTICK, is_minimised
from orchestrator.storage.ledger import Ledger


@dataclass(frozen=True)
class MetricGoal:
    """A metric of tests, and whether a larger value of it is better."""

    metric: str
    larger: bool = True

    def better(self, value: float, other: float) -> bool:
        """Whether `value` is better than `other`."""
        return value > other if self.larger else value < other


def goals(ledger: Ledger) -> list[MetricGoal]:
    """The objectives that a test measures, the first first. Where it measures none (the objective is a loss, or a cost)
    the usual yardstick."""
    objectives = [(ledger.metric, ledger.mode)]
    if ledger.second is not None:
        objectives.append((ledger.second, str(ledger.config["second_objective"]["mode"])))
    held_out_goals = [
        MetricGoal(name.removeprefix("val/"), mode == "max") for name, mode in objectives if is_held_out(name)
    ]
    return held_out_goals or [MetricGoal(YARDSTICK, not is_minimised(YARDSTICK))]


def is_held_out(objective: str) -> bool:
    """Whether an objective is measured on the held-out set, as metrics are: a loss is of the training."""
    return objective.startswith("val/")


def measured_on(ledger: Ledger) -> str:
    """Where the objective is measured, for a sentence: ` on held-out classes`; empty for a loss."""
    if not is_held_out(ledger.metric):
        return ""
    return " on the TEST classes (selection: test)" if ledger.selection == "test" else " on held-out classes"
