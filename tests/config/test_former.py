"""A search goes on as it began where the default of a hyperparameter has changed since."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.made_runner import OneAtATime
from support.memory_tracking import MemoryTracker

from orchestrator.config.files import read_yaml
from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search, recorded_search
from orchestrator.execution.protocol import TrialSource, Validated
from orchestrator.search.conductor import Conductor
from orchestrator.search.driver import resume, start

FORMER = {"formula": "printed", "beta": 50.0}
NOW = {"formula": "released", "beta": 40.0}


def search(**content: Any) -> Search:
    given = {"dataset": "glyphs-small", "space": {"lr": [1e-3, 1e-2]}, "algorithm": "grid", "final": False} | content
    return resolve_search(given, name="s", source="s.yaml")


def of(experiment: Any) -> dict[str, Any]:
    return {key: getattr(experiment.config, key) for key in NOW}


def before(begun: Search) -> Search:
    """As a version without other defaults recorded it."""
    return recorded_search({key: value for key, value in begun.model_dump().items() if key != "defaults"})


def test_a_search_that_did_not_know_a_hyperparameter_has_its_former_value() -> None:
    begun = search(method="s2sd")
    for one, expected in ((before(begun), FORMER), (recorded_search(begun.model_dump()), NOW)):
        assert of(one.experiment({"lr": 1e-2})) == of(one.example()) == expected
    assert of(before(search(method="s2sd", settings={"formula": "released"})).example()) == NOW


def test_among_several_methods_it_is_that_methods_alone() -> None:
    several = before(search(space={"method": ["proxy_anchor", "s2sd"]}))
    assert of(several.experiment({"method": "s2sd"})) == FORMER
    assert several.experiment({"method": "proxy_anchor"}).method == "proxy_anchor"


class MadeRunner(OneAtATime):
    """Trainings with made results; it ends after the first."""

    def __init__(self) -> None:
        self.settings: list[dict[str, Any]] = []

    def run(self, source: TrialSource) -> None:
        assert isinstance(source, Conductor)
        work = source.next()
        assert work is not None
        self.settings.append(dict(work.experiment.flat()))
        metrics = {"val/map_at_r": 0.5, "epoch": 1.0}
        source.report(Validated(work.trial_id, 1, metrics, 1.0, finished=True))
        source.stopping = True


@pytest.mark.parametrize("earlier", [False, True])
def test_a_resumed_search_trains_what_it_began_with(
    earlier: bool, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.search.driver.MLflowTracker", lambda path, uri, artifacts: MemoryTracker(path))
    (tmp_path / "data").symlink_to(data_folder)
    given = {"epochs": 1, "classes_per_batch": 4, "images_per_class": 2, "device": "cpu"}
    runner = MadeRunner()
    begun = search(method="s2sd", settings=given)
    start(begun, runner, storage=tmp_path)
    kept = read_yaml(tmp_path / "searches" / "s" / "search.yaml")
    assert resolve_search(kept, name="s", source="s.yaml") == begun, "its file is in its folder"
    journal = tmp_path / "searches" / "s" / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    if earlier:  # as a version without it, and without checksums, wrote them
        del lines[0]["config"]["defaults"]
        journal.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "sum"}) + "\n" for line in lines))
    resume("s", runner, storage=tmp_path)
    first, second = ({key: settings[key] for key in NOW} for settings in runner.settings)
    assert first == NOW and second == (FORMER if earlier else NOW)
