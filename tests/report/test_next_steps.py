"""What to run next: made searches whose right answer is known, and every command as the command line takes it."""

import json
import math
import random
import re
import shlex
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.made_pages import PFML_SPACE, made, spread

import orchestrator.cli.search
from orchestrator.cli.main import main
from orchestrator.config.resolve import with_final_runs, with_more_budget
from orchestrator.config.search import Search
from orchestrator.report.findings import Findings
from orchestrator.report.html.rendering import words
from orchestrator.report.html.search_page import page
from orchestrator.report.next_steps import MOST, RULES, contenders, next_steps, noise_of, outlook_of
from orchestrator.report.note import search_note
from orchestrator.report.steps import ProposedStep
from orchestrator.report.summary import summary
from orchestrator.storage.ledger import BENCHMARK, Ledger
from orchestrator.storage.presence import DRIVER
from orchestrator.text import span

ROOT = Path(__file__).parents[2]


class Commands:
    """A storage with made searches, and the command line without what trains."""

    def __init__(self, storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.storage = storage
        self.taken: list[Any] = []
        monkeypatch.setattr("orchestrator.search.plan.plan", self.plan)
        monkeypatch.setattr("orchestrator.search.driver.resume", self.resume)
        for place in ("search", "train"):
            monkeypatch.setattr(f"orchestrator.cli.{place}.runner_at", lambda *_: None)
        monkeypatch.setattr(orchestrator.cli.search, "conclude", lambda *_, **__: None)

    def plan(self, search: Search, storage: Path, **_: Any) -> SimpleNamespace:
        self.taken.append(search)
        return SimpleNamespace(plain={"name": search.name})

    def resume(self, name: str, runner: Any, *, storage: Path, **given: Any) -> None:
        search = Search.model_validate(self.ledger.config)
        if given["num_trials"] or given["budget"]:
            search = with_more_budget(search, given["num_trials"], given["budget"] or {})
        if given["final_trials"] or given["final_seeds"]:
            search = with_final_runs(search, given["final_trials"], given["final_seeds"])
        self.taken.append(search)

    def steps(
        self, *arguments: Any, change: Callable[[Ledger], None] = lambda ledger: None, **given: Any
    ) -> list[ProposedStep]:
        """The steps of a made search, each command of which was taken by the command line."""
        shutil.rmtree(self.storage / "searches", ignore_errors=True)
        self.ledger = made(self.storage / "searches" / "made", *arguments, **given)
        change(self.ledger)
        self.findings = Findings.of(self.ledger, storage=str(self.storage))
        steps = next_steps(self.findings)
        assert 0 < len(steps) <= MOST
        self.accept(steps)
        return steps

    def accept(self, steps: list[ProposedStep]) -> None:
        for step in steps:
            if step.command is None:
                continue
            words = shlex.split(step.command)
            assert words[0] == "orchestrator" and words[-2:] == ["--storage", str(self.storage)]
            dry = ["--dry-run"] if words[1] in ("search", "train") else []
            with pytest.raises(SystemExit) as ended:
                main([*words[1:], *dry])
            assert ended.value.code in (0, None), step.command

    @property
    def space(self) -> dict[str, Any]:
        """The space of the last search that was taken."""
        return {parameter.key: parameter for parameter in self.taken[-1].space.parameters()}


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(tmp_path, monkeypatch)


def rules(steps: list[ProposedStep]) -> list[str]:
    return [step.rule for step in steps]


def quick(params: Mapping[str, Any]) -> float:
    """Best in the middle of every range."""
    delta, alpha, proxies = params["delta"], params["alpha"], params["proxies_per_class"]
    return float(0.6 - 4 * (delta - 0.22) ** 2 - 0.02 * math.log(alpha / 0.8) ** 2 - 0.0002 * (proxies - 15) ** 2)


def at(**changes: Any) -> dict[str, Any]:
    return {"delta": 0.2, "alpha": 1.0, "proxies_per_class": 15, **changes}


def towards(key: str, end: int) -> Callable[[Mapping[str, Any]], float]:
    """Better towards one end of a setting, 0 or 1; nothing else matters."""
    low, high, log = (PFML_SPACE[key].get(part) for part in ("low", "high", "log"))
    assert low is not None and high is not None
    scale: Callable[[float], float] = math.log if log else float
    return lambda p: 0.9 - 0.5 * abs(end - (scale(p[key]) - scale(low)) / (scale(high) - scale(low)))


# Ranges


@pytest.mark.parametrize(
    "best, key, low, high, log",
    [
        (at(delta=0.349), "delta", 0.225, 0.475, False),
        (at(delta=0.101), "delta", 0.0001, 0.225, None),
        (at(alpha=0.102), "alpha", 0.1 / math.sqrt(60), 0.1 * math.sqrt(60), True),
        (at(proxies_per_class=30), "proxies_per_class", 15, 45, False),
    ],
)
def test_a_best_point_at_an_end_asks_for_a_search_beyond_it(
    commands: Commands, best: dict[str, Any], key: str, low: float, high: float, log: bool | None
) -> None:
    lower = low < PFML_SPACE[key]["low"]
    steps = commands.steps([best, *spread(12)], towards(key, 0 if lower else 1))
    assert rules(steps)[0] == "widen" and steps[0].what == f"Search {key} {'below' if lower else 'above'} its range"
    commands.accept(steps[:1])
    found = commands.space[key]
    assert found.low < best[key] < found.high
    if log is not None:
        assert (found.low, found.high) == (pytest.approx(low, rel=0.01), pytest.approx(high, rel=0.01))
        assert found.log == log
    others = {name: parameter for name, parameter in commands.space.items() if name != key}
    assert {name: (p.low, p.high, p.log) for name, p in others.items()} == {
        name: (part["low"], part["high"], bool(part.get("log"))) for name, part in PFML_SPACE.items() if name != key
    }


def test_a_positive_setting_is_searched_below_its_low_end_in_log_scale(commands: Commands) -> None:
    raw = {"method": "pfml", "dataset": "cub200", "space": {"lr": {"low": 0.001, "high": 0.1}}}
    tried = (0.001, 0.02, 0.05, 0.06, 0.07, 0.08, 0.09)
    steps = commands.steps([{"lr": lr} for lr in tried], lambda p: 0.5 - p["lr"], raw=raw)
    commands.accept(steps[:1])
    lr = commands.space["lr"]
    assert rules(steps)[0] == "widen" and lr.log and (lr.low, lr.high) == (pytest.approx(1e-4), pytest.approx(0.0505))
    assert commands.taken[-1].start_from == [{"lr": 0.001}, {"lr": 0.02}, {"lr": 0.05}]


def test_the_setting_s_own_limit_is_no_edge(commands: Commands) -> None:
    best = at(proxies_per_class=0)
    assert "widen" not in rules(commands.steps([best, *spread(3)], lambda p: 0.9 if p is best else 0.1))


def test_an_edge_of_a_setting_below_the_noise_level_is_left_alone(commands: Commands) -> None:
    """The winner is at an end of a range that has no effect: only chance has put it there."""
    points = spread(40)
    winner = max(range(40), key=lambda n: quick(points[n] | {"proxies_per_class": 15}))
    points[winner] = points[winner] | {"proxies_per_class": 30}
    steps = commands.steps(points, lambda p: quick(p | {"proxies_per_class": 15}))
    proxies = next(s for s in commands.findings.searched if s.key == "proxies_per_class")
    assert proxies.edge is None and "proxies_per_class" not in commands.findings.importances.real_effects
    assert proxies.moot.startswith("proxies_per_class = 30 is at the high end of its range, but ")
    assert "widen" not in rules(steps)
    assert not any("proxies_per_class" in step.what + step.why for step in steps)


@pytest.mark.parametrize("values, log", [((0.2, 0.4, 0.6, 0.8), False), ((0.01, 0.03, 0.3, 0.9), True)])
def test_a_crowd_at_a_limit_is_searched_alone(commands: Commands, values: tuple[float, ...], log: bool) -> None:
    """The best values of alpha, which may not be negative, lie in the lowest fifth: in log scale if they span it."""
    raw = {"method": "pfml", "dataset": "cub200", "space": {"alpha": {"low": 0, "high": 6}}}
    points = [{"alpha": alpha} for alpha in (*values, *(1.5 + 0.2 * n for n in range(20)))]
    ranked = {alpha: 0.9 - 0.01 * n for n, alpha in enumerate(values)}
    steps = commands.steps(points, lambda p: ranked.get(p["alpha"], 0.3 - 0.01 * p["alpha"]), raw=raw)
    assert rules(steps)[0] == "narrow"
    commands.accept(steps[:1])
    alpha = commands.space["alpha"]
    assert alpha.high == 1.2 and alpha.log == log and alpha.low == (0.005 if log else 0)
    assert steps[0].what == f"Narrow alpha to {alpha.low:g} to 1.2{', in log scale' if log else ''}"
    assert [point["alpha"] for point in commands.taken[-1].start_from] == list(values[:3])


def test_a_range_that_a_choice_opens_is_not_narrowed(commands: Commands) -> None:
    """`--range` changes those of the space itself."""
    opened = {"pfml": {"alpha": {"low": 0, "high": 6}}, "triplet": {"margin": {"low": 0.02, "high": 0.5}}}
    raw = {"dataset": "cub200", "space": {"lr": {"low": 1e-4, "high": 1e-2}, "method": {"choices": opened}}}
    values = (0.2, 0.4, 0.6, 0.8, *(1.5 + 0.2 * n for n in range(20)))
    points = [{"lr": 0.005, "method": "pfml", "alpha": alpha} for alpha in values]
    steps = commands.steps(points, lambda p: 0.9 - 0.1 * p["alpha"], raw=raw)
    assert "narrow" not in rules(steps)
    commands.accept(steps)


# Longer, more, enough


def test_a_score_that_still_rises_asks_for_longer_training(commands: Commands) -> None:
    steps = commands.steps(spread(40), quick, epochs=5)
    assert rules(steps)[0] == "longer"
    commands.accept(steps[:1])
    search = commands.taken[-1]
    assert search.settings["epochs"] == 10 and search.num_trials == 3 and search.scheduler.name == "none"
    best = [trial.params for trial in commands.ledger.candidates()[:3]]
    assert search.start_from == best
    trained = 3 * 10 * 30 + 10 * 30  # three trials and a final run, ten epochs of 30 seconds each
    assert steps[0].seconds == pytest.approx(trained)
    assert "longer" not in rules(commands.steps(spread(40), quick, epochs=30))


def test_searches_elsewhere_stand_in_the_order_of_their_gains(commands: Commands) -> None:
    """A curve that still rises, and a range whose end is best: whatever brings more in an hour comes first."""
    points = [at(delta=0.349), *spread(24)]
    for height, first in ((0.05, "longer"), (8.0, "widen")):
        steps = commands.steps(points, lambda p, h=height: 0.3 + h * (p["delta"] - 0.1), epochs=5)
        both = {step.rule: step for step in steps if step.rule in ("longer", "widen")}
        assert len(both) == 2 and all(step.gain for step in both.values())
        assert (
            rules(steps)[0] == max(both, key=lambda rule: (both[rule].gain or 0) / (both[rule].seconds or 1)) == first
        )


def test_a_grid_that_is_done_is_exhausted(commands: Commands) -> None:
    space = {"alpha": [1.0, 4.0, 5.0], "delta": [0.1, 0.2, 0.3]}
    raw = {"method": "pfml", "dataset": "cub200", "space": space, "algorithm": "grid"}
    points = [{"alpha": alpha, "delta": delta} for alpha in space["alpha"] for delta in space["delta"]]
    inside = commands.steps(points, lambda p: 0.5 - abs(p["alpha"] - 4) - abs(p["delta"] - 0.2), raw=raw)
    assert rules(inside) == ["confirm", "stop"] and inside[1].what == "Stop: the space is exhausted"
    assert inside[1].command is None and inside[1].cost == "" and "9 points" in inside[1].why
    unfinished = commands.steps(points[:5], lambda p: 0.5 - abs(p["alpha"] - 4) - abs(p["delta"] - 0.2), raw=raw)
    assert "stop" not in rules(unfinished)


def test_a_grid_s_end_asks_for_the_next_value_only(commands: Commands) -> None:
    space = {"alpha": [1.0, 4.0], "delta": [0.1, 0.15, 0.2, 0.25, 0.3]}
    raw = {"method": "pfml", "dataset": "cub200", "space": space, "algorithm": "grid"}
    points = [{"alpha": alpha, "delta": delta} for alpha in space["alpha"] for delta in space["delta"]]
    steps = commands.steps(points, lambda p: 0.5 - 0.1 * p["alpha"] - abs(p["delta"] - 0.2), raw=raw)
    commands.accept(steps[:1])
    assert rules(steps)[0] == "widen" and commands.space["alpha"].choices == (0.25,)
    assert steps[0].seconds == pytest.approx(5 * 300 + 300)  # five new points and a final run


def flat(seed: int) -> Callable[[Mapping[str, Any]], float]:
    draw = random.Random(seed)
    values: dict[str, float] = {}
    return lambda params: values.setdefault(json.dumps(params), 0.5 + draw.gauss(0, 0.002))


def test_gains_below_the_noise_level_end_a_search(commands: Commands) -> None:
    """No setting has an effect: trials differ by less than one point does over its seeds."""
    values = flat(3)
    points = spread(40)
    best = max(points[:40], key=values)
    order = sorted(range(40), key=lambda n: -values(points[n]))
    finals = {f"{n:04d}": [0.50, 0.52, 0.48, 0.51, 0.49] for n in order[:1]}
    finals[f"{order[1]:04d}"] = finals[f"{order[2]:04d}"] = [0.51, 0.49, 0.50, 0.48, 0.52]
    steps = commands.steps(points, values, finals=finals)
    assert rules(steps) == ["stop"]
    noise = statistics.stdev([0.50, 0.52, 0.48, 0.51, 0.49])
    assert noise_of(commands.findings) == pytest.approx(noise) and f"{noise:.4f}" in steps[0].why
    assert not commands.findings.importances.real_effects and values(best) - 0.5 < noise


def test_a_search_that_still_improves_goes_on(commands: Commands) -> None:
    points = sorted(spread(40), key=quick)
    steps = commands.steps(points, quick, raw=None)
    assert rules(steps) == ["confirm", "improves"]
    outlook = outlook_of(commands.findings)
    assert outlook is not None and outlook.more == 40 and 0.25 < outlook.chance < 0.9
    assert steps[1].why.startswith(outlook.text) and steps[1].gain == outlook.gain > 0
    assert commands.taken[-1].num_trials == 80
    found = commands.steps(points[::-1], quick)  # by an algorithm that learns: its last points say what is to come
    assert rules(found) == ["confirm", "stop"] and found[1].what == "Stop: little is left in this space"
    assert re.search(
        r"^40 more trials .* better the best by more than 0.0059 with a chance of less than 5%\.$", found[1].why
    )


def test_more_points_of_a_benchmarks_search_are_for_all_its_methods(commands: Commands) -> None:
    (alone, *_) = commands.steps(spread(6), quick)
    assert alone.command is not None and alone.seconds is not None
    commands.ledger.tags[BENCHMARK] = "b"
    (step, *_) = next_steps(commands.findings)
    assert (step.rule, step.what, step.seconds) == ("too_few", f"{alone.what} of each method", None)
    assert step.command == alone.command.replace("resume made", "benchmark --name b")


def test_too_few_results(commands: Commands) -> None:
    steps = commands.steps(spread(6), quick)
    assert rules(steps) == ["too_few", "confirm"]
    assert steps[0].what == "Try 24 more points" and "6 results for 3 searched settings: it takes 30" in steps[0].why
    assert steps[0].seconds == pytest.approx(24 * 300 + 300)


# Which is best


def test_trials_that_could_as_well_have_won_are_confirmed(commands: Commands) -> None:
    points = spread(40)
    ranked = sorted(range(40), key=lambda n: -quick(points[n]))
    grown = 1 - 0.5 * math.exp(-5)
    gap = [grown * (quick(points[ranked[0]]) - quick(points[n])) for n in ranked]

    def within(ledger: Ledger, margin: float) -> None:
        winner = ledger.winner()
        assert winner is not None and winner.best is not None
        winner.best_interval = (winner.best - margin, winner.best + margin)

    for reach, expected in ((gap[1] / 2, 1), ((gap[1] + gap[2]) / 2, 2), (gap[5], 3)):
        steps = commands.steps(points, quick, change=partial(within, margin=reach))
        assert [t.number for t in contenders(commands.findings)] == ranked[:expected]
        assert ("confirm" in rules(steps)) == (expected > 1)
        if expected > 1:
            step = next(step for step in steps if step.rule == "confirm")
            search = next(s for s in commands.taken if s.final_seeds == 5)
            commands.taken.clear()
            assert (search.final_trials, search.final_seeds) == (expected, 5)
            assert step.seconds == pytest.approx(5 * expected * 10 * 30)
            assert "are within the winner's 95% interval" in step.why


def test_seeds_that_tell_or_do_not(commands: Commands) -> None:
    points = spread(40)
    first, second, third = (f"{n:04d}" for n in sorted(range(40), key=lambda n: -quick(points[n]))[:3])
    clear = {
        first: [0.52, 0.521, 0.522, 0.519, 0.520],
        second: [0.50, 0.501, 0.502, 0.499, 0.500],
        third: [0.48, 0.481, 0.482, 0.479, 0.480],
    }
    assert "confirm" not in rules(commands.steps(points, quick, finals=clear))
    two = {first: [0.52, 0.50], second: [0.51, 0.53]}
    (step,) = [step for step in commands.steps(points, quick, finals=two) if step.rule == "confirm"]
    assert "--final-trials 3 --final-seeds 5" in str(step.command) and "to be found" not in step.why
    assert step.seconds == pytest.approx((3 + 3 + 5) * 10 * 30)


def test_a_forecast_needs_four_seeds_and_says_how_many(commands: Commands) -> None:
    """The number of seeds by simulation: paired t-tests, of three comparisons, at a second look, find the difference
    80% of the time."""
    import numpy as np
    from scipy import stats

    points = spread(40)
    first, second, third = (f"{n:04d}" for n in sorted(range(40), key=lambda n: -quick(points[n]))[:3])
    apart = [0.012, -0.004, 0.010, 0.002, 0.006]
    other = [0.50, 0.51, 0.49, 0.505, 0.495]
    finals = {
        first: [o + a for o, a in zip(other, apart, strict=True)],
        second: other,
        third: [o - 0.2 for o in other],
    }
    steps = commands.steps(points, quick, finals=finals)
    (step,) = [step for step in steps if step.rule == "confirm"]
    (asked,) = re.findall(r"--final-seeds (\d+)", str(step.command))
    rng = np.random.default_rng(0)
    mean, deviation = statistics.mean(apart), statistics.stdev(apart)

    def found(seeds: int) -> float:
        drawn = rng.normal(mean, deviation, (20_000, seeds))
        return float((stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.28 * 0.05 / 3).mean())

    assert found(int(asked)) >= 0.79 and found(int(asked) - 1) < 0.81
    assert f"takes about {asked} seeds" in step.why


# Nothing to judge


def test_a_search_that_did_not_learn_asks_for_its_learning_rate_and_its_data(commands: Commands) -> None:
    def at_chance(ledger: Ledger) -> None:
        of = {"classes": 20, "images": 400, "queries": 400, "one_query": 0.0025, "folds": 1}
        ledger.sizes = {"validation": {**of, "chance": {"map_at_r": 0.05, "recall_at_1": 0.05}}}

    steps = commands.steps(spread(40), lambda p: 0.05, change=at_chance)
    assert rules(steps) == ["not_learned"] * 3
    winner = commands.findings.winner
    assert winner is not None
    commands.taken.clear()
    commands.accept(steps)
    slower, faster, other = (search.settings for search in commands.taken)
    rate = winner.settings["lr"]
    assert (slower["lr"], faster["lr"]) == (pytest.approx(rate / 10), pytest.approx(rate * 10))
    assert other["method"] == "proxy_anchor" and other["dataset"] == "cub200"
    assert steps[2].what == "Check the data: train proxy_anchor on it"


@pytest.mark.parametrize("end, rule", [("interrupted", "interrupted"), (None, "running"), ("failed", "failed")])
def test_a_search_without_an_end(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, end: str | None, rule: str
) -> None:
    if rule == "failed":
        steps = commands.steps(spread(1), reason="val/map_at_r is nan", end=end)
        assert "nan" in steps[0].why and commands.taken[-1].settings["epochs"] == 1
    else:
        steps = commands.steps(spread(5), end=end)
    assert rules(steps) == [rule]


def test_what_failed_for_its_gpu_is_tried_again_before_anything_else(commands: Commands) -> None:
    def broke(ledger: Ledger) -> None:
        for trial in list(ledger.trials.values())[:2]:
            trial.state, trial.failure = "failed", "device"

    (step,) = commands.steps(spread(5), change=broke)
    assert (step.rule, step.what) == ("retry", "Try 2 trainings again")
    assert str(step.command).startswith("orchestrator resume made ")


def test_a_search_whose_process_is_gone_is_resumed(commands: Commands) -> None:
    commands.steps(spread(5), end=None)
    folder = commands.storage / "searches" / "made"
    found = Findings.of(commands.ledger, storage=str(commands.storage), folder=folder)
    assert found.lost and rules(next_steps(found)) == ["lost"]
    commands.accept(next_steps(found))
    beat = {"by": "me@there", "host": "there", "pid": 7, "time": time.time() * 1000}
    (folder / DRIVER).write_text(json.dumps(beat))
    assert not Findings.of(commands.ledger, folder=folder).lost


def test_two_objectives(commands: Commands) -> None:
    raw = {"method": "pfml", "dataset": "cub200", "space": PFML_SPACE, "objectives": ["val/map_at_r", "cost/seconds"]}
    steps = commands.steps(spread(40), raw=raw)
    assert all(step.rule in ("widen", "longer", "narrow", "confirm", "improves", "stop") for step in steps)


# Where they are told


def test_a_training_asks_for_a_search_with_its_own_settings(commands: Commands) -> None:
    """But for those that the search tries values of."""
    own = {"backbone": "resnet50", "embedding_dim": 96, "lr": 3e-4, "epochs": 7}
    raw = {"method": "pfml", "dataset": "cub200", "settings": own, "space": {"alpha": [1.5]}}

    def to_training(ledger: Ledger) -> None:
        ledger.config["test_trials"] = True

    steps = commands.steps([{"alpha": 1.5}], lambda params: 0.5, raw=raw, epochs=7, change=to_training)
    assert "first_search" in rules(steps)
    search = commands.taken[rules(steps).index("first_search")]
    searched = {parameter.key for parameter in search.space.parameters()}
    assert searched == {"alpha", "delta", "proxies_per_class"}
    assert {key: search.settings.get(key) for key in (*own, "alpha")} == own | {"alpha": None}


def test_every_place_tells_the_same(commands: Commands) -> None:
    steps = commands.steps(spread(40), quick)
    journal = commands.storage / "searches" / "made" / "journal.jsonl"
    assert summary(commands.ledger, journal).next_steps == [step.output for step in steps]
    html = page(commands.findings)
    card = html[html.index('id="next-title"') : html.index("How sure is it?")]
    assert html.index('aria-label="First answers"') < html.index('id="next-title"')
    text = search_note(commands.findings)
    for step in steps:
        for told in (card, text):
            assert step.what.split(":")[0] in told
        if step.command is not None:
            where = html if step is steps[0] else card  # the first one's is among the first answers
            assert where.count(f"<code>{words(step.command)}</code>") == 1 and step.cost in card
    assert str(steps[0].command) in text


def test_the_documentation_has_every_rule() -> None:
    text = (ROOT / "docs" / "next_steps.md").read_text("utf-8")
    table = text[text.index("## What to run next") :].partition("\n## ")[0]
    assert [rule.name for rule in RULES] == re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    for rule in RULES:
        assert f"| `{rule.name}` | {rule.when} |" in table


@pytest.mark.parametrize(
    "seconds, text",
    [(0.44, "0.4 s"), (12.4, "12 s"), (59.7, "1 min"), (144, "2 min 24 s"), (11_100, "3 h 5 min"), (86_399, "1 d")],
)
def test_times_have_two_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


# The options


def test_a_search_like_another_with_other_ranges(commands: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    commands.steps(spread(6), quick)

    def refused(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["search", *words, "--dry-run", "--storage", str(commands.storage)])
        assert ended.value.code == 2
        return " ".join(capsys.readouterr().err.split())

    assert "SPACE: missing, or --like" in refused()
    assert "is given beside --like made" in refused("pfml", "--like", "made")
    assert "no search 'mad'" in refused("--like", "mad")
    assert "--range alpha: is fixed by --set too" in refused(
        "--like", "made", "--range", "alpha=[1, 2]", "--set", "alpha=1"
    )
    assert "--range" in refused("--like", "made", "--range", "alpha=7")
    assert "--range" in (said := refused("--like", "made", "--range", "alpah=[1, 2]")) and "alpha" in said
    main_words = ["search", "--like", "made", "--range", "lr={low: 1e-4, high: 1e-2, log: true}", "--dry-run"]
    with pytest.raises(SystemExit):
        main([*main_words, "--storage", str(commands.storage)])
    search = commands.taken[-1]
    assert search.space.parameters and {p.key for p in search.space.parameters()} == {*PFML_SPACE, "lr"}
    assert search.settings["backbone"] == "resnet50" and search.name.startswith("made-")
