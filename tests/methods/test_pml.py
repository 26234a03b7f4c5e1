"""The losses of pytorch-metric-learning as methods: the contract, their values, their names, searches over them."""

import contextlib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Pair
from support.command_line import run
from support.driven_studies import drive, search_of, start
from torch import Tensor

import orchestrator as dml
from methods import pml
from orchestrator import contract, plugins
from orchestrator.check import Check, CheckFailed, Subject, verdicts
from orchestrator.check.processes import train_on_two
from orchestrator.check.subject import require_close
from orchestrator.cli.describe import describe_method
from orchestrator.config.files import read_yaml
from orchestrator.errors import InputError
from orchestrator.method import Method, Task, find_method, registry

losses = pytest.importorskip("pytorch_metric_learning.losses")
PAGE = (Path(__file__).parents[2] / "docs" / "losses.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Any loss of pytorch-metric-learning")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^orchestrator (.*)$", SECTION, re.MULTILINE)
LINES = [pytest.param(line, marks=[pytest.mark.slow] * line.startswith("check")) for line in COMMANDS]
PASS = ("Triplet Margin", "Multi Similarity", "Contrastive", "Proxy Anchor", "Sup Con", "Arc Face", "Circle", "NT Xent")
PASSING = [f"pml/{words.replace(' ', '')}Loss" for words in PASS]


@pytest.mark.slow
@pytest.mark.parametrize("name", pml.names())
def test_each_passes_all_checks(name: str) -> None:
    method = find_method(name)
    states = {verdict.name: verdict.state for verdict in verdicts(method)}
    expected = set(pml.EXPECTED.get(method.__name__, {}))
    assert {check for check, state in states.items() if state != "passed"} == expected, states
    assert not (expected and name in PASSING)


@pytest.mark.parametrize("name", PASSING)
def test_two_processes_give_the_result_of_one(name: str, pair: Pair) -> None:
    """With drawn negatives, which both draw alike."""
    drawn = {"miner": "UniformHistogramMiner", "miner_pos_per_bin": 1, "miner_neg_per_bin": 1}
    subject = Subject(find_method(name), drawn)
    one, (two, other) = train_on_two(subject), pair.run(train_on_two, subject)
    require_close(one, two, 1e-9, "on one process, then on two")
    require_close(two, other, 0.0, "on the first of two, then on the second")


TASK = Task(num_classes=6, embedding_dim=8, feature_dim=8)


@contextlib.contextmanager
def _undisturbed(seed: int, device: torch.device) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("check", "part", "wrong"),
    [
        ("global_rng", "_drawing_from", _undisturbed),
        ("zero_embedding", "_detach_zero_rows", lambda rows: rows),
        ("attributes", "LEFT_BEHIND", ()),
        ("attributes", "_keep_tensors", lambda module: None),
    ],
)
def test_what_a_loss_needs_to_pass_is_needed(
    check: str, part: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"LEFT_BEHIND": "pml/ProxyAnchorLoss", "_keep_tensors": "pml/AngularLoss"}.get(part, PASSING[0])
    settings = {"triplets_per_anchor": 2} if name == PASSING[0] else {}
    Check(find_method(name), check, settings)()
    monkeypatch.setattr(pml, part, wrong)
    with pytest.raises(CheckFailed):
        Check(find_method(name), check, settings)()


MARGINS = {"pos_margin": 0.1, "neg_margin": 0.9}
OURS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "pml/TripletMarginLoss": ("triplet", {"margin": 0.2}, {"margin": 0.2, "mining": "all"}),
    "pml/ContrastiveLoss": ("contrastive", MARGINS, MARGINS),
    "pml/MultiSimilarityLoss": ("multi_similarity", {"miner": "MultiSimilarityMiner"}, {}),
    "pml/SupConLoss": ("sup_con", {"temperature": 0.2}, {"temperature": 0.2}),
    "pml/CircleLoss": ("circle", {"m": 0.3, "gamma": 5.0}, {"margin": 0.3, "gamma": 5.0}),
    "pml/FastAPLoss": ("fast_ap", {}, {}),
    "pml/ProxyAnchorLoss": ("proxy_anchor", {"alpha": 16.0}, {"alpha": 16.0}),
    "pml/NormalizedSoftmaxLoss": ("normalized_softmax", {}, {}),
}


def value_and_gradient(name: str, settings: dict[str, Any], proxies: Tensor) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    loss = dml.Loss(name, num_classes=5, embedding_dim=12, **settings).double()
    with torch.no_grad():
        for weight in loss.parameters():
            weight.copy_(proxies if weight.shape == proxies.shape else proxies.T)
    embeddings = torch.randn(20, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    value = loss(embeddings, torch.arange(20) % 5)
    (gradient,) = torch.autograd.grad(value, embeddings)
    return value, gradient


@pytest.mark.parametrize("name", OURS)
def test_it_is_our_method_where_the_definitions_agree(name: str) -> None:
    ours, theirs, settings = OURS[name]
    proxies = torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    value, gradient = value_and_gradient(name, theirs, proxies)
    expected, expected_gradient = value_and_gradient(ours, settings, proxies)
    assert torch.allclose(value, expected, rtol=1e-9) and value > 0
    assert torch.allclose(gradient, expected_gradient, rtol=1e-7, atol=1e-10) and gradient.abs().sum() > 0


def test_arguments_are_hyperparameters_with_their_defaults() -> None:
    for name in pml.names():
        made = pml.build_method(name).Config().model_dump()
        for argument, default in pml._arguments(getattr(losses, name.removeprefix("pml/"))).items():
            assert made[argument] == (None if default == "all" else default)
    values = {"margin": 0.3, "swap": True, "miner": "TripletMarginMiner", "miner_type_of_triplets": "hard"}
    values |= {"distance": "CosineSimilarity", "reducer": "ThresholdReducer", "reducer_low": 0.01}
    kind = find_method(PASSING[0])
    method: Any = kind(kind.Config(**values), TASK)
    assert (method.objective.margin, method.objective.swap, method.objective.triplets_per_anchor) == (0.3, True, "all")
    assert (method.miner.type_of_triplets, method.objective.reducer.low) == ("hard", 0.01)
    assert method.miner.distance is method.objective.distance and method.objective.distance.is_inverted
    idle = method.config.idle()
    assert idle["miner_epsilon"] == ("miner",) and {"miner_margin", "reducer_low"}.isdisjoint(idle)


def test_the_classes_that_share_an_argument_agree_on_it() -> None:
    for part in pml.PARTS:
        defaults: dict[str, Any] = {}
        for kind in pml._classes(part).values():
            for argument, default in pml._arguments(kind).items():
                assert defaults.setdefault(argument, default) == default, (part, argument)


def test_every_loss_of_the_package_is_a_method_or_refused() -> None:
    base = losses.BaseMetricLossFunction
    theirs = {name for name, kind in vars(losses).items() if isinstance(kind, type) and issubclass(kind, base)}
    assert {name.removeprefix("pml/") for name in pml.names()} == theirs - pml.REFUSED.keys() - {base.__name__}
    with pytest.raises(InputError, match=r"^pml/TupletMarginLoss cannot be a method: its gradient is not finite"):
        find_method("pml/TupletMarginLoss")
    with pytest.raises(InputError, match=r"^unknown method 'pml/TripletLoss' \(did you mean 'pml/.*TripleLoss'\?\)"):
        plugins.find_installed("pml/TripletLoss")


def test_parts_that_do_not_fit_are_told_in_a_line() -> None:
    kind = find_method("pml/PNPLoss")
    with pytest.raises(InputError, match=r"^pml/PNPLoss cannot be made with miner: HDCMiner: ValueError: .*not supp"):
        kind(kind.Config.model_validate({"miner": "HDCMiner"}), TASK)
    with pytest.raises(InputError, match="of a similarity pos_margin should be above neg_margin"):
        dml.Loss("pml/ContrastiveLoss", num_classes=2, embedding_dim=4, distance="CosineSimilarity")


def test_a_method_in_place_of_a_search_file_is_told_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    told = run(capsys, "search pml/TripletMarginLoss --dry-run")
    assert told.code == 2 and told.err.count("\n") == 1
    assert "is a method, no search file: orchestrator init --method pml/TripletMarginLoss writes one" in told.err


def test_without_the_package_a_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contract, "find_spec", lambda name: None)
    told = run(capsys, "methods pml/TripletMarginLoss")
    assert told.code == 2 and told.err.count("\n") == 1 and "uv pip install pytorch-metric-learning" in told.err


def test_a_record_says_what_the_methods_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that has not imported them."""
    watched = tmp_path / "file.py"
    watched.write_text("one = 1\n")
    os.utime(watched, (1, 1))
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(plugins, "_watched_files", lambda: {str(watched)})
    own = {name: plugins.find_installed(name) for name in pml.names()}
    plugins._record(own, began=2 * 10**9, what="pml")
    monkeypatch.setattr(plugins, "_is_imported", lambda: False)
    plugins._read_record.cache_clear()
    for name, method in own.items():
        known = plugins.find_installed(name)
        assert known is not method and known.exact and describe_method(known) == describe_method(method)
        assert known.fields().idle() == method.fields().idle()
    watched.write_text("one = 2\n")
    plugins._read_record.cache_clear()
    assert plugins.find_installed(PASSING[0]) is own[PASSING[0]]
    plugins._read_record.cache_clear()


def test_a_search_names_it_and_resumes(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL)
    (tmp_path / "page.yaml").write_text(text, encoding="utf-8")
    raw: dict[str, Any] = dict(read_yaml(tmp_path / "page.yaml"))
    search = search_of(raw | {"settings": raw["settings"] | {"epochs": 6}, "num_trials": 3})
    whole, broken = start(search, _folder(tmp_path / "whole")), start(search, _folder(tmp_path / "broken"))
    drive(whole)
    assert drive(broken, die_after=8) == 8
    resumed = start(search, tmp_path / "broken")
    drive(resumed)
    points = [trial.params for trial in whole.ledger.trials.values()]
    assert len(points) == 3 and {"margin", "miner_epsilon"} == points[0].keys()
    assert [trial.params for trial in resumed.ledger.trials.values()] == points
    assert {trial.settings["method"] for trial in resumed.ledger.trials.values()} == {PASSING[0]}


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("line", LINES)
def test_the_commands_of_the_page_run(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = run(capsys, line)
    assert told.code == 0 and ("miner_epsilon" in told.out or "two_processes: passed" in told.out)
    assert shlex.split(line)[1].startswith("pml/") and len(COMMANDS) == 2


def test_the_registry_is_the_built_in_methods_alone() -> None:
    assert not [name for name in registry() if "/" in name] and issubclass(find_method(PASSING[0]), Method)
