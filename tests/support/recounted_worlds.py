"""Searches of every kind, what is printed of them, and the facts in it."""

import csv
import html
import json
import math
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.made_searches import RAW, MadeSearch
from support.recount import Floats, Pair, Recount, Run, crossed, interval_of

from orchestrator.cli.main import main

Facts = dict[str, tuple[Any, Any]]
"""What is printed and what is recounted, by name."""


def alike(one: Any, other: Any, rel: float = 1e-6) -> bool:
    """Whether two facts are the same, their numbers to so many digits."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key], rel) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other, [rel] * len(one)))
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=rel, abs_tol=1e-9)
    return bool(one == other)


def differing(facts: Facts) -> list[str]:
    """The names of the facts whose two sides differ, with both."""
    return [f"{name}: {one!r}, recounted {other!r}" for name, (one, other) in facts.items() if not alike(one, other)]


SIZES = np.array([4.0, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20] * 2)
"""Queries of each of 24 classes."""


def keep(folder: Path, run: str, means_C: Floats) -> dict[str, float]:
    """Keep the table of a test's classes; its metrics. Recalls are counts."""
    recalls_C = np.round(np.clip(means_C + 0.2, 0, 1) * SIZES) / SIZES
    place = folder / "trials" / run / "insight"
    place.mkdir(parents=True)
    with (place / "classes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "class", "queries", "recall_at_1", "map_at_r"])
        cells = zip(SIZES.tolist(), recalls_C.tolist(), means_C.tolist(), strict=True)
        writer.writerows([label, f"class {label}", int(n), r, m] for label, (n, r, m) in enumerate(cells))
    return {
        "map_at_r": float(means_C @ SIZES / SIZES.sum()),
        "recall_at_1": float(recalls_C @ SIZES / SIZES.sum()),
    }


def means_of(level: float, seed: int, own: int, of_class: float = 0.06) -> Floats:
    """A test's means by class: how hard the classes are, what this trial's `own` classes are, its seed, the rest."""
    hard, mine = np.random.default_rng(0).normal(0, 0.08, 24), np.random.default_rng(100 + own).normal(0, of_class, 24)
    rest = np.random.default_rng([own, seed]).normal(0, 0.01, 25)
    mine -= mine @ SIZES / SIZES.sum()
    return np.asarray(np.clip(level + hard + mine + rest[1:] + 0.4 * rest[0], 0.01, 0.99))


def make(storage: Path, name: str, levels: Mapping[int, float], seeds: int = 4, **how: Any) -> Path:
    """A search of five trials, the second the best, the last stopped early; those in `levels` have tests of such a
    level over seeds. `tables`: whether their classes were kept; `looks`: the seeds at each end but the last."""
    folder = storage / "searches" / name
    folder.mkdir(parents=True)
    with MadeSearch(folder, how.get("raw", RAW)) as made:
        for curve in ([0.2, 0.4, 0.45], [0.3, 0.6, 0.58], [0.1, 0.55, 0.59], [0.2, 0.3, 0.35]):
            made.trial(curve, beside={"epoch": [1.0, 2.0, 3.0]})
        made.trial([0.25], "pruned", beside={"epoch": [1.0]})
        made.trial([], "failed")
        done = 0
        for until in (*how.get("looks", ()), seeds):
            for own, level in levels.items():
                for seed in range(done, until):
                    run = f"final-{own:04d}-seed-{seed}"
                    means = means_of(level, seed, own + how.get("shift", 0), how.get("of_class", 0.06))
                    test = keep(folder, run, means)
                    made.final(f"{own:04d}", seed, test, seconds=20.0 + seed)
            done = until
            made.end()
        if how.get("resumed"):  # another winner, whose final run was interrupted
            made.resume()
            made.final(made.trial([0.5, 0.7], beside={"epoch": [1.0, 2.0]}), 0, None)
            made.end("interrupted")
    for table in [] if how.get("tables", True) else folder.rglob("classes.csv"):
        table.unlink()
    return folder


WORLDS: dict[str, dict[str, Any]] = {
    "confirmed": {"levels": {1: 0.60, 2: 0.50}, "of_class": 0.03},
    "on these classes only": {"levels": {1: 0.530, 2: 0.515}, "of_class": 0.08},
    "alike": {"levels": {1: 0.501, 2: 0.500}},
    "the tests favour another": {"levels": {1: 0.40, 2: 0.55, 0: 0.45}, "of_class": 0.03},
    "three, looked at twice": {"levels": {1: 0.52, 2: 0.50, 0: 0.45}, "seeds": 5, "looks": (3,), "of_class": 0.04},
    "looked at three times": {"levels": {1: 0.53, 2: 0.50}, "seeds": 6, "looks": (3, 4), "of_class": 0.03},
    "two seeds": {"levels": {1: 0.60, 2: 0.50}, "seeds": 2},
    "without tables": {"levels": {1: 0.53, 2: 0.50}, "tables": False},
    "one tested": {"levels": {1: 0.60}, "seeds": 3},
    "one seed": {"levels": {1: 0.60}, "seeds": 1},
    "not tested": {"levels": {}, "seeds": 0},
    "another winner": {"levels": {1: 0.60}, "seeds": 3, "resumed": True},
}


def printed(capsys: pytest.CaptureFixture[str], command: str) -> Any:
    """The JSON that a command prints; None where it prints none."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as leaving:
        main(shlex.split(command))
    out = capsys.readouterr()
    assert not leaving.value.code, out.err
    return json.loads(out.out) if "--json" in command else None


def text_of(page: Path) -> str:
    """A page's text, in one line."""
    content = re.sub(r"(?s)<(script|style)\b.*?</\1>", " ", page.read_text())
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", content)))


def number(p: float | None) -> float | None:
    return None if p is None or math.isnan(p) else p


def facts_of_pairs(listed: Sequence[Mapping[str, Any]], pairs: Sequence[Pair]) -> Facts:
    """The differences, of a report or of a comparison."""
    facts: Facts = {"pairs": ([(d["one"], d["other"]) for d in listed], [(pair.one, pair.other) for pair in pairs])}
    for found, pair in zip(listed, pairs, strict=False):
        of, verdict = f"{pair.one} and {pair.other}: ", pair.verdict
        own: dict[str, Any] = {"seeds": pair.seeds, "classes": pair.classes or None, "difference": pair.value}
        own |= {"look": pair.look, "adjusted_p": number(pair.adjusted), "p": verdict and number(verdict.p)}
        own["real"] = pair.real if number(pair.adjusted) is not None else None
        if verdict is not None:
            own["low"], own["high"] = pair.ends
        facts |= {of + key: (found[key], value) for key, value in own.items()}
        low, high = pair.fixed_ends
        fixed = {"low": low, "high": high, "adjusted_p": number(pair.fixed_adjusted)}
        facts |= {f"{of}on these classes: {key}": (found["on_these_classes"][key], own) for key, own in fixed.items()}
    return facts


def facts_of_report(report: Mapping[str, Any], own: Recount) -> Facts:
    """What `report --json` prints of a search."""
    best = own.ranked[0]
    facts: Facts = {"best": (report["best"]["trial_id"], best.name)}
    for trial in [*report["trials"], *report["finals"]]:
        run, of = own.runs[trial["trial_id"]], f"{trial['trial_id']}: "
        value = own.best(run)
        facts[of + "objective"] = (trial["objective"], value and value[0])
        facts[of + "best validation"] = (trial["best_validation"], value and value[1])
        facts[of + "state and validations"] = ((trial["state"], trial["validations"]), (run.state, len(run.curve)))
        facts[of + "test"] = (trial["metrics"], {f"test/{name}": value for name, value in run.test.items()})
    leader = own.leader()
    final = next(iter(own.finals(leader)), None)
    facts["the leader's test"] = ((report["final"] or {}).get("metrics"), final and prefixed(final.test))
    facts["favoured"] = (report.get("favoured", {}).get("trial_id"), None if leader is best else leader.name)
    for group in report["repeated"]:
        for name, spread in group["metrics"].items():
            values = [run.test[name] for run in own.tests(own.runs[group["source"]])]
            facts[f"{group['source']}: {name}"] = (spread, interval_of(values, own.one_query))
    return facts | facts_of_pairs(report["differences"], own.pairs)


def prefixed(test: Mapping[str, float]) -> dict[str, float]:
    return {f"test/{name}": value for name, value in test.items()}


def told(own: Recount, trial: Run, metric: str) -> str:
    """A trial's test over its seeds, as it stands in a sentence: with its interval over all that is known."""
    runs = own.tests(trial)
    values = [run.test[metric] for run in runs]
    if len(values) == 1:
        return f"{metric} {values[0]:.4f}"
    said = f"{metric} {statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}"
    cells = own.cells(runs, metric) if len(runs) > 2 else None
    if cells is None:
        spread = interval_of(values, own.one_query)
        low, high = max(0.0, spread["low"]), min(1.0, spread["high"])
        return f"{said} (95% over {len(values)} seeds: {low:.4f} to {high:.4f})"
    low, high = crossed(*cells, 1 / cells[1].sum(axis=0).max()).share_ends
    return f"{said} (95% over {len(cells[0])} classes and {len(values)} seeds: {low:.4f} to {high:.4f})"


def sentences(own: Recount) -> list[str]:
    """What a search's page must say, word by word."""
    best, leader = own.ranked[0], own.leader()
    value, states = own.best(best), Counter(run.state for run in own.trials)
    assert value is not None
    order = ("done", "pruned", "running", "interrupted", "failed")
    counts = ", ".join(f"{states[state]} {state}" for state in order if states[state])
    took = sum(run.seconds for run in own.runs.values())
    minutes, seconds = divmod(round(took), 60)
    spent = f"{minutes} min {seconds} s".removesuffix(" 0 s") if minutes else f"{seconds} s"
    spent = f"{took:.1f} s" if took < 10 else spent
    said = [f"{len(own.trials)} trials ({counts}), {spent} of training."]
    pairs = {frozenset((pair.one, pair.other)): pair for pair in own.pairs}
    if leader is best:
        so_far = "" if own.state == "done" else " so far"
        said.append(f"Best{so_far}: trial {best.name}, {own.metric} {value[0]:.4f} ")
    else:
        pair = pairs[frozenset((best.name, leader.name))]
        assert pair.verdict is not None
        low, high = sorted(abs(end or 0.0) for end in pair.ends)
        by = f"{abs(pair.value):.4f} (95%: {low:.4f} to {high:.4f}, p {pair.adjusted:.2g})"
        said.append(f"Chosen on held-out classes: {best.name}; the tests favour {leader.name} by {by}")
    if own.tests(leader):
        whose = "" if leader is best else f" of {leader.name}"
        said.append(f"Test{whose} on unseen classes: {told(own, leader, 'map_at_r')}")
        said.append(told(own, leader, "recall_at_1"))
    else:
        said.append("Not tested")
    others = [run for run in own.ranked if run is not best and len(own.tests(run)) > 1]
    if len(own.tests(best)) > 1 and others:
        rival = max(others, key=lambda run: statistics.fmean(one.test[own.goal] for one in own.tests(run)))
        rival = rival if leader is best else leader
        said += words(pairs[frozenset((best.name, rival.name))], best, rival)
    return said


def words(pair: Pair, best: Run, rival: Run) -> list[str]:
    """How sure it is that the best is better than its rival."""
    judges = "seeds" if pair.crossed is None else "classes and seeds"
    ahead = pair.value > 0 if pair.one == best.name else pair.value < 0
    if math.isnan(pair.adjusted):
        return [f"they cannot be told apart, with {pair.seeds} common seeds; 3 are needed."]
    if not pair.real:
        said = [f"{judges} do not tell them apart"]
    else:
        said = [f"{judges} confirm it" if ahead else f"over {judges} trial {rival.name} is the better one"]
    how = f"{pair.seeds} seeds on these classes"
    if pair.crossed is not None:
        how = f"{pair.classes} classes and {pair.seeds} seeds"
    said += [f"paired t-test over {how}", f"p = {pair.adjusted:.2g})"]
    taken = {1: "1.4", 2: "3.6", 3: "8.9"}[pair.look]
    said.append(f"look {pair.look}, so that p is taken {taken} times")
    if pair.crossed is not None and pair.fixed is not None:
        low, high = pair.fixed_ends
        apart = "they differ" if pair.fixed_adjusted < 0.05 else "they cannot be told apart either"
        said.append(f"On these {pair.classes} classes, over training seeds, {apart}")
        said.append(f"{pair.value:+.4f} (95%: {low:+.4f} to {high:+.4f}), p {pair.fixed_adjusted:.2g}")
    return said


def facts_of_page(page: Path, own: Recount) -> Facts:
    """Each sentence, and whether it is there."""
    text = text_of(page)
    return {f"page: {said}": (said in text, True) for said in sentences(own)}


def facts(capsys: pytest.CaptureFixture[str], storage: Path, name: str) -> Facts:
    """All of one search."""
    own, page = Recount(storage / "searches" / name), storage / f"{name}.html"
    report = printed(capsys, f"report {name} --storage {storage} --json")
    printed(capsys, f"report {name} --storage {storage} --html {page}")
    return facts_of_report(report, own) | facts_of_page(page, own)


class Lower:
    """A goal that takes the lower value for the better one."""

    metric, larger = "map_at_r", False
