"""What population-based training brings over the same points trained as they are, and over TPE, at equal epochs.

    python benchmarks/populations.py --storage DIR [--seeds 10] [--members 10] [--methods proxy_anchor ...] [--ways ...]

Real trainings, one at a time: each search has the same epochs, and a final run of its winner by another seed, which is
tested. A population and `random` begin with the same points and the same seed of training, so that they are compared in
pairs, one for each seed of the search. A killed run goes on where it was. Results: scale.md.
"""

import argparse
import os
import statistics
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

POPULATION: dict[str, Any] = {"name": "population", "every": 3}
WAYS: dict[str, dict[str, Any]] = {
    "random": {"algorithm": "random"},
    "population": {"algorithm": "random", "scheduler": POPULATION},
    "population, factor 2": {"algorithm": "random", "scheduler": POPULATION | {"factor": 2.0}},
    "tpe": {"algorithm": "tpe"},
}


def search_once(method: str, way: str, seed: int, members: int, places: Places) -> Ledger:
    """One search to its end."""
    space = {"lr": RATE, **read_yaml(Path(search_spaces.__file__).parent / f"{method}.yaml")["space"]}
    settings = dict(SETTINGS)
    raw = {
        "method": method,
        "dataset": settings.pop("dataset"),
        "settings": settings,
        "space": space,
        "num_trials": members,
        "seed": seed,
        "final_seeds": 2,  # the first is that of the search, and looked at
        **WAYS[way],
    }
    name = f"{method}-{''.join(c if c.isalnum() else '-' for c in way)}-{seed}"
    search = resolve_search(raw, name=name, source="benchmarks/populations.py")
    return advance(search, InlineRunner(), places, None, Watcher(), {}, print).ledger


def results_of(ledger: Ledger) -> tuple[float, float]:
    """The winner's value on the held-out classes, and the test of its run by the other seed, in points of MAP@R."""
    winner = ledger.winner()
    assert winner is not None and winner.best is not None
    _, run = sorted(ledger.tests_of(winner), key=lambda one: one.seed)
    return 100 * winner.best, 100 * run.test["map_at_r"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storage", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--methods", nargs="*", default=["proxy_anchor", "multi_similarity"])
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    options = parser.parse_args()
    ways = list(dict.fromkeys(["random", *options.ways]))
    places = Places(writable(options.storage))
    print("| method | search | epochs | held-out | test | test less that of random | ahead |")
    print("| --- | --- | ---: | ---: | ---: | --- | ---: |")
    for method in options.methods:
        by_way: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        epochs: dict[str, float] = {}
        for seed in range(options.seeds):
            for way in ways:
                ledger = search_once(method, way, seed, options.members, places)
                by_way[way].append(results_of(ledger))
                epochs[way] = ledger.epochs
        for way, pairs in by_way.items():
            held_out, test = (statistics.median(column) for column in zip(*pairs, strict=True))
            apart = [one[1] - other[1] for one, other in zip(pairs, by_way["random"], strict=True)]
            low, middle, high = statistics.quantiles(apart, n=4)
            ahead = sum(one > 0 for one in apart)
            print(
                f"| {method} | {way} | {epochs[way]:g} | {held_out:.1f} | {test:.1f} "
                f"| {middle:+.2f} ({low:+.2f} to {high:+.2f}) | {ahead} of {len(apart)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
