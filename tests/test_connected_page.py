"""One selection for a search's page: the trials that it carries, and a walk by mouse and keyboard in Chromium."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from test_search_page import CHROMIUM, HOSTILE, PFML_SPACE, made, spread

from orchestrator.report.findings import Findings
from orchestrator.report.html.connected import thinned, trials_data
from orchestrator.report.html.search_page import page


def held(html: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="trials">(.*?)</script>', html)
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
    assert [row[0] for row in carried["trials"]] == list(ledger.trials)
    for row in carried["trials"]:
        trial = ledger.trials[row[0]]
        assert row[2] == (None if trial.best is None else pytest.approx(trial.best, rel=1e-5))
        point = dict(zip(carried["columns"][carried["first"] :], row[carried["first"] :], strict=True))
        assert point == pytest.approx(trial.params, rel=1e-5)
    about = carried["more"]["0002"]
    assert about["loss"] == pytest.approx([1 / n for n in range(1, 11)], rel=1e-5)
    assert about["curve"] == pytest.approx(ledger.trials["0002"].curve, rel=1e-5)
    assert about["at"] == list(range(1, 11)) and "thinned" not in about
    assert "more" in carried and carried["more"]["0000"]["reason"].startswith("<script>")


def test_curves_are_thinned_and_said_to_be(findings: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.report.html.connected.LONGEST", 4)
    monkeypatch.setattr("orchestrator.report.html.connected.NUMBERS", 40)
    monkeypatch.setattr("orchestrator.report.html.connected.thinned", lambda length: thinned(length, 4))
    more = trials_data(findings, {"0001": "../trials/0001/page.html"})["more"]
    assert list(thinned(10, 4)) == [0, 3, 6, 9]
    best = [trial.trial_id for trial in findings.ledger.ranking()]
    drawn = [trial for trial in best if "curve" in more.get(trial, {})]
    assert drawn == best[: len(drawn)] and 3 <= len(drawn) <= 6
    assert all(more[trial].get("thinned") == (len(findings.ledger.trials[trial].curve) > 4 or None) for trial in drawn)
    assert more["0001"]["page"] == "../trials/0001/page.html"


# A browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


DRAWN = "() => [...document.querySelectorAll('.plot')].every((node) => node.dataset.drawn || !node.checkVisibility())"
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
SAID = "() => document.getElementById('selection-said').textContent.startsWith('{}')"


def opened(browser: Any, address: str, said: list[str], **options: Any) -> Any:
    tab = browser.new_page(**({"viewport": {"width": 1400, "height": 900}} | options))
    tab.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(address)
    tab.wait_for_function(DRAWN, timeout=120_000)
    return tab


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
        tab.wait_for_function(f"() => ({LIT})('{plot}').join() === '{third}'")
    assert tab.evaluate(CARDS) == [third]
    differing = [key for key in PFML_SPACE if winner.params[key] != findings.ledger.trials[third].params[key]]
    assert tab.eval_on_selector_all("#trial-panel tbody tr td:first-child", "all => all.map(c => c.innerText)") == (
        differing
    )
    curves = tab.evaluate(CURVES)
    length = len(findings.ledger.trials[third].curve)
    assert curves == [["val/map_at_r", length], ["train loss", length]]
    lines = tab.evaluate(LINES)
    assert lines == [third]
    # two pinned side by side
    tab.click(f'[data-pin="{third}"]')
    tab.click(f'#leaderboard-table [data-trial="{winner.trial_id}"]')
    assert tab.evaluate(CARDS) == [third, winner.trial_id]
    assert "It is the winner." in tab.inner_text(f'[data-card="{winner.trial_id}"]')
    # the address holds it: another visit shows the same
    words = parse_qs(tab.evaluate("() => location.hash.slice(1)"))
    assert words == {"trials": [f"{third},{winner.trial_id}"], "pinned": [third]}
    again = opened(browser, tab.url, said)
    assert again.evaluate(CARDS) == [third, winner.trial_id]
    assert again.evaluate(LIT, "history") == sorted([third, winner.trial_id])
    again.close()
    tab.keyboard.press("Escape")
    assert tab.evaluate(CARDS) == [] and tab.evaluate("() => location.hash") == ""
    # a point of a plot, as plotly reports a click on it, and a brush over a part of a plot
    tab.evaluate("() => document.getElementById('history').scrollIntoView({block: 'center'})")
    tab.wait_for_timeout(300)
    x, y, trial = tab.evaluate(POINT)
    tab.mouse.move(x, y, steps=3)
    tab.wait_for_selector("#history .hovertext")
    tab.mouse.click(x, y)
    tab.wait_for_function(f"() => ({CARDS})().join() === '{trial}'")
    tab.keyboard.press("Escape")
    tab.hover("#history")
    tab.click('#history .modebar-btn[data-val="select"]')
    box = tab.evaluate(BOX)
    tab.mouse.move(box[0], box[1])
    tab.mouse.down()
    tab.mouse.move((box[0] + box[2]) / 2, box[3] - 20, steps=4)
    tab.mouse.move(box[2], box[3], steps=4)
    tab.mouse.up()
    brushed = [f"{n:04d}" for n in range(4, 9)]
    tab.wait_for_function(f"() => ({LIT})('quality').join() === '{','.join(brushed)}'")
    marked = tab.eval_on_selector_all("#leaderboard-table tr.selected .pick", "all => all.map(b => b.dataset.trial)")
    assert sorted(marked) == brushed
    # an axis of the parallel coordinates
    tab.keyboard.press("Escape")
    tab.evaluate("() => Plotly.restyle('parallel', { 'dimensions[0].constraintrange': [[0.1, 0.2]] })")
    low = sorted(t.trial_id for t in findings.ledger.finished() if t.params["delta"] <= 0.2)
    within = set(findings.comparable.values)
    axis = tab.evaluate("() => document.getElementById('parallel').data[0].dimensions[0].label")
    assert axis == "delta"
    expected = [trial for trial in low if trial in within]
    tab.wait_for_function(f"() => [...({LIT})('quality')].join() === '{','.join(expected)}'")
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
    tab.wait_for_function(f"() => ({LIT})('quality').length === {len(fits)}")
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
    assert tab.evaluate(CARDS) == [second]
    assert tab.evaluate("() => document.activeElement.dataset.trial") == second
    stops = tab.eval_on_selector_all("#leaderboard-table .pick", "all => all.filter(b => b.tabIndex === 0).length")
    assert stops == 1
    assert said == []
    tab.close()
