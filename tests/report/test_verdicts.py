"""Whose test a search reports, and which trial leads: made searches whose truth is known."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from support.made_searches import RAW, MadeSearch, scores
from support.output_schemas import conforms
from support.recorded import record

from orchestrator.cli.states import sorted_states, status_table, status_text
from orchestrator.config.resolve import single_training, with_final_runs
from orchestrator.config.search import Search
from orchestrator.report.comparison import Comparison
from orchestrator.report.comparison import rows as comparison_rows
from orchestrator.report.findings import Findings
from orchestrator.report.formats import format_of
from orchestrator.report.html.search_page import page
from orchestrator.report.leading import final_of
from orchestrator.report.next_steps import RULES, next_steps
from orchestrator.report.note import search_note
from orchestrator.report.standing import to_confirm
from orchestrator.report.status import RunningTrial
from orchestrator.report.steps import ProposedStep
from orchestrator.report.summary import summary
from orchestrator.search.control import status
from orchestrator.search.final_runs import choose_final_runs
from orchestrator.search.notify import end_of_search
from orchestrator.storage.ledger import Ledger
from orchestrator.tracking.projection import Projection, Update

CUB: dict[str, Any] = {**RAW, "dataset": "cub200", "settings": {"backbone": "resnet50", "epochs": 9}}


def another_winner(folder: Path, *, own: bool) -> MadeSearch:
    """A resumed search whose new winner, 0002, tests at 0.77, and the old one, 0000, at 0.41; `own`: whether the new
    winner's final run came to its end."""
    with MadeSearch(folder, CUB) as made:
        made.trial([0.3, 0.5])
        made.trial([0.2, 0.4])
        made.final("0000", 0, scores([0.41])[0], seconds=500.0)
        made.end()
        made.resume()
        made.trial([0.4, 0.8])
        made.final("0002", 0, scores([0.77])[0] if own else None, seconds=20.0)
        made.end("done" if own else "interrupted")
    return made


def headline(html: str) -> str:
    """The page from its first heading to its first section, as text."""
    return re.sub(r"<[^>]*>|\s+", " ", html[html.index("<header>") : html.index("</header>")])


@pytest.mark.parametrize("own", [True, False])
def test_the_winner_s_test_is_its_own_everywhere(tmp_path: Path, own: bool) -> None:
    made = another_winner(tmp_path, own=own)
    ledger = made.ledger
    findings = Findings.of(ledger)
    winner = findings.winner
    assert winner is not None and winner.trial_id == "0002"
    assert findings.test == ({"map_at_r": (0.77, None), "recall_at_1": (0.97, None)} if own else {})
    told = [*findings.verdict, findings.distance, findings.certainty, end_of_search(ledger, "done")["text"]]
    told += [headline(page(findings)), search_note(findings).partition("**Leaderboard**")[0]]
    for text in told:
        assert "0.41" not in text and "41.0" not in text and "0.61" not in text and "61.0" not in text
    if own:
        assert "0.7700" in findings.verdict[1] and "97.0" in findings.distance
    else:
        assert "there is no test to compare with it" in findings.distance
        assert findings.verdict[1].startswith("Not tested yet (the final runs are of 0000)")
    found = status(ledger, tmp_path).test
    assert (found and found.plain) == ({"metric": "map_at_r", "mean": 0.77, "seeds": 1} if own else None)
    whole = summary(ledger, made.path).plain
    assert (whole["final"] or {}).get("metrics", {}) == (
        {"test/map_at_r": 0.77, "test/recall_at_1": 0.97} if own else {}
    )
    assert len(whole["finals"]) == 2, "all of them are listed"


@pytest.mark.parametrize("own", [True, False])
def test_a_comparison_takes_the_winner_s_own_test_and_time(tmp_path: Path, own: bool) -> None:
    compared = Comparison.of("c", {"a": another_winner(tmp_path, own=own).ledger})
    (member,) = compared.members
    assert member.tests == ({0: 0.77} if own else {})
    assert member.training_seconds == 20.0
    (row,) = comparison_rows(compared)[1]
    assert any("0.7700" in cell for cell in row) == own and not any("0.41" in cell for cell in row)
    assert "a has no test of its winner" in " ".join(compared.notes) or own


def test_the_tracker_s_parent_has_no_trial_s_test(tmp_path: Path) -> None:
    """Each run has its own test, and the search itself none."""
    made = another_winner(tmp_path, own=True)
    projection, updates = Projection(), dict[str | None, Update]()
    for event in made.journal.read(made.path):
        projection.take(event, updates)
    tests = {key: [p.value for p in update.points if p.key == "test/map_at_r"] for key, update in updates.items()}
    assert {key: values for key, values in tests.items() if values} == {
        "final-0000-seed-0": [0.41],
        "final-0002-seed-0": [0.77],
    }


def test_seeds_of_two_trials_with_one_point_are_not_mixed(tmp_path: Path) -> None:
    """A search may try a point twice; each trial has its own final runs."""
    with MadeSearch(tmp_path) as made:
        for best in (0.5, 0.6):
            made.trial([best], delta=0.2)
        for source, values in {"0000": [0.1, 0.2], "0001": [0.7, 0.9]}.items():
            for seed, test in enumerate(scores(values)):
                made.final(source, seed, test)
        made.end()
    assert Findings.of(made.ledger).test["map_at_r"][0] == pytest.approx(0.8)


# The headline follows the evidence


def confirmed(folder: Path, chosen: list[float], rival: list[float], **changes: Any) -> MadeSearch:
    """0000 was chosen on held-out classes (0.60 against 0.58 of 0001); both have tests over seeds."""
    with MadeSearch(folder, **changes) as made:
        sign = -1 if made.search.objective.mode == "min" else 1
        made.trial([sign * 0.5, sign * 0.60])
        made.trial([sign * 0.5, sign * 0.58])
        made.trial([sign * 0.3, sign * 0.40])
        for source, values in {"0000": chosen, "0001": rival}.items():
            for seed, test in enumerate(scores(values)):
                made.final(source, seed, test)
        made.end()
    return made


LOW, HIGH = [0.500, 0.502, 0.498, 0.503, 0.499], [0.550, 0.551, 0.547, 0.554, 0.548]


def names_in(command: str | None) -> str:
    return "" if command is None else command


def test_the_tests_favour_another(tmp_path: Path) -> None:
    ledger = confirmed(tmp_path, LOW, HIGH).ledger
    findings = Findings.of(ledger)
    assert findings.winner is ledger.trials["0000"] and findings.leader is ledger.trials["0001"]
    first, second = findings.verdict
    assert first.startswith("Chosen on held-out classes: 0000; the tests favour 0001 by 0.0496 (95%: 0.04")
    assert second.startswith("Test of 0001 on unseen classes: map_at_r 0.5500 ±")
    assert "no longer a test of it" in findings.warnings[0]
    assert "delta=0.11" in names_in(findings.command)
    final = final_of(ledger)
    assert final is not None and final.source == "0001", "the model that is shown and exported"
    (step,) = [step for step in next_steps(findings) if step.rule == "confirm"]
    assert step.what == "Confirm trials 0000 and 0001 over 5 more seeds"
    assert "--final-trials 2 --final-seeds 10" in names_in(step.command)
    html, text = page(findings), search_note(findings)
    for told, first in ((html, "Its own tests chose it."), (text, "the tests favour 0001")):
        assert told.index(first) < told.index("no longer a test of it")
    assert "delta=0.11" in html and "the tests favour 0001" in end_of_search(ledger, "done")["text"]
    assert "favour 0001" in format_of("markdown").leaderboard(ledger)


@pytest.mark.parametrize(
    "chosen, rival", [(HIGH, LOW), (LOW, [0.40, 0.62, 0.43, 0.66, 0.44])], ids=["confirmed", "not told apart"]
)
def test_the_chosen_one_leads_where_the_tests_do_not_favour_another(
    tmp_path: Path, chosen: list[float], rival: list[float]
) -> None:
    ledger = confirmed(tmp_path, chosen, rival).ledger
    findings = Findings.of(ledger)
    assert findings.favoured is None and findings.leader is findings.winner is ledger.trials["0000"]
    assert findings.verdict[0].startswith("Best: trial 0000")
    final = final_of(ledger)
    assert final is not None and final.source == "0000"


# An objective that is a loss


def test_a_loss_is_not_on_held_out_classes_and_its_tests_are_used(tmp_path: Path) -> None:
    loss = {"metric": "train/loss", "mode": "min"}
    with MadeSearch(tmp_path, objective=loss) as made:
        for best in (0.20, 0.25, 0.60):
            made.trial([1.0, best])
        for source, values in {"0000": LOW, "0001": HIGH}.items():
            for seed, test in enumerate(scores(values)):
                made.final(source, seed, test)
        made.end()
    findings = Findings.of(made.ledger)
    html = page(findings)
    assert "held-out classes" not in headline(html).partition("What to run next")[0]
    assert [d.mean for d in findings.differences] == [pytest.approx(-0.0496)]
    assert findings.verdict[0].startswith("Chosen by train/loss: 0000; the tests favour 0001 by 0.0496")
    assert findings.test["map_at_r"][0] == pytest.approx(0.55)
    assert (tested := status(made.ledger, tmp_path).test) is not None and tested.metric == "map_at_r"
    compared = Comparison.of("c", {"a": made.ledger})
    assert compared.metric == "map_at_r" and len(compared.members[0].tests) == 5


# Two objectives


def front_of(folder: Path, trials: int, finals: dict[str, list[float]]) -> Ledger:
    """A front of so many trials: the better MAP@R, the worse recall."""
    with MadeSearch(folder, objectives=["val/map_at_r", "val/recall_at_1"]) as made:
        for number in range(trials):
            made.trial([0.5 + 0.02 * number], beside={"val/recall_at_1": [0.9 - 0.02 * number]})
        made.trial([0.1], beside={"val/recall_at_1": [0.1]})
        for source, values in finals.items():
            for seed, value in enumerate(values):
                made.final(source, seed, {"map_at_r": value, "recall_at_1": 1 - value})
        made.end()
    return made.ledger


@pytest.mark.parametrize("size", [1, 2, 4, 9])
def test_a_front_of_any_size(tmp_path: Path, size: int) -> None:
    said = Findings.of(front_of(tmp_path, size, {})).certainty
    assert said.startswith("Trial 0000 alone is on the front" if size == 1 else f"Of the {size} trials on the front")
    assert "With one seed" in said and ("none" not in said.partition(".")[0] or size > 1)


def test_a_front_is_judged_by_the_tests_of_both_objectives(tmp_path: Path) -> None:
    said = Findings.of(front_of(tmp_path, 3, {"0002": HIGH, "0000": LOW})).certainty
    assert "one seed" not in said
    first, second = (said[said.index(f"Test {name}") :].partition(").")[0] for name in ("map_at_r", "recall_at_1"))
    assert "0002 0.5500 ± 0.0027" in first and "0002 is better than 0000" in first
    assert "0000 0.4996" in second.replace("0.5004", "0.4996") and "0000 is better than 0002" in second


def test_a_cost_has_no_test(tmp_path: Path) -> None:
    with MadeSearch(tmp_path, objectives=["val/map_at_r", "cost/seconds"]) as made:
        made.trial([0.5, 0.6])
        made.trial([0.55])
        for source, values in {"0000": HIGH, "0001": LOW}.items():
            for seed, test in enumerate(scores(values)):
                made.final(source, seed, test)
        made.end()
    said = Findings.of(made.ledger).certainty
    assert "0000 is better than 0001" in said and "No test measures cost/seconds." in said


# What runs stands above what was stopped


def test_a_running_trial_may_stand_above_the_best_that_ended(tmp_path: Path) -> None:
    with MadeSearch(tmp_path) as made:
        made.trial([0.05, 0.0992], "pruned")
        made.trial([0.10, 0.3029], None)
    found = status(made.ledger, tmp_path)
    assert found.best is not None and found.best.trial_id == "0000"
    assert found.so_far == RunningTrial(trial_id="0001", validations=2, best=0.3029)
    printed = io.StringIO()
    Console(file=printed, width=120).print(status_table([found]))
    assert "map@r 0.3029 so far" in printed.getvalue() and "0.0992" not in printed.getvalue()
    assert "Trial 0001, which has not ended, stands at 0.3029" in Findings.of(made.ledger).verdict[0]


def test_programs_get_the_favoured_trial_too(tmp_path: Path) -> None:
    made = confirmed(tmp_path, LOW, HIGH)
    whole = json.loads(json.dumps(summary(made.ledger, made.path).plain))
    conforms("report", whole)
    assert whole["best"]["trial_id"] == "0000"
    assert whole["favoured"]["trial_id"] == "0001" and whole["final"]["trial_id"] == "final-0001-seed-0"


def test_a_grid_over_seeds_has_a_leader_by_tests(tmp_path: Path) -> None:
    grid: dict[str, Any] = {"algorithm": "grid", "seeds": 3, "space": {"delta": [0.1, 0.2]}}
    with MadeSearch(tmp_path, {key: value for key, value in RAW.items() if key != "num_trials"} | grid) as made:
        for delta, value in ((0.1, 0.60), (0.2, 0.58)):
            for seed in range(3):
                point: dict[str, Any] = {"delta": delta, "seed": seed}
                made.trial([value + 0.001 * seed], **point)
        for source, values in {"0002": LOW, "0005": HIGH}.items():
            for seed, test in enumerate(scores(values)):
                made.final(source, seed, test)
        made.end()
    ledger = made.ledger
    findings = Findings.of(ledger)
    assert findings.winner is ledger.trials["0002"] and findings.leader is ledger.trials["0005"]
    assert findings.verdict[0].startswith("Best point by the mean over 3 seeds: delta 0.1, ")
    assert "But the tests favour 0005 by 0.0496" in findings.verdict[0]
    assert findings.verdict[1].startswith("Test of 0005 on unseen classes: map_at_r 0.5500")


# Names and commands


def confirming(steps: list[ProposedStep]) -> tuple[list[str], str]:
    """The trials that the step names, and its command."""
    (step,) = [step for step in steps if step.rule == "confirm"]
    return re.findall(r"\d{4}", step.what), step.command or ""


def trained_by(ledger: Ledger, command: str) -> list[str]:
    """The trials that the command trains again, as `resume` finds them."""
    trials, seeds = (int(re.findall(rf"--final-{what} (\d+)", command)[0]) for what in ("trials", "seeds"))
    search = with_final_runs(Search.model_validate(ledger.config), trials, seeds)
    return list(dict.fromkeys(str(run.source) for run in choose_final_runs(search, ledger)))


course = st.lists(st.sampled_from([0.2, 0.25, 0.3, 0.32, 0.35, 0.4, 0.5]), min_size=1, max_size=6)
trials = st.lists(st.tuples(course, st.sampled_from(["done", "pruned"])), min_size=2, max_size=7)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trials, st.sampled_from([None, 0.01, 0.05, 0.2]), st.integers(0, 3))
def test_a_step_names_what_its_command_trains(
    tmp_path: Path, found: list[tuple[list[float], str]], margin: float | None, tested: int
) -> None:
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    with MadeSearch(folder) as made:
        for curve, state in found:
            ends = None if margin is None else (max(curve) - margin, max(curve) + margin)
            made.trial(curve, state, interval=ends)
        for trial in to_confirm(made.ledger, tested) if tested else []:
            made.final(trial.trial_id, 0, scores([0.5])[0])
        made.end()
    ledger = made.ledger
    steps = list(next(rule for rule in RULES if rule.name == "confirm").find(Findings.of(ledger)))
    if steps:
        named, command = confirming(steps)
        assert named == trained_by(ledger, command)


def test_the_second_best_at_equal_age_is_not_skipped(tmp_path: Path) -> None:
    """0002 is second at equal age, but ran on, and ended below the winner's interval; 0001, third, was stopped."""
    with MadeSearch(tmp_path) as made:
        made.trial([0.30, 0.40, 0.60], interval=(0.52, 0.66))
        made.trial([0.27], "pruned")
        made.trial([0.29, 0.38, 0.50])
        made.end()
    ledger = made.ledger
    named, command = confirming(next_steps(Findings.of(ledger)))
    assert named == ["0000", "0002", "0001"] == trained_by(ledger, command)


def test_the_favoured_trial_s_step_names_what_its_command_trains(tmp_path: Path) -> None:
    ledger = confirmed(tmp_path, LOW, HIGH).ledger
    named, command = confirming(next_steps(Findings.of(ledger)))
    assert named == trained_by(ledger, command)


def trained(folder: Path, values: dict[str, float]) -> MadeSearch:
    """A training without held-out classes: it records its loss, and its test."""
    plain = {"method": "pfml", "dataset": "glyphs-small", "epochs": 2, "validation_share": 0.0}
    with MadeSearch(folder, single_training("made", plain)) as made:
        config = made.search.experiment({}).flat()
        record(made.journal, "trial_started", trial_id="0000", params={}, config=config)
        for at in (1, 2):
            record(made.journal, "validation", trial_id="0000", validation=at, metrics={"train/loss": 1 / at})
        record(made.journal, "result", trial_id="0000", metrics={f"test/{name}": v for name, v in values.items()})
        record(made.journal, "trial_ended", trial_id="0000")
        made.end()
    return made


def test_a_training_without_held_out_classes_is_told_by_its_test(tmp_path: Path) -> None:
    ledger = trained(tmp_path, {"map_at_r": 0.3742, "recall_at_1": 0.7}).ledger
    findings = Findings.of(ledger)
    steps = next_steps(findings)
    assert "failed" not in [step.rule for step in steps] and "confirm" in [step.rule for step in steps]
    told = " ".join(findings.verdict)
    assert "0.3742" in told and "has a result" not in told and "held-out classes," not in told
    assert "learned nothing" not in page(findings)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(status_text(status(ledger, tmp_path), tmp_path))
    shown = console.export_text()
    assert "map_at_r 0.3742" in shown and "None" not in shown
    assert sorted_states([status(ledger, tmp_path)], "best")
    assert (
        search_note(findings)
        and format_of("latex").leaderboard(ledger)
        and summary(ledger, tmp_path / "journal.jsonl").plain
    )
