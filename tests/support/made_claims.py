"""Claims whose trainings are made: files, journals with a known effect, and their verdicts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.made_searches import MadeSearch
from support.recorded import record

from orchestrator.claims import running
from orchestrator.claims.file import read_claim
from orchestrator.claims.hypothesis import Claim
from orchestrator.claims.running import CLAIM, run_claim
from orchestrator.config.search import Search
from orchestrator.data.catalog import open_dataset
from orchestrator.errors import InputError
from orchestrator.storage.places import Places

SMALL = """\
claim: PFML is better than ProxyAnchor
source: nowhere
kind: superiority
metric: test/map_at_r
smallest_effect: 1
datasets: [glyphs-small]
settings: {epochs: 1}
arms:
  pfml: {settings: {method: pfml}}
  proxy_anchor: {settings: {method: proxy_anchor}}
arm: pfml
than: [proxy_anchor]
seeds: {first: 3, max: 6}
"""
RANKS = """\
claim: recall@1 and MAP@R rank methods alike
source: nowhere
kind: rank_agreement
metric: test/recall_at_1
second_metric: test/map_at_r
smallest_effect: 0.6
datasets: [glyphs-small]
settings: {epochs: 1}
arms:
  pfml: {settings: {method: pfml}}
  proxy_anchor: {settings: {method: proxy_anchor}}
  contrastive: {settings: {method: contrastive}}
  triplet: {settings: {method: triplet}}
seeds: {first: 3, max: 6}
"""
TUNING = "tuning: {num_trials: 2}\nseeds:"


def written(folder: Path, text: str = SMALL, name: str = "small") -> Claim:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return read_claim(path)


def problems_of(folder: Path, text: str) -> Sequence[str]:
    """What is said against a claim's file."""
    with pytest.raises(InputError) as error:
        written(folder, text)
    return error.value.problems


class GrowingRecall(dict[str, float]):
    """A recall that grows with each training."""

    def __init__(self, recall: float) -> None:
        super().__init__(pfml=recall)

    def __getitem__(self, method: str) -> float:
        self[method] = super().__getitem__(method) + 0.01
        return super().__getitem__(method)


class Trainings:
    """Stands in for what trains: writes a journal with a made test for each training, and counts them."""

    def __init__(
        self,
        effect: Mapping[str, float],
        stop_at: int | None = None,
        recall: Mapping[str, float] | None = None,
        late_stop_at: int | None = None,
        tuned: Sequence[float] = (0.1, 0.2),
        retried: bool = False,
    ) -> None:
        self.effect, self.stop_at, self.recall, self.late_stop_at = effect, stop_at, recall or {}, late_stop_at
        self.tuned, self.retried = tuned, retried
        self.names: list[str] = []
        self.recorded: list[bool] = []

    def __call__(self, search: Search, runner: Any, places: Places, *rest: Any) -> Any:
        tags, folder = rest[2], places.search(search.name)
        self.recorded.append((places.storage / "claims").exists() and CLAIM in tags)
        if len(self.names) == self.stop_at:
            ledger = SimpleNamespace(reason="stopped here")
            return SimpleNamespace(state="interrupted", fault=None, ledger=ledger, stopping=True)
        self.names.append(search.name)
        tags = {"dataset.digest": open_dataset(search.dataset, places.data).manifest["digest"]}
        if not search.test_trials:
            return self.search(search, folder, tags)
        seed, method = search.settings["seed"], search.settings["method"]
        chance = np.random.default_rng([seed, len(method)]).normal(0, 0.003) + 0.01 * seed
        folder.mkdir(parents=True)
        with MadeSearch(folder, search, tags) as made:
            test = {"map_at_r": 0.3 + self.effect.get(method, 0.0) + chance}
            test |= {"recall_at_1": 0.5 + self.recall[method]} if self.recall else {}
            made.trial([0.1, 0.2], test=test, seed=seed)
            made.end()
        return SimpleNamespace(state="done", fault=None, stopping=len(self.names) == self.late_stop_at)

    def search(self, search: Search, folder: Path, tags: Mapping[str, str]) -> Any:
        """A tuning search of two trials, the second the better one; without values both fail."""
        folder.mkdir(parents=True)
        with MadeSearch(folder, search, tags) as made:
            for value, delta in zip(self.tuned or (None, None), (0.15, 0.31), strict=True):
                made.trial([] if value is None else [value], "done" if value is not None else "failed", delta=delta)
            if self.retried:
                made.trial([], None, delta=0.2)
                record(made.journal, "trial_ended", trial_id="0002", state="failed", failure="device")
            made.end()
        return SimpleNamespace(state="done", fault=None, stopping=False)


def outcome_of(
    claim: Claim, storage: Path, monkeypatch: pytest.MonkeyPatch, **how: Any
) -> tuple[Trainings, running.Test, list[str]]:
    trainings, lines = Trainings(**how), list[str]()
    monkeypatch.setattr(running, "advance", trainings)
    result = run_claim(claim, storage=storage, tuner=lambda: None, tell=lines.append)  # type: ignore[arg-type, return-value]
    return trainings, result, lines


@pytest.fixture
def storage(tmp_path: Path, data_folder: Path) -> Path:
    """A storage with the data of all tests."""
    storage = tmp_path / "storage"
    storage.mkdir()
    (storage / "data").symlink_to(data_folder)
    return storage
