"""What a search's page concludes from its trials, and how often it is right: searches whose truth is set, judged by the
product's own functions.

    python benchmarks/conclusions.py settings [--searches 1000]

`settings`: how often a setting is said to matter, or a range to be too narrow, where nothing has an effect, and where
one setting has. The tables are in verdicts.md.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search
from orchestrator.report.findings import Findings
from orchestrator.search.study import Study
from orchestrator.storage.events import FORMAT
from orchestrator.storage.ledger import Ledger

Rng = np.random.Generator
Point = Mapping[str, Any]
Curve = Sequence[float]
SECONDS = 60.0
"""Of training, between two validations."""

RANGES: dict[str, Any] = {
    "delta": {"low": 0.1, "high": 0.35},
    "alpha": {"low": 0.1, "high": 6, "log": True},
    "proxies_per_class": {"low": 1, "high": 30},
}
MIXED: dict[str, Any] = RANGES | {
    "lr": [0.001, 0.01],
    "weight_decay": [0.0, 0.0001, 0.001],
    "optimizer": ["adamw", "sgd", "adam"],
}


def search_over(space: Mapping[str, Any], trials: int, **fields: Any) -> Search:
    """A search over a space of PFML."""
    raw = {"method": "pfml", "dataset": "cub200", "space": space, "num_trials": trials, "settings": {"epochs": 10}}
    return resolve_search(raw | fields, name="made", source="made.yaml")


def ledger_of(
    search: Search, trials: Sequence[tuple[Point, Curve, str]], sizes: Mapping[str, Any] | None = None
) -> Ledger:
    """The ledger of a search that never ran: each trial's point, values and state."""
    ledger, now = Ledger(), itertools.count()

    def event(event: str, **fields: Any) -> None:
        ledger.apply({"event": event, "time": next(now), **fields})

    config: dict[str, Any] = {"config": search.model_dump(), "dataset": search.dataset, "method": "pfml", "tags": {}}
    config |= {"objective": search.objective.model_dump(), "format": FORMAT, "sizes": sizes}
    event("search_started", name=search.name, search_id="made", params={}, **config)
    settings = dict(search.settings)
    for number, (point, curve, state) in enumerate(trials):
        trial: dict[str, Any] = {"trial_id": f"{number:04d}"}
        event("trial_started", **trial, kind="trial", params=dict(point), config=settings | dict(point), idle={})
        for place, value in enumerate(curve, start=1):
            metrics = {search.objective.metric: value, "train/loss": 1.0}
            event("validation", **trial, validation=place, metrics=metrics, seconds=SECONDS)
        event("trial_ended", **trial, state=state, reason=None)
    event("search_ended", state="done", best=None)
    return ledger


def drawn(search: Search, rng: Rng, value: Callable[[Point], float]) -> list[tuple[Point, Curve, str]]:
    """Trials of one validation each, at points that the search's own algorithm asks for."""
    study = Study(search.model_copy(update={"seed": int(rng.integers(2**31))}))
    trials: list[tuple[Point, Curve, str]] = []
    for number in range(search.num_trials or 0):
        trial_id = f"{number:04d}"
        point = study.ask(trial_id, number)
        assert point is not None
        study.report(trial_id, 1, result := value(point))
        study.tell(trial_id, "done")
        trials.append((point, [result], "done"))
    return trials


# Which settings matter ---------------------------------------------------------------------------------------


def delta_of(shape: str, place: float) -> float:
    """An effect of variance 1 over a range from 0 to 1."""
    if shape == "line":
        return math.sqrt(12) * (place - 0.5)
    if shape == "bowl":
        return -math.sqrt(180) * ((place - 0.5) ** 2 - 1 / 12)
    return 0.0


SETTINGS: tuple[tuple[str, Mapping[str, Any], str, int], ...] = tuple(
    (name, space, algorithm, trials)
    for name, space in (("3 ranges", RANGES), ("3 ranges, 3 lists", MIXED))
    for algorithm in ("random", "tpe")
    for trials in (12, 40, 100)
)


def settings(searches: int) -> None:
    """Searches in which nothing has an effect; then delta has half of the variance."""
    print("| space | algorithm | trials | a setting mattered | a range too narrow | a line is seen | a bowl is seen |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name, space, algorithm, trials in SETTINGS:
        search = search_over(space, trials, algorithm=algorithm)
        wrong = narrow = 0
        for number in range(searches):
            findings = judged(search, np.random.default_rng([number, trials]), "none")
            wrong += bool(findings.evidence.mattered)
            narrow += wide(findings)
        seen = {
            shape: sum(
                "delta" in judged(search, np.random.default_rng([number, trials, 1]), shape).evidence.mattered
                for number in range(searches // 4)
            )
            for shape in ("line", "bowl")
        }
        shares = [f"{wrong / searches:.1%}", f"{narrow / searches:.1%}"]
        shares += [f"{4 * seen[shape] / searches:.0%}" for shape in ("line", "bowl")]
        print(f"| {name} | {algorithm} | {trials} | {' | '.join(shares)} |", flush=True)


def judged(search: Search, rng: Rng, shape: str) -> Findings:
    """The findings of a search in which delta has this effect, as large as chance, and nothing else has any."""
    noise = rng.normal(0.5, 0.02, search.num_trials)
    values = iter(noise)

    def value(point: Point) -> float:
        return float(next(values) + 0.02 * delta_of(shape, (point["delta"] - 0.1) / 0.25))

    return Findings.of(ledger_of(search, drawn(search, rng, value)))


def wide(findings: Findings) -> bool:
    """Whether the page says that a range should be wider, or another one."""
    return findings.widen.startswith("Yes") or "narrower" in findings.widen


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("settings",))
    parser.add_argument("--searches", type=int, default=1000)
    asked = parser.parse_args()
    settings(asked.searches)
