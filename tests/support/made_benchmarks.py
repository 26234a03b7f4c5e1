"""A benchmark whose trainings are made, and its searches side by side."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.made_pages import made, spread
from support.made_runner import OneAtATime

from orchestrator.execution.protocol import Failed, TrialSource, Validated
from orchestrator.search.benchmark import Benchmark
from orchestrator.search.conductor import Conductor
from orchestrator.storage.ledger import Ledger

EPOCHS = 6


LEVELS = {"pfml": 0.5, "proxy_anchor": 0.4, "multi_similarity": 0.3}
"""The test of each method in the made trainings."""


@dataclass
class MadeRunner(OneAtATime):
    """Trainings with made results, one at a time; the driver is stopped after so many of them."""

    stop_after: float = float("inf")
    reports: int = 0
    ran: list[str] = field(default_factory=list)
    failing: tuple[str, ...] = ()
    stage: str = "starting"
    own_processes: bool = False

    def run(self, conductor: TrialSource) -> None:
        assert isinstance(conductor, Conductor)
        while not conductor.is_finished:
            work = conductor.next()
            if work is None:
                return
            settings = work.experiment.flat()
            method, seed = settings["method"], settings["seed"]
            self.ran.append(f"{method} {work.trial_id}")
            if method in self.failing:
                conductor.report(Failed(work.trial_id, "the loss is NaN"))
                continue
            level = LEVELS[method] - 0.1 * abs(settings.get("alpha", 1) / 60 - 0.3)
            last = work.stop_after or EPOCHS
            for number in range(1, last + 1):
                self.reports += 1
                if self.reports > self.stop_after:
                    conductor.stopping = True
                    return
                test = {"map_at_r": LEVELS[method] + 0.01 * (seed % 3) + 0.001 * (number % 2), "recall_at_1": 0.9}
                metrics = {"val/map_at_r": level * (1 - 0.5**number), "train/loss": 1.0, "epoch": float(number)}
                done = number == last
                tested = test if work.test and done else {}
                if conductor.report(Validated(work.trial_id, number, metrics, 0.5, finished=done, test=tested)):
                    break


def asked_for(*methods: str, **changes: Any) -> Benchmark:
    given = {"dataset": "glyphs-small", "budget": {"epochs": 60}} | changes
    return Benchmark(name="b", methods=list(methods), overrides={"epochs": EPOCHS}, changes=given)


def side_by_side(folder: Path, tests: dict[str, list[float]], **changes: Any) -> dict[str, Ledger]:
    order = sorted(range(12), key=lambda n: -spread(12)[n]["delta"])
    return {
        label: made(folder / label, spread(12), lambda p: p["delta"], finals={f"{order[0]:04d}": values}, **changes)
        for label, values in tests.items()
    }
