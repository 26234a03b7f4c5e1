"""Every shipped search as a user runs it, but for two trials of one epoch: some on one Ray cluster, the others, whose
trainings are the same there, in this process, most of them without a final run and pages."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.files import read_yaml, shipped_searches
from orchestrator.config.resolve import resolve_search
from orchestrator.execution.inline import InlineRunner
from orchestrator.execution.ray_tune import RayRunner
from orchestrator.search.driver import start
from orchestrator.storage.leaderboard import leaderboard_rows
from orchestrator.storage.places import LEADERBOARD, PAGE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

TRIALS = 2
ON_RAY = ("demo", "ccp_bayesian", "pfml_grid", "method_comparison")
TO_THE_END = (*ON_RAY, "anti_collapse", "hib", "hier", "idml", "pfml")
"""With a final run and pages: some with proxies, with values of single images, with a hierarchy."""


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> Path:
    """One storage folder for all: its MLflow database is made once."""
    folder = tmp_path_factory.mktemp("storage")
    (folder / "data").symlink_to(data_folder)
    return folder


def check_search(space: str, storage: Path, name: str, **settings: Any) -> None:
    path, final = shipped_searches()[space], space in TO_THE_END
    search = resolve_search(
        read_yaml(path),
        name=name,
        source=path.name,
        overrides={"epochs": 1} | settings,
        dataset="glyphs-small",
        num_trials=TRIALS,
        final=None if final else False,
    )
    outcome = start(search, RayRunner() if space in ON_RAY else InlineRunner(), storage=storage)
    ledger = outcome.ledger
    reasons = [trial.reason for trial in ledger.everyone()]
    assert (outcome.state, reasons) == ("done", [None] * (TRIALS + final))
    assert [trial.state for trial in ledger.trials.values()] == ["done"] * TRIALS
    first, second = (trial.params for trial in ledger.trials.values())
    assert first != second
    winner = ledger.winner()
    assert winner is not None and winner.best is not None and 0 < winner.best <= 1
    assert winner.best == max(trial.best or 0 for trial in ledger.trials.values())
    runs = ledger.final_runs_of(winner)
    assert bool(runs) == final
    for run in runs:
        assert run.state == "done" and run.params == winner.params and 0 < run.test["map_at_r"] <= 1
    assert outcome.problem is None, "MLflow has it all"
    assert (outcome.journal.parent / PAGE).exists() == final
    written = (outcome.journal.parent / LEADERBOARD).read_text().splitlines()
    assert len(written) == 1 + len(leaderboard_rows(ledger)) == 1 + TRIALS + final


@pytest.mark.parametrize("space", shipped_searches())
def test_a_shipped_search_ends_with_a_winner_and_its_test(
    space: str, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if space not in TO_THE_END:
        monkeypatch.setattr("orchestrator.search.driver.write_report", lambda *_: None)
    check_search(space, storage, space)


def test_anti_collapse_is_searched_with_language_guidance(storage: Path, data_folder: Path) -> None:
    texts = str(data_folder / "texts.csv")
    check_search("anti_collapse", storage, "guided", guidance_weight=0.1, text_embeddings=texts)
