"""Trials are compared after equally much training: who stands next to the winner, and who has final runs."""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_pages import made as made_page
from support.recorded import begin, events_of, record

from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search
from orchestrator.report.findings import Findings
from orchestrator.report.next_steps import next_steps
from orchestrator.report.standing import compare_trials, standing, to_confirm
from orchestrator.search.conductor import Conductor
from orchestrator.search.final_runs import choose_final_runs
from orchestrator.storage.events import parse
from orchestrator.storage.journal import Journal
from orchestrator.storage.leaderboard import leaderboard_rows
from orchestrator.storage.ledger import Ledger

SEARCH = {
    "method": "pfml",
    "dataset": "glyphs-small",
    "settings": {"epochs": 9},
    "space": {"delta": {"low": 0.1, "high": 0.35}},
    "num_trials": 5,
    "scheduler": {"name": "asha", "grace_validations": 3},
    "final_trials": 3,
}
Curves = Mapping[str, tuple[str, Sequence[float]]]
LUCKY: Curves = {
    "0000": ("done", [0.20, 0.25, 0.30, 0.32, 0.34, 0.36, 0.38, 0.40, 0.42]),  # it came first, and ran on
    "0001": ("pruned", [0.30, 0.35, 0.38]),
    "0002": ("done", [0.33, 0.38, 0.43, 0.45, 0.50, 0.52, 0.55, 0.60, 0.58]),
    "0003": ("pruned", [0.30, 0.36, 0.40]),
    "0004": ("pruned", [0.31, 0.36, 0.39]),
}
"""Three that were stopped at the third validation stood higher there than the first trial, which ran to its end."""


def write(path: Path, curves: Curves, *, finals: Sequence[str] = (), **changes: Any) -> None:
    search = resolve_search({**SEARCH, **changes}, name="s", source="s.yaml")
    with Journal(path) as journal:
        begin(journal, search)
        for number, (trial_id, (state, values)) in enumerate(curves.items()):
            params = {"delta": 0.1 + 0.01 * number}
            config = search.experiment(params).flat()
            record(journal, "trial_started", trial_id=trial_id, params=params, config=config)
            for validation, value in enumerate(values, start=1):
                metrics = {search.objective.metric: value}
                record(
                    journal,
                    "validation",
                    trial_id=trial_id,
                    validation=validation,
                    metrics=metrics,
                    finished=state == "done" and validation == len(values),
                )
            record(journal, "trial_ended", trial_id=trial_id, state=state)
        for source in finals:
            name, params = f"final-{source}-seed-0", {"delta": 0.1 + 0.01 * list(curves).index(source)}
            record(journal, "trial_started", trial_id=name, kind="final", params=params, source=source)
            record(journal, "trial_ended", trial_id=name, state="interrupted")


def made(folder: Path, curves: Curves, **changes: Any) -> Ledger:
    write(folder / "journal.jsonl", curves, **changes)
    return Ledger.of(Journal.read(folder / "journal.jsonl"))


def test_who_ran_on_is_not_second_for_that(tmp_path: Path) -> None:
    ledger = made(tmp_path, LUCKY)
    assert [t.trial_id for t in ledger.candidates()][:2] == ["0002", "0000"]  # by the best value, whatever the age
    assert [t.trial_id for t in standing(ledger)] == ["0002", "0003", "0004", "0001", "0000"]
    assert [t.trial_id for t in to_confirm(ledger, 3)] == ["0002", "0003", "0004"]
    said = Findings.of(ledger).certainty
    assert said.startswith(
        "After 3 validations, where trial 0003 was stopped, it led that one by 0.0300 (0.4300 against 0.4000), with "
        "one seed each: that may be chance."
    )
    rows = {row["trial_id"]: row for row in leaderboard_rows(ledger)}
    assert {key: row["val/map_at_r at 3"] for key, row in rows.items()} == {
        "0000": 0.30, "0001": 0.38, "0002": 0.43, "0003": 0.40, "0004": 0.39
    }  # fmt: skip


def test_a_winner_that_was_behind_when_the_other_was_stopped(tmp_path: Path) -> None:
    curves = {**LUCKY, "0003": ("pruned", [0.30, 0.36, 0.45])}
    said = Findings.of(made(tmp_path, curves)).certainty
    assert said.startswith(
        "After 3 validations, where trial 0003 was stopped, that one led by 0.0200 (0.4500 against 0.4300): it might "
        "have won."
    )


def test_those_that_trained_to_their_end_are_compared_there(tmp_path: Path) -> None:
    """A searched number of epochs is part of the point."""
    curves: Curves = {"0000": ("done", [0.3, 0.4, 0.5]), "0001": ("done", [0.2, 0.3, 0.4, 0.45, 0.6, 0.55])}
    ledger = made(tmp_path, curves)
    pair = compare_trials(ledger, ledger.trials["0000"], ledger.trials["0001"])
    assert (pair.age, pair.one, pair.other) == (None, 0.5, 0.6)
    assert Findings.of(ledger).certainty.startswith("It leads trial 0000 by 0.1000, with one seed each")
    assert not any(" at " in column for row in leaderboard_rows(ledger) for column in row)


def slowly(ledger: Ledger) -> list[str]:
    """Each with each."""
    first, *others = ledger.candidates()
    everyone = [first, *others]

    def losses(trial: Any) -> int:
        pairs = [compare_trials(ledger, trial, other) for other in everyone if other is not trial]
        return sum(ledger.better(pair.other, pair.one) for pair in pairs)

    order = sorted(others, key=lambda t: (losses(t), -len(t.curve), everyone.index(t)))
    return [trial.trial_id for trial in (first, *order)]


values = st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4]), min_size=1, max_size=5)


@given(st.lists(st.tuples(st.sampled_from(["done", "pruned"]), values), min_size=1, max_size=9), st.booleans())
def test_standing_equals_each_compared_with_each(found: list[tuple[str, list[float]]], least: bool) -> None:
    ledger = Ledger(metric="x", mode="min" if least else "max")
    for number, (state, curve) in enumerate(found):
        name = f"{number:04d}"
        ledger.apply(parse({"event": "trial_started", "trial_id": name, "kind": "trial", "params": {}, "time": 0}))
        for at, value in enumerate(curve, start=1):
            event = {"event": "validation", "trial_id": name, "validation": at, "metrics": {"x": value}, "seconds": 0}
            ledger.apply(parse(event))
        ledger.apply(parse({"event": "trial_ended", "trial_id": name, "state": state, "reason": None, "time": 0}))
    assert [trial.trial_id for trial in standing(ledger)] == slowly(ledger)


def conductor_of(folder: Path, **changes: Any) -> Conductor:
    search = resolve_search({**SEARCH, **changes}, name="s", source="s.yaml")
    path = folder / "journal.jsonl"
    return Conductor(search, folder, data=folder, journal=Journal(path), events=events_of(path), slots=3)


def finals(conductor: Conductor) -> dict[str, int | None]:
    """What is given out: the trials that have final runs, and their lengths."""
    given = [work for work in iter(conductor.next, None) if work.trial_id not in conductor.ledger.trials]
    conductor.journal.close()
    return {str(conductor.ledger.find(work.trial_id).source): work.stop_after for work in given}


def test_final_runs_are_of_those_best_at_equal_age_and_as_long_as_the_winner_s(tmp_path: Path) -> None:
    write(tmp_path / "journal.jsonl", LUCKY)
    conductor = conductor_of(tmp_path)
    assert finals(conductor) == {"0002": 8, "0003": 8, "0004": 8}
    notes = [run.note for run in conductor.ledger.finals.values()]
    assert notes[1] == "retrained from trial 0003, which was stopped early, for the winner's 8 validations"
    again = conductor_of(tmp_path)  # it died, and goes on
    assert finals(again) == {"0002": 8, "0003": 8, "0004": 8}


@pytest.mark.parametrize("begun", [["0002"], ["0002", "0000"], ["0002", "0000", "0003"]])
def test_final_runs_that_had_begun_go_on(tmp_path: Path, begun: list[str]) -> None:
    """An older version took the best values, and recorded no lengths."""
    write(tmp_path / "journal.jsonl", LUCKY, finals=begun)
    chosen = finals(conductor_of(tmp_path))
    assert list(chosen)[: len(begun)] == begun and len(chosen) == 3
    lengths = {"0002": 8, "0000": 9, "0003": 3 if "0003" in begun else 8, "0004": 8}
    assert chosen == {source: lengths[source] for source in chosen}


def test_more_trials_are_chosen_from_anew(tmp_path: Path) -> None:
    write(tmp_path / "journal.jsonl", dict(itertools.islice(LUCKY.items(), 4)), finals=["0002", "0000", "0003"])
    ledger = Ledger.of(Journal.read(tmp_path / "journal.jsonl"))
    assert [t.trial_id for t in to_confirm(ledger, 3)] == ["0002", "0000", "0003"]
    ledger.apply(parse({"event": "trial_started", "trial_id": "0004", "kind": "trial", "params": {}, "time": 0}))
    for at, value in enumerate(LUCKY["0004"][1], start=1):
        event = {"event": "validation", "trial_id": "0004", "validation": at, "metrics": {"val/map_at_r": value}}
        ledger.apply(parse(event | {"seconds": 0.0}))
    ledger.apply(parse({"event": "trial_ended", "trial_id": "0004", "state": "pruned", "reason": None, "time": 0}))
    assert [t.trial_id for t in to_confirm(ledger, 3)] == ["0002", "0003", "0004"]


def test_every_table_and_figure_compares_at_one_age(tmp_path: Path) -> None:
    """A trial that ran on stands no higher for that: neither in a table's column, nor where settings are compared."""
    import json
    import re

    from orchestrator.report.formats import format_of
    from orchestrator.report.html.search_page import page
    from orchestrator.report.note import search_note

    ledger = made(tmp_path, LUCKY)
    findings = Findings.of(ledger)
    html = page(findings)
    (found,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', html)
    figures = json.loads(found)
    points = {x: y for trace in figures["slice-0"]["data"] for x, y in zip(trace["x"], trace["y"], strict=True)}
    assert points == pytest.approx({0.1: 0.30, 0.11: 0.38, 0.12: 0.43, 0.13: 0.40, 0.14: 0.39})
    assert sorted(figures["parallel"]["data"][0]["dimensions"][-1]["values"]) == [0.30, 0.38, 0.39, 0.40, 0.43]
    assert figures["slice-0"]["layout"]["yaxis"]["title"]["text"] == "val/map_at_r after 3 validations"
    cell = '<td class="number" data-value="{}">{:.4f}</td>'
    assert cell.format(0.42, 0.42) + cell.format(0.3, 0.3) in re.sub(r">\s+<", "><", html)
    assert "| val/map\\_at\\_r | val/map\\_at\\_r at 3 |" in search_note(findings)
    assert "| 0.4200 | 0.3000 |" in search_note(findings)
    for form, text in (("markdown", "| 0.4200 | 0.3000 |"), ("csv", ",0.42,0.3,"), ("latex", "0.4200 & 0.3000")):
        assert text in format_of(form).leaderboard(ledger)


def test_what_is_confirmed_of_a_search_over_methods(tmp_path: Path) -> None:
    """One of each method, also where a method is far behind; the sentence, the command and the final runs name the same
    trials."""
    space = {"method": ["proxy_anchor", "pfml"], "lr": {"low": 1e-5, "high": 1e-2, "log": True}}
    points = [{"method": space["method"][n % 2], "lr": 10 ** (-2 - n / 8)} for n in range(24)]  # type: ignore[index]
    for apart in (0.05, 0.0):

        def value(point: Mapping[str, Any], apart: float = apart) -> float:
            return 0.4 + (apart if point["method"] == "pfml" else 0.0) - abs(float(point["lr"]) - 1e-3)

        ledger = made_page(tmp_path / str(apart), points, value, raw={"dataset": "cub200", "space": space})
        (step,) = [step for step in next_steps(Findings.of(ledger)) if step.rule == "confirm"]
        count, seeds = re.findall(r"--final-trials (\d) --final-seeds (\d)", step.command or "")[0]
        wanted = {"final_trials": int(count), "final_seeds": int(seeds)}
        runs = choose_final_runs(Search.model_validate(ledger.config | wanted), ledger)
        assert set(re.findall(r"\d{4}", step.what)) == {run.source for run in runs}
        methods = {ledger.trials[run.source or ""].settings["method"] for run in runs}
        assert "the best configuration of each" in step.why and methods == {"proxy_anchor", "pfml"}
        for method in methods:
            best = max(
                (trial.best or 0.0, name) for name, trial in ledger.trials.items() if trial.settings["method"] == method
            )
            assert best[1] in {run.source for run in runs}
