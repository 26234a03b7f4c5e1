"""Grids over seeds, fronts, losses, folds, margins, several data sets, repeated searches and forecasts beside a second
computation (recount_kinds.py), each with a bug that must differ from it."""

import csv
import json
import re
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.made_searches import RAW, MadeSearch
from support.recount import Recount, compared, holm, interval_of
from support.recount_kinds import (
    between_searches,
    chance_of_better,
    equal_ps,
    from_the_best,
    front_of,
    main_effects,
    over_sets,
    points_of,
)
from support.recounted_worlds import Facts, Lower, differing, facts, keep, make, means_of, number, printed, text_of

from orchestrator.report.comparison import Comparison
from orchestrator.search.models import read_search
from orchestrator.storage.costs import Cost
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord

Made = Callable[[Path, pytest.CaptureFixture[str]], Facts]
GRID = {**RAW, "space": {"delta": [0.1, 0.2, 0.3]}, "algorithm": "grid", "seeds": 4}
LOSS = {**RAW, "objective": {"metric": "train/loss", "mode": "min"}}
TWO = {**RAW, "objectives": ["val/map_at_r", "cost/seconds"]}


def grid(storage: Path, capsys: pytest.CaptureFixture[str]) -> Facts:
    """Three points over four seeds, whose trials kept the tables of their classes."""
    folder = storage / "searches" / "made"
    folder.mkdir(parents=True)
    with MadeSearch(folder, GRID) as made:
        for seed in range(4):
            for place, (delta, level) in enumerate({0.1: 0.45, 0.2: 0.52, 0.3: 0.50}.items()):
                best = keep(folder, f"{len(made.params):04d}", means_of(level, seed, place, 0.03))["map_at_r"]
                made.trial([0.8 * best, best], delta=delta, seed=seed)
        made.end()
    own, report = Recount(folder), printed(capsys, f"report made --storage {storage} --json")
    points = points_of(own)
    found: Facts = {"order": ([p["params"] for p in report["points"]], [dict(p.params) for p in points])}
    for said, point in zip(report["points"], points, strict=True):
        found[f"{point.params}: mean"] = (said["mean"], point.mean)
        found[f"{point.params}: over seeds"] = (
            said["over_seeds"],
            interval_of(list(point.values.values()), own.sizes["validation"]["one_query"]),
        )
    for said, beside in zip(report["points"][1:], from_the_best(own, points), strict=True):
        of, less = f"less {said['params']}: ", said["best_less_this"]
        expected = {"difference": beside.value, "low": beside.ends[0], "high": beside.ends[1], "seeds": beside.seeds}
        expected["adjusted_p"] = number(beside.adjusted)
        found |= {of + key: (less[key], value) for key, value in expected.items()}
    return found


def front(storage: Path, capsys: pytest.CaptureFixture[str]) -> Facts:
    """Trials with a best validation early or late, so that they cost little or much."""
    folder = storage / "searches" / "made"
    folder.mkdir(parents=True)
    with MadeSearch(folder, TWO) as made:
        for curve in ([0.3, 0.5, 0.6], [0.4, 0.55, 0.5], [0.45, 0.4], [0.2, 0.3, 0.55], [0.44], [0.2, 0.5, 0.6]):
            made.trial(curve)
        made.end()
    report = printed(capsys, f"report made --storage {storage} --json")
    values = front_of(Recount(folder), "cost/seconds", larger=False)
    best = max(values, key=lambda name: values[name][0])
    found: Facts = {"front": (report["front"], sorted(values)), "best": (report["best"]["trial_id"], best)}
    both = {t["trial_id"]: (t["objective"], t["second_objective"]) for t in report["trials"]}
    return found | {name: (both[name], pair) for name, pair in values.items()}


def loss(storage: Path, capsys: pytest.CaptureFixture[str]) -> Facts:
    """A minimised loss chooses; tests are compared by MAP@R, of which more is better."""
    make(storage, "made", {2: 0.45, 0: 0.55}, 4, raw=LOSS, of_class=0.03)
    return {key: value for key, value in facts(capsys, storage, "made").items() if "on held-out" not in key}


def folds(storage: Path, capsys: pytest.CaptureFixture[str]) -> Facts:
    """Each final run has four models: their tables are in four folders, and their mean counts."""
    folder = make(storage, "made", {1: 0.60, 2: 0.55}, 4, of_class=0.05)
    for table in sorted(folder.rglob("classes.csv")):
        with table.open(newline="") as file:
            rows = list(csv.DictReader(file))
        table.unlink()
        table.parent.rmdir()
        for fold, shift in enumerate((-0.03, 0.01, 0.0, 0.02)):
            place = table.parents[1] / f"fold-{fold}" / "insight" / "classes.csv"
            place.parent.mkdir(parents=True)
            with place.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                for row in rows:
                    moved = {name: float(row[name]) + shift for name in ("recall_at_1", "map_at_r")}
                    writer.writerow({**row, **moved})
    return facts(capsys, storage, "made")


def margin(storage: Path, capsys: pytest.CaptureFixture[str]) -> Facts:
    """Two that are equal within a margin, by the page and by `compare --margin`."""
    make(storage, "made", {1: 0.500, 2: 0.500}, 6, of_class=0.02, raw={**RAW, "equivalence_margin": 0.03})
    make(storage, "other", {1: 0.503}, 6, of_class=0.02, shift=1)
    printed(capsys, f"report made --storage {storage} --html {storage}/made.html")
    own, other = (Recount(storage / "searches" / name) for name in ("made", "other"))
    found: Facts = {}
    (p,) = equal_ps(own.pairs, 0.03)
    said = f"equal within 0.03 over 24 classes and 6 seeds (two one-sided tests, p {p:.2g})."
    found["page"] = (said in text_of(storage / "made.html"), True)
    groups = {name: (one, one.tests(one.runs["0001"])) for name, one in (("made", own), ("other", other))}
    order = sorted(groups, key=lambda name: -statistics.fmean(run.test["map_at_r"] for run in groups[name][1]))
    pairs = compared({name: groups[name] for name in order}, "map_at_r", own.one_query)
    (p,) = equal_ps(pairs, 0.05)
    said = (
        f"{order[0]} and {order[1]} are equal within 0.05 over 24 classes and 6 seeds (two one-sided tests, p {p:.2g})."
    )
    verdict = printed(capsys, f"compare made other --storage {storage} --margin 0.05 --json")["verdict"]
    found["compare"] = (verdict[-1], said)
    return found


def data_sets(storage: Path, capsys: pytest.CaptureFixture[str]) -> Facts:
    """Three methods on three data sets: a mean over them for each two methods."""
    methods = ("pfml", "roadmap", "sup_recall")
    levels = {"cub200": (0.60, 0.57, 0.50), "cars196": (0.52, 0.51, 0.50), "sop": (0.70, 0.66, 0.60)}
    groups: dict[str, dict[str, Any]] = {}
    for number_of, (dataset, of) in enumerate(levels.items()):
        for place, (method, level) in enumerate(zip(methods, of, strict=True)):
            raw = {**RAW, "method": method, "dataset": dataset}
            folder = make(storage, f"{method}-{dataset}", {1: level}, 4, shift=10 * number_of + place, raw=raw)
            own = Recount(folder)
            groups.setdefault(dataset, {})[method] = (own, own.tests(own.ranked[0]))
    names = " ".join(f"{method}-{dataset}" for dataset in levels for method in methods)
    report = printed(capsys, f"compare {names} --storage {storage} --json")
    expected = []
    for said in report["over_data_sets"]:
        one, other = said["one"], said["other"]
        pairs = [compared({name: of[name] for name in (one, other)}, "map_at_r", 1 / 1920)[0] for of in groups.values()]
        expected.append((said, over_sets([pair.verdict for pair in pairs if pair.verdict is not None])))
    adjusted = holm([mean.p for _, mean in expected])
    found: Facts = {"pairs": (len(report["over_data_sets"]), 3)}
    for (said, mean), p in zip(expected, adjusted, strict=True):
        low, high = mean.ends(0.05 * mean.p / p if p < 1 else 0.05 / 3)
        own_facts = {"difference": mean.value, "p": mean.p, "adjusted_p": p, "low": low, "high": high}
        found |= {f"{said['one']} and {said['other']}: {key}": (said[key], value) for key, value in own_facts.items()}
    return found


def searches(storage: Path, capsys: pytest.CaptureFixture[str]) -> Facts:
    """Two methods, each searched three times: a search is one value, the mean test of its winner."""
    levels = {"a": (0.56, 0.60, 0.58), "b": (0.52, 0.55, 0.50)}
    owns: dict[str, list[Recount]] = {}
    members = {}
    for place, (method, of) in enumerate(levels.items()):
        for number_of, level in enumerate(of):
            label = f"{method}-{number_of}"
            folder = make(storage, label, {1: level}, 3, shift=10 * place + number_of)
            owns.setdefault(method, []).append(Recount(folder))
            members[label] = (method, number_of + 1)
    ledgers = {label: read_search(label, storage)[0] for label in members}
    plain = json.loads(json.dumps(Comparison.of("x", ledgers, searches=members).output.plain))
    ((one, other, apart, mean, classes),) = between_searches(owns, "map_at_r")
    (said,) = plain["differences"]
    low, high = mean.at(0.05 * 0.7)
    expected = {"one": one, "other": other, "difference": float(apart.mean()), "classes": classes, "seeds": 3}
    expected |= {"low": low, "high": high, "p": mean.p, "adjusted_p": mean.p / 0.7, "unit": "search"}
    return {key: (said[key], value) for key, value in expected.items()}


def forecast(storage: Path, capsys: pytest.CaptureFixture[str]) -> Facts:
    """Random points, of which as many again hardly better the best: the chance to tens, and the margin."""
    folder = storage / "searches" / "made"
    folder.mkdir(parents=True)
    results = 0.5 + 0.02 * np.random.default_rng(8).beta(2, 2, 30)
    raw = {**RAW, "algorithm": "random"}
    with MadeSearch(folder, raw) as made:
        for place, value in enumerate(np.random.default_rng(1).permutation(results).tolist()):
            made.trial([0.9 * value, value, value], delta=0.1 + 0.25 * ((place * 0.618) % 1))
        made.end()
    own, report = Recount(folder), printed(capsys, f"report made --storage {storage} --json")
    values = np.array([best[0] for run in own.ranked if (best := own.best(run)) is not None])
    margin_of = 0.01 * values.max()
    (step,) = [step for step in report["next_steps"] if step["rule"] in ("stop", "improves")]
    said = re.search(
        r"^30 more trials of this space .* by more than ([\d.]+) with a chance of (\D*)(\d+)%", step["reason"]
    )
    assert said is not None, step
    chance = chance_of_better(values, values.max() + margin_of, 30)
    near = chance < 0.08 if said[2] else abs(int(said[3]) / 100 - chance) < 0.05 + 0.03  # to tens, of 200 draws
    near = abs(int(said[3]) / 100 - chance) < 0.08 if "roughly" in said[2] else near
    rule = "improves" if chance >= 0.25 else "stop"
    return {
        "margin": (said[1], f"{margin_of:.4f}"),
        "chance": (near, True),
        "rule": (step["rule"], rule),
    }


def distance(storage: Path, capsys: pytest.CaptureFixture[str]) -> Facts:
    """A test beside a published number: the mean over seeds, and a number that stands in the paper's table."""
    make(storage, "made", {1: 0.50}, 3, raw={**RAW, "dataset": "cub200"})
    printed(capsys, f"report made --storage {storage} --html {storage}/made.html")
    own = Recount(storage / "searches" / "made")
    said = re.search(
        r"recall_at_1 ([\d.]+) is ([\d.]+) points (above|below) ([\d.]+) of (\w+), Table (\d+)",
        text_of(storage / "made.html"),
    )
    assert said is not None
    mean = 100 * statistics.fmean(run.test["recall_at_1"] for run in own.tests(own.ranked[0]))
    tables = (Path(__file__).parents[2] / "orchestrator/report/published" / f"{said[5].lower()}.yaml").read_text()
    gap = mean - float(said[4])
    return {
        "test": (said[1], f"{mean:.1f}"),
        "gap": ((said[2], said[3]), (f"{abs(gap):.1f}", "above" if gap > 0 else "below")),
        "published": (said[4] in tables, True),
    }


def importances(storage: Path, capsys: pytest.CaptureFixture[str]) -> Facts:
    """A full grid, whose main effects are those of an analysis of variance; a forest of means is near them, too small
    rather than too large."""
    folder = storage / "searches" / "made"
    folder.mkdir(parents=True)
    deltas, alphas = np.linspace(0.1, 0.35, 6), np.linspace(1, 6, 6)
    values = 0.3 + 0.2 * np.linspace(0, 1, 6)[:, None] ** 2 + 0.12 * np.linspace(0, 1, 6)[None] + np.zeros((6, 6))
    values += np.random.default_rng(2).normal(0, 0.005, (6, 6))
    space = {"delta": deltas.round(3).tolist(), "alpha": alphas.tolist()}
    with MadeSearch(folder, {**RAW, "algorithm": "grid", "space": space}) as made:
        for (row, column), value in np.ndenumerate(values):
            made.trial([float(value)], delta=space["delta"][row], alpha=space["alpha"][column])
        made.end()
    printed(capsys, f"report made --storage {storage} --html {storage}/made.html")
    text, found = text_of(storage / "made.html"), Facts()
    for key, exact in zip(space, main_effects(values), strict=True):
        said = re.search(rf"{key} \((\d+)% ± (\d+)%, p = ", text)
        assert said is not None, text[:2000]
        share, spread = (int(part) / 100 for part in said.groups())
        found[key] = (-0.15 - 2 * spread < share - exact < 0.05 + 2 * spread, True)
    return found


KINDS: Mapping[str, Made] = {
    made.__name__: made
    for made in (grid, front, loss, folds, margin, data_sets, searches, forecast, distance, importances)
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_agrees(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert differing(KINDS[kind](tmp_path, capsys)) == []


VERDICTS, REPORT = "orchestrator.evaluation.verdicts", "orchestrator.report"


def first_run(ledger: Ledger, trial: TrialRecord | None) -> dict[str, tuple[float, None]]:
    """The first seed's test, for the mean over seeds."""
    return {name: (value, None) for name, value in ledger.tests_of(trial)[0].test.items()}


BY_VALIDATIONS = Cost("", "", "training", lambda trial: 1.0 / getattr(trial, "validations", 0))
PLANTED: list[tuple[str, str, Any, str]] = [
    ("grid", f"{REPORT}.points._tables", lambda *_: {}, "less {'delta': 0.3}: low"),
    ("front", "orchestrator.storage.ledger.COSTS", {"cost/seconds": BY_VALIDATIONS}, "front"),
    ("loss", f"{REPORT}.leading.goals", lambda _: [Lower()], "favoured"),
    ("folds", f"{REPORT}.class_tables.mean_table", lambda tables: tables[0], "0001 and 0002: classes"),
    ("margin", f"{VERDICTS}.p_equal", lambda found, margin: found.p_against(margin), "compare"),
    ("data_sets", f"{VERDICTS}.Estimate.error", property(lambda self: 1.0), "pfml and roadmap: low"),
    ("searches", f"{REPORT}.repeated_searches.mean_table", lambda tables: tables[0], "low"),
    ("forecast", "orchestrator.evaluation.forecasts.SHAPE", -0.01, "chance"),
    ("importances", f"{REPORT}.importance._columns", lambda setting, values: np.zeros((len(values), 1)), "delta"),
    ("distance", f"{REPORT}.findings._test", first_run, "test"),
]
"""A kind, what is replaced by what, and a fact that must differ then."""


@pytest.mark.parametrize("kind, target, bug, fact", PLANTED, ids=[f"{one[0]}: {one[3]}" for one in PLANTED])
def test_planted_bugs_differ(
    kind: str,
    target: str,
    bug: Any,
    fact: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(target, bug)
    found = differing(KINDS[kind](tmp_path, capsys))
    assert any(line.startswith(fact) for line in found), found
