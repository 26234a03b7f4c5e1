"""How often the public record tells methods apart that do not differ, and that do: on drawn scores.

    python benchmarks/record_errors.py                 # the table of docs/results_record.md; minutes on one core
    python benchmarks/record_errors.py --network       # of the comparisons with a network that is not trained

A score is a class's difficulty, which is the same for all methods, a method's mean, how well the method suits the
class, the luck of the method's seed, and what is left of this class and seed. Classes and seeds are drawn anew for each
record, so a mean is over other classes and seeds, as the intervals claim. A record errs if it tells any pair apart
whose true means are equal. `--ignoring seeds` leaves out the variance over seeds: the mistake that is to be found.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from orchestrator.evaluation.claims import SIGNIFICANT
from orchestrator.evaluation.verdicts import crossed_estimate, crossed_of, two_sided
from orchestrator.results.standings import adjust

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """How scores vary: standard deviations of a method's fit to a class, of a seed's luck, and of the rest."""

    name: str
    classes: int
    seeds: int
    suits: float
    luck: float
    rest: float
    skewed: bool = False
    uneven: bool = False
    """Whether one method's seeds vary five times as much as the others'."""


WORLDS = (
    World("classes vary most", 60, 10, 0.06, 0.005, 0.03),
    World("seeds vary most", 60, 10, 0.01, 0.03, 0.03),
    World("a method of uneven seeds", 60, 10, 0.02, 0.01, 0.03, uneven=True),
    World("skewed", 60, 10, 0.06, 0.01, 0.03, skewed=True),
    World("few classes", 12, 10, 0.06, 0.01, 0.03),
    World("many classes", 430, 10, 0.06, 0.01, 0.05),
)


@dataclass(frozen=True)
class Errors:
    """Of many records, the shares that err, and how often a true difference was told."""

    err: float
    err_of_reference: float
    """Those that tell a method falsely apart from the reference."""
    told: float
    """Of the comparisons with the reference that truly differ."""


def draw(rng: np.random.Generator, world: World, means_K: Floats, *, network: bool = False) -> Floats:
    """(K, C, S) scores; the first is a `network` that does not train, and has no luck."""
    methods, classes, seeds = len(means_K), world.classes, world.seeds
    luck_K = np.full(methods, world.luck)
    if world.uneven:
        luck_K[-1] *= 5
    if network:
        luck_K[0] = 0.0

    def noise(*shape: int) -> Floats:
        if world.skewed:
            return rng.exponential(1.0, shape) - 1.0
        return rng.standard_normal(shape)

    hard_C = rng.normal(0.5, 0.1, classes)
    return np.asarray(
        hard_C[None, :, None]
        + means_K[:, None, None]
        + world.suits * noise(methods, classes, 1)
        + luck_K[:, None, None] * noise(methods, 1, seeds)
        + world.rest * noise(methods, classes, seeds)
    )


def told_apart(tasks: Sequence[Floats], ignoring: str = "") -> list[NDArray[np.bool_]]:
    """For each task (K, K): which methods are told apart; method 0 is the reference."""
    ps: list[float] = []
    with_reference: list[bool] = []
    places: list[tuple[int, int, int]] = []
    for number, values_KCS in enumerate(tasks):
        one, other = np.triu_indices(len(values_KCS), 1)
        of_PCS = values_KCS[one] - values_KCS[other]
        mean_P, parts = crossed_of(of_PCS, np.ones_like(of_PCS))
        ps += two_sided(mean_P, parts[:1] if ignoring == "seeds" else parts).tolist()
        with_reference += (one == 0).tolist()
        places += [(number, int(a), int(b)) for a, b in zip(one, other, strict=True)]
    adjusted, _ = adjust(ps, with_reference)
    told = [np.zeros((len(values), len(values)), dtype=bool) for values in tasks]
    for (number, a, b), p in zip(places, adjusted, strict=True):
        told[number][a, b] = told[number][b, a] = p < SIGNIFICANT
    return told


def simulated(
    rng: np.random.Generator, world: World, means_K: Floats, *, tasks: int = 2, records: int = 400, ignoring: str = ""
) -> Errors:
    """Many records of so many tasks with methods of these true means."""
    equal_KK = means_K[:, None] == means_K[None, :]
    np.fill_diagonal(equal_KK, False)
    errs = errs_of_reference = told_true = true = 0
    for _ in range(records):
        told = told_apart([draw(rng, world, means_K) for _ in range(tasks)], ignoring)
        errs += any((one & equal_KK).any() for one in told)
        errs_of_reference += any((one & equal_KK)[0].any() for one in told)
        different_K = means_K != means_K[0]
        told_true += sum(int(one[0, different_K].sum()) for one in told)
        true += tasks * int(different_K.sum())
    return Errors(errs / records, errs_of_reference / records, told_true / true if true else float("nan"))


def simulated_network(
    rng: np.random.Generator, world: World, means_K: Floats, *, records: int = 400, ignoring: str = ""
) -> tuple[float, float]:
    """Of many records of one task, the share that falsely tells a method apart from a network that does not train,
    whose mean is 0; and how often a true difference was told. The network suits the classes as a method does."""
    errs = told_true = 0
    equal_K = means_K == 0
    for _ in range(records):
        network_CS, *methods = draw(rng, world, np.array([0.0, *means_K]), network=True)
        ps = []
        for values_CS in methods:
            apart_CS = values_CS - network_CS[:, :1]
            estimate = crossed_estimate(apart_CS, np.ones_like(apart_CS), 1 / world.classes)
            assert estimate is not None  # all worlds have classes and seeds enough
            ps.append((replace(estimate, parts=estimate.parts[:1]) if ignoring == "seeds" else estimate).p)
        told_K = np.array(adjust(ps, [True] * len(ps))[0]) < SIGNIFICANT
        errs += bool(told_K[equal_K].any())
        told_true += int(told_K[~equal_K].sum())
    different = int((~equal_K).sum())
    return errs / records, told_true / (records * different) if different else float("nan")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--methods", type=int, default=10)
    parser.add_argument("--ignoring", choices=("", "seeds"), default="")
    parser.add_argument("--network", action="store_true")
    options = parser.parse_args(arguments)
    if options.network:
        print("| scores | records with a false verdict on the network | 0.05 higher is told apart |")
        print("| --- | ---: | ---: |")
        for world in WORLDS:
            means_K = np.where(np.arange(options.methods) == 1, 0.05, 0.0)
            rng, how = np.random.default_rng(0), {"records": options.records, "ignoring": options.ignoring}
            err, _ = simulated_network(rng, world, np.zeros(options.methods), **how)
            _, told = simulated_network(rng, world, means_K, **how)
            print(f"| {world.name} | {err:.1%} | {told:.0%} |", flush=True)
        return
    print("| scores | records with a false verdict | ... on the reference | 0.05 higher is told apart |")
    print("| --- | ---: | ---: | ---: |")
    for world in WORLDS:
        rng = np.random.default_rng(0)
        nothing = simulated(rng, world, np.zeros(options.methods), records=options.records, ignoring=options.ignoring)
        means_K = np.where(np.arange(options.methods) == 1, 0.05, 0.0)
        some = simulated(rng, world, means_K, records=options.records // 4, ignoring=options.ignoring)
        print(f"| {world.name} | {nothing.err:.1%} | {nothing.err_of_reference:.1%} | {some.told:.0%} |", flush=True)


if __name__ == "__main__":
    main()
