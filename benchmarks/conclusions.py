"""What a search's page concludes from its trials, and how often it is right: searches whose truth is set, judged by the
product's own functions.

    python benchmarks/conclusions.py settings|steps|chances|rising [--searches 400]

`settings`: how often a setting is said to matter, or a range to be too narrow, where nothing has an effect, and where
one setting has. `steps`: what the first of the next steps gains, and what another would have. `chances`: how often more
trials better the best, as said and as it happens. `rising`: how often a level curve is said to rise. The tables are in
verdicts.md.
"""

import argparse
import itertools
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import yaml  # type: ignore[import-untyped]

from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search
from orchestrator.report.findings import Findings
from orchestrator.report.next_steps import next_steps, outlook_of
from orchestrator.report.steps import ProposedStep
from orchestrator.search.study import Study
from orchestrator.storage.events import FORMAT, parse
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
        ledger.apply(parse({"event": event, "time": next(now), **fields}))

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
            wrong += bool(findings.evidence.real_effects)
            narrow += wide(findings)
        seen = {
            shape: sum(
                "delta" in judged(search, np.random.default_rng([number, trials, 1]), shape).evidence.real_effects
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


# What to run next --------------------------------------------------------------------------------------------

VALIDATIONS = 10
SCATTER, OF_SEED = 0.003, 0.004
"""Deviations of a validation, and of a training with another seed."""
HEIGHT = 0.25
"""Of the learning curve."""


class World(NamedTuple):
    """An objective: a bowl over the places 0 to 1 of the ranges, whose middle may lie beyond them."""

    middle: tuple[float, ...]
    weight: tuple[float, ...]
    rate: float
    """The training is so many times as long as its curve's time constant."""

    @classmethod
    def drawn(cls, rng: Rng) -> "World":
        middle = tuple(float(rng.uniform(-0.4, 1.4)) for _ in RANGES)
        return cls(middle, tuple(float(w) for w in rng.uniform(0.005, 0.1, len(RANGES))), float(rng.uniform(0.7, 6)))

    def truth(self, point: Point, length: float = 1.0) -> float:
        """What a training of this length (1: the first search's) has at its end, without chance."""
        far = sum(
            w * (place(key, point[key]) - m) ** 2 for key, m, w in zip(RANGES, self.middle, self.weight, strict=True)
        )
        return 0.8 - far - HEIGHT * math.exp(-self.rate * length)

    def curve(self, rng: Rng, point: Point, length: int = 1) -> list[float]:
        seed = OF_SEED * float(rng.normal())
        ends = [(t + 1) / VALIDATIONS for t in range(length * VALIDATIONS)]
        return [self.truth(point, end) + seed + SCATTER * float(rng.normal()) for end in ends]


def place(key: str, value: float) -> float:
    """Of a value in its range, 0 to 1."""
    low, high, log = (RANGES[key].get(part) for part in ("low", "high", "log"))
    return math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)


def point_in(rng: Rng, ranges: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """A random point."""
    point = {}
    for key, found in ranges.items():
        low, high = found["low"], found["high"]
        u = float(rng.random())
        point[key] = low * (high / low) ** u if found.get("log") else low + u * (high - low)
        point[key] = round(point[key]) if key == "proxies_per_class" else point[key]
    return point


class Action(NamedTuple):
    """What a step's command does."""

    rule: str
    ranges: Mapping[str, Any] = RANGES
    trials: int = 0
    started: int = 0
    """How many of the best trials it begins with."""
    length: int = 1

    @property
    def cost(self) -> int:
        """In trainings of the first search."""
        return self.trials * self.length

    @classmethod
    def of(cls, step: ProposedStep, have: int) -> "Action":
        words = shlex.split(step.command or "")
        given = {key: value for key, value in itertools.pairwise(words) if key.startswith("--")}
        ranges = dict(RANGES)
        for key, text in itertools.pairwise(words):
            if key == "--range":
                name, _, found = text.partition("=")
                ranges[name] = yaml.safe_load(found)
        if step.rule not in ("widen", "longer", "narrow", "too_few", "improves"):
            return cls(step.rule)
        trials = int(given["--num-trials"]) - (have if "resume" in words else 0)
        started = int(given["--start-from"].rpartition(":")[2]) if "--start-from" in given else 0
        return cls(step.rule, ranges, trials, started, int(given.get("--epochs", 10)) // 10)

    def gain(self, world: World, rng: Rng, trials: Sequence[tuple[Point, Curve, str]]) -> float:
        """By how much the truth of the best, as it seems, is better afterwards."""
        ranked = sorted(trials, key=lambda trial: -max(trial[1]))
        first = ranked[0][0]
        points = [trial[0] for trial in ranked[: self.started]]
        points += [point_in(rng, self.ranges) for _ in range(self.trials - len(points))]
        seen = [(max(world.curve(rng, point, self.length)), point, self.length) for point in points]
        _, best, length = max([(max(ranked[0][1]), first, 1), *seen], key=lambda one: one[0])
        return world.truth(best, length) - world.truth(first)


def steps(searches: int) -> None:
    """Regret: what the best of the possible steps would have gained in the time that the first one takes (a part of it
    in proportion), less what the first one gains."""
    print("| trials | first step | share | it gains | regret |")
    print("| ---: | --- | ---: | ---: | ---: |")
    for count in (12, 24, 40):
        found: dict[str, list[tuple[float, float]]] = {}
        for number in range(searches):
            rule, gain, regret = chosen(np.random.default_rng([number, count]), count)
            found.setdefault(rule, []).append((gain, regret))
        every = [pair for pairs in found.values() for pair in pairs]
        for rule, pairs in [*sorted(found.items(), key=lambda item: -len(item[1])), ("all", every)]:
            gain, regret = np.mean(pairs, axis=0)
            print(f"| {count} | {rule} | {len(pairs) / searches:.0%} | {gain:.4f} | {regret:.4f} |", flush=True)


def chosen(rng: Rng, count: int) -> tuple[str, float, float]:
    """The first step after a random search, its gain, and its regret."""
    world, search = World.drawn(rng), search_over(RANGES, count, algorithm="random")
    points = [point_in(rng, RANGES) for _ in range(count)]
    trials = [(point, world.curve(rng, point), "done") for point in points]
    findings = Findings.of(ledger_of(search, trials))
    offered = [Action.of(step, count) for step in next_steps(findings)]
    best = max(trials, key=lambda trial: max(trial[1]))[0]
    possible: dict[object, Action] = {(a.rule, str(a.ranges), a.trials): a for a in offered}
    possible |= {("longer",): Action("longer", trials=3, started=3, length=2), ("more",): Action("more", trials=count)}
    for key, found in RANGES.items():
        if not 0.05 < place(key, best[key]) < 0.95:
            up = place(key, best[key]) > 0.5
            root = math.sqrt(found["high"] / found["low"])
            half = (found["high"] - found["low"]) / 2 * (1 if up else -1)
            ends = [
                end * (root if up else 1 / root) if found.get("log") else end + half
                for end in (found["low"], found["high"])
            ]
            moved = found | {"low": max(ends[0], 0.001 if key != "proxies_per_class" else 1), "high": ends[1]}
            possible["widen", key] = Action("widen", RANGES | {key: moved}, max(10, count), 1)
    seeds = rng.integers(2**31, size=REPEATS)
    gains = {
        name: float(np.mean([action.gain(world, np.random.default_rng(seed), trials) for seed in seeds]))
        for name, action in possible.items()
    }
    first = offered[0]
    mine = gains[first.rule, str(first.ranges), first.trials]
    time = max(1, first.cost)
    return (
        first.rule,
        mine,
        max(mine, *(min(1.0, time / a.cost) * gains[n] for n, a in possible.items() if a.cost)) - mine,
    )


REPEATS = 8


# What more trials bring, and whether a curve still rises --------------------------------------------------------

BINS = (0.0, 0.1, 0.25, 0.5, 1.01)


def chances(searches: int) -> None:
    """The chance that as many trials again better the best noticeably, as said and as it happened."""
    print(
        "| results | algorithm | "
        + " | ".join(f"{low:.0%} to {min(1, high):.0%}" for low, high in itertools.pairwise(BINS))
    )
    print("| --- | --- |" + " --- |" * (len(BINS) - 1))
    for what in ("a bowl", "nothing matters"):
        for algorithm, count in itertools.product(("random", "tpe"), (20, 40, 100)):
            numbers = range(searches if algorithm == "random" else searches // 4)
            flat = what != "a bowl"
            pairs = [outcome(np.random.default_rng([n, count]), algorithm, count, flat=flat) for n in numbers]
            cells = []
            for low, high in itertools.pairwise(BINS):
                inside = [pair for pair in pairs if low <= pair[0] < high]
                said, happened = np.mean(inside, axis=0) if inside else (0, 0)
                cells.append(f"{said:.0%}: {happened:.0%} of {len(inside)}" if inside else "")
            print(f"| {what}, {count} trials | {algorithm} | {' | '.join(cells)} |", flush=True)


def outcome(rng: Rng, algorithm: str, count: int, *, flat: bool) -> tuple[float, bool]:
    """The chance, and whether the second half of a search of twice as many trials was so much better."""
    world, search = World.drawn(rng), search_over(RANGES, 2 * count, algorithm=algorithm)

    def value(point: Point) -> float:
        return (0.7 if flat else world.truth(point)) + math.hypot(SCATTER, OF_SEED) * float(rng.normal())

    trials = drawn(search, rng, value)
    outlook = outlook_of(Findings.of(ledger_of(search, trials[:count])))
    assert outlook is not None
    first, then = (max(curve[0] for _, curve, _ in part) for part in (trials[:count], trials[count:]))
    return outlook.chance, then > first + outlook.margin


def rising(searches: int) -> None:
    """How often a curve that is level, or rises, is said to rise still."""
    print("| validations | scatter | level: still rose | rises by 2% in its last fifth: still rose |")
    print("| ---: | ---: | ---: | ---: |")
    search, point = search_over(RANGES, 1), {"delta": 0.2, "alpha": 1.0, "proxies_per_class": 5}
    for length, scatter in itertools.product((5, 10, 20, 50), (0.005, 0.02)):
        cells = []
        for slope in (0.0, 0.1):
            said = 0
            for number in range(searches):
                rng = np.random.default_rng([number, length])
                curve = [0.5 * (1 + slope * t / length) + scatter * float(rng.normal()) for t in range(length)]
                said += Findings.of(ledger_of(search, [(point, curve, "done")])).rising > 0
            cells.append(f"{said / searches:.1%}")
        print(f"| {length} | {scatter} | {' | '.join(cells)} |", flush=True)


PARTS = {"settings": settings, "steps": steps, "chances": chances, "rising": rising}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=PARTS)
    parser.add_argument("--searches", type=int, default=400)
    asked = parser.parse_args()
    PARTS[asked.what](asked.searches)
