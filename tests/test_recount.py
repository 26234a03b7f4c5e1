"""What a search's report, its page and a comparison print, beside a second computation (recount.py): made searches, and
small real ones. Each bug that is planted into the product must differ from it."""

import csv
import html
import json
import math
import re
import shlex
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_searches import RAW, MadeSearch
from recount import Floats, Pair, Recount, Run, beyond, compared, crossed, drawn_again, over_classes, quantile

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


# Made searches ----------------------------------------------------------------------------------------------------

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


# Facts ------------------------------------------------------------------------------------------------------------


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
            mean, half = statistics.fmean(values), quantile(len(values) - 1) * statistics.stdev(values)
            half /= math.sqrt(len(values))
            expected = {"mean": mean, "standard_deviation": statistics.stdev(values)}
            facts[f"{group['source']}: {name}"] = (spread, {**expected, "low": mean - half, "high": mean + half})
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
        half = quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
        low, high = max(0.0, statistics.fmean(values) - half), min(1.0, statistics.fmean(values) + half)
        return f"{said} (95% over {len(values)} seeds: {low:.4f} to {high:.4f})"
    low, high = crossed(*cells).share_ends
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


def facts_of_comparison(capsys: pytest.CaptureFixture[str], storage: Path, names: Sequence[str], says: str) -> Facts:
    """What `compare --json` prints of two searches: numbers, and the words of the verdict that `says` names."""
    of = {name: Recount(storage / "searches" / name) for name in names}
    found = printed(capsys, f"compare {' '.join(names)} --storage {storage} --json")
    tests = {name: own.tests(own.ranked[0]) for name, own in of.items()}
    mean = {name: statistics.fmean(run.test["map_at_r"] for run in runs) for name, runs in tests.items()}
    order = sorted(names, key=lambda name: -mean[name])
    one_query = max(own.one_query for own in of.values())
    pairs = compared({name: (of[name], tests[name]) for name in order}, "map_at_r", one_query)
    own: Facts = {"order": ([member["label"] for member in found["members"]], order)}
    for member in found["members"]:
        name, runs = member["label"], tests[member["label"]]
        values, trials = {str(run.seed): run.test["map_at_r"] for run in runs}, of[name].trials
        spread = {"mean": mean[name], "standard_deviation": statistics.stdev(values.values())}
        best = of[name].best(of[name].ranked[0])
        own[f"{name}: test"] = (member["test"], {**spread, "seeds": values})
        own[f"{name}: objective"] = (member["objective"], best and best[0])
        own[f"{name}: epochs"] = (member["epochs"], sum(run.epochs for run in trials))
        own[f"{name}: hours"] = (member["hours"], sum(run.seconds for run in trials) / 3600)
        seconds = statistics.fmean(run.seconds for run in runs)
        own[f"{name}: seconds of a training"] = (member["training_seconds"], seconds)
        states = Counter(run.state for run in trials)
        own[f"{name}: trials"] = ({k: v for k, v in member["trials"].items() if v}, dict(states))
    (pair,) = pairs
    low, high = pair.ends
    ends = f"{pair.value:+.4f} (95%: {low:+.4f} to {high:+.4f}), p {pair.adjusted:.2g}"
    more = [{run.seed: run.test["recall_at_1"] for run in tests[name]} for name in order]
    queries = round(1000 * statistics.fmean(more[0][seed] - more[1][seed] for seed in more[0].keys() & more[1].keys()))
    said = ["Best configuration found: " if pair.real else "Not distinguishable over these seeds: ", ends, says]
    if pair.real:
        fewer = "more" if queries > 0 else "fewer"
        said.append(f"Of 1,000 queries {abs(queries)} {fewer} have a right nearest neighbour with {order[0]}")
    verdict = " ".join(found["verdict"])
    own |= {f"verdict: {one}": (one in verdict, True) for one in said}
    return own | facts_of_pairs(found["differences"], pairs)


# Made searches agree ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORLDS)
def test_made_searches(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "made", **WORLDS[name])
    assert differing(facts(capsys, tmp_path, "made")) == []


@pytest.mark.parametrize("other, of_class, says", [(0.50, 0.03, "ahead of other"), (0.59, 0.08, "and other (")])
def test_made_comparisons(
    other: float, of_class: float, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, "one", {1: 0.60}, 4, of_class=of_class)
    make(tmp_path, "other", {1: other}, 5, of_class=of_class, shift=10)
    assert differing(facts_of_comparison(capsys, tmp_path, ["one", "other"], says)) == []


def test_the_recount_s_own_t() -> None:
    """Student's two-sided points, from a printed table: of 2, 9, 59 degrees of freedom, and Cauchy's."""
    for freedom, level, t in ((2, 0.05, 4.30265), (9, 0.05, 2.26216), (9, 0.01, 3.24984), (59, 0.05, 2.00100)):
        assert quantile(freedom, level) == pytest.approx(t, abs=1e-5)
        assert beyond(t, freedom) == pytest.approx(level, rel=1e-4)
    assert beyond(1.0, 1) == pytest.approx(0.5) and beyond(0.0, 7.3) == pytest.approx(1.0)


@pytest.mark.parametrize("of_class", [0.02, 0.08])
def test_the_interval_is_that_of_classes_and_seeds_drawn_again(
    of_class: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A printed interval of a difference, beside the bootstrap's variances. One of 4,000 draws errs by 1 / sqrt(2,000)
    = 2.2%, so its root by 1.1%; and the mean of unequal classes bends, by about 1 / 24. Both together: 6%. With classes
    held fixed it would be a fraction."""
    own = Recount(make(tmp_path, "made", {1: 0.60, 2: 0.55}, 8, of_class=of_class))
    (found,) = printed(capsys, f"report made --storage {tmp_path} --json")["differences"]
    cells = [own.cells(own.tests(own.runs[name]), "map_at_r") for name in (found["one"], found["other"])]
    assert cells[0] is not None and cells[1] is not None
    apart, counts = cells[0][0] - cells[1][0], cells[0][1]
    _, freedom = crossed(apart, counts).parts[0]
    look = 0.05 * 0.7
    t = {0: quantile(freedom, look), 1: quantile(7, look)}
    parts = {axis: t[axis] ** 2 * drawn_again(apart, counts, axis) for axis in t}
    half = (found["high"] - found["low"]) / 2
    assert half == pytest.approx(math.sqrt(sum(parts.values())), rel=0.06)
    assert half > 1.3 * math.sqrt(parts[1]), "classes held fixed"
    assert drawn_again(apart, counts, None) < sum(drawn_again(apart, counts, axis) for axis in t) * 1.1


def seeds_alone(values_CS: Floats, counts_CS: Floats, resolution: float = 0.0) -> tuple[Floats, Any]:
    """`crossed_of` with the classes held fixed."""
    means = (values_CS * counts_CS).sum(axis=0) / counts_CS.sum(axis=0)
    freedom = np.float64(means.size - 1)
    return means.mean(), [(means.var(ddof=1) / means.size, freedom)]


def unweighted(tables: Mapping[int, Any], seeds: Sequence[int]) -> tuple[Floats, Floats]:
    """`cells_of` with one query of each class."""
    values = np.array([[tables[seed].means[name] for seed in seeds] for name in sorted(tables[seeds[0]].means)])
    return values, np.ones(values.shape)


VERDICTS, TABLES, LEDGER = (
    "orchestrator.evaluation.verdicts",
    "orchestrator.report.class_tables",
    "orchestrator.storage.ledger.Ledger",
)
PLANTED: list[tuple[str, str, Any, str]] = [
    ("looked at three times", "orchestrator.report.significance._times", lambda *_: 1.0, "0001 and 0002: low"),
    ("another winner", f"{LEDGER}.tests_of", lambda self, _: list(self.finals.values())[:3], "page: Not tested"),
    ("another winner", f"{LEDGER}.final_runs_of", lambda self, _: list(self.finals.values()), "the leader's test"),
    ("on these classes only", f"{VERDICTS}.crossed_of", seeds_alone, "0001 and 0002: real"),
    ("on these classes only", f"{VERDICTS}.crossed_of", seeds_alone, "page: classes and seeds do not tell them apart"),
    ("alike", f"{TABLES}.cells_of", unweighted, "0001 and 0002: low"),
    ("looked at three times", f"{VERDICTS}.share_of_look", lambda look: 1.0, "0001 and 0002: adjusted_p"),
    ("three, looked at twice", f"{VERDICTS}.holm", list, "0002 and 0000: adjusted_p"),
    ("the tests favour another", "orchestrator.report.leading.goals", lambda _: [Lower()], "favoured"),
    ("confirmed", f"{VERDICTS}.Estimate.share_ends", lambda self: self.ends(), "page: Test on unseen classes"),
    ("confirmed", f"{LEDGER}.better", lambda *_: True, "0001: best validation"),
    ("one tested", f"{LEDGER}.counts", lambda self: Counter(t.state for t in self.everyone()), "page: 6 trials"),
]
"""A world, what is replaced by what, and a fact that must differ then."""


class Lower:
    """A goal that takes the lower value for the better one."""

    metric, larger = "map_at_r", False


@pytest.mark.parametrize("world, target, bug, fact", PLANTED, ids=[f"{one[1]}: {one[3]}" for one in PLANTED])
def test_planted_bugs_differ(
    world: str,
    target: str,
    bug: Any,
    fact: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make(tmp_path, "made", **WORLDS[world])
    monkeypatch.setattr(target, bug)
    found = differing(facts(capsys, tmp_path, "made"))
    assert any(line.startswith(fact) for line in found), found


# Real searches ----------------------------------------------------------------------------------------------------

SMALL = "--dataset glyphs-small --num-trials 2 --final-seeds 3 --epochs 1"


def score_of(storage: Path, run: Run, split: str) -> Mapping[str, Any]:
    """The score of an untrained network that a run measured, from the storage: its means by class."""
    (key,) = [score["key"] for score in run.untrained if score["split"] == split]
    return dict(json.loads((storage / "untrained" / f"{key}.json").read_text()))


def facts_of_training(report: Mapping[str, Any], own: Recount, storage: Path) -> Facts:
    """What was measured while it trained: each test's intervals, the gains over the untrained network, the excess."""
    facts: Facts = {}
    numbers, best = report["numbers"], own.ranked[0]
    for run in [run for run in own.runs.values() if run.test]:
        table = own.table(run)
        counts = np.array([row["queries"] for row in table.values()])
        for name in ("recall_at_1", "map_at_r"):
            mean = over_classes(np.array([row[name] for row in table.values()]), counts)
            ends = [run.test[f"{name}_over_classes_{end}"] for end in ("low", "high")]
            facts[f"{run.name}: {name}"] = (run.test[name], mean.value)
            facts[f"{run.name}: {name} over classes"] = (ends, list(mean.share_ends))
        facts[f"{run.name}: recall_at_1 over queries"] = (near_binomial(run, int(counts.sum())), True)
    first = own.tests(best)[0]
    measured = next(run for run in own.trials if any(one["split"] == "validation" for one in run.untrained))
    for key, run, split, by in (("test_gain", first, "test", first), ("gain", best, "validation", measured)):
        score = score_of(storage, by, split)
        gain, up = own.gain(run, score["by_class"]["map_at_r"], "map_at_r")
        low, high = gain.ends
        plain = {"metric": "map_at_r", "difference": gain.value, "low": low, "high": high, "up": up}
        facts[key] = (numbers[key], {**plain, "classes": len(score["by_class"]["map_at_r"])})
        own_mean = own.gain(run, dict.fromkeys(score["by_class"]["map_at_r"], 0.0), "map_at_r")[0].value
        facts[f"{key}: untrained"] = (own_mean - gain.value, score["metrics"]["map_at_r"])
    value, deviation = own.excess()
    said = numbers["expected_excess"]["value"]
    facts["excess"] = (abs(said - value) <= 4 * deviation / math.sqrt(400), True)  # four errors of its 400 draws
    return facts


def near_binomial(run: Run, queries: int) -> bool:
    """Whether the interval of recall@1 over the queries is that of its definition: resampled, hits are binomial. A
    quantile at 2.5% of 1,000 draws has an error of sqrt(0.025 0.975 / 1,000) / 0.0584 = 0.085 deviations; four of them,
    and one query."""
    share = run.test["recall_at_1"]
    deviation = math.sqrt(share * (1 - share) / queries)
    ends = [
        (share + sign * 1.95996 * deviation, run.test[f"recall_at_1_over_queries_{end}"])
        for sign, end in ((-1, "low"), (1, "high"))
    ]
    return all(abs(own - found) <= 4 * 0.085 * deviation + 1 / queries for own, found in ends)


@pytest.mark.slow
def test_real_searches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PFML's demo in small, and a benchmark of two methods on the small glyphs."""
    commands = (
        f"search demo --name demo {SMALL} --final-workers 1 --final-trials 2",
        f"benchmark --methods contrastive,proxy_anchor --name bench {SMALL}",
    )
    for command in commands:
        program = [sys.executable, "-m", "orchestrator", *command.split(), "--storage", str(tmp_path)]
        subprocess.run(program, check=True, capture_output=True)
    for name in ("demo", "bench-contrastive", "bench-proxy_anchor"):
        report = printed(capsys, f"report {name} --storage {tmp_path} --json")
        own = Recount(tmp_path / "searches" / name)
        assert differing(facts(capsys, tmp_path, name) | facts_of_training(report, own, tmp_path)) == []
    names = ["bench-contrastive", "bench-proxy_anchor"]
    assert differing(facts_of_comparison(capsys, tmp_path, names, "paired t-test over 60 classes and 3 seeds")) == []
