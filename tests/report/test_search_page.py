"""What a search found out, and the page that shows it: over made journals, and once in a real browser."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from support.made_pages import CHROMIUM, HOSTILE, PFML_SPACE, Elements, bowl, complaints, figures, made, opened, spread
from support.memory_tracking import MemoryTracker
from support.recorded import record

import orchestrator.report.html.figures
import orchestrator.report.html.search_page
import orchestrator.report.importance
from orchestrator.cli.states import status_text
from orchestrator.cli.tables import closing, links
from orchestrator.config.labels import label_of
from orchestrator.report.findings import Findings
from orchestrator.report.formats import format_of
from orchestrator.report.html.rendering import words
from orchestrator.report.html.search_page import page, write_page
from orchestrator.report.note import search_note
from orchestrator.search.control import status
from orchestrator.search.finish import Outcome
from orchestrator.storage.journal import Journal
from orchestrator.storage.leaderboard import Interval, repeated_tests

# Findings


def test_the_verdict_answers_a_reader_s_questions(tmp_path: Path) -> None:
    best = max(range(40), key=lambda n: bowl(spread(40)[n]))
    found = Findings.of(made(tmp_path, spread(40), finals={f"{best:04d}": [0.5221, 0.5222, 0.5220]}))
    assert found.winner is not None and found.winner.trial_id == f"{best:04d}"
    assert found.verdict[0].startswith(f"Best: trial {best:04d}, val/map_at_r 0.")
    assert "40 trials (40 done), 3 h 20 min of training" in found.verdict[1]
    assert next(iter(found.importances.shares)) == "delta"
    assert found.importances.real_effects == ["delta"] and "cannot be told from chance" in found.importances.answer
    assert 0.4 < sum(mean for mean, _ in found.importances.shares.values()) <= 1
    assert found.widen.startswith("No:") and found.warnings == ()
    assert found.distance.startswith("recall_at_1 72.")
    assert "below 73.4 of PFML, Table 1, Potential Field (Ours). Not like for like: embedding_dim" in found.distance


def test_a_flat_curve_is_not_drawn_between_minus_one_and_one(tmp_path: Path) -> None:
    drawn = figures(page(Findings.of(made(tmp_path, spread(3), lambda params: 0.0, epochs=2))))
    for name in ("history", "learning", "quality"):
        low, high = drawn[name]["layout"]["yaxis"]["range"]
        assert low < 0 < high <= 0.06, name


def test_a_lost_search_is_red_and_brackets_stand_alone(tmp_path: Path) -> None:
    """The best point lies at the end of a logarithmic range, and no process drives the search."""
    space = PFML_SPACE | {"alpha": {"low": 0.1, "high": 3, "log": True}}
    points = [point | {"alpha": 0.1 * 30 ** min(1, n / 10)} for n, point in enumerate(spread(12))]
    raw: dict[str, Any] = {"method": "pfml", "dataset": "cub200", "space": space}
    ledger = made(tmp_path, points, lambda params: params["alpha"] / 10, raw=raw, end=None)
    found = Findings.of(ledger, folder=tmp_path)
    assert found.lost and '<span class="state failed">lost</span>' in page(found)
    said = " ".join([found.widen, *found.warnings])
    assert "0.1 to 3, logarithmic)" in said and "))" not in said


def test_a_command_is_divided_between_its_words() -> None:
    each = ("train", "--set", "&#39;a=&lt;b&gt;&#39;")
    assert words("train --set 'a=<b>'") == " ".join(f'<span class="word">{word}</span>' for word in each)


def test_seeds_confirm_or_do_not(tmp_path: Path) -> None:
    points = spread(20)
    order = sorted(range(20), key=lambda n: -bowl(points[n]))
    first, second = (f"{n:04d}" for n in order[:2])
    clear = made(tmp_path / "a", points, finals={first: [0.52, 0.521, 0.522], second: [0.501, 0.5, 0.502]})
    assert "seeds confirm it" in Findings.of(clear).certainty
    said = "0.5210 ± 0.0010 (95% over 3 seeds: 0.5185 to 0.5235; over queries: 0.5110 to 0.5310; too narrow for "
    assert said in Findings.of(clear).verdict[1]
    close = made(tmp_path / "b", points, finals={first: [0.52, 0.50, 0.54], second: [0.51, 0.53, 0.50]})
    assert "seeds do not tell them apart" in Findings.of(close).certainty
    assert any(line.startswith("Unstable over seeds") for line in Findings.of(close).warnings)
    reversed_ = made(tmp_path / "c", points, finals={first: [0.50, 0.501, 0.502], second: [0.521, 0.52, 0.522]})
    assert f"over seeds trial {second} is the better one" in Findings.of(reversed_).certainty
    alone = made(tmp_path / "d", points, finals={first: [0.52]})
    assert "one seed each" in Findings.of(alone).certainty
    only = Findings.of(made(tmp_path / "f", points, finals={first: [0.520, 0.521]})).certainty
    assert "that may be chance. Over 2 seeds its test has a deviation of 0.0007." in only
    level = Findings.of(made(tmp_path / "g", spread(3), lambda p: 0.5)).certainty
    assert level.startswith("It ties with trial 0001, with one seed each")
    stopped = made(tmp_path / "e", points, pruned=lambda number: number != int(first))
    said = Findings.of(stopped).certainty
    rival, won = stopped.candidates()[1], stopped.trials[first]
    assert said.startswith(f"After 3 validations, where trial {rival.trial_id} was stopped, it led that one by ")
    assert f"({won.curve[2]:.4f} against {rival.best:.4f})" in said and won.curve[2] < won.curve[-1]
    assert "0.5200 (95% over queries: 0.5100 to 0.5300; too narrow for classes" in Findings.of(alone).verdict[1]
    assert Findings.of(alone).distance.startswith("recall_at_1 72.0 is 1.4 points below 73.4 of PFML, Table 1")


def test_two_objectives_have_a_front(tmp_path: Path) -> None:
    raw = {"method": "pfml", "dataset": "cub200", "space": PFML_SPACE, "objectives": ["val/map_at_r", "cost/seconds"]}
    ledger = made(tmp_path, spread(20), raw=raw, pruned=lambda n: n % 3 == 1)
    found = Findings.of(ledger)
    html = page(found)
    assert found.verdict[0].startswith(f"On the front: {len(ledger.front)} trials. Best in val/map_at_r: trial ")
    assert "cost/seconds" in found.verdict[0] and "none is better than another in both" in found.certainty
    assert "cost/seconds (lower is better)" in html
    heads = re.search(r'id="leaderboard-table".*?</thead>', html, re.DOTALL)
    assert heads is not None and ">cost/<wbr>seconds<" in heads[0] and ">front<" in heads[0]
    assert html.count("<td>on the front</td>") == len(ledger.front)
    front = next(t for t in figures(html)["front-figure"]["data"] if t["name"] == "front")
    trials = ledger.trials.values()
    pairs = {(t.second, t.best) for t in trials if t.second is not None and t.best is not None}
    assert all(t.second is not None and t.best is not None for t in trials)
    unbeaten = {(s, b) for s, b in pairs if not any(s2 <= s and b2 >= b and (s2, b2) != (s, b) for s2, b2 in pairs)}
    assert len(unbeaten) > 1 and front["x"] == sorted(front["x"])
    assert list(zip(front["x"], front["y"], strict=True)) == [
        pytest.approx(pair, rel=1e-5) for pair in sorted(unbeaten)
    ]
    assert 'id="front-table"' in html
    assert 'id="front-table"' not in page(Findings.of(made(tmp_path / "one", spread(3))))


@pytest.mark.parametrize(
    "delta, proxies, said",
    [
        (0.349, 15, "Yes: delta above 0.35 (best: 0.349 in 0.1 to 0.35)."),
        (0.101, 15, "Yes: delta below 0.1 (best: 0.101 in 0.1 to 0.35)."),
        (0.2, 30, "Yes: proxies_per_class above 30"),
        (
            0.2,
            0,
            "No: the best point lies inside every range, or at the setting's own limit (proxies_per_class 0).",
        ),  # there are no fewer proxies than none
    ],
)
def test_the_edge_of_a_range(tmp_path: Path, delta: float, proxies: int, said: str) -> None:
    points = [{"delta": delta, "alpha": 1.0, "proxies_per_class": proxies}, *spread(12)]
    of_delta = {0.349: 1, 0.101: -1}.get(delta, 0)

    def value(p: Mapping[str, Any]) -> float:
        far = 0.0 if of_delta else 0.01 * abs(p["proxies_per_class"] - 30 + proxies)
        return 0.5 + of_delta * float(p["delta"]) + far

    found = Findings.of(made(tmp_path, points, value))
    assert found.widen.startswith(said)
    assert any("edge of its range" in line for line in found.warnings) == said.startswith("Yes")


def test_one_point_says_nothing_of_ranges(tmp_path: Path) -> None:
    found = Findings.of(made(tmp_path, [{"delta": 0.349, "alpha": 1.0, "proxies_per_class": 30}]))
    assert found.widen == "One value of each setting was tried, which says nothing about the ranges."
    assert found.importances.basis == "no importances: one value of each setting was tried"
    assert found.warnings[0].startswith("The budget is small: 1 result for 3 searched settings")


def test_a_list_of_two_numbers_has_edges(tmp_path: Path) -> None:
    space = {"alpha": [1.0, 4.0], "delta": [0.1, 0.15, 0.2, 0.25, 0.3]}
    raw = {"method": "pfml", "dataset": "cub200", "space": space, "algorithm": "grid"}
    points = [{"alpha": alpha, "delta": delta} for alpha in space["alpha"] for delta in space["delta"]]
    for name, step, said in (
        ("large", 0.1, "Yes: alpha below 1 (best: 1 in 1, 4)."),
        (
            "small",
            0.001,
            "The results do not show it: alpha = 1 is at the low end of its range, but 10 trials are too ",
        ),
    ):
        ledger = made(tmp_path / name, points, lambda p, s=step: 0.9 - s * p["alpha"] - abs(p["delta"] - 0.2), raw=raw)  # type: ignore[misc]
        assert Findings.of(ledger).widen.startswith(said)


def test_warnings(tmp_path: Path) -> None:
    raw = {"method": "pfml", "dataset": "cub200", "settings": {"selection": "test"}, "space": PFML_SPACE}
    found = Findings.of(made(tmp_path, spread(6), raw=raw, reason="the loss is NaN", end="interrupted", epochs=5))
    told = "\n".join(found.warnings)
    assert found.warnings[0].startswith("selection: test")
    for part in ("interrupted", "1 training failed; the first: the loss is NaN", "The budget is small", "still rose"):
        assert part in told
    assert (
        "too few trials for importances: 5 can be compared, and for 3 settings 12 are needed" in found.importances.basis
    )


def test_early_stops_are_compared_at_one_age(tmp_path: Path) -> None:
    found = Findings.of(made(tmp_path, spread(30), pruned=lambda n: n % 3 != 0))
    basis = "val/map_at_r after 3 validations, which 30 trials reached"
    assert basis in found.importances.basis
    assert next(iter(found.importances.shares)) == "delta"
    points = [{"delta": 0.1 + 0.05 * (n % 4), "alpha": 1.0 + n // 4, "proxies_per_class": 5} for n in range(20)]
    found = Findings.of(made(tmp_path / "b", points, lambda p: 0.5, pruned=lambda n: n % 4 > 0))
    html = page(found)
    effect = next(f for name, f in figures(html).items() if name.startswith("effect") and f["data"][0]["x"][0] == 0.1)
    at_three = 0.5 * (1 - 0.5 * math.exp(-1.5))
    assert effect["data"][0]["y"] == pytest.approx([at_three] * 4, rel=1e-5)
    assert figures(html)["map-0"]["data"][0]["z"][0] == pytest.approx([at_three] * 4, rel=1e-5)
    assert html.count(basis.replace("30", "20")) >= 2


def test_who_led_at_one_age_may_want_a_wider_range(tmp_path: Path) -> None:
    tried = (0.3, 0.35, 0.25, 0.2, 0.15, 0.12, 0.1, 0.22)
    points = [{"delta": delta, "alpha": 1.0, "proxies_per_class": 5} for delta in tried]
    found = Findings.of(made(tmp_path, points, lambda p: 0.3 + p["delta"], pruned=lambda n: n == 1))
    assert found.winner is not None and found.winner.trial_id == "0000"
    assert found.widen == (
        "No end of a range was reached; 8 results are too few to tell whether the best ones crowd at an end (10 are "
        "needed). But after 3 validations, which all had, trial 0001 led, and would go delta above 0.35 (best: 0.35 in "
        "0.1 to 0.35)."
    )


@pytest.mark.parametrize("end, over", [("failed", True), ("interrupted", False)])
def test_a_search_without_a_result_says_whether_one_may_come(tmp_path: Path, end: str, over: bool) -> None:
    """No trial has won what is over, and nothing of it is to come."""
    found = Findings.of(made(tmp_path, spread(1), reason="val/map_at_r is nan at validation 1", end=end))
    said = " ".join(Elements(page(found)).text)
    assert "All settings of the first trial: none has won" in said and "of the winner" not in said
    assert bool(re.search(r"\byet\b", said)) != over
    assert "No trial has a value" in said and "No validation has been recorded" in said


def test_embedded_data_has_no_paper(tmp_path: Path) -> None:
    for dataset, told in (("glyphs-small", True), ("my-birds", False)):
        raw = {"method": "pfml", "dataset": dataset, "space": PFML_SPACE}
        found = Findings.of(made(tmp_path / dataset, spread(3), raw=raw))
        assert f"None of the papers' tables here has pfml on {dataset}" in found.distance
        assert found.distance.endswith("which are drawn here to try methods out.") == told


def test_the_page_links_its_model_s_where_that_is_beside_it(tmp_path: Path) -> None:
    found = Findings.of(made(tmp_path, spread(3)), confused="A and B.")
    write_page(found, tmp_path / "search.html")
    assert "model.html" not in (tmp_path / "search.html").read_text()
    (tmp_path / "model.html").touch()
    write_page(found, tmp_path / "search.html")
    assert ("a", {"href": "model.html"}) in Elements((tmp_path / "search.html").read_text()).tags


def test_the_whole_search_is_on_the_page_as_a_file(tmp_path: Path) -> None:
    from orchestrator.config.files import read_yaml
    from orchestrator.config.resolve import resolve_search
    from orchestrator.config.search import Search

    ledger = made(tmp_path, spread(3))
    html = page(Findings.of(ledger))
    (text,) = re.findall(r'<pre id="search-file" tabindex="0"><code>(.*?)</code>', html, re.DOTALL)
    (tmp_path / "search.yaml").write_text(unescape(text))
    again = resolve_search(read_yaml(tmp_path / "search.yaml"), name=ledger.name, source="search.yaml")
    assert again.model_dump() == Search.model_validate(ledger.config).model_dump() | {
        "source": "search.yaml",
        "auto": False,
        "auto_stops": False,
    }


def test_few_trials_have_whole_numbers_and_epochs_are_counted(tmp_path: Path) -> None:
    ledger = made(tmp_path, spread(2), epochs=1, end=None)
    found = Findings.of(ledger)
    html = page(found)
    assert figures(html)["history"]["layout"]["xaxis"]["dtick"] == 1
    assert figures(html)["learning"]["layout"]["xaxis"]["dtick"] == 1
    assert "1 epochs" not in html and "2 epochs of training together" in html
    many = figures(page(Findings.of(made(tmp_path / "many", spread(14)))))
    assert "dtick" not in many["history"]["layout"]["xaxis"]


def test_a_search_that_is_lost_does_not_run_and_tells_its_best(tmp_path: Path) -> None:
    ledger = made(tmp_path, spread(1), end=None)
    running, lost = Findings.of(ledger).verdict, Findings.of(ledger, folder=tmp_path).verdict
    best = f"So far trial 0000: val/map_at_r {ledger.trials['0000'].best:.4f} on held-out classes after 10 validations."
    assert running[0] == f"No trial of made has a result yet (1 running). {best}"
    assert lost[0] == f"No trial of made has a result yet (1 cut off). {best}"


def test_intervals_are_shown_within_the_metric_s_range(tmp_path: Path) -> None:
    """Student's t reaches below zero over two seeds that are far apart; no mean of map_at_r is there."""
    ledger = made(tmp_path, spread(4), finals={"0000": [0.05, 0.25]})
    ledger.finals["final-0000-seed-0"].source = ledger.finals["final-0000-seed-1"].source = "0000"
    low = Interval.of([0.05, 0.25]).low
    assert low < 0
    html = page(Findings.of(ledger))
    (row,) = re.findall(r'id="seeds-1-table".*?<tr>\s*<td[^>]*>map_at_r</td>(.*?)</tr>', html, re.DOTALL)
    assert [" ".join(cell.split()) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)][2:4] == [
        "0.0000",
        "1.0000",
    ]


def test_equal_tests_over_seeds_have_an_interval_of_a_query(tmp_path: Path) -> None:
    ledger = made(tmp_path, spread(4), finals={"0000": [1.0, 1.0]})
    for final in ledger.finals.values():
        final.source = "0000"
    ledger.sizes = {"test": {**(ledger.sizes.get("test") or {}), "one_query": 0.001}}
    (group,) = repeated_tests(ledger)
    interval = group.metrics["map_at_r"]
    assert (interval.mean, interval.standard_deviation) == (1.0, 0.0)
    assert 0.99 < interval.low < 0.992


def test_the_star_leaves_the_number_readable(tmp_path: Path) -> None:
    points = [{"delta": 0.1 + 0.05 * (n % 4), "alpha": 1.0 + n // 4, "proxies_per_class": 5} for n in range(16)]
    found = Findings.of(made(tmp_path, points))
    drawn = figures(page(found))["map-0"]["data"]
    texts = [text for row in drawn[0]["text"] for text in row]
    assert drawn[0]["type"] == "heatmap" and [text[:6] for text in texts if text.endswith(" ★")] == [
        f"{max(found.comparable.values.values()):.4f}"
    ]
    assert all(trace.get("name") != "winner" for trace in drawn)


def test_before_anything_has_happened(tmp_path: Path) -> None:
    ledger = made(tmp_path, [], end=None)
    found = Findings.of(ledger)
    assert found.winner is None and found.command is None
    assert "No trial of made has a result yet (none begun)" in found.verdict[0]
    assert "No trial has a value yet." in "".join(Elements(page(found)).text)
    assert format_of("latex").leaderboard(ledger).count(r"\midrule") == 1


def test_the_command_trains_the_winner_again(tmp_path: Path) -> None:
    from orchestrator.config.files import parse_assignments
    from orchestrator.config.training import resolve_experiment

    found = Findings.of(made(tmp_path, spread(5)))
    assert found.command is not None and found.winner is not None
    words = found.command.split()
    assert words[:6] == ["orchestrator", "train", "--method", "pfml", "--dataset", "cub200"]
    given = parse_assignments([word for word in words[6:] if word != "--set"])
    again = resolve_experiment({"method": "pfml", "dataset": "cub200", **given}, "command").flat()
    assert again == found.winner.settings


# The note


def test_the_note_links_runs_and_fits(tmp_path: Path) -> None:
    ledger = made(tmp_path, spread(40), finals={"0009": [0.5, 0.51], "0008": [0.5, 0.52]})
    text = search_note(Findings.of(ledger))
    assert text.startswith("Best: trial ") and len(text) < 5000
    assert "**How far from the papers?**" in text
    with Journal(tmp_path / "journal.jsonl") as journal:
        record(journal, "note", text=text)
    tracker = MemoryTracker(tmp_path / "journal.jsonl")
    assert tracker.close(10)
    written = tracker.runs[str(tracker.parent_run_id)]["tags"]["mlflow.note.content"]
    assert "trial:" not in written and len(written) <= 5000
    above = tracker.store.notes[str(tracker.experiment_id)]  # above all runs of the experiment
    assert f"/runs/{tracker.parent_run_id})**" in above.splitlines()[0] and len(above) <= 5000
    assert above.splitlines()[2:] == written.partition("\n\n**")[0].splitlines() and len(above) < 1000
    best = Findings.of(ledger).winner
    assert best is not None
    address = f"#/experiments/{tracker.experiment_id}/runs/{tracker.run_id(best.trial_id)}"
    assert f"| 1 | [{best.trial_id}]({address}) |" in written


# The page


def test_the_page_is_whole_and_offline(tmp_path: Path) -> None:
    html = page(Findings.of(made(tmp_path, spread(40), pruned=lambda n: n % 4 == 1, reason="NaN")))
    assert len(html.encode()) < 6_000_000
    seen = Elements(html)
    loads = [value for _, found in seen.tags for name, value in found.items() if name in ("src", "href") and value]
    assert all(value.startswith(("#", "data:")) for value in loads)
    ids = [found["id"] for _, found in seen.tags if found.get("id")]
    assert len(ids) == len(set(ids))
    plots = [found for tag, found in seen.tags if found.get("class") == "plot"]
    assert {plot["id"] for plot in plots} == set(figures(html))
    assert {"history", "spent", "importances", "parallel", "slice-0", "map-0", "learning", "quality"} <= set(ids)
    assert all(plot["aria-labelledby"] in ids for plot in plots)
    assert all(found["data-of"] in ids for tag, found in seen.tags if found.get("data-of"))


def test_plotly_takes_every_figure(tmp_path: Path) -> None:
    grid = {
        "method": "ccp",
        "dataset": "cub200",
        "space": {"pool_size": [4, 8, 12], "proxies_per_class": [1, 4, 8], "proximal_weight": [1e-4, 1e-3]},
        "algorithm": "grid",
    }
    points = [
        {"pool_size": b, "proxies_per_class": m, "proximal_weight": w}
        for b in (4, 8, 12)
        for m in (1, 4, 8)
        for w in (1e-4, 1e-3)
    ]
    ledger = made(tmp_path, points, lambda p: 0.3 + 0.01 * p["pool_size"] + 0.1 * p["proximal_weight"], raw=grid)
    html = page(Findings.of(ledger))
    shown = figures(html)
    assert {"effect-0", "effect-1", "effect-2"} <= set(shown)
    titles = Elements(html).text
    assert any("Over pool_size and proxies_per_class" in text for text in titles)
    assert any("Over proximal_weight and proxies_per_class" in text for text in titles)
    heat = [figure["data"][0] for figure in shown.values() if figure["data"][0]["type"] == "heatmap"]
    by_pool = next(trace for trace in heat if trace["x"] == ["4", "8", "12"] and trace["y"] == ["1", "4", "8"])
    assert by_pool["z"][0] == pytest.approx([0.3403 * 0.9966, 0.3803 * 0.9966, 0.4203 * 0.9966], rel=1e-2)
    for figure in shown.values():
        plain = json.loads(re.sub(r"var\(--\w+\)", "red", json.dumps(figure)))
        go.Figure(plain["data"], plain["layout"])  # refuses what plotly does not know


def test_a_large_search_keeps_a_small_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("search_page.LEADERS", "settings_section.LEADERS", "search_page.CURVES"):
        monkeypatch.setattr(f"orchestrator.report.html.{limit}", 20)
    monkeypatch.setattr(orchestrator.report.html.figures, "DRAWN", 40)
    monkeypatch.setattr(orchestrator.report.html.search_page, "DRAWN", 40)
    monkeypatch.setattr(orchestrator.report.importance, "MAX_TRIALS", 30)
    findings = Findings.of(made(tmp_path, spread(60), epochs=2))
    assert "(30 of them, evenly from best to worst)" in findings.importances.basis
    html = page(findings)
    assert "The best 20 of 60; all: orchestrator report made --format csv" in html
    assert sum(tag == "tr" for tag, _ in Elements(html.partition('id="settings"')[0]).tags) < 40
    shown = figures(html)
    assert len(shown["learning"]["data"]) == 20
    assert "at most 40 of the 60 trials" in html
    assert "Interpolated between 40 trials of 60." in html
    best = [trial.number for trial in findings.ledger.ranking()]
    drawn = shown["history"]["data"][0]["x"]
    assert len(drawn) == 40 and drawn == sorted(drawn) and {*best[:20]} < {*drawn}
    assert [sum(number in drawn for number in best[i : i + 10]) for i in range(20, 60, 10)] == [5, 5, 5, 5]
    for name in ("slice-0", "quality"):
        assert len(shown[name]["data"][0]["x"]) == 40
    assert len(shown["parallel"]["data"][0]["dimensions"][0]["values"]) == 40
    line = shown["history"]["data"][-1]
    assert line["x"][-1] == 59 and line["y"] == sorted(line["y"]) and len(set(line["y"][:-1])) == len(line["y"]) - 1
    assert not any("text" in trace for trace in shown["history"]["data"])


@pytest.mark.parametrize("form", ["markdown", "csv", "latex"])
def test_exports(tmp_path: Path, form: Any) -> None:
    order = sorted(range(12), key=lambda n: -bowl(spread(12)[n]))
    text = format_of(form).leaderboard(made(tmp_path, spread(12), finals={f"{order[0]:04d}": [0.5, 0.52]}))
    trial = f"{order[0]:04d}"
    if form == "csv":
        assert text.splitlines()[1].startswith(f"1,{trial},done,")
        return
    line = next(line for line in text.splitlines() if trial in line and ("&" in line or line.startswith("|")))
    if form == "markdown":
        assert line.startswith(f"| **{trial}** | **done**") and line.endswith(
            "**0.5100 ± 0.0141 (0.5000 to 0.5200)** | **0.7100 ± 0.0141** |"
        )
        assert r"| test map\_at\_r (95% over queries) | test recall\_at\_1 |" in text
    else:
        assert line.startswith(rf"\textbf{{{trial}}}") and r"\textbf{0.5100 $\pm$ 0.0141 (0.5000 to 0.5200)}" in line
        assert text.count(r"\textbf") == line.count(r"\textbf") and r"\toprule" in text and "proxies per class" in text


hostile_text = st.text(st.sampled_from(list("<>&\"'`|\\/{}%$#_^~\n\u2028[]()!- ab1")), min_size=1, max_size=30)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=hostile_text | st.just(HOSTILE))
def test_names_cannot_break_out(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    raw: dict[str, Any] = {
        "method": "pfml",
        "dataset": "cub200",
        "space": {"weights": [text, "other"], "delta": [0.1, 0.2]},
    }
    points = [{"weights": w, "delta": d} for w in (text, "other") for d in (0.1, 0.2)]
    ledger = made(tmp_path_factory.mktemp("h"), points, lambda p: p["delta"], raw=raw, reason=text, epochs=2)
    findings = Findings.of(ledger)
    html = page(findings)
    raw["space"]["weights"] = ["calm", "other"]
    points = [{**point, "weights": "calm"} if point["weights"] == text else point for point in points]
    calm = made(tmp_path_factory.mktemp("calm"), points, lambda p: p["delta"], raw=raw, reason="calm", epochs=2)
    tags, expected = (
        [tag for tag, found in Elements(one).tags if found.get("class") != "word"]  # of a command, one for each word
        for one in (html, page(Findings.of(calm)))
    )
    assert tags == expected
    for name, figure in figures(html).items():  # plotly reads texts as a little HTML
        assert not re.search(r"<(?!br>|b>|/b>|extra>|/extra>)", json.dumps(figure, ensure_ascii=False)), name
    before, _, code = search_note(findings).partition("**Train the winner again**\n\n")
    before, blocks = re.subn(r"\n(```+)\n[^\n]*\n\1\n", "\n", before)  # the command of the first next step
    assert "<" not in before and "\n```" not in before and blocks <= 1
    fence = code.split("\n")[0]
    assert set(fence) == {"`"} and code.count(fence) == 2 and code.endswith(f"\n{fence}")
    latex = format_of("latex").leaderboard(ledger)
    assert not re.search(r"(?<!\\)[#%_]", latex.replace("% needs", "needs"))


# A browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Findings]:
    """The page of a search with early stops, a failure with a long reason, and final runs."""
    folder, points = tmp_path_factory.mktemp("reviewed"), spread(40)
    order = sorted(range(40), key=lambda n: -bowl(points[n]))
    finals = {f"{order[0]:04d}": [0.41, 0.414], f"{order[1]:04d}": [0.40, 0.399]}
    reason = f"RuntimeError: {'a_very_long_word_' * 12} in method.py, line 7"
    findings = Findings.of(made(folder, points, pruned=lambda n: n % 3 == 1, reason=reason, finals=finals))
    path = folder / "search.html"
    path.write_text(page(findings), encoding="utf-8")
    return path, findings


CUT = """() => [document.documentElement, ...document.querySelectorAll('.table, figure, .answers > div, .command, pre')]
  .filter((part) => part.checkVisibility() && part.scrollWidth > part.clientWidth + 1)
  .map((part) => `${part.tagName} ${part.ariaLabel ?? part.id}: ${part.scrollWidth} in ${part.clientWidth}`)"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("width", [1400, 1000, 390, "print"])
def test_nothing_is_cut(browser: Any, reviewed: tuple[Path, Findings], width: Any) -> None:
    """No column and no card is cut at any width; the leaderboard's values are there, with their columns' heads."""
    tab = browser.new_page(viewport={"width": 900 if width == "print" else width, "height": 900})
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(reviewed[0].as_uri())
    tab.wait_for_function(
        "() => [...document.querySelectorAll('.plot')].every((node) => node.dataset.drawn || !node.checkVisibility())"
    )
    if width == "print":
        tab.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    tab.evaluate("() => document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    tab.wait_for_timeout(200)
    assert tab.evaluate(CUT) == [] and said == []
    stacked = tab.evaluate("() => document.getElementById('leaderboard-table').classList.contains('stacked')")
    assert stacked or width != 390
    assert not stacked or width != 1400
    winner = reviewed[1].winner
    assert winner is not None
    row = dict(
        tab.evaluate(
            "() => [...document.querySelector('#leaderboard-table tbody tr').cells]"
            ".map((cell) => [cell.dataset.label, cell.innerText.trim()])"
        )
    )
    assert row["trial"] == winner.trial_id and row["delta"] == f"{winner.params['delta']:.4g}"
    assert row["time"] == "5 min" and row["validations"] == "10" and "test map_at_r" not in row
    tab.close()


def folded_figures(html: str) -> Iterator[tuple[str, list[str]]]:
    """The title of each group of folded figures, and their names."""
    for part in html.split("<summary>More: ")[1:]:
        depth, end = 1, 0
        for tag in re.finditer(r"<(/?)details", part):
            depth += -1 if tag[1] else 1
            if depth == 0:
                end = tag.start()
                break
        yield part.partition("<")[0], re.findall(r'class="plot" id="([\w-]+)"', part[:end])


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_draws_the_page(tmp_path: Path, dark: bool) -> None:
    points = spread(40)
    order = sorted(range(40), key=lambda n: -bowl(points[n]))
    finals = {f"{order[0]:04d}": [0.41, 0.414], f"{order[1]:04d}": [0.40, 0.399]}
    html = page(Findings.of(made(tmp_path, points, pruned=lambda n: n % 3 == 1, reason=HOSTILE, finals=finals)))
    path = tmp_path / "search.html"
    path.write_text(html, encoding="utf-8")
    theme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    asked = path.as_uri() + ("#distribution" if dark else "")  # an address of something folded unfolds it
    seen = opened(asked, "--dump-dom", *theme, folder=tmp_path)
    assert complaints(seen.stderr) == []
    plots = [found for _, found in Elements(seen.stdout).tags if "data-drawn" in found or found.get("class") == "plot"]
    waiting = [found["id"] for found in plots if found.get("data-drawn") != "yes"]
    folds = [names for title, names in folded_figures(html)]
    unfolded = next(names for names in folds if "distribution" in names)
    folded = [name for names in folds for name in names]
    asleep = {*folded, "map-1", "map-2"} - {*(unfolded if dark else [])}
    assert plots and unfolded and set(waiting) == asleep, "what is folded, and maps that are not chosen, are not drawn"
    assert seen.stdout.count('class="main-svg"') >= len(plots)
    assert HOSTILE in "".join(Elements(seen.stdout).text)
    frame = tmp_path / "frame.html"  # as MLflow shows an artifact
    blob = json.dumps(html).replace("<", "\\u003c")
    script = f'document.querySelector("iframe").src = URL.createObjectURL(new Blob([{blob}], {{type: "text/html"}}))'
    empty = '<iframe sandbox="allow-scripts" width="1280" height="9000"></iframe>'
    frame.write_text(f"{empty}<script>{script}</script>", encoding="utf-8")
    picture, accent, drawn = tmp_path / "frame.png", (121, 184, 255) if dark else (11, 92, 173), 0
    for _ in range(3):  # a busy machine may end the browser's virtual time before the frame is drawn
        seen = opened(frame.as_uri(), f"--screenshot={picture}", *theme, folder=tmp_path)
        assert complaints(seen.stderr) == []
        with Image.open(picture) as image:
            colours = {colour: count for count, colour in image.convert("RGB").getcolors(1 << 24) or []}
        if (drawn := colours.get(accent, 0)) > 2000:
            break
    assert drawn > 2000, "no line and no bar was drawn in the sandboxed frame"


def test_settings_have_labels_and_keep_their_keys(tmp_path: Path) -> None:
    raw = {
        "method": "pfml",
        "dataset": "cub200",
        "space": PFML_SPACE | {"lr": {"low": 1e-4, "high": 1e-2, "log": True}},
    }
    points = [point | {"lr": 10 ** (-4 + n / 20)} for n, point in enumerate(spread(40))]
    html = page(Findings.of(made(tmp_path, points, raw=raw)))
    drawn = figures(html)
    labels = {drawn[f"slice-{place}"]["layout"]["xaxis"]["title"]["text"] for place in range(4)}
    assert {"learning rate (lr)", "decay of the potential (alpha)", "proxies_per_class"} < labels
    axis = drawn["importances"]["layout"]["yaxis"]
    assert dict(zip(axis["tickvals"], axis["ticktext"], strict=True))["lr"] == "learning rate<br>lr"
    coverage = re.findall(r'id="coverage-table".*?</table>', html, re.DOTALL)[0]
    assert "<td>lr</td>" in coverage and "<td>learning rate</td>" in coverage


def test_labels_of_several_methods_must_agree() -> None:
    assert label_of("margin", ["contrastive", "proxy_anchor"]) == "similarity margin"
    assert label_of("alpha", ["pfml", "proxy_anchor"]) == label_of("alpha", ["removed"]) == ""
    assert label_of("epochs", ["pfml"]) == label_of("proxies_per_class", ["pfml"]) == ""


def test_a_look_tells_the_test_and_the_report_is_linked_first(tmp_path: Path) -> None:
    folder = tmp_path / "searches" / "made"
    folder.mkdir(parents=True)
    ledger = made(folder, spread(3), finals={"0001": [0.5, 0.52]})
    winner = ledger.winner()
    assert winner is not None
    for run in ledger.finals.values():
        run.source = winner.trial_id
    found = status(ledger, folder)
    assert found.plain["test"] == {"metric": "map_at_r", "mean": pytest.approx(0.51), "seeds": 2}
    assert "map_at_r 0.5100 over 2 seeds" in "".join(str(line) for line in status_text(found, tmp_path).renderables)
    outcome = Outcome(ledger, "done", folder / "journal.jsonl", "sqlite:///m.db", "7", "parent", None, None, None)
    assert "the report" not in links(outcome, 5000)
    assert not any("tracker" in line for line in closing(outcome, tmp_path, 5000))
    refused = replace(outcome, refused="this server has no /api/x")
    assert "tracker: this server has no /api/x; all else is there" in closing(refused, tmp_path, 5000)
    write_page(Findings.of(ledger), folder / "report" / "search.html")
    first, address = next(iter(links(outcome, 5000).items()))
    assert first == "the report"
    assert address.startswith("http://127.0.0.1:5000/#/experiments/7/runs/parent/artifacts/report/search.html")


def seen_words(html: str) -> int:
    """The words of a page as it opens: without scripts, and without what is folded."""
    body = re.sub(r"<(script|style).*?</\1>", "", html, flags=re.DOTALL)
    opened = re.sub(r"<details(?! open).*?</details>", "", body, flags=re.DOTALL)
    return len(re.sub(r"<[^>]+>", " ", opened).split())


def test_a_page_is_short(tmp_path: Path) -> None:
    """It had 1,881 words for these twelve trials."""
    finals = {"0000": [0.5, 0.6, 0.55], "0005": [0.5, 0.5, 0.4]}
    found = Findings.of(made(tmp_path, spread(12), pruned=lambda number: number % 3 == 1, finals=finals))
    assert seen_words(page(found)) < 940


@pytest.mark.parametrize("trials, kind", [(12, "scatter"), (40, "contour")])
def test_no_contours_are_drawn_from_a_few_points(tmp_path: Path, trials: int, kind: str) -> None:
    drawn = figures(page(Findings.of(made(tmp_path, spread(trials)))))
    first = drawn["map-0"]["data"][0]
    assert first["type"] == kind and (kind == "contour" or len(first["x"]) == len(first["marker"]["color"]) == trials)


def test_no_share_leaves_its_range(tmp_path: Path) -> None:
    drawn = figures(page(Findings.of(made(tmp_path, spread(12)))))["importances"]
    bars, (low, high) = drawn["data"][0], drawn["layout"]["xaxis"]["range"]
    errors = bars["error_x"]
    assert low == 0 and high <= 1
    assert all(share >= down for share, down in zip(bars["x"], errors["arrayminus"], strict=True))
    assert all(share + up <= high for share, up in zip(bars["x"], errors["array"], strict=True))
