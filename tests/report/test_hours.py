"""What the hours of a search bought."""

import re
from pathlib import Path

import pytest
from support.made_searches import MadeSearch
from support.recorded import record

from orchestrator.report import hours
from orchestrator.report.findings import Findings
from orchestrator.report.hours import hours_text

HOUR = 3600.0


def text_of(folder: Path, values: list[float], seconds: list[float]) -> str:
    """Of a search whose trials hold half a GPU each."""
    with MadeSearch(folder) as made:
        for number, (value, took) in enumerate(zip(values, seconds, strict=True)):
            name, params = f"{number:04d}", {"delta": 0.1 + 0.01 * number}
            resources = {"CPU": 2.0, "GPU": 0.5}
            config = made.search.experiment(params).flat()
            record(made.journal, "trial_started", trial_id=name, params=params, config=config, resources=resources)
            metrics = {"val/map_at_r": value, "epoch": 1.0}
            record(
                made.journal, "validation", trial_id=name, validation=1, metrics=metrics, seconds=took, finished=True
            )
            record(made.journal, "trial_ended", trial_id=name, state="done", reason=None)
        made.end()
        return hours_text(Findings.of(made.ledger))


def test_halves_are_of_hours_not_of_trials(tmp_path: Path) -> None:
    """Four GPU-hours: the first two ended after three trials, the last trial took two alone."""
    said = text_of(tmp_path, [0.5, 0.4, 0.55, 0.6], [HOUR, HOUR, 2 * HOUR, 4 * HOUR])
    assert said == "Half of its 4 GPU-hours came to 0.5500, the rest added 0.0500."


def test_many_results_say_what_as_many_hours_may_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [0.5 + 0.01 * (number * 7 % 20) for number in range(20)]
    said = text_of(tmp_path / "all", values, [HOUR] * 20)
    assert said.startswith(
        "Half of its 10 GPU-hours came to 0.6600, the rest added 0.0300. 20 more trials of this space "
    )
    assert re.search(r" with a chance of roughly \d0%; they take about 10 GPU-hours\.$", said)
    monkeypatch.setattr(hours, "enough_results", lambda findings: 21)
    assert "more trials" not in text_of(tmp_path / "few", values, [HOUR] * 20)
