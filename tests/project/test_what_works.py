"""The page of what works says what was measured, and nothing else."""

import re
import runpy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.standings import Standings, read_standings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> Mapping[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "write_what_works.py"))


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "what_works.md").read_text("utf-8")


@pytest.fixture(scope="module")
def standings() -> Standings:
    return read_standings(ROOT / "results")


def test_its_figures_are_those_of_today(script: Mapping[str, Any], page: str) -> None:
    assert page == script["page"](), "docs/what_works.md: make what-works"


def test_another_verdict_is_another_page(script: Mapping[str, Any], page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = script["verdicts"]()
    name = "lore/tuned_proxy_anchor"
    first, *others = claims[name].datasets
    effect, second = first.effects
    effects = [effect.model_copy(update={"effect": 7.7}), second]
    changed = claims[name].model_copy(update={"datasets": [first.model_copy(update={"effects": effects}), *others]})
    monkeypatch.setitem(script["page"].__globals__, "verdicts", lambda: {**claims, name: changed})
    other = script["page"]()
    assert other.replace("+7.7 points", "+8.7 points") == page and "+7.7 points" in other


@pytest.mark.parametrize("name", ["emoji", "icons"])
def test_a_conclusion_follows_from_the_record(script: Mapping[str, Any], standings: Standings, name: str) -> None:
    def changed(**changes: Any) -> Standings:
        return replace(standings, tasks=[replace(task, **changes) for task in standings.tasks])

    none, few = changed(network=None), changed(over_network={})
    for other in (none, few):
        with pytest.raises(ValueError, match=f"says that on {name} the pre-trained network is seldom enough"):
            script["beside_the_network"](other, name)
    rows = sum(row.task == script["TASKS"][name] for row in standings.outputs)
    assert script["beside_the_network"](standings, name)[f"on_network_{name}"] == rows > 40


def test_a_method_that_is_better_on_two_tasks_is_not_passed_over(
    script: Mapping[str, Any], standings: Standings, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = script["beside_the_reference"]
    rows = [row for row in standings.outputs if row.task in script["TASKS"].values()]
    below = {row.method for row in rows if row.against_best is not None and row.against_best.verdict == "worse"}
    never = [name for name in sorted({row.method for row in rows} - below) if name in beside(standings)["never_below"]]
    listed = re.sub(r" \([^)]*\)", "", beside(standings)["never_below"]).replace(" and ", ", ").split(", ")
    assert listed == never
    monkeypatch.setitem(beside.__globals__, "TASKS", {"glyphs": "emoji-frozen", "emoji": "emoji-frozen"})
    with pytest.raises(ValueError, match="says that no method is better than proxy_anchor on two tasks"):
        beside(standings)


def test_lower_rates_are_counted(script: Mapping[str, Any], standings: Standings) -> None:
    counted = script["beside_the_rates"]
    rows = sum(row.task == "icons-frozen" for row in standings.outputs)
    lower = [counted(standings, rate)["lower_icons"] for rate in (1e-4, 1e-3, 1.0)]
    assert lower[0] == 0 < lower[1] < lower[2] == counted(standings, 1.0)["rows_icons"] == rows


def test_each_sentence_names_what_it_rests_on(page: str) -> None:
    points = re.split(r"^- ", page, flags=re.MULTILINE)[1:]
    assert len(points) > 8 and all(re.search(r"\]\([\w./#-]+\)", point) for point in points), points
    assert len(page.split()) <= 600


def test_no_figure_is_written_by_hand() -> None:
    """Those of the template are of what is fixed: pictures, confidence, range, budget, points, classes, trials."""
    template = (ROOT / "docs" / "what_works.txt").read_text("utf-8")
    by_hand = re.findall(r"\d[\d.,]*%?", re.sub(r"\{[^}]*\}|\(\.\.[^)]*\)|[Rr]ecall@1", "", template))
    fixed = {"0.0001", "0.01", "0.2", "0.35", "1,000", "12", "13", "200", "4", "5%", "70", "80%", "95%", "99%"}
    assert set(by_hand) == fixed


def test_one_point_takes_more_pairs_where_seeds_differ_more(script: Mapping[str, Any]) -> None:
    pairs = script["pairs_for_one_point"]
    assert [pairs(deviation) for deviation in (0.5, 1.0, 2.0)] == [4, 10, 34]  # (2.802 s)^2 + 2
