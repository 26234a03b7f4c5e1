"""Grids whose points have several seeds: the best point is the best mean, and noise is not called a difference."""

import csv
import io
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from support.made_pages import Elements, figures, made
from support.point_ledgers import GRID, VALUES, ledger_of, search_of, value_of

from orchestrator.cli.tables import leaderboard
from orchestrator.cli.terminal import Terminal
from orchestrator.config.resolve import resolve_search
from orchestrator.errors import InputError
from orchestrator.report.findings import Findings
from orchestrator.report.formats import format_of
from orchestrator.report.html.search_page import page
from orchestrator.report.next_steps import next_steps
from orchestrator.report.standing import to_confirm
from orchestrator.report.summary import summary


def means() -> dict[str, float]:
    # the last validation of the made curves is not quite their end
    return {name: statistics.fmean(values) for name, values in VALUES.items()}


def test_seeds_are_an_axis_of_each_grid() -> None:
    grid = search_of().space.grid()
    assert len(grid) == 25
    assert [point["seed"] for point in grid[:3]] == [0, 0, 0]  # each point once, then with the next seed
    assert {tuple(sorted(point)) for point in grid} == {("delta", "seed"), ("alpha", "seed")}
    assert sorted({point["seed"] for point in search_of(seed=7).space.grid()}) == [7, 8, 9, 10, 11]
    assert search_of().experiment(grid[-1]).training.seed == 4
    again = resolve_search(search_of().content(), name="grid", source="grid.yaml")
    assert again.space.grid() == grid


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm": "tpe", "num_trials": 9, "space": {"delta": [0.1, 0.2]}}, "give num_trials at least 46"),
        ({"space": {"delta": [0.1], "seed": [0, 1]}}, "the space has seed too"),
        ({"scheduler": "asha"}, "would stop the seeds that do poorly"),
        ({"seed": 2**31 - 3}, r"exceed 2\^31 - 1"),
        ({"seeds": 0}, "seeds: "),
    ],
)
def test_what_seeds_cannot_be_combined_with(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        search_of(**changes)


def test_the_best_point_is_the_best_mean(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path)
    winner = ledger.winner()
    assert winner is not None and winner.params["delta"] == 0.2
    assert max(trial.best or 0 for trial in ledger.trials.values()) > (winner.best or 0)
    found = Findings.of(ledger)
    assert "Best point by the mean over 5 seeds: delta 0.2" in found.verdict[0]
    best = found.points[0].point
    assert best.interval is not None and len(best.values) == 5
    values = [trial.best for trial in ledger.trials.values() if trial.params.get("delta") == 0.2]
    assert best.mean == pytest.approx(statistics.fmean(v for v in values if v is not None))
    assert best.interval.standard_deviation == pytest.approx(statistics.stdev(v for v in values if v is not None))
    assert [placed.name for placed in found.points] == sorted(VALUES, key=lambda name: -means()[name])
    assert to_confirm(ledger, 3) == [ledger.trials[p.point.trial_ids[0]] for p in found.points[:3]]
    assert next_steps(found)[-1].why == "All of its 5 points were tried, each with all its seeds."


def test_points_that_are_alike_are_trained_over_more_seeds(tmp_path: Path) -> None:
    raw = GRID | {"seeds": 3}
    found = Findings.of(made(tmp_path, search_of(seeds=3).space.grid(), value_of, raw=raw))
    assert {placed.answer for placed in found.points[1:]} >= {"no"}
    first, *_ = next_steps(found)
    assert first.command is not None and first.command.startswith("orchestrator search --like made --seeds 5")
    assert first.why.startswith(
        "Over 3 seeds, 3 of the other 4 points cannot be told"
    ) and first.seconds == pytest.approx(5 / 3 * found.seconds)


def test_no_difference_below_the_noise_is_claimed(tmp_path: Path) -> None:
    found = Findings.of(ledger_of(tmp_path))
    told = {placed.name: placed.answer for placed in found.points}
    assert told == {"delta 0.2": "", "delta 0.3": "no", "delta 0.1": "yes", "alpha 1": "yes", "alpha 4": "yes"}
    assert "not so delta 0.3" in found.certainty and "all 10 pairs" in found.certainty
    assert "held-out set" in found.certainty  # differ between the seeds


def test_noise_alone_tells_nothing_apart(tmp_path: Path) -> None:
    noise = itertools.cycle([0.5, 0.52, 0.48, 0.51, 0.49, 0.53, 0.47])
    found = Findings.of(ledger_of(tmp_path, lambda params: next(noise)))
    assert {placed.answer for placed in found.points[1:]} == {"no"}
    assert "None of the other 4 points can be told apart" in found.certainty


def test_a_point_with_fewer_seeds_does_not_lead(tmp_path: Path) -> None:
    """With 21 of 25 trials only delta 0.1 has its fifth seed: its mean is of more than luck."""
    ledger = ledger_of(tmp_path, count=23)
    assert [len(placed.point.values) for placed in Findings.of(ledger).points] == [5, 5, 5, 4, 4]


def test_every_report_has_the_points(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path)
    findings = Findings.of(ledger)
    best = findings.points[0].point
    assert best.interval is not None
    mean, deviation = f"{best.mean:.4f}", f"{best.interval.standard_deviation:.4f}"
    ends = f"{best.interval.low:.4f} to {best.interval.high:.4f}"
    shown = io.StringIO()
    Terminal(width=200, file=shown).print(leaderboard(ledger))
    text = shown.getvalue()
    for form in (text, format_of("markdown").leaderboard(ledger), format_of("latex").leaderboard(ledger)):
        assert mean in form and deviation in form and ends in form and "over 5 seeds" in form
    rows = list(csv.DictReader(io.StringIO(format_of("csv").leaderboard(ledger))))
    assert len(rows) == 25 and rows[0]["delta"] == "0.2" and rows[0]["seeds"] == "5"
    assert float(rows[0]["mean_over_seeds"]) == best.mean
    assert float(rows[0]["mean_low_over_seeds"]) == best.interval.low
    (tmp_path / "searches" / "made").mkdir(parents=True)
    told = json.loads(json.dumps(summary(ledger, tmp_path / "searches" / "made" / "journal.jsonl").plain))
    assert told["points"][0]["params"] == {"delta": 0.2}
    assert told["points"][0]["over_seeds"]["standard_deviation"] == best.interval.standard_deviation
    assert told["points"][1]["best_less_this"]["real"] is False
    html = page(findings)
    assert "mean of val/map_at_r over 5 seeds" in " ".join(Elements(html).text)
    drawn = figures(html)["effect-0"]["data"]
    of_delta = {p.name: p.point.interval for p in findings.points if "delta" in p.point.params}
    bars = [spread.standard_deviation for _, spread in sorted(of_delta.items()) if spread is not None]
    assert drawn[0]["x"] == [0.1, 0.2, 0.3] and drawn[0]["error_y"]["array"] == pytest.approx(bars, rel=1e-4)


def test_a_line_for_each_combination_of_the_others(tmp_path: Path) -> None:
    raw = GRID | {"space": {"delta": [0.1, 0.2], "alpha": [1, 4]}, "seeds": 2}
    grid = resolve_search(raw, name="grid", source="grid.yaml").space.grid()
    ledger = made(tmp_path, grid, lambda p: p["delta"] + 0.01 * p["alpha"] + 0.001 * p["seed"], raw=raw)
    drawn = figures(page(Findings.of(ledger)))
    lines = {trace["name"]: trace["x"] for trace in drawn["effect-0"]["data"]}
    assert lines in ({"alpha 4": [0.1, 0.2], "alpha 1": [0.1, 0.2]}, {"delta 0.2": [1, 4], "delta 0.1": [1, 4]})


def test_repeats_of_one_training_are_no_grid(tmp_path: Path) -> None:
    raw = {key: value for key, value in GRID.items() if key != "seeds"} | {"space": {"seed": [0, 1, 2]}}
    ledger = made(tmp_path, [{"seed": seed} for seed in range(3)], lambda p: 0.5 + 0.01 * p["seed"], raw=raw)
    found = Findings.of(ledger)
    assert not found.points and "Best: trial 0002" in found.verdict[0]
