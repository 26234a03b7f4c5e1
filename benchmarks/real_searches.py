"""What algorithms, early stops and population-based training bring, by real trainings, at equal epochs.

    python benchmarks/real_searches.py --storage DIR [--on glyphs-small emoji] [--seeds 8] [--trainings 20] [--ways ...]

Trainings of ProxyAnchor, one at a time. Each search has the epochs of so many whole trainings, and a final run of its
winner by another seed, which is tested. Searches are compared with random points in pairs, one for each seed, which is
that of the search and of its trainings; a population begins with the same points. Printed are medians and quartiles
over seeds. A killed run goes on where it was. `emoji` is prepared before. Results: scale.md.
"""

import argparse
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tabular import RATE, SETTINGS

import search_spaces
from orchestrator.config.files import read_yaml
from orchestrator.config.resolve import resolve_search
from orchestrator.execution.inline import InlineRunner
from orchestrator.search.benchmark_searches import advance
from orchestrator.search.watcher import Watcher
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import Places, writable

METHOD = "proxy_anchor"
TASKS: dict[str, dict[str, Any]] = {
    "glyphs-small": SETTINGS,
    "emoji": {
        "dataset": "emoji",
        "backbone": "efficientnet_lite0",
        "embedding_dim": 128,
        "augmentation": "none",
        "epochs": 12,
        "warmup_epochs": 12,
        "device": "cpu",
    },
}
"""As the tabular benchmark has them, and pictures in colour with a pre-trained network that is not changed."""
WAYS: dict[str, dict[str, Any]] = {
    "random": {"algorithm": "random"},
    "tpe": {"algorithm": "tpe"},
    "gp": {"algorithm": "gp"},
    "gp + promotion": {"algorithm": "gp", "scheduler": {"name": "promotion"}},
    "population": {"algorithm": "random", "scheduler": {"name": "population", "every": 3}},
}
BY_EPOCHS = {"gp + promotion"}
"""Those that stop early, and so try more points."""


def search_once(task: str, way: str, seed: int, trainings: int, places: Places) -> Ledger:
    """One search to its end."""
    space = {"lr": RATE, **read_yaml(Path(search_spaces.__file__).parent / f"{METHOD}.yaml")["space"]}
    settings = {**TASKS[task], "seed": seed}
    more: dict[str, Any] = {"num_trials": trainings}
    if way in BY_EPOCHS:
        more = {"budget": {"epochs": trainings * settings["epochs"]}}
    raw = {
        "method": METHOD,
        "dataset": settings.pop("dataset"),
        "settings": settings,
        "space": space,
        "seed": seed,
        "final_seeds": 2,  # the first is that of the search, and looked at
        **more,
        **WAYS[way],
    }
    name = f"{task}-{''.join(c if c.isalnum() else '-' for c in way)}-{trainings}-{seed}"
    search = resolve_search(raw, name=name, source="benchmarks/real_searches.py")
    return advance(search, InlineRunner(), places, None, Watcher(), {}, print).ledger


def held_out(ledger: Ledger) -> float:
    """The winner's value, in points of MAP@R."""
    winner = ledger.winner()
    assert winner is not None and winner.best is not None
    return 100 * winner.best


def tested(ledger: Ledger) -> float:
    """The test of the winner's run by the other seed, in points of MAP@R."""
    _, run = sorted(ledger.tests_of(ledger.winner()), key=lambda one: one.seed)
    return 100 * run.test["map_at_r"]


def compare(pairs: Sequence[tuple[float, float]]) -> list[str]:
    """The median, that of the differences with their quartiles, and how many are above 0."""
    apart = [one - other for one, other in pairs]
    low, middle, high = statistics.quantiles(apart, n=4)
    ahead = f"{sum(one > 0 for one in apart)} of {len(apart)}"
    return [f"{statistics.median(one for one, _ in pairs):.1f}", f"{middle:+.1f} ({low:+.1f} to {high:+.1f})", ahead]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storage", type=Path, required=True)
    parser.add_argument("--on", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--trainings", type=int, default=20)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    options = parser.parse_args()
    ways = list(dict.fromkeys(["random", *options.ways]))
    places = Places(writable(options.storage))
    for task in options.on:
        ledgers = {
            (seed, way): search_once(task, way, seed, options.trainings, places)
            for seed in range(options.seeds)
            for way in ways
        }
        print("| task | search | epochs | held-out | less random's | ahead | test | less random's | ahead |")
        print("| --- | --- | ---: | ---: | --- | ---: | ---: | --- | ---: |")
        for way in ways:
            pairs = [(ledgers[seed, way], ledgers[seed, "random"]) for seed in range(options.seeds)]
            cells = [cell for value in (held_out, tested) for cell in compare([(value(a), value(b)) for a, b in pairs])]
            epochs = statistics.median(ledger.epochs for ledger, _ in pairs)
            print(f"| {task} | {way} | {epochs:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
