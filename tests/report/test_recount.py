"""What a search's report, its page and a comparison print, beside a second computation (recount.py): made searches, and
small real ones. Each bug that is planted into the product must differ from it."""

import json
import math
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.recount import Floats, Recount, Run, beyond, compared, crossed, drawn_again, over_classes, quantile
from support.recounted_worlds import WORLDS, Facts, Lower, differing, facts, facts_of_pairs, make, printed

# Made searches ----------------------------------------------------------------------------------------------------


# Facts ------------------------------------------------------------------------------------------------------------


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
