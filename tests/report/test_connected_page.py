"""One selection for a search's page: the trials that it carries, and a walk by mouse and keyboard in Chromium."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from support.browsers import browser as browser
from support.browsers import opened, until
from support.made_pages import HOSTILE, PFML_SPACE, figures, made, spread

import orchestrator.report.html.connected
from orchestrator.report.comparison import Comparison
from orchestrator.report.findings import Findings
from orchestrator.report.html.comparison_page import comparison_page
from orchestrator.report.html.connected import thin, trials_data
from orchestrator.report.html.search_page import page


def held(html: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="records">(.*?)</script>', html)
    return dict(json.loads(found))


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Twenty-four trials, a third of them stopped early, one failed."""
    folder = tmp_path_factory.mktemp("connected")
    return Findings.of(made(folder, spread(24), pruned=lambda n: n % 3 == 1, reason=HOSTILE))


def test_the_page_carries_each_trial_once(findings: Findings) -> None:
    html = page(findings)
    carried = held(html)
    ledger = findings.ledger
    assert carried["columns"][: carried["first"]] == ["trial", "state", "val/map_at_r", "validations", "seconds"]
    assert [row[0] for row in carried["rows"]] == list(ledger.trials)
    for row in carried["rows"]:
        trial = ledger.trials[row[0]]
        assert row[2] == (None if trial.best is None else pytest.approx(trial.best, rel=1e-5))
        point = dict(zip(carried["columns"][carried["first"] :], row[carried["first"] :], strict=True))
        assert point == pytest.approx(trial.params, rel=1e-5)
    about = carried["more"]["0002"]
    assert about["loss"] == pytest.approx([1 / n for n in range(1, 11)], rel=1e-5)
    assert about["curve"] == pytest.approx(ledger.trials["0002"].curve, rel=1e-5)
    assert about["at"] == list(range(1, 11)) and "thinned" not in about
    assert "more" in carried and carried["more"]["0000"]["reason"].startswith("<script>")


def test_settings_are_called_by_label_and_key(findings: Findings) -> None:
    """In the panel and over the parallel coordinates."""
    html = page(findings)
    labels = {setting.key: setting.label for setting in findings.searched}
    assert labels["alpha"] and not labels["proxies_per_class"], "one with a label, one that needs none"
    names = held(html)["names"]
    assert names["alpha"] == f"{labels['alpha']} (alpha)" and "proxies_per_class" not in names
    drawn = figures(html)["parallel"]["data"][0]["dimensions"]
    found = {one["label"] for one in drawn}
    assert {f"{labels['alpha']}<br>alpha", "proxies_per_class"} <= found


def test_curves_are_thinned_and_said_to_be(findings: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestrator.report.html.connected, "LONGEST", 4)
    monkeypatch.setattr(orchestrator.report.html.connected, "NUMBERS", 40)
    monkeypatch.setattr(orchestrator.report.html.connected, "thin", lambda length: thin(length, 4))
    more = trials_data(findings, {"0001": "../trials/0001/page.html"})["more"]
    assert list(thin(10, 4)) == [0, 3, 6, 9]
    best = [trial.trial_id for trial in findings.ledger.ranking()]
    drawn = [trial for trial in best if "curve" in more.get(trial, {})]
    assert drawn == best[: len(drawn)] and 3 <= len(drawn) <= 6
    assert all(more[trial].get("thinned") == (len(findings.ledger.trials[trial].curve) > 4 or None) for trial in drawn)
    assert more["0001"]["page"] == "../trials/0001/page.html"


# A browser


LIT = """(name) => [...document.getElementById(name).data.flatMap((trace) =>
  !trace.selectedpoints ? [] : trace.selectedpoints.map((place) => trace.customdata[place]))].sort()"""
ROWS = """() => [...document.querySelectorAll('#leaderboard-table tbody tr')].filter((row) => row.checkVisibility())
  .map((row) => row.querySelector('.pick').dataset.trial)"""
CARDS = "() => [...document.querySelectorAll('#trial-panel article')].map((card) => card.dataset.card)"


INSIDE = """const node = document.getElementById('history'), { xaxis, yaxis } = node._fullLayout;
  const box = node.getBoundingClientRect(), left = box.x + xaxis._offset, top = box.y + yaxis._offset;"""
POINT = f"""() => {{ {INSIDE} const trace = node.data.find((one) => one.name === 'pruned');
  return [left + xaxis.d2p(trace.x[2]), top + yaxis.d2p(trace.y[2]), trace.customdata[2]]; }}"""
BOX = f"""() => {{ {INSIDE}
  return [left + xaxis.d2p(3.5), top + 2, left + xaxis.d2p(8.5), top + yaxis._length - 2]; }}"""
CURVES = "() => document.querySelector('.panel-plot').data.map((trace) => [trace.name, trace.y.length])"
LINES = (
    "() => document.getElementById('learning').data.filter((trace) => trace.opacity > 0.9).map((trace) => trace.meta)"
)
BRIGHT = """(name) => [...new Set(document.getElementById(name).data.filter((trace) => (trace.opacity ?? 1) > 0.5)
  .map((trace) => JSON.stringify(trace.meta)))].sort().map((text) => JSON.parse(text))"""
CHOSEN = "() => [...document.querySelectorAll('#methods-table tr.selected .pick')].map((one) => one.dataset.trial)"
DIFFERENCE = """() => { const node = document.getElementById('effects'), { xaxis, yaxis } = node._fullLayout;
  const box = node.getBoundingClientRect(), trace = node.data.find((one) => one.meta.join() === 'b,c');
  return [box.x + xaxis._offset + xaxis.d2p(trace.x[0]), box.y + yaxis._offset + yaxis.d2p(trace.y[0])]; }"""
SAID = "() => document.getElementById('selection-said').textContent.startsWith('{}')"


def until_it_takes(tab: Any, gesture: Callable[[], None], expected: Any, script: str, *of: Any) -> None:
    """Repeat a gesture of the mouse until the page has taken it: a figure drawn anew under the mouse loses it."""
    from playwright.sync_api import TimeoutError as Late

    for _ in range(5):
        try:
            gesture()
            until(tab, expected, script, *of, seconds=6)
            return
        except (AssertionError, Late):
            tab.keyboard.press("Escape")
            tab.wait_for_timeout(1000)
    gesture()
    until(tab, expected, script, *of, seconds=6)


@pytest.mark.slow
def test_one_selection_of_searches(browser: Any, tmp_path: Path) -> None:
    """On the page of a comparison a row, a point, a filter, the address and the keyboard select searches everywhere."""
    points, said = spread(12), list[str]()
    best = max(range(12), key=lambda n: points[n]["delta"])
    tests = {"a": [0.52, 0.50, 0.54, 0.53], "b": [0.50, 0.49, 0.52, 0.52], "c": [0.2, 0.21, 0.19, 0.2]}
    ledgers = {
        label: made(tmp_path / label, points, lambda p: p["delta"], finals={f"{best:04d}": values})
        for label, values in tests.items()
    }
    path = tmp_path / "comparison.html"
    path.write_text(comparison_page(Comparison.of("three", ledgers), {"b": "b.html"}), encoding="utf-8")
    tab = opened(browser, path.as_uri(), said)
    tab.click("#methods-table tbody tr:nth-child(2) td:nth-child(4)")
    until(tab, ["b"], CARDS)
    assert tab.inner_text('[data-card="b"] h2') == "Search b" and "best val/map_at_r so far" in str(
        tab.evaluate(CURVES)
    )
    assert tab.get_attribute('[data-card="b"] a', "href") == "b.html"
    until(tab, [["a", "b"], ["b", "c"]], BRIGHT, "effects")
    for plot in ("tests", "course", "quality"):
        until(tab, ["b"], BRIGHT, plot)
    assert parse_qs(tab.evaluate("() => location.hash.slice(1)")) == {"searches": ["b"]}
    again = opened(browser, tab.url, said)
    until(again, ["b"], CARDS)
    again.close()
    tab.keyboard.press("Escape")
    until(tab, [], CARDS)
    # a point of a difference selects both of its searches
    tab.evaluate("() => document.getElementById('effects').scrollIntoView({block: 'center'})")
    until(tab, [["a", "b"], ["a", "c"], ["b", "c"]], BRIGHT, "effects")

    def click_on_a_difference() -> None:
        x, y = tab.evaluate(DIFFERENCE)
        tab.mouse.move(x - 40, y - 20)
        tab.mouse.move(x, y, steps=3)
        tab.wait_for_selector("#effects .hovertext", timeout=6000)
        tab.mouse.click(x, y)

    until_it_takes(tab, click_on_a_difference, ["b", "c"], CHOSEN)
    tab.keyboard.press("Escape")
    tab.keyboard.press("/")
    tab.keyboard.type("test/map_at_r>0.4")
    tab.wait_for_function(SAID.format("2 of 3"))
    until(tab, ["a", "b"], BRIGHT, "course")
    tab.click("#clear")
    tab.focus("#methods-table .pick")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    until(tab, ["c"], CARDS)
    assert said == []
    tab.close()


@pytest.mark.slow
def test_one_selection_everywhere(browser: Any, findings: Findings, tmp_path: Path) -> None:
    """A row, a point, a brush, a filter, the address and the keyboard select the same trials in all places."""
    path, said = tmp_path / "search.html", list[str]()
    path.write_text(page(findings), encoding="utf-8")
    tab = opened(browser, path.as_uri(), said)
    winner = findings.winner
    assert winner is not None
    # a row
    tab.click("#leaderboard-table tbody tr:nth-child(3) td:nth-child(4)")
    third = findings.ledger.ranking()[2].trial_id
    for plot in ("history", "quality", "slice-0"):
        until(tab, [third], LIT, plot)
    until(tab, [third], LINES)
    assert tab.evaluate(CARDS) == [third]
    named = {setting.key: setting.full_label for setting in findings.searched}
    other = findings.ledger.trials[third].params
    differing = [named[key] for key in PFML_SPACE if winner.params[key] != other[key]]
    assert tab.eval_on_selector_all("#trial-panel tbody tr td:first-child", "all => all.map(c => c.innerText)") == (
        differing
    )
    length = len(findings.ledger.trials[third].curve)
    until(tab, [["val/map_at_r", length], ["train loss", length]], CURVES)
    # two pinned side by side
    tab.click(f'[data-pin="{third}"]')
    tab.click(f'#leaderboard-table [data-trial="{winner.trial_id}"]')
    until(tab, [third, winner.trial_id], CARDS)
    assert "It is the winner." in tab.inner_text(f'[data-card="{winner.trial_id}"]')
    # the address holds it: another visit shows the same
    words = parse_qs(tab.evaluate("() => location.hash.slice(1)"))
    assert words == {"trials": [f"{third},{winner.trial_id}"], "pinned": [third]}
    again = opened(browser, tab.url, said)
    until(again, [third, winner.trial_id], CARDS)
    until(again, sorted([third, winner.trial_id]), LIT, "history")
    again.close()
    tab.keyboard.press("Escape")
    until(tab, [], CARDS)
    assert tab.evaluate("() => location.hash") == ""
    # a point of a plot, as plotly reports a click on it, and a brush over a part of a plot
    tab.evaluate("() => document.getElementById('history').scrollIntoView({block: 'center'})")
    until(tab, [], LIT, "history")

    def click_on_a_point() -> None:
        x, y, _ = tab.evaluate(POINT)
        tab.mouse.move(x - 40, y - 40)
        tab.mouse.move(x, y, steps=3)
        tab.wait_for_selector("#history .hovertext", timeout=6000)
        tab.mouse.click(x, y)

    def brush() -> None:
        left, top, right, bottom = tab.evaluate(BOX)
        tab.mouse.move(left, top)
        tab.mouse.down()
        tab.mouse.move((left + right) / 2, bottom - 20, steps=4)
        tab.mouse.move(right, bottom, steps=4)
        tab.mouse.up()

    until_it_takes(tab, click_on_a_point, [tab.evaluate(POINT)[2]], CARDS)
    tab.keyboard.press("Escape")
    until(tab, [], LIT, "history")
    tab.hover("#history")
    tab.click('#history .modebar-btn[data-val="select"]')
    brushed = [f"{n:04d}" for n in range(4, 9)]
    until_it_takes(tab, brush, brushed, LIT, "quality")
    marked = tab.eval_on_selector_all("#leaderboard-table tr.selected .pick", "all => all.map(b => b.dataset.trial)")
    assert sorted(marked) == brushed
    # an axis of the parallel coordinates
    tab.keyboard.press("Escape")
    until(tab, [], LIT, "quality")
    low = sorted(t.trial_id for t in findings.ledger.candidates() if t.params["delta"] <= 0.2)
    within = set(findings.comparable.values)
    axis = tab.evaluate("() => document.getElementById('parallel').data[0].dimensions[0].label")
    assert axis.split("<br>")[-1] == "delta"
    expected = [trial for trial in low if trial in within]

    def narrow_the_axis() -> None:
        tab.evaluate("() => Plotly.restyle('parallel', { 'dimensions[0].constraintrange': [[0.1, 0.2]] })")

    until_it_takes(tab, narrow_the_axis, expected, LIT, "quality")
    tab.keyboard.press("Escape")
    # a filter
    tab.keyboard.press("/")
    tab.keyboard.type("delta<0.2 alpha>1 state=done")
    fits = {
        trial.trial_id
        for trial in findings.ledger.trials.values()
        if trial.params["delta"] < 0.2 and trial.params["alpha"] > 1 and trial.state == "done"
    }
    tab.wait_for_function(
        f"() => document.getElementById('selection-said').textContent.startsWith('{len(fits)} of 24')"
    )
    assert fits and set(tab.evaluate(ROWS)) == fits
    until(tab, sorted(fits), LIT, "quality")
    edge = sorted(trial.params["proxies_per_class"] for trial in findings.ledger.trials.values())[8]
    for sign, among in (("<", edge.__gt__), ("<=", edge.__ge__), (">", edge.__lt__), (">=", edge.__le__)):
        count = sum(among(trial.params["proxies_per_class"]) for trial in findings.ledger.trials.values())
        tab.fill("#filter", f"proxies_per_class{sign}{edge}")
        tab.wait_for_function(SAID.format(f"{count} of 24"))
    tab.fill("#filter", "nu<1 lr<x")
    tab.wait_for_function("() => document.getElementById('filter').ariaInvalid === 'true'")
    assert "no column 'nu': trial, state, val/map_at_r" in tab.inner_text("#selection-said")
    assert len(tab.evaluate(ROWS)) == 24
    tab.fill("#filter", "failed")
    tab.wait_for_function(SAID.format("1 of 24"))
    assert tab.evaluate(ROWS) == ["0000"]
    tab.click("#clear")
    # the keyboard alone: one stop for the table's trials, arrows between them, Enter selects
    tab.focus("#leaderboard-table .pick")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    second = findings.ledger.ranking()[1].trial_id
    until(tab, [second], CARDS)
    assert tab.evaluate("() => document.activeElement.dataset.trial") == second
    stops = tab.eval_on_selector_all("#leaderboard-table .pick", "all => all.filter(b => b.tabIndex === 0).length")
    assert stops == 1
    assert said == []
    tab.close()
