"""Samplers of OptunaHub by name: of a registry in OptunaHub's own cache, so that no network is needed."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.driven_studies import TPE, play, search_of, start
from support.recorded import events_of

from orchestrator.config.algorithms import ALGORITHMS
from orchestrator.config.algorithms import hub as hub_samplers
from orchestrator.errors import AlgorithmFailed, InputError
from orchestrator.search.conductor import Conductor
from orchestrator.search.preflight import check_algorithm
from orchestrator.storage.events import TrialStarted
from orchestrator.storage.journal import Journal

DRIFTING = """
import numpy as np
import optuna

class DriftingSampler(optuna.samplers.BaseSampler):
    '''Half of it relative, half independent; what it draws depends on all that it drew and was told before.'''

    def __init__(self, seed=None):
        self.rng, self.drift = np.random.RandomState(seed), 0.0

    def infer_relative_search_space(self, study, trial):
        return {"pfml.delta": optuna.distributions.FloatDistribution(0.1, 0.35)} if trial.number else {}

    def sample_relative(self, study, trial, space):
        return {name: self.draw(one) for name, one in space.items()}

    def sample_independent(self, study, trial, name, one):
        return self.draw(one)

    def draw(self, one):
        self.drift = (self.drift + self.rng.rand()) % 1
        value = one.low + self.drift * (one.high - one.low)
        return one.low + round((value - one.low) / one.step) * one.step if one.step else np.float64(value)

    def after_trial(self, study, trial, state, values):
        self.drift += values[0] if values else 0.01

class Base(DriftingSampler):
    pass

__all__ = ["DriftingSampler"]
"""
FALLING = """
def sample_independent(self, study, trial, name, one):
    if trial.number == 2:
        raise RuntimeError("at the third")
    return self.draw(one)

DriftingSampler.sample_independent = sample_independent
"""
PACKAGES = {
    "drifting": DRIFTING,
    "two": DRIFTING.replace('["Drift', '["Base", "Drift'),
    "demanding": DRIFTING.replace("seed=None", "samplers, *rest, **more"),
    "hollow": "import optuna\n__all__ = ['BaseSampler']\nfrom optuna.samplers import BaseSampler\n",
    "falling": DRIFTING + FALLING,
    "lacking": "import no_such_package\n",
    "broken": "1 / 0\n",
}


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("OPTUNAHUB_CACHE_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "none")  # what is not in the cache is not looked for elsewhere
    root = tmp_path / "hub" / "github.com" / "optuna" / "optunahub-registry"
    for ref in ("main", "v2"):
        for name, code in PACKAGES.items():
            (root / ref / "package" / "samplers" / name).mkdir(parents=True)
            (root / ref / "package" / "samplers" / name / "__init__.py").write_text(code)
    hub_samplers._fetch.cache_clear()
    yield root
    hub_samplers._fetch.cache_clear()


NONE: dict[str, Any] = TPE | {"algorithm": "optunahub/drifting", "scheduler": "none"}
HYPERBAND = {"name": "hyperband", "reduction_factor": 2}
FEW = {"alpha": {"low": 0, "high": 2, "step": 1}, "proxies_per_class": {"low": 1, "high": 3}}
VARIANTS: dict[str, dict[str, Any]] = {
    "none": NONE,
    "asha": NONE | {"scheduler": TPE["scheduler"]},
    "hyperband": NONE | {"scheduler": HYPERBAND},
    "given points": NONE | {"start_from": [{"delta": 0.2, "alpha": 4}, {"delta": 0.3, "alpha": 1}]},
    "repeated points": NONE | {"space": FEW},
    "of a tag": NONE | {"algorithm": "optunahub/two.Base@v2"},
}


def differing(tmp_path: Path, raw: dict[str, Any]) -> list[str]:
    """The trials whose point is another one when the journal is folded at their suggestion."""
    search = search_of(raw)
    play(start(search, tmp_path / "live", slots=3))
    events = events_of(tmp_path / "live" / "journal.jsonl")
    starts = [(at, e) for at, e in enumerate(events) if isinstance(e, TrialStarted) and e.kind == "trial"]
    assert len(starts) == 9
    others = []
    for at, event in starts:
        with Journal(tmp_path / "folded" / event.trial_id / "journal.jsonl") as journal:
            folded = Conductor(search, tmp_path, data=tmp_path, journal=journal, events=events[:at], slots=3)
        if folded.study.ask(event.trial_id, int(event.trial_id)) != event.params:
            others.append(event.trial_id)
    return others


@pytest.mark.parametrize("name", VARIANTS)
def test_a_folded_journal_suggests_what_was_suggested(registry: Path, tmp_path: Path, name: str) -> None:
    assert differing(tmp_path, VARIANTS[name]) == []


def test_a_sampler_made_anew_for_each_suggestion_is_seen(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: as if it kept nothing."""
    kept = {event.params["delta"] for event in suggested(tmp_path / "kept", NONE)}
    assert len(kept) == 9
    monkeypatch.setattr(hub_samplers.HubSampler, "kept", False)
    anew = {event.params["delta"] for event in suggested(tmp_path / "anew", NONE)}
    assert anew != kept


def test_a_sampler_that_is_not_asked_again_for_all_is_seen(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: recorded points are entered, as those of other algorithms are, and repeated ones closed unseen."""
    from orchestrator.search.study import Study

    monkeypatch.setattr(Study, "enter", lambda self, *given: Study._enter(self, *(*given, 0)[:4]))
    assert differing(tmp_path, NONE)


def suggested(folder: Path, raw: dict[str, Any]) -> list[TrialStarted]:
    play(start(search_of(raw), folder))
    events = events_of(folder / "journal.jsonl")
    return [event for event in events if isinstance(event, TrialStarted) and event.kind == "trial"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two", "algorithm: 'optunahub/two' names no sampler of the package: optunahub/two.Base or"),
        ("two.Other", "names no sampler of the package"),
        ("hollow", "it holds none"),
        ("demanding", "algorithm: 'optunahub/demanding' cannot be made by its name: it requires samplers"),
        ("lacking", "cannot be imported: No module named 'no_such_package'"),
        ("broken", "cannot be loaded from OptunaHub: ZeroDivisionError: division by zero"),
        ("missing", "is not in OptunaHub's cache, and its registry at 'main' does not answer"),
        ("drifing", "(did you mean 'drifting'?)"),
    ],
)
def test_what_cannot_be_taken_is_said(registry: Path, name: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        check_algorithm(search_of(NONE | {"algorithm": f"optunahub/{name}"}))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_name_that_the_registry_has_is_suggested(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry that answers is asked for its names, here one on the disk."""
    from git import Repo

    upstream = Repo.init(tmp_path / "upstream", initial_branch="main")
    package = tmp_path / "upstream" / "package" / "samplers" / "auto_sampler"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(DRIFTING)
    upstream.git.add(".")
    upstream.git.execute(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"])
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{tmp_path / 'upstream'}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", hub_samplers.REGISTRY)
    assert check_algorithm(search_of(NONE | {"algorithm": "optunahub/auto_sampler"}))
    with pytest.raises(InputError, match=r"registry at 'main' \(did you mean 'auto_sampler'\?\)"):
        check_algorithm(search_of(NONE | {"algorithm": "optunahub/autosampler"}))


def test_without_optunahub_it_says_what_to_install(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_samplers, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="needs the package optunahub, .*: uv pip install optunahub"):
        check_algorithm(search_of(NONE))


@pytest.mark.parametrize(
    "name", ["optunahub/", "optunahub/a/b", "optunahub/a@", "optunahub/a.", "optunahub/../x", "hub/a"]
)
def test_other_names_are_unknown(name: str) -> None:
    assert name not in ALGORITHMS
    with pytest.raises(InputError, match="is unknown"):
        search_of(NONE | {"algorithm": name})


def test_a_search_goes_on_with_the_same_code_only(registry: Path) -> None:
    search = search_of(NONE)
    tags = check_algorithm(search)
    assert check_algorithm(search, tags["algorithm.digest"]) == tags
    assert check_algorithm(search_of(TPE)) == {}
    shutil.rmtree(registry / "v2")
    (registry / "main" / "package" / "samplers" / "drifting" / "more.py").write_text("a = 1\n")
    with pytest.raises(InputError, match=r"algorithm: 'optunahub/drifting' is not the one this search began with"):
        check_algorithm(search, tags["algorithm.digest"])


def test_a_sampler_that_fails_stops_the_search_and_loses_nothing(registry: Path, tmp_path: Path) -> None:
    conductor = start(search_of(NONE | {"algorithm": "optunahub/falling"}), tmp_path)
    with pytest.raises(AlgorithmFailed, match="'optunahub/falling' failed at a suggestion: RuntimeError: at the third"):
        play(conductor)
    assert [trial.state for trial in conductor.ledger.trials.values()] == ["done", "done"]
